package actuator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// startWithin bounds one Start, all of its calls together. What has not answered by
// then is unclear, and looked up when the order is started again.
const startWithin = 30 * time.Second

// An Actuator is the one door: it has every action and asks every gate. It keeps no
// state but its counters, and may be used by several goroutines at once.
type Actuator struct {
	log     *slog.Logger
	specs   Specs
	actions map[string]Action
	gates   []Gate
	metrics *metrics
}

// New makes an actuator of the actions in specs that acts on the cluster when the
// gates let it.
func New(log *slog.Logger, cluster Cluster, specs Specs, gates []Gate, reg prometheus.Registerer) (*Actuator, error) {
	a := &Actuator{log: log, specs: specs, actions: make(map[string]Action, len(specs)), gates: gates, metrics: newMetrics()}
	for _, s := range specs {
		if _, twice := a.actions[s.Info.Name]; twice {
			return nil, fmt.Errorf("action %s is listed twice", s.Info.Name)
		}
		a.actions[s.Info.Name] = s.New(Deps{Cluster: cluster})
	}
	if err := errors.Join(reg.Register(a.metrics.orders), reg.Register(a.metrics.seconds)); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return a, nil
}

// WithGates returns an actuator that asks other gates, as after a change of
// configuration, and is otherwise the same.
func (a *Actuator) WithGates(gates []Gate) *Actuator {
	b := *a
	b.gates = gates
	return &b
}

// Start makes the change of an order and returns when the cluster has answered; see
// [Action]. It takes 30 s at most. Every error is, or wraps, a [remedy.Failure].
func (a *Actuator) Start(ctx context.Context, o remedy.Order) (remedy.Receipt, error) {
	act, ok := a.actions[o.Action]
	if !ok {
		err := failf(remedy.Rejected, "this version has no action %q", o.Action)
		a.ended(ctx, o, remedy.Outcome{Ending: remedy.Rejected, Note: err.Error()}, 0)
		return remedy.Receipt{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startWithin, fmt.Errorf("no answer within %s", span(startWithin)))
	defer cancel()
	r, err := act.Start(ctx, o)
	if err == nil {
		return r, nil
	}
	if _, sorted := errors.AsType[*remedy.Failure](err); !sorted {
		err = &remedy.Failure{Ending: remedy.Unclear, Err: err}
	}
	a.ended(ctx, o, remedy.Outcome{Ending: endingOf(err), Note: err.Error()}, 0)
	return remedy.Receipt{}, err
}

// Check reports whether an order that was started has ended, and how. The answer is
// a pure function of what is given; that it was asked is counted and logged.
func (a *Actuator) Check(now time.Time, f fleet.Snapshot, o remedy.Order, r remedy.Receipt) (remedy.Outcome, bool) {
	act, ok := a.actions[o.Action]
	if !ok {
		return ended(remedy.Rejected, "this version has no action %q", o.Action)
	}
	out, done := act.Check(now, f, o, r)
	if done && !out.Look {
		a.ended(context.Background(), o, out, now.Sub(o.Reserved))
	}
	return out, done
}

// Admit asks every gate about the orders of one step. It is pure. Orders that only
// give back pass all of them; what an order does is asked of its action's spec, and an
// action that this version does not know does harm.
func (a *Actuator) Admit(now time.Time, f fleet.Snapshot, incidents []remedy.Incident, in remedy.Incident, orders []remedy.Order) []remedy.GateResult {
	var asked []remedy.Order
	for _, o := range orders {
		info, known := a.specs.Info(o.Action)
		o.Effect, o.Role = info.Effect, info.Role
		if !known {
			o.Effect = remedy.EffectHarm
		}
		if o.Effect != remedy.EffectRecovery {
			asked = append(asked, o)
		}
	}
	q := Question{Now: now, Fleet: f, Incidents: incidents, Incident: in, Orders: asked}
	out := make([]remedy.GateResult, len(a.gates))
	for i, g := range a.gates {
		if len(asked) == 0 {
			out[i] = remedy.GateResult{Pass: true, Reason: "what only gives back always passes"}
		} else {
			out[i] = g.Ask(q)
		}
		out[i].Gate = g.Name()
	}
	return out
}

// ended counts and logs the end of an order, or of one try of it. It took is zero
// where nothing was begun.
func (a *Actuator) ended(ctx context.Context, o remedy.Order, out remedy.Outcome, took time.Duration) {
	action := o.Action
	if _, known := a.actions[action]; !known {
		action = "unknown" // what a stored order names is no bounded set
	}
	a.metrics.orders.WithLabelValues(action, string(out.Ending)).Inc()
	if took > 0 && !o.Reserved.IsZero() {
		a.metrics.seconds.WithLabelValues(action).Observe(took.Seconds())
	}
	a.log.LogAttrs(ctx, slog.LevelInfo, "order ended", slog.Any("order", o), slog.String("outcome", string(out.Ending)), slog.String("note", out.Note))
}

type metrics struct {
	orders  *prometheus.CounterVec
	seconds *prometheus.HistogramVec
}

func newMetrics() *metrics {
	return &metrics{
		orders: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stoker_actuator_orders_total",
			Help: "Orders that ended, tries that will be repeated included, by action and outcome.",
		}, []string{"action", "outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "stoker_actuator_order_seconds",
			Help:    "Time from the reservation of an order to its end, by action.",
			Buckets: []float64{1, 2, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600},
		}, []string{"action"}),
	}
}
