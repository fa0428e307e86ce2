package loop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/rules"
)

// Tick goes once around the loop at now. An error says what could not be done; the
// next tick tries again, and nothing is lost by it.
func (l *Loop) Tick(ctx context.Context, now time.Time) error {
	_, err := l.tick(ctx, now)
	return err
}

// tick is Tick, and reports whether anything was moved: an order started, a step or a
// phase ended.
func (l *Loop) tick(ctx context.Context, now time.Time) (moved bool, err error) {
	if err := l.begin(ctx); err != nil {
		return false, err
	}
	defer l.end()
	if err := l.load(ctx); err != nil {
		return false, l.trouble(now, err)
	}
	f, err := l.world.Snapshot(ctx, now)
	if err != nil {
		return false, l.trouble(now, fmt.Errorf("observe the fleet: %w", err))
	}
	l.fleet = f
	errs := []error{l.ingest(ctx, now, f, l.leftover(now))}
	for _, w := range l.witnesses {
		ev, err := w.Evidence(ctx, now)
		if err != nil {
			errs = append(errs, fmt.Errorf("collect evidence: %w", err))
		}
		if err := l.ingest(ctx, now, f, ev); err != nil {
			errs = append(errs, err)
		}
	}
	// Where the store and we disagree it is read again: nothing is decided on half a
	// truth, and one incident that cannot be written does not stop the others.
	if err := l.load(ctx); err != nil {
		return false, l.trouble(now, errors.Join(append(errs, err)...))
	}
	moved, err = l.work(ctx, now, f)
	errs = append(errs, l.unread, err)
	errs = append(errs, l.plan(ctx, now, f), l.sweep(ctx, now))
	l.orphans(now, f)
	l.publish(&f)
	l.metrics.observe(now, l.incidents)
	return moved, l.trouble(now, errors.Join(errs...))
}

// trouble tells of an error, once for as long as it stays the same.
func (l *Loop) trouble(now time.Time, err error) error {
	if err == nil {
		l.troubled = Entry{}
		return nil
	}
	e := Entry{At: now, Kind: EntryTrouble, Text: short(err.Error())}
	if e.Text != l.troubled.Text || now.Sub(l.troubled.At) >= notedFor {
		l.troubled = e
		l.tell(now, e)
	}
	return err
}

