// Command gallery serves the console on made-up states, to be looked at by people and by
// the browser test: one state below each path of /, on loopback, until its input ends. It
// is no part of the service and shows nothing real.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"stoker.dev/stoker/internal/server"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "loopback address")
	flag.Parse()
	if err := run(*listen, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gallery:", err)
		os.Exit(1)
	}
}

// run serves until in ends. The first line that it writes is the address.
func run(listen string, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	mux := http.NewServeMux()
	h := hall{ServeMux: mux}
	for name, s := range scenes {
		room := server.Handler(slog.New(slog.DiscardHandler), prometheus.NewRegistry(), s, time.Now, server.Options{ReadOnly: true, State: s.State})
		mux.Handle("/"+name+"/", http.StripPrefix("/"+name, room))
		h.stops = append(h.stops, room.(interface{ Stop() }).Stop)
	}
	fmt.Fprintf(out, "http://%s/\n", l.Addr())
	return server.Serve(ctx, l, h)
}

// A hall is all scenes.
type hall struct {
	*http.ServeMux

	stops []func()
}

// Stop ends the streams of all scenes.
func (h hall) Stop() {
	for _, stop := range h.stops {
		stop()
	}
}
