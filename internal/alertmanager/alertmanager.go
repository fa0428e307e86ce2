// Package alertmanager asks Alertmanager what it knows: the alerts that fire, the
// silences and mutes that people have set, and whether the alert that always fires
// arrives. With it a service that has lost everything knows within one poll what is
// wrong and what is to be left alone.
//
// It decides nothing: alerts become evidence through rules, silences become facts of
// the fleet, and gates read those. The one thing that it changes is Alertmanager's list
// of silences, where it keeps one for each incident that is being worked on.
package alertmanager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/alertmanager/api/v2/models"
	"github.com/prometheus/client_golang/prometheus"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/rules"
)

// Name is what the source is called among the sources of the fleet.
const Name = "alertmanager"

// Options say whom to ask and how often. Zero times mean their defaults.
type Options struct {
	// URLs are the members of one Alertmanager cluster; what any of them knows counts.
	// Empty: nobody is asked, and only the Watchdog that arrives by itself counts.
	URLs []string
	// Authorization returns the header of that name; empty: none. Nil: none.
	Authorization func() (string, error)
	// Receiver is ours in Alertmanager's configuration: what mutes it is respected.
	// Empty: no mute is.
	Receiver string
	// Every is the time from one look at silences to the next, and AlertsEvery the same
	// for alerts and configuration; 5s and 30s when zero.
	Every, AlertsEvery time.Duration
	// Watchdog is how long the alert that always fires may stay away; zero: it is not awaited.
	Watchdog time.Duration
	// Silence says that incidents that are worked on are silenced. See [Source.Keep].
	Silence bool
}

// Bounds of one answer.
const (
	askWithin   = 10 * time.Second
	maxAnswer   = 16 << 20 // bytes of silences, or of the configuration
	maxSilences = 5000     // kept, those first that end last
)

// A Source is one Alertmanager, or a cluster of them. Its methods may be called by any
// goroutine; Run is for one.
type Source struct {
	log       *slog.Logger
	client    *http.Client
	incidents func() []remedy.Incident
	o         Options
	metrics   *metrics
	started   time.Time

	mu       sync.Mutex
	silences []fleet.Silence
	own      map[string][]ownSilence // by incident
	told     time.Time               // of the silences
	routes   routes
	alerts   rules.Delivery // what fires, as it was last listed
	listed   time.Time      // when that was; zero: never
	fresh    bool           // nobody has been given alerts yet
	absent   map[string]int // incident → lists in a row that did not name it
	watchdog time.Time
	failing  map[string]bool // by address, so that a failure is logged once
}

// New returns a source that has asked nothing yet. incidents returns all that there
// are, and may be called at any time.
func New(log *slog.Logger, reg prometheus.Registerer, client *http.Client, incidents func() []remedy.Incident, started time.Time, o Options) *Source {
	o.Every = cmp.Or(o.Every, 5*time.Second)
	o.AlertsEvery = max(cmp.Or(o.AlertsEvery, 30*time.Second), o.Every)
	s := &Source{
		log: log, client: client, incidents: incidents, o: o, started: started,
		own: map[string][]ownSilence{}, absent: map[string]int{}, failing: map[string]bool{},
	}
	s.metrics = newMetrics(reg, func() float64 {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.watchdog.IsZero() {
			return 0
		}
		return float64(s.watchdog.UnixMilli()) / 1000
	})
	return s
}

// Run asks again and again until ctx ends. leads reports whether this replica may
// change anything.
func (s *Source) Run(ctx context.Context, leads func() bool) {
	if len(s.o.URLs) == 0 {
		return
	}
	every := time.NewTicker(s.o.Every)
	defer every.Stop()
	for {
		now := time.Now()
		_ = s.ask(ctx, now) // each member's failure was told, once
		if s.o.Silence && leads() && ctx.Err() == nil {
			if err := s.Keep(ctx, now); err != nil && ctx.Err() == nil {
				s.log.Warn("silences not kept", "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
	}
}

// Refresh asks for everything now, whatever its age, as a new leader must. What was not
// answered is in the error.
func (s *Source) Refresh(ctx context.Context, now time.Time) error {
	if len(s.o.URLs) == 0 {
		return nil
	}
	s.mu.Lock()
	s.listed = time.Time{}
	s.mu.Unlock()
	return s.ask(ctx, now)
}

// ask asks every member for what is due.
func (s *Source) ask(ctx context.Context, now time.Time) error {
	s.mu.Lock()
	listing := now.Sub(s.listed) >= s.o.AlertsEvery || s.listed.IsZero()
	s.mu.Unlock()
	answers := make([]answer, len(s.o.URLs))
	var wg sync.WaitGroup
	for i, url := range s.o.URLs {
		wg.Go(func() { answers[i] = s.askOne(ctx, url, now, listing) })
	}
	wg.Wait()
	var errs []error
	for i, a := range answers {
		if a.err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.o.URLs[i], a.err))
		}
	}
	s.take(ctx, now, answers, listing)
	return errors.Join(errs...)
}

