// Package server is Stoker's HTTP side: it takes in Alertmanager's webhook, answers
// about incidents and explains them, and tells of its own health.
//
// It decides nothing and keeps no state of its own. What it changes it changes through
// the loop, and it says 200 only when the loop has made it durable. Everything under
// /api and /webhook and the whole console want a token; /metrics, /healthz and /readyz do not.
package server

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/loop"
	"stoker.dev/stoker/internal/remedy"
)

// A Walker is what the server needs of the loop.
type Walker interface {
	Ingest(ctx context.Context, now time.Time, ev []remedy.Evidence) error
	Incidents() []remedy.Incident
	Fleet() fleet.Snapshot
	Journal() []loop.Entry
}

// Options say what the server may do. The zero value serves everything without a
// token, which is for loopback and virtual time only.
type Options struct {
	// TokenFile holds the bearer token for webhook and API. It is read for each
	// request, so that a token that is changed in place is in force at once.
	TokenFile string
	// ReadOnly leaves out the webhook.
	ReadOnly bool
	// Identity is this replica's name, as others are told it.
	Identity string
	// Leading reports whether this replica may write. Nil: always.
	Leading func() bool
	// Leader returns host:port of the replica that leads; empty: none is known, or it
	// cannot be reached. Nil: never known.
	Leader func() string
	// Speaks returns the node for which the bearer of a cluster's token may bring alerts;
	// [ErrNoSuchBearer] when for none. Nil: only the service's own token counts.
	Speaks func(ctx context.Context, token string) (node string, err error)
	// Proved is told that the alert that always fires has arrived. May be nil.
	Proved func(now time.Time)
	// Ready says why the service cannot do its work; nil when it can. Nil: always ready.
	Ready func() error
	// State says what pages and explanations show of the service itself. Nil: nothing is known of it.
	State func(now time.Time) State
}

// Handler returns the routes. What it returns has a method Stop, which ends streams and
// which [Serve] calls.
func Handler(log *slog.Logger, reg *prometheus.Registry, w Walker, clock func() time.Time, o Options) http.Handler {
	s := &server{log: log, loop: w, now: clock, opts: o, metrics: newMetrics(reg)}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn), Timeout: 10 * time.Second}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", s.ready)
	mux.Handle("GET /api/v1/status", s.authenticated(s.status))
	mux.Handle("GET /api/v1/incidents", s.authenticated(s.incidents))
	mux.Handle("GET /api/v1/incidents/{name}", s.authenticated(s.incident))
	mux.Handle("GET /api/v1/journal", s.authenticated(s.journal))
	mux.Handle("GET /api/v1/plan", s.authenticated(s.plan))
	mux.Handle("GET /api/v1/explain/{kind}/{name...}", s.authenticated(s.explain))
	if !o.ReadOnly {
		to := newRelay(log, reg, o)
		mux.Handle("POST /webhook/alertmanager", s.authenticated(to.lead(s.webhook)))
		mux.Handle("POST /api/v2/alerts", s.speaks(to.lead(s.alerts)))
	}
	return &site{Handler: mux, console: newConsole(s, mux)}
}

type server struct {
	log     *slog.Logger
	loop    Walker
	now     func() time.Time
	opts    Options
	metrics *metrics
}

// authenticated lets through who bears the token, or, to read, has it as a password.
func (s *server) authenticated(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		secure(w.Header())
		if s.opts.TokenFile == "" {
			next(w, r)
			return
		}
		want, err := os.ReadFile(s.opts.TokenFile)
		want = []byte(strings.TrimSpace(string(want)))
		if err != nil || len(want) == 0 {
			s.log.Error("token not readable", "err", err)
			http.Error(w, "the service cannot read its own token", http.StatusServiceUnavailable)
			return
		}
		got, ok := credential(r)
		a, b := sha256.Sum256([]byte(got)), sha256.Sum256(want)
		if !ok || subtle.ConstantTimeCompare(a[:], b[:]) != 1 {
			challenge(w, r)
			return
		}
		next(w, r)
	})
}

func (s *server) ready(w http.ResponseWriter, _ *http.Request) {
	if s.opts.Ready != nil {
		if err := s.opts.Ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
	}
	fmt.Fprintln(w, "ok")
}

func (s *server) incidents(w http.ResponseWriter, r *http.Request) {
	all := s.loop.Incidents()
	out := make([]remedy.Incident, 0, len(all))
	state := r.URL.Query().Get("state")
	for _, in := range all {
		if state == "" || state == "open" && !in.Phase.Closed() || state == string(in.Phase) {
			out = append(out, in)
		}
	}
	reply(w, out)
}

func (s *server) incident(w http.ResponseWriter, r *http.Request) {
	for _, in := range s.loop.Incidents() {
		if in.Name == r.PathValue("name") {
			reply(w, in)
			return
		}
	}
	http.Error(w, fmt.Sprintf("there is no incident %q", r.PathValue("name")), http.StatusNotFound)
}

func (s *server) journal(w http.ResponseWriter, _ *http.Request) { reply(w, s.loop.Journal()) }

func (s *server) explain(w http.ResponseWriter, r *http.Request) {
	now := s.now()
	text, err := Explain(now, s.loop.Fleet(), s.loop.Incidents(), r.PathValue("kind"), r.PathValue("name"), s.state(now).Mode)
	switch {
	case errors.Is(err, ErrNotFound):
		http.Error(w, err.Error(), http.StatusNotFound)
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadRequest)
	default:
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprint(w, text)
	}
}

func reply(w http.ResponseWriter, v any) {
	body, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, "%s\n", body)
}

type metrics struct {
	webhook, pushed requests
	alerts          *prometheus.CounterVec
	lag             prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		webhook: newRequests(reg, "webhook", "Requests of Alertmanager's webhook"),
		pushed:  newRequests(reg, "pushed", "Requests of collectors that bring alerts at once"),
		alerts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stoker_rules_webhook_alerts_total", Help: "Alerts that were brought: read, folded into another, ignored, cut for our bounds, truncated by Alertmanager.",
		}, []string{"what"}),
		lag: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "stoker_rules_alert_lag_seconds", Help: "Age of events that were brought, when they are durable.",
			Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 3600},
		}),
	}
	reg.MustRegister(m.alerts, m.lag)
	return m
}

// Serve answers on l until ctx ends, then lets requests that run finish for at most
// five seconds.
func Serve(ctx context.Context, l net.Listener, h http.Handler) error {
	srv := &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 60 * time.Second, WriteTimeout: 90 * time.Second,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
	}
	if s, ok := h.(interface{ Stop() }); ok {
		srv.RegisterOnShutdown(s.Stop)
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	select {
	case err := <-done:
		return fmt.Errorf("serve HTTP: %w", err)
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err := srv.Shutdown(stop)
	if err != nil {
		err = errors.Join(fmt.Errorf("finish HTTP requests: %w", err), srv.Close())
	}
	return errors.Join(err, expected(<-done))
}

// expected drops the error that a server ends with when it was told to.
func expected(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