// short bounds a text of others that is kept. It stays UTF-8.
func short(s string) string {
	const most = 1000
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// A task is one incident as it was, as it becomes, and what must be started.
type task struct {
	was, next remedy.Incident
	start     []int // places in the orders of the newest step
	write     bool  // next says something that must be durable, or has waited for long enough
	stored    bool
	moved     bool // see tick
	reread    bool // somebody else has written the incident
	err       error
}

// work advances every open incident. Deciding is one after the other, so that each
// gate sees what the one before has taken; storing and starting go side by side.
func (l *Loop) work(ctx context.Context, now time.Time, f fleet.Snapshot) (moved bool, err error) {
	all := l.list()
	open := slices.DeleteFunc(all, func(in remedy.Incident) bool { return in.Phase.Closed() })
	tasks := make([]task, 0, len(open))
	for i, was := range open {
		next, start := l.decide(now, f, open, was)
		open[i] = next
		if write := material(was, next) || l.due(now, was.Name); write || len(start) > 0 {
			tasks = append(tasks, task{was: was, next: next, start: start, write: write})
			continue
		}
		l.incidents[next.Name] = next
	}
	var g errgroup.Group
	g.SetLimit(l.opts.Parallel)
	for i := range tasks {
		g.Go(func() error { l.carry(ctx, now, &tasks[i]); return nil })
	}
	_ = g.Wait() // errors are in the tasks, so that one does not hide another
	var errs []error
	for _, t := range tasks {
		if t.err != nil {
			errs = append(errs, t.err)
		}
		l.incidents[t.next.Name] = t.next
		l.loaded = l.loaded && !t.reread
		if t.stored {
			l.written(now, t.next)
		}
		moved = moved || t.moved
	}
	return moved, errors.Join(errs...)
}

// decide says what becomes of an incident, and which orders of its current step are
// to be started. It changes nothing outside.
func (l *Loop) decide(now time.Time, f fleet.Snapshot, open []remedy.Incident, was remedy.Incident) (remedy.Incident, []int) {
	in := was.Clone()
	if cur := in.Current(); cur != nil {
		for i := range cur.Orders {
			l.check(now, f, &in, &cur.Orders[i])
		}
	}
	in, orders := rules.Advance(now, f, in, nil, l.cfg.Playbooks)
	if len(orders) > 0 {
		results := l.actuator.Admit(now, f, open, in, orders)
		if slices.ContainsFunc(results, func(r remedy.GateResult) bool { return !r.Pass }) {
			in.Waiting = slices.DeleteFunc(slices.Clone(results), func(r remedy.GateResult) bool { return r.Pass })
			return in, nil
		}
		in = rules.Reserve(now, f, in, orders, results)
	}
	var start []int
	var again []remedy.Order // was tried, and is to be tried once more
	if cur := in.Current(); cur != nil {
		for i, o := range cur.Orders {
			if o.Outcome == nil && (o.Receipt == nil || o.Look) && !now.Before(o.NotTill) {
				start = append(start, i)
				if o.Tries > 0 {
					again = append(again, o.Order)
				}
			}
		}
	}
	if len(again) > 0 {
		// What was right when it was reserved may not be now: a person has silenced the
		// node, the mode was changed. The order's time runs on meanwhile.
		in.Waiting = slices.DeleteFunc(l.actuator.Admit(now, f, open, in, again), func(r remedy.GateResult) bool { return r.Pass })
		if len(in.Waiting) > 0 {
			cur := in.Current()
			start = slices.DeleteFunc(start, func(i int) bool { return cur.Orders[i].Tries > 0 })
		}
	}
	return in, start
}

// overdue is how long after its deadline an order is waited for whose action cannot
// say what became of it.
const overdue = 10 * time.Minute

// check asks whether an order has ended.
func (l *Loop) check(now time.Time, f fleet.Snapshot, in *remedy.Incident, o *remedy.OrderRecord) {
	if o.Outcome != nil {
		return
	}
	if o.Receipt == nil {
		past := now.Sub(o.Order.Deadline)
		switch {
		case past <= 0:
		case o.Tries > 0:
			o.Outcome = &remedy.Outcome{Ending: remedy.Late, Note: fmt.Sprintf("not done within its time, after %d tries: %s", o.Tries, o.Why)}
		case o.Order.Effect == remedy.EffectHarm && past > l.cfg.Playbooks.MaxAge:
			// Reserved by somebody who did not come back for long: what was right then
			// may be wrong now.
			o.Outcome = &remedy.Outcome{Ending: remedy.Late, Note: fmt.Sprintf("reserved and then left alone for %s after its time", past.Round(time.Second))}
		default:
			// Nobody has worked on it, or the answer went with who did. It is started
			// again, which looks first, and has its time again: that we were away is
			// not its failure.
			o.Order.Deadline = now.Add(o.Order.Deadline.Sub(o.Order.Reserved))
			in.Current().Deadline = o.Order.Deadline
		}
		return
	}
	out, ended := l.actuator.Check(now, f, o.Order, *o.Receipt)
	switch {
	case ended:
		l.settle(now, in.Name, o, out)
	case now.After(o.Order.Deadline.Add(overdue)):
		o.Outcome = &remedy.Outcome{Ending: remedy.Late, Note: fmt.Sprintf("for %s after its time nobody could tell what became of it", overdue)}
	}
}

// settle records how an order ended, or when it is tried again.
func (l *Loop) settle(now time.Time, incident string, o *remedy.OrderRecord, out remedy.Outcome) {
	out.Note = short(out.Note)
	if out.Look && now.Before(o.Order.Deadline) {
		o.Look = true
		return
	}
	if !out.Ending.Retry() {
		o.Outcome = &out
		return
	}
	if !now.Before(o.Order.Deadline) {
		o.Outcome = &remedy.Outcome{Ending: remedy.Late, Note: out.Note}
		return
	}
	o.Tries, o.Why = o.Tries+1, out.Note
	o.Receipt = nil
	o.NotTill = now.Add(backoff(o.Tries))
	if o.Tries == 1 || o.Tries%10 == 0 {
		l.tell(now, Entry{Kind: EntryRetry, Incident: incident, Step: o.Order.Action, Target: o.Order.Target.String(), Text: out.Note})
	}
}

// backoff is the pause before the n-th repetition: 1, 2, 4 … 60 s. It is the only
// layer that repeats.
func backoff(n int) time.Duration {
	return min(time.Minute, time.Second<<min(n-1, 6))
}

// carry stores the incident and, when that is done, starts what is to be started.
func (l *Loop) carry(ctx context.Context, now time.Time, t *task) {
	if t.write {
		stored, err := l.save(ctx, t.next)
		if err != nil {
			// Not stored, so not done. What we had is still the truth, unless
			// somebody else has written: then it is read before the next decision.
			t.next = t.was
			if f, ok := errors.AsType[*remedy.Failure](err); ok && (f.Ending == remedy.Conflict || f.Ending == remedy.Gone) {
				t.reread = true
			}
			t.err = err
			return
		}
		t.next, t.stored = stored, true
		t.moved = stored.Phase != t.was.Phase || stored.Rung != t.was.Rung || len(stored.Steps) != len(t.was.Steps)
		l.tellChange(now, t.was, t.next)
	}
	cur := t.next.Current()
	if cur == nil || len(t.start) == 0 {
		return
	}
	t.next = t.next.Clone() // what was stored may be shared with readers
	cur = t.next.Current()
	for _, i := range t.start {
		o, level := &cur.Orders[i], slog.LevelInfo
		order := o.Order
		if order.Look = o.Look; o.Look {
			level = slog.LevelDebug
		}
		receipt, err := l.actuator.Start(ctx, order)
		if err == nil {
			receipt.At, receipt.Note = now, short(receipt.Note)
			t.moved = t.moved || !o.Look
			o.Receipt, o.Look = &receipt, false
			l.log.LogAttrs(ctx, level, "order started", slog.Any("order", o.Order), slog.Bool("found", receipt.Found), slog.String("note", receipt.Note))
			continue
		}
		out := remedy.Outcome{Ending: remedy.Unclear, Note: err.Error()}
		if f, ok := errors.AsType[*remedy.Failure](err); ok {
			out.Ending = f.Ending
		}
		l.log.LogAttrs(ctx, slog.LevelWarn, "order not started", slog.Any("order", o.Order), slog.String("ending", string(out.Ending)), slog.Any("err", err))
		l.settle(now, t.next.Name, o, out)
		if out.Ending == remedy.Unclear {
			return // the cluster does not answer; the step's other orders wait for the next tick
		}
	}
}

// sweepMost bounds how many incidents one tick removes.
const sweepMost = 100

// sweep removes closed incidents that are too old or too many. One that may still be
// told of, or that keeps a person's veto, stays: without it the same evidence would
// open it anew.
func (l *Loop) sweep(ctx context.Context, now time.Time) error {
	var closed []remedy.Incident
	for _, in := range l.list() {
		if in.Phase.Closed() {
			closed = append(closed, in)
		}
	}
	slices.SortFunc(closed, func(a, b remedy.Incident) int { return a.Closed.Compare(b.Closed) })
	var errs []error
	removed := 0
	for i, in := range closed {
		if removed == sweepMost || len(closed)-i <= l.opts.MaxClosed && now.Sub(in.Closed) < l.opts.ClosedFor {
			break
		}
		if now.Sub(in.Closed) <= l.cfg.Playbooks.MaxAge || now.Before(in.Quiet) {
			continue
		}
		removed++
		if err := l.store.Delete(ctx, in); err != nil {
			f, ok := errors.AsType[*remedy.Failure](err)
			if !ok || f.Ending != remedy.Gone {
				errs = append(errs, fmt.Errorf("delete incident %s: %w", in.Name, err))
				l.loaded = l.loaded && (!ok || f.Ending != remedy.Conflict)
				continue
			}
		}
		delete(l.incidents, in.Name)
	}
	return errors.Join(errs...)
}