// An answer is what one member said.
type answer struct {
	err      error
	silences []models.GettableSilence
	routes   routes
	alerts   rules.Delivery
	watchdog time.Time // when the alert that always fires was last sent to it
}

func (s *Source) askOne(ctx context.Context, url string, now time.Time, listing bool) (a answer) {
	ctx, cancel := context.WithTimeoutCause(ctx, askWithin, fmt.Errorf("no answer within %v", askWithin))
	defer cancel()
	if a.err = s.getJSON(ctx, url+"/api/v2/silences", &a.silences); a.err != nil || !listing {
		return a
	}
	if s.o.Receiver != "" {
		var status models.AlertmanagerStatus
		if a.err = s.getJSON(ctx, url+"/api/v2/status", &status); a.err != nil {
			return a
		}
		if a.routes, a.err = parseRoutes(status.Config); a.err != nil {
			return a
		}
	}
	own := ownIDs(a.silences)
	a.err = s.get(ctx, url+"/api/v2/alerts?unprocessed=false", func(body io.Reader) error {
		var err error
		a.alerts, err = rules.DecodeAlerts(body, rules.FromAlertmanager, now, func(g models.GettableAlert) bool {
			if g.Labels["alertname"] == rules.Watchdog && g.UpdatedAt != nil {
				if at := time.Time(*g.UpdatedAt); at.After(a.watchdog) {
					a.watchdog = at
				}
			}
			return s.counts(g, own)
		})
		return err
	})
	return a
}

// counts reports whether Alertmanager would tell us of the alert, were it not for a
// silence of our own.
func (s *Source) counts(a models.GettableAlert, own map[string]bool) bool {
	if a.Status != nil {
		if len(a.Status.InhibitedBy) > 0 {
			return false
		}
		for _, id := range a.Status.SilencedBy {
			if !own[id] {
				return false
			}
		}
	}
	if s.o.Receiver == "" {
		return true
	}
	return slices.ContainsFunc(a.Receivers, func(r *models.ReceiverReference) bool {
		return r != nil && r.Name != nil && *r.Name == s.o.Receiver
	})
}

// take puts together what the members said.
func (s *Source) take(ctx context.Context, now time.Time, answers []answer, listing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var good []answer
	for i, a := range answers {
		s.tell(ctx, s.o.URLs[i], a.err)
		if a.err == nil {
			good = append(good, a)
		}
	}
	if len(good) == 0 {
		return
	}
	s.told = now
	s.silences, s.own = nil, map[string][]ownSilence{}
	seen := map[string]bool{}
	for i, a := range good {
		for _, g := range a.silences {
			s.takeSilence(g, seen)
		}
		if !listing {
			continue
		}
		if a.watchdog.After(s.watchdog) {
			s.watchdog = earlier(a.watchdog, now)
		}
		if i == 0 {
			s.routes, s.alerts = a.routes, a.alerts
			continue
		}
		// Correlation folds what two members tell of one alert.
		s.alerts.Evidence = append(s.alerts.Evidence, a.alerts.Evidence...)
		s.alerts.Watchdog = s.alerts.Watchdog || a.alerts.Watchdog
	}
	slices.SortFunc(s.silences, func(a, b fleet.Silence) int {
		return cmp.Or(b.Until.Compare(a.Until), cmp.Compare(a.ID, b.ID))
	})
	if len(s.silences) > maxSilences {
		s.log.Warn("more silences than are kept", "silences", len(s.silences), "kept", maxSilences)
		s.silences = s.silences[:maxSilences]
	}
	if listing {
		s.listed, s.fresh = now, true
		s.countAbsent()
	}
}

