package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"reflect"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/prometheus/model/labels"
	"golang.org/x/sync/errgroup"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/internal/alertmanager"
	"stoker.dev/stoker/internal/config"
	"stoker.dev/stoker/internal/kube"
	"stoker.dev/stoker/internal/loop"
	"stoker.dev/stoker/internal/observe"
	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/internal/series"
	"stoker.dev/stoker/internal/server"
	"stoker.dev/stoker/internal/store"
	"stoker.dev/stoker/rules/alerts"
)

// ControllerOptions are what the command line says; the rest is configuration.
type ControllerOptions struct {
	ConfigFile string // empty: the shipped configuration
	Kubeconfig string // empty: the account of the pod that we run in
	Namespace  string // ours: incidents, lease, repairs
	Listen     string // instead of the configuration's, if not empty
	Identity   string // of this replica; empty: made from host name and process
	Advertise  string // host:port at which the other replicas reach this one; empty: $POD_IP, else what is listened on
	Listening  func(net.Addr)
}

// Controller runs the service on Kubernetes until ctx ends. A mistake in the
// configuration is the error of [ReadConfig].
func Controller(ctx context.Context, log *slog.Logger, o ControllerOptions) error {
	cfg, lcfg, err := ReadConfig(o.ConfigFile)
	if err != nil {
		return err
	}
	if o.Listen == "" {
		o.Listen = cfg.Server.Listen
	}
	if cfg.Server.TokenFile == "" {
		return config.Errors{{File: o.ConfigFile, Path: "server.tokenFile", Text: "is missing: webhook and API need a token"}}
	}
	if o.Identity == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("identity: %w", err)
		}
		o.Identity = fmt.Sprintf("%s-%d-%d", host, os.Getpid(), time.Now().UnixNano())
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	defer func() { _ = listener.Close() }() // where nobody came to serve on it
	o.Identity = identityAt(o.Identity, advertised(o.Advertise, listener.Addr(), os.Getenv("POD_IP")))
	s := &service{log: log, opts: o, cfg: cfg, loopConfig: lcfg, reg: prometheus.NewRegistry(), listener: listener}
	s.reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if err := s.build(); err != nil {
		return err
	}
	defer s.close()
	return s.run(ctx)
}

// clusterMaxAge is after which silence of the cluster's watches nothing is decided any
// more. A quiet cluster proves itself alive every 15 seconds.
const clusterMaxAge = time.Minute

// A service is what one replica consists of.
type service struct {
	log        *slog.Logger
	opts       ControllerOptions
	cfg        Config
	loopConfig loop.Config
	reg        *prometheus.Registry

	client    *kube.Client
	cache     *kube.Cache
	election  *kube.Election // nil in a dry run: what writes nothing needs no leader
	events    *kube.Events   // nil in a dry run
	telemetry *telemetry     // nil when nothing is scraped
	door      *door
	cluster   *kube.Cluster
	failures  *failures
	loop      *loop.Loop
	alerting  *alertmanager.Source
	asking    *http.Client // for Alertmanager
	listener  net.Listener
	mode      atomic.Pointer[actuator.Mode] // in force; nil before the first change
}

func (s *service) dryRun() bool { return s.cfg.Mode == actuator.ModeDryRun }

