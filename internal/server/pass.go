package server

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// passedBy is the header that names the replica which has passed a request on. It is
// passed on once: the next one leads, or nobody is known to.
const passedBy = "Stoker-Passed-On-By"

// passedWithin bounds how long the leader may take to answer: it has that long to make
// durable what it was sent, and a little more.
const passedWithin = ingestWithin + 2*time.Second

var dialer = net.Dialer{Timeout: 2 * time.Second}

// A relay sends requests to the replica that leads.
type relay struct {
	log       *slog.Logger
	opts      Options
	passed    *prometheus.CounterVec
	transport *http.Transport
}

func newRelay(log *slog.Logger, reg prometheus.Registerer, o Options) *relay {
	passed := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "stoker_rules_passed_on_total", Help: "Requests that came to a replica that does not lead: passed on, refused since nobody leads, or not answered by the leader.",
	}, []string{"result"})
	reg.MustRegister(passed)
	return &relay{log: log, opts: o, passed: passed, transport: &http.Transport{
		ResponseHeaderTimeout: passedWithin, DisableKeepAlives: true,
		// A leader is another process with every change: what cannot be reached is known soon.
		DialContext: dialer.DialContext,
	}}
}

// lead lets through what this replica may answer because it leads, and passes on to the
// leader what it may not. Without a leader the answer is 503: send it again.
func (p *relay) lead(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if p.opts.Leading == nil || p.opts.Leading() {
			next(w, r)
			return
		}
		result := "passed"
		defer func() { p.passed.WithLabelValues(result).Inc() }()
		refuse := func(format string, args ...any) {
			result = "no_leader"
			w.Header().Set("Retry-After", "5")
			http.Error(w, fmt.Sprintf(format, args...), http.StatusServiceUnavailable)
		}
		if by := r.Header.Get(passedBy); by != "" {
			refuse("%s has passed this on, and this replica does not lead either", by)
			return
		}
		leader := ""
		if p.opts.Leader != nil {
			leader = p.opts.Leader()
		}
		if leader == "" {
			refuse("this replica does not lead, and no leader is known that can be reached")
			return
		}
		proxy := httputil.ReverseProxy{
			Transport: p.transport,
			Rewrite: func(pr *httputil.ProxyRequest) {
				pr.SetURL(&url.URL{Scheme: "http", Host: leader})
				pr.Out.Header.Set(passedBy, p.opts.Identity)
			},
			ErrorLog: slog.NewLogLogger(p.log.Handler(), slog.LevelDebug),
			ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) {
				p.log.Warn("request not passed on", "leader", leader, "err", err)
				defer func() { result = "failed" }()
				refuse("the leader at %s does not answer: %v", leader, err)
			},
		}
		proxy.ServeHTTP(w, r)
	}
}
