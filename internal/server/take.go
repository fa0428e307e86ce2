package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"stoker.dev/stoker/rules"
)

// ingestWithin bounds how long a request waits until what it brought is durable.
// Who gets no answer sends it again.
const ingestWithin = 10 * time.Second

// answeredBy is the header that names the replica which has taken a request in, by
// whatever way it came to it.
const answeredBy = "Stoker-Replica"

// webhook takes in what Alertmanager sends: 200 when it is durable, 400 when it cannot
// be understood, 503 when it must be sent again.
func (s *server) webhook(w http.ResponseWriter, r *http.Request) {
	begin := s.now()
	d, err := rules.DecodeWebhook(r.Body, begin)
	code, text := s.take(r, d, err)
	s.answered(w, s.metrics.webhook, begin, code, text)
}

// alerts takes in a list of alerts as Alertmanager's API has it, from a collector that
// has just seen something. With a token of its own it may speak for its node only.
func (s *server) alerts(w http.ResponseWriter, r *http.Request) {
	begin := s.now()
	code, text := s.takeAlerts(r, begin)
	s.answered(w, s.metrics.pushed, begin, code, text)
}

func (s *server) takeAlerts(r *http.Request, now time.Time) (int, string) {
	node, whole := speaker(r.Context())
	d, err := rules.DecodeAlerts(r.Body, rules.FromCollector, now, nil)
	if err == nil && !whole {
		for _, e := range d.Evidence {
			if e.Subject.Node != node {
				return http.StatusForbidden, fmt.Sprintf("the collector of node %s may not speak for node %q", node, e.Subject.Node)
			}
		}
	}
	d.Watchdog = false // it proves this path and not that of alerts
	return s.take(r, d, err)
}

// take makes durable what was read.
func (s *server) take(r *http.Request, d rules.Delivery, err error) (int, string) {
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
		s.log.Warn("request over its bounds; the rest was left out", "alerts", d.Alerts, "cut", d.Cut)
	}
	if d.Truncated > 0 {
		s.log.Warn("alertmanager left alerts out of a group", "alerts", d.Alerts, "truncated", d.Truncated)
	}
	ctx, cancel := context.WithTimeoutCause(r.Context(), ingestWithin, errors.New("not durable within its time"))
	defer cancel()
	if err := s.loop.Ingest(ctx, s.now(), d.Evidence); err != nil {
		s.log.Warn("evidence not taken in", "err", err)
		return http.StatusServiceUnavailable, "not durable, send it again: " + err.Error()
	}
	now := s.now()
	for _, e := range d.Evidence {
		if !e.Resolved {
			s.metrics.lag.Observe(max(0, now.Sub(e.At).Seconds()))
		}
	}
	if d.Watchdog && s.opts.Proved != nil {
		s.opts.Proved(now)
	}
	return http.StatusOK, fmt.Sprintf("%d alerts taken in, %d of them told of an event once more", d.Alerts, d.Folded)
}

func (s *server) answered(w http.ResponseWriter, m requests, begin time.Time, code int, text string) {
	m.total.WithLabelValues(fmt.Sprint(code)).Inc()
	m.seconds.Observe(s.now().Sub(begin).Seconds())
	w.Header().Set(answeredBy, s.opts.Identity)
	switch code {
	case http.StatusOK:
		fmt.Fprintln(w, text)
		return
	case http.StatusServiceUnavailable:
		w.Header().Set("Retry-After", "5")
	}
	http.Error(w, text, code)
}

// speaking is for whom the bearer of a token may speak.
type speaking struct{ node string }

type speakingKey struct{}

// speaker returns the node that a request may speak for, or true for the whole fleet.
func speaker(ctx context.Context) (node string, whole bool) {
	as, ok := ctx.Value(speakingKey{}).(speaking)
	return as.node, !ok
}

// ErrNoSuchBearer says that a token is not one that may bring alerts. Its text is shown
// to who bears it.
var ErrNoSuchBearer = errors.New("the token is not valid")

// speaks lets through who bears the service's own token, or one that [Options.Speaks]
// knows.
func (s *server) speaks(next http.HandlerFunc) http.Handler {
	own := s.authenticated(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		// A token of the cluster is a JWT, with two dots; ours need not be asked about.
		if !ok || s.opts.Speaks == nil || strings.Count(token, ".") != 2 {
			own.ServeHTTP(w, r)
			return
		}
		ctx, cancel := context.WithTimeoutCause(r.Context(), ingestWithin, errors.New("the API server does not answer"))
		defer cancel()
		node, err := s.opts.Speaks(ctx, token)
		switch {
		case errors.Is(err, ErrNoSuchBearer):
			w.Header().Set("WWW-Authenticate", `Bearer realm="stoker"`)
			http.Error(w, err.Error(), http.StatusUnauthorized)
		case err != nil:
			s.log.Warn("token not reviewed", "err", err)
			w.Header().Set("Retry-After", "5")
			http.Error(w, "the token cannot be reviewed now, send it again", http.StatusServiceUnavailable)
		default:
			next(w, r.WithContext(context.WithValue(r.Context(), speakingKey{}, speaking{node})))
		}
	})
}

// requests are the metrics of one way in.
type requests struct {
	total   *prometheus.CounterVec
	seconds prometheus.Histogram
}

func newRequests(reg prometheus.Registerer, name, what string) requests {
	r := requests{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stoker_rules_" + name + "_requests_total", Help: what + ", by HTTP status code of the answer.",
		}, []string{"code"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "stoker_rules_" + name + "_seconds", Help: what + ": time from the request to its answer, which is when what it brought is durable.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}),
	}
	reg.MustRegister(r.total, r.seconds)
	return r
}