// tell logs that a member does not answer, once, and that it does again.
func (s *Source) tell(ctx context.Context, url string, err error) {
	result := "ok"
	if err != nil {
		result = "failed"
	}
	s.metrics.asked.WithLabelValues(result).Inc()
	if (err != nil) == s.failing[url] || ctx.Err() != nil {
		return
	}
	s.failing[url] = err != nil
	if err != nil {
		s.log.Warn("alertmanager does not answer", "address", url, "err", err)
		return
	}
	s.log.Info("alertmanager answers again", "address", url)
}

// Proved notes that the alert that always fires has arrived by itself.
func (s *Source) Proved(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.After(s.watchdog) {
		s.watchdog = now
	}
}

// Path says whether alerts are known to arrive at now.
func (s *Source) Path(now time.Time) (status fleet.Truth, watchdog time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.path(now), s.watchdog
}

func (s *Source) path(now time.Time) fleet.Truth {
	switch {
	case s.o.Watchdog == 0:
		return fleet.Unknown
	case !s.watchdog.IsZero() && now.Sub(s.watchdog) <= s.o.Watchdog:
		return fleet.True
	case s.watchdog.IsZero() && s.listed.IsZero() && now.Sub(s.started) <= s.o.Watchdog:
		return fleet.Unknown // we have just begun to listen
	}
	return fleet.False
}

// Fill tells the fleet of silences, mutes and the path of alerts. It never fails: how
// old the answer is stands in it.
func (s *Source) Fill(_ context.Context, now time.Time, into *fleet.Facts) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	into.Alerts = fleet.Alerting{
		Wanted: len(s.o.URLs) > 0, Told: s.told, Silences: s.silences,
		Routes: s.routes.at(now), Receiver: s.o.Receiver,
		Path: fleet.Condition{Status: s.path(now)}, Watchdog: s.watchdog,
	}
	if !s.told.IsZero() {
		into.Sources[Name] = s.told
	}
	return nil
}

// Evidence returns what fires, each time that it was listed anew, and that incidents
// are over whose alert is not among it any more.
func (s *Source) Evidence(_ context.Context, now time.Time) ([]remedy.Evidence, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.fresh || now.Sub(s.listed) > time.Minute {
		return nil, nil
	}
	s.fresh = false
	return slices.Concat(s.alerts.Evidence, s.over(now)), nil
}

// gone is in how many lists in a row an alert has to be missing: one list may have been
// made while it was on its way.
const gone = 2

// countAbsent counts the lists that did not name what incidents rest on.
func (s *Source) countAbsent() {
	absent := map[string]int{}
	// While alerts do not arrive, that one is missing says nothing.
	if s.alerts.Watchdog && s.alerts.Cut == 0 {
		for _, in := range s.incidents() {
			if rests(in) && !slices.ContainsFunc(s.alerts.Evidence, func(e remedy.Evidence) bool {
				return e.Class == in.Class && !e.Resolved && e.Subject.Same(in.Subject)
			}) {
				absent[in.Name] = s.absent[in.Name] + 1
			}
		}
	}
	s.absent = absent
}

// rests reports whether an incident rests on an alert that still fires, as far as it
// was told: one about a state, of which Alertmanager has told.
func rests(in remedy.Incident) bool {
	return !in.Phase.Closed() && !remedy.Classes[in.Class].Event && slices.ContainsFunc(in.Evidence, fires)
}

func fires(e remedy.Evidence) bool {
	return !e.Resolved && strings.Contains(e.Source, rules.FromAlertmanager)
}

// over says of incidents that their alert does not fire any more: that it is resolved
// may never have been told us.
func (s *Source) over(now time.Time) []remedy.Evidence {
	var out []remedy.Evidence
	for _, in := range s.incidents() {
		if s.absent[in.Name] < gone || !rests(in) {
			continue
		}
		for _, e := range in.Evidence {
			if fires(e) {
				e.Resolved, e.Seen, e.Source = true, now, rules.FromAlertmanager
				out = append(out, e)
			}
		}
	}
	return out
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

type metrics struct{ asked *prometheus.CounterVec }

func newMetrics(reg prometheus.Registerer, watchdog func() float64) *metrics {
	m := &metrics{asked: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "stoker_rules_alertmanager_requests_total", Help: "Rounds of questions to a member of the Alertmanager cluster, by result.",
	}, []string{"result"})}
	reg.MustRegister(m.asked, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "stoker_rules_watchdog_timestamp_seconds", Help: "When the alert that always fires last arrived, in unix seconds; 0: never.",
	}, watchdog))
	return m
}
