package loop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/scheduler"
)

// A Plan is what the planner last asked for, and what it rests on.
type Plan struct {
	At     time.Time                          `json:"at"`
	Acts   bool                               `json:"acts"` // false: it is shown and not carried out
	Orders []remedy.Order                     `json:"orders"`
	Held   map[fleet.JobRef]scheduler.Account `json:"-"`
}

// A planned is one order of the planner that was started and has not ended.
type planned struct {
	order   remedy.Order
	receipt remedy.Receipt
}

// planner is the name that the planner has before the gates. It comes after every
// incident: theirs is the job until they have ended.
const planner = "plan"

// plan asks the planner and, where it may act, carries out what it asks for. Its orders
// are not stored: each is decided anew from the fleet at the next plan, and the key on
// the object tells whether it was done.
func (l *Loop) plan(ctx context.Context, now time.Time, f fleet.Snapshot) error {
	before := l.memory.At
	orders, memory := scheduler.Plan(now, f, l.memory, l.cfg.Scheduler)
	l.memory = memory
	if !memory.At.Equal(before) {
		l.metrics.plan(f, memory)
		l.show(Plan{At: now, Acts: l.opts.Plans, Orders: orders, Held: memory.Accounts})
	}
	for _, o := range orders {
		l.metrics.planned.WithLabelValues(o.Action).Inc()
	}
	if !l.opts.Plans {
		return nil
	}
	l.checkPlanned(now, f)
	var errs []error
	for _, o := range orders {
		if err := l.carryPlanned(ctx, now, f, o); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// checkPlanned forgets the planner's orders that have ended.
func (l *Loop) checkPlanned(now time.Time, f fleet.Snapshot) {
	for _, ref := range slices.SortedFunc(maps.Keys(l.planned), fleet.JobRef.Compare) {
		p := l.planned[ref]
		out, ended := l.actuator.Check(now, f, p.order, p.receipt)
		switch {
		case ended && out.Ending != remedy.Done && out.Ending != remedy.Gone:
			l.tell(now, Entry{Kind: EntryPlanned, Step: p.order.Action, Target: ref.String(), Text: fmt.Sprintf("%s: %s", out.Ending, short(out.Note))})
		case !ended && now.Before(p.order.Deadline.Add(overdue)):
			continue
		}
		delete(l.planned, ref)
	}
}

// carryPlanned starts one order of the planner, if the gates let it and nothing else is
// under way at the job.
func (l *Loop) carryPlanned(ctx context.Context, now time.Time, f fleet.Snapshot, o remedy.Order) error {
	if _, busy := l.planned[o.Target.Job]; busy {
		return nil
	}
	open := slices.DeleteFunc(l.list(), func(in remedy.Incident) bool { return in.Phase.Closed() })
	last := remedy.Incident{Name: planner, Phase: remedy.PhaseOpen, Opened: now.Add(time.Second)}
	results := l.actuator.Admit(now, f, open, last, []remedy.Order{o})
	for _, r := range results {
		if !r.Pass {
			l.log.LogAttrs(ctx, slog.LevelDebug, "plan waits", slog.Any("order", o), slog.String("gate", r.Gate), slog.String("reason", r.Reason))
			return nil
		}
	}
	r, err := l.actuator.Start(ctx, o)
	if err != nil {
		if f, stated := errors.AsType[*remedy.Failure](err); stated && (f.Ending == remedy.Gone || f.Ending == remedy.Rejected || f.Ending == remedy.Conflict) {
			return nil // it is decided anew at the next plan
		}
		return fmt.Errorf("plan: %w", err)
	}
	r.At = now
	if l.planned == nil {
		l.planned = map[fleet.JobRef]planned{}
	}
	l.planned[o.Target.Job] = planned{o, r}
	if !r.Found {
		l.tell(now, Entry{Kind: EntryPlanned, Step: o.Action, Target: o.Target.String(), Text: o.Cause})
	}
	return nil
}

// Plan returns what the planner last asked for.
func (l *Loop) Plan() Plan {
	l.viewMu.Lock()
	defer l.viewMu.Unlock()
	return l.shownPlan
}

func (l *Loop) show(p Plan) {
	l.viewMu.Lock()
	defer l.viewMu.Unlock()
	l.shownPlan = p
}
