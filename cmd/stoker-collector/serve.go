package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/exporter-toolkit/web"

	"stoker.dev/stoker/collector"
	"stoker.dev/stoker/collector/pods"
	"stoker.dev/stoker/collector/push"
	"stoker.dev/stoker/collector/topology"
	"stoker.dev/stoker/internal/fleet"
)

// bootIDFile is where the kernel says which boot this is.
const bootIDFile = "/proc/sys/kernel/random/boot_id"

// Time limits of the server.
const (
	readTimeout  = 5 * time.Second
	writeTimeout = 30 * time.Second
	idleTimeout  = 2 * time.Minute
	stopTimeout  = 3 * time.Second
)

// serve collects and answers until ctx ends. It returns nil after an orderly stop.
func serve(ctx context.Context, s settings, stderr io.Writer) error {
	log := newLogger(s, stderr)
	s.dropin.warn(log)
	node, err := nodeName(s.nodeOf())
	if err != nil {
		return err
	}
	boot := s.bootID
	if boot == "" {
		if boot, err = readBootID(bootIDFile); err != nil {
			log.Warn("boot is not known, counters of an earlier one can't be told apart", "err", err)
		}
	}
	telling := &http.Client{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, IdleConnTimeout: idleTimeout}}
	defer telling.CloseIdleConnections()
	pusher := push.New(log, telling, s.targets())
	configMap, err := s.configMap(log)
	if err != nil {
		return err
	}
	sources, own := s.open(log)
	own = append(own, pusher.AppendPage)
	var c *collector.Collector
	places := topology.New(log, s.hostRoot)
	own = append(own, places.AppendPage)
	lister := pods.New(log, s.dropin.pods, func() pods.Seen {
		return pods.Seen{Node: node, GPUs: places.Name(c.GPUs()), MIG: c.MIG(), Near: places.Near}
	})
	var label func(*fleet.Samples)
	if s.dropin.kubernetes {
		own = append(own, lister.AppendPage)
		if s.dcgm.Compatible {
			label = lister.Label
		}
	}
	own = append(own, appendProcess)
	c, err = collector.New(log, node, sources, collector.Options{
		BootID: boot, Interval: s.interval, Watchdog: s.watchdog, StaleAfter: s.staleAfter, State: s.state,
		Spelling: s.dropin.spell, TextOnly: s.dcgm.Compatible, See: pusher.See, Label: label, Own: func(dst []byte) []byte {
			for _, add := range own {
				dst = add(dst)
			}
			return dst
		},
	})
	if err != nil {
		return err
	}
	listener, err := listen(ctx, s.listen, s.dropin.systemd)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	log.Info("serving", "address", listener.Addr().String(), "node", node, "sources", strings.Join(s.sources, ","))

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		if configMap != nil {
			configMap.Run(ctx)
		}
	}()
	server := &http.Server{
		Handler: c.Handler(), ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	served := make(chan error, 1)
	go func() {
		var err error
		if s.webConfig == "" {
			err = server.Serve(listener)
		} else {
			err = web.Serve(listener, server, &web.FlagConfig{WebConfigFile: &s.webConfig}, log)
		}
		if errors.Is(err, http.ErrServerClosed) {
			served <- nil // by us, below
			return
		}
		cancel(fmt.Errorf("server ended: %w", err))
		served <- err
	}()
	pushed := make(chan struct{})
	go func() { defer close(pushed); pusher.Run(ctx) }()
	placed := make(chan struct{})
	go func() { defer close(placed); places.Run(ctx, node, c.GPUs) }()
	listed := make(chan struct{})
	go func() {
		defer close(listed)
		if s.dropin.kubernetes {
			lister.Run(ctx)
		}
	}()
	if configMap != nil {
		select { // so that the first page has the fields that are wanted
		case <-configMap.First():
		case <-ctx.Done():
		}
	}
	runErr := c.Run(ctx) // returns once ctx has ended, in bounded time
	<-pushed
	<-placed
	<-listed
	<-followed
	log.Info("stopping", "cause", context.Cause(ctx).Error())
	stopping, done := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer done()
	if err := server.Shutdown(stopping); err != nil {
		log.Warn("scrapes were cut off", "err", errors.Join(err, server.Close()))
	}
	if runErr != nil {
		// A driver call that never returns is no reason for a bad exit status: the
		// process goes, and the call with it.
		log.Warn("source did not stop", "err", runErr)
	}
	return <-served
}

// firstSocket is the number of the first file that systemd hands over.
const firstSocket = 3

// listen opens a socket, or takes the first one that systemd has opened for this process.
func listen(ctx context.Context, address string, systemd bool) (net.Listener, error) {
	if !systemd {
		return (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	}
	if os.Getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) || os.Getenv("LISTEN_FDS") == "" || os.Getenv("LISTEN_FDS") == "0" {
		return nil, errors.New("systemd has opened no socket for this process")
	}
	file := os.NewFile(firstSocket, "systemd's socket")
	defer func() { _ = file.Close() }() // the listener has a copy
	return net.FileListener(file)
}

func newLogger(s settings, w io.Writer) *slog.Logger {
	o := &slog.HandlerOptions{Level: s.logLevel}
	if s.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

func nodeName(given string) (string, error) {
	if given != "" {
		return given, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("node's name, give it with --node: %w", err)
	}
	return host, nil
}

// readBootID returns what the kernel says in one short line.
func readBootID(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	id := strings.TrimSpace(string(text))
	if id == "" {
		return "", fmt.Errorf("%s: empty", path)
	}
	return id, nil
}