func (s *service) build() error {
	rest, err := kube.Config(s.opts.Kubeconfig, "stoker/"+s.opts.Identity)
	if err != nil {
		return err
	}
	if s.client, err = kube.NewClient(rest); err != nil {
		return err
	}
	repairs, err := templates(s.cfg.Repairs)
	if err != nil {
		return err
	}
	s.cluster = kube.NewCluster(s.log, s.client, kube.ClusterOptions{Namespace: s.opts.Namespace, Repairs: repairs})
	act, err := actuator.New(s.log, s.cluster, actuator.Actions, actuator.Gates(s.cfg.Mode, s.cfg.Gates), s.reg)
	if err != nil {
		return err
	}
	var incidents loop.Store = &store.Memory{}
	var announce announcer
	if !s.dryRun() {
		incidents = store.NewResource(s.client, s.opts.Namespace)
		if s.events, err = kube.NewEvents(s.log, rest); err != nil {
			return err
		}
		announce = s.events
		s.election, err = kube.NewElection(s.log, rest, kube.ElectionOptions{
			Namespace: s.opts.Namespace, Name: "stoker", Identity: s.opts.Identity,
			Valid: time.Duration(s.cfg.LeaderElection.Lease), Renewed: time.Duration(s.cfg.LeaderElection.Renew), Tried: time.Duration(s.cfg.LeaderElection.Retry),
		})
		if err != nil {
			return err
		}
	}
	s.door = newDoor(act, announce)

	s.cache = kube.NewCache(s.log, s.client, s.cluster.Observers()...)
	sources := []observe.Source{{Name: observe.Cluster, Filler: s.cache, Needed: true, MaxAge: clusterMaxAge}}
	s.asking = &http.Client{Transport: &http.Transport{IdleConnTimeout: time.Minute, Proxy: http.ProxyFromEnvironment}}
	am := s.cfg.Alertmanager
	s.alerting = alertmanager.New(s.log, s.reg, s.asking, func() []remedy.Incident { return s.loop.Incidents() }, time.Now(), alertmanager.Options{
		URLs: am.URLs, Authorization: bearerOf(am.TokenFile), Receiver: am.Receiver,
		Every: time.Duration(am.Every), AlertsEvery: time.Duration(am.AlertsEvery), Watchdog: am.watchdog(), Silence: am.Silence && !s.dryRun(),
	})
	sources = append(sources, observe.Source{Name: alertmanager.Name, Filler: s.alerting})
	witnesses := []loop.Witness{s.alerting}
	if len(s.cfg.Telemetry.Scrape) > 0 {
		s.telemetry, err = newTelemetry(s.log, s.reg, "", alerts.Files(), time.Duration(s.cfg.Telemetry.Every))
		if err != nil {
			return err
		}
		client := &http.Client{Timeout: min(10*time.Second, max(time.Second, time.Duration(s.cfg.Telemetry.Every)))}
		for _, t := range s.cfg.Telemetry.Scrape {
			if err := s.telemetry.add(t.URL, httpPage(client, t.URL), labels.Label{Name: "instance", Value: t.URL}); err != nil {
				return err
			}
		}
		sources = append(sources,
			observe.Source{Name: "telemetry", Filler: s.telemetry},
			observe.Source{Name: series.UsageSource, Filler: series.NewUsage(s.telemetry.db)}) // for the plan that is shown
		witnesses = append(witnesses, s.telemetry)
	}
	world := observe.NewWorld(s.log, sources...)
	s.failures = newFailures(world, s.loopConfig.Playbooks.MaxAge, s.cfg.Failures.Logs, s.cluster)
	witnesses = append(witnesses, s.failures)
	s.loop = loop.New(s.log, s.reg, incidents, world, witnesses, s.door, s.loopConfig, loop.Options{})
	return nil
}

// templates reads the templates of repairs.
func templates(cfg RepairsConfig) (kube.Templates, error) {
	given := map[string][]byte{}
	for action, c := range map[string]RepairConfig{"reboot": cfg.Reboot, "reset": cfg.Reset} {
		if c.Template == "" {
			continue
		}
		b, err := os.ReadFile(c.Template)
		if err != nil {
			return nil, fmt.Errorf("configuration: repairs.%s.template: %w", action, err)
		}
		given[action] = b
	}
	out, err := kube.ParseTemplates(given)
	if err != nil {
		return nil, fmt.Errorf("configuration: repairs: %w", err)
	}
	return out, nil
}

func (s *service) close() {
	if s.events != nil {
		s.events.Close()
	}
	if s.telemetry != nil {
		if err := s.telemetry.close(); err != nil {
			s.log.Warn("series not closed", "err", err)
		}
	}
	s.asking.CloseIdleConnections()
	s.client.Close()
}

// run is everything that goes on at once. The first that fails ends the others.
func (s *service) run(ctx context.Context) error {
	s.log.Info("listening", "address", s.listener.Addr().String(), "mode", string(s.cfg.Mode), "identity", s.opts.Identity)
	if s.opts.Listening != nil {
		s.opts.Listening(s.listener.Addr())
	}
	leads := func() bool { return true }
	if s.election != nil {
		leads = s.election.Leads
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		o := server.Options{
			TokenFile: s.cfg.Server.TokenFile, State: s.state, Leading: leads, Ready: s.ready,
			Identity: s.opts.Identity, Proved: s.alerting.Proved,
		}
		if s.election != nil {
			o.Leader = func() string { return addressOf(s.election.Leader()) }
		}
		if s.cfg.Server.Collectors.ServiceAccount != "" {
			o.Speaks = newBearers(s.client, s.cfg.Server.Collectors).speaks
		}
		return server.Serve(ctx, s.listener, server.Handler(s.log, s.reg, s.loop, time.Now, o))
	})
	g.Go(func() error { s.alerting.Run(ctx, leads); return nil })
	g.Go(func() error { s.cache.Run(ctx); return nil })
	g.Go(func() error { return s.reload(ctx) })
	if s.telemetry != nil {
		g.Go(func() error { return s.scrape(ctx) })
	}
	g.Go(func() error {
		if s.election == nil {
			return s.lead(ctx)
		}
		return s.election.Run(ctx, s.lead)
	})
	if s.election != nil {
		g.Go(func() error { return s.follow(ctx) })
	}
	return g.Wait()
}

