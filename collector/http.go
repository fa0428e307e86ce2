package collector

import (
	"fmt"
	"net/http"
	"time"
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

// serveHealth says 200 while at least one source tells of the node, else 503, and
// in the body how each source does. It is no reason to restart the collector: that
// helps no source.
func (c *Collector) serveHealth(w http.ResponseWriter, _ *http.Request) {
	v, now := c.view.Load(), time.Now()
	status, body := http.StatusServiceUnavailable, ""
	for i := range v.sources {
		s := &v.sources[i]
		switch {
		case !s.tried:
			body += fmt.Sprintf("%s: not read yet\n", s.name)
		case s.err != nil:
			body += fmt.Sprintf("%s: down: %v\n", s.name, s.err)
		case !v.fresh(s.success, now):
			body += fmt.Sprintf("%s: down: last read at %s\n", s.name, s.success.UTC().Format(time.RFC3339))
		default:
			status = http.StatusOK
			body += fmt.Sprintf("%s: up\n", s.name)
		}
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body))
}
