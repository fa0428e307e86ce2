package collector

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"stoker.dev/stoker/internal/fleet"
)

// Handler serves /metrics and /healthz, and what dcgm-exporter serves beside its metrics:
// /health, where its chart looks whether the program is to be restarted, and a page with
// links. Nothing waits for a source.
func (c *Collector) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", c.serveMetrics)
	mux.HandleFunc("GET /healthz", c.serveHealth)
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("OK"))
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write([]byte(`<!doctype html><title>stoker-collector</title><a href="metrics">metrics</a> <a href="healthz">health</a>`))
	})
	return mux
}

// serveHealth says 200 while all sources are up, or one of them knows of a GPU whether it
// works; else 503. The body says how each source does, and how many GPUs are known. It is no
// reason to restart the collector: that helps no source.
func (c *Collector) serveHealth(w http.ResponseWriter, _ *http.Request) {
	v, now := c.view.Load(), time.Now()
	body, down := "", 0
	for i := range v.sources {
		s := &v.sources[i]
		down++
		switch {
		case !s.tried:
			body += fmt.Sprintf("%s: not read yet\n", s.name)
		case s.err != nil:
			body += fmt.Sprintf("%s: down: %s\n", s.name, strings.ReplaceAll(s.err.Error(), "\n", "; "))
		case !v.fresh(s.success, now):
			body += fmt.Sprintf("%s: down: last read at %s\n", s.name, s.success.UTC().Format(time.RFC3339))
		default:
			down--
			body += fmt.Sprintf("%s: up\n", s.name)
		}
	}
	count := map[fleet.Truth]int{}
	for i := range v.gpus {
		count[v.up(&v.gpus[i], now)]++
	}
	body += fmt.Sprintf("GPUs: %d up, %d lost, %d not known\n", count[fleet.True], count[fleet.False], count[fleet.Unknown])
	status := http.StatusOK
	if down == len(v.sources) || down > 0 && count[fleet.True]+count[fleet.False] == 0 {
		status = http.StatusServiceUnavailable
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body))
}