// lead walks the ladders while this replica leads.
func (s *service) lead(ctx context.Context) error {
	s.log.Info("leading", "identity", s.opts.Identity)
	s.loop.Forget() // what this replica remembers may be another's history by now
	if err := s.cache.WaitSynced(ctx); err != nil {
		return nil //nolint:nilerr // it ends only with ctx
	}
	if err := s.alerting.Refresh(ctx, time.Now()); err != nil && ctx.Err() == nil {
		s.log.Warn("what fires is not known yet", "err", err) // it is asked again, and gates wait for it
	}
	return s.loop.Run(ctx, time.Duration(s.cfg.Every), time.Now)
}

// lookEvery is how often a replica that does not lead brings its answers up to date.
const lookEvery = 2 * time.Second

// follow keeps the answers of a replica that does not lead up to date.
func (s *service) follow(ctx context.Context) error {
	every := time.NewTicker(lookEvery)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-every.C:
		}
		if s.election.Leads() {
			continue
		}
		if err := s.loop.Look(ctx, time.Now()); err != nil {
			s.log.Debug("answers not brought up to date", "err", err)
		}
	}
}

func (s *service) ready() error {
	if f := s.loop.Fleet(); f.At.IsZero() && (s.election == nil || s.election.Leads()) {
		return errors.New("the fleet has not been observed yet")
	}
	if s.election != nil && s.election.Leader() == "" {
		return errors.New("no replica leads")
	}
	return nil
}

func (s *service) scrape(ctx context.Context) error {
	every := time.NewTicker(time.Duration(s.cfg.Telemetry.Every))
	defer every.Stop()
	for {
		s.telemetry.scrape(ctx, time.Now(), scrapeLimit)
		select {
		case <-ctx.Done():
			return nil
		case <-every.C:
		}
	}
}

// reloadEvery is how often the configuration file is looked at. Kubernetes replaces
// mounted files by links, which no watch of the file itself survives.
const reloadEvery = 2 * time.Second

// reload puts a changed configuration in force, and with it changed templates of repairs.
// One with a mistake is told once, and what is in force stays.
func (s *service) reload(ctx context.Context) error {
	if s.opts.ConfigFile == "" {
		return nil
	}
	last, err := s.written(s.cfg)
	if err != nil {
		s.log.Warn("configuration not readable", "err", err)
	}
	inForce := s.cfg
	every := time.NewTicker(reloadEvery)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-every.C:
		}
		now, err := s.written(inForce)
		if err != nil || now == last {
			continue // a file that is being replaced is not there for a moment
		}
		last = now
		cfg, err := s.take()
		if err != nil {
			s.log.Error("configuration not taken; the one in force stays", "err", err)
			continue
		}
		inForce = cfg // where it names other templates, they are seen as changed once more
	}
}

// written is what the configuration file says, and the files that cfg names.
func (s *service) written(cfg Config) (string, error) {
	var all strings.Builder
	for _, name := range []string{s.opts.ConfigFile, cfg.Repairs.Reboot.Template, cfg.Repairs.Reset.Template} {
		if name == "" {
			continue
		}
		b, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&all, "%d:%s", len(b), b)
	}
	return all.String(), nil
}

// take reads the configuration and puts all of it in force that can be without a restart.
func (s *service) take() (Config, error) {
	cfg, lcfg, err := ReadConfig(s.opts.ConfigFile)
	if err != nil {
		return cfg, err
	}
	if (cfg.Mode == actuator.ModeDryRun) != s.dryRun() {
		return cfg, errors.New("into or out of mode dry-run takes a restart: a dry run has no leader and keeps its incidents in memory")
	}
	repairs, err := templates(cfg.Repairs)
	if err != nil {
		return cfg, err
	}
	s.door.gates(actuator.Gates(cfg.Mode, cfg.Gates))
	s.loop.Configure(lcfg)
	s.failures.maxAge.Store(int64(lcfg.Playbooks.MaxAge))
	s.cluster.SetRepairs(repairs)
	s.mode.Store(&cfg.Mode)
	if later := restarts(s.cfg, cfg); len(later) > 0 {
		s.log.Warn("part of the configuration takes a restart", "sections", strings.Join(later, ", "))
	}
	s.log.Info("configuration taken", "mode", string(cfg.Mode), "playbooks", len(lcfg.Playbooks.List))
	return cfg, nil
}

// restarts names the sections that differ and are only read at the start.
func restarts(was, now Config) []string {
	var out []string
	for _, section := range []struct {
		name     string
		was, now any
	}{
		{"server", was.Server, now.Server},
		{"telemetry", was.Telemetry, now.Telemetry},
		{"alertmanager", was.Alertmanager, now.Alertmanager},
		{"leaderElection", was.LeaderElection, now.LeaderElection},
		{"failures", was.Failures, now.Failures},
		{"every", was.Every, now.Every},
	} {
		if !reflect.DeepEqual(section.was, section.now) {
			out = append(out, section.name)
		}
	}
	return out
}
