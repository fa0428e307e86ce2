// Package server is Stoker's HTTP side: it takes in Alertmanager's webhook, answers
// about incidents and explains them, and tells of its own health.
//
// It decides nothing and keeps no state of its own. What it changes it changes through
// the loop, and it says 200 only when the loop has made it durable. Everything under
// /api and /webhook wants a bearer token; /metrics, /healthz and /readyz do not.
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
	"stoker.dev/stoker/rules"
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
	// Leading reports whether this replica may write. Nil: always.
	Leading func() bool
	// Ready says why the service cannot do its work; nil when it can. Nil: always ready.
	Ready func() error
	// Mode is shown with every explanation.
	Mode string
}

// ingestWithin bounds how long a webhook request waits until it is durable.
// Alertmanager repeats what gets no answer.
const ingestWithin = 10 * time.Second

// Handler returns the routes.
func Handler(log *slog.Logger, reg *prometheus.Registry, w Walker, clock func() time.Time, o Options) http.Handler {
	s := &server{log: log, loop: w, now: clock, opts: o, metrics: newMetrics(reg)}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn), Timeout: 10 * time.Second}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", s.ready)
	mux.Handle("GET /api/v1/incidents", s.authenticated(s.incidents))
	mux.Handle("GET /api/v1/incidents/{name}", s.authenticated(s.incident))
	mux.Handle("GET /api/v1/journal", s.authenticated(s.journal))
	mux.Handle("GET /api/v1/explain/{kind}/{name...}", s.authenticated(s.explain))
	if !o.ReadOnly {
		mux.Handle("POST /webhook/alertmanager", s.authenticated(s.webhook))
	}
	return mux
}

type server struct {
	log     *slog.Logger
	loop    Walker
	now     func() time.Time
	opts    Options
	metrics *metrics
}

// authenticated lets through who bears the token.
func (s *server) authenticated(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
		got, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		a, b := sha256.Sum256([]byte(got)), sha256.Sum256(want)
		if !ok || subtle.ConstantTimeCompare(a[:], b[:]) != 1 {
			w.Header().Set("WWW-Authenticate", `Bearer realm="stoker"`)
			http.Error(w, "a bearer token is needed and this is not it", http.StatusUnauthorized)
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

// webhook takes in what Alertmanager sends: 200 when it is durable, 400 when it cannot
// be understood, 503 when it must be sent again.
func (s *server) webhook(w http.ResponseWriter, r *http.Request) {
	code, text := s.take(r)
	s.metrics.webhook.WithLabelValues(fmt.Sprint(code)).Inc()
	if code == http.StatusOK {
		fmt.Fprintln(w, text)
		return
	}
	if code == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "5")
	}
	http.Error(w, text, code)
}

func (s *server) take(r *http.Request) (int, string) {
	if s.opts.Leading != nil && !s.opts.Leading() {
		return http.StatusServiceUnavailable, "this replica does not lead"
	}
	d, err := rules.DecodeWebhook(r.Body, s.now())
	if err != nil {
		var netErr net.Error
		if r.Context().Err() != nil || errors.As(err, &netErr) {
			return http.StatusServiceUnavailable, "the request was cut off: " + err.Error()
		}
		return http.StatusBadRequest, err.Error()
	}
	for _, err := range d.Unread {
		s.log.Warn("alert ignored", "err", err)
	}
	s.metrics.alerts.WithLabelValues("read").Add(float64(d.Alerts))
	s.metrics.alerts.WithLabelValues("folded").Add(float64(d.Folded))
	s.metrics.alerts.WithLabelValues("ignored").Add(float64(d.Ignored))
	s.metrics.alerts.WithLabelValues("truncated").Add(float64(d.Truncated))
	if d.Cut != 0 {
		s.metrics.alerts.WithLabelValues("cut").Add(float64(max(d.Cut, 1)))
		s.log.Warn("webhook request over its bounds; the rest was left out", "alerts", d.Alerts, "cut", d.Cut)
	}
	ctx, cancel := context.WithTimeoutCause(r.Context(), ingestWithin, errors.New("not durable within its time"))
	defer cancel()
	if err := s.loop.Ingest(ctx, s.now(), d.Evidence); err != nil {
		s.log.Warn("evidence not taken in", "err", err)
		return http.StatusServiceUnavailable, "not durable, send it again: " + err.Error()
	}
	return http.StatusOK, fmt.Sprintf("%d alerts taken in, %d of them told of an event once more", d.Alerts, d.Folded)
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
	text, err := Explain(s.now(), s.loop.Fleet(), s.loop.Incidents(), r.PathValue("kind"), r.PathValue("name"), s.opts.Mode)
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
	webhook *prometheus.CounterVec
	alerts  *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		webhook: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stoker_rules_webhook_requests_total", Help: "Webhook requests, by HTTP status code of the answer.",
		}, []string{"code"}),
		alerts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stoker_rules_webhook_alerts_total", Help: "Alerts in webhook requests: read, folded into another, ignored, cut for our bounds, truncated by Alertmanager.",
		}, []string{"what"}),
	}
	reg.MustRegister(m.webhook, m.alerts)
	return m
}

// Serve answers on l until ctx ends, then lets requests that run finish for at most
// five seconds.
func Serve(ctx context.Context, l net.Listener, h http.Handler) error {
	srv := &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 60 * time.Second, WriteTimeout: 90 * time.Second,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
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
