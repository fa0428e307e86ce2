package loop

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"stoker.dev/stoker/internal/remedy"
)

// material reports whether next says something that must be durable. What an order
// was answered, how often it was tried and the numbers in a gate's reason are not:
// after a restart they come out the same by looking.
func material(was, next remedy.Incident) bool {
	return next.Version == "" || !reflect.DeepEqual(lasting(was), lasting(next))
}

// lasting returns the incident without what may be forgotten.
func lasting(in remedy.Incident) remedy.Incident {
	in = in.Clone()
	for i := range in.Waiting {
		in.Waiting[i].Reason = ""
	}
	if cur := in.Current(); cur != nil {
		for i := range cur.Orders {
			o := &cur.Orders[i]
			o.Receipt, o.Tries, o.NotTill, o.Why, o.Look = nil, 0, time.Time{}, "", false
		}
	}
	return in
}

func (l *Loop) tell(now time.Time, e Entry) {
	e.At = now
	l.journal.add(e)
}

// tellChange writes what happened between two states of an incident into the journal.
func (l *Loop) tellChange(now time.Time, was, next remedy.Incident) {
	entry := Entry{Incident: next.Name, Subject: next.Subject.String()}
	before := map[stepID]remedy.StepRecord{}
	for _, s := range was.Steps {
		before[idOf(s)] = s
	}
	for _, s := range next.Steps {
		old, known := before[idOf(s)]
		e := entry
		e.Step, e.Target = s.Action, targets(s)
		switch {
		case s.Skipped && (!known || old.Running()):
			e.Kind, e.Text = EntrySkipped, s.Note
		case !known && s.Running():
			e.Kind, e.Text = EntryStarted, "may take "+remedy.Duration(s.Deadline.Sub(s.Reserved)).String()
			l.metrics.steps.WithLabelValues(s.Action, "started").Inc()
		case old.Ending != s.Ending:
			e.Kind, e.Text = EntryEnded, ended(s)
			l.metrics.steps.WithLabelValues(s.Action, string(s.Ending)).Inc()
		default:
			continue
		}
		l.tell(now, e)
	}
	if len(next.Waiting) > 0 && !slices.EqualFunc(was.Waiting, next.Waiting, sameGate) {
		var why []string
		for _, g := range next.Waiting {
			why = append(why, g.Gate+": "+g.Reason)
		}
		e := entry
		e.Kind, e.Step, e.Text = EntryWaiting, next.StepName(), strings.Join(why, "; ")
		l.tell(now, e)
	}
	if was.Phase != next.Phase {
		e := entry
		e.Text = next.Reason
		switch next.Phase {
		case remedy.PhaseResolved, remedy.PhaseCancelled:
			e.Kind = EntryClosed
			l.metrics.closed.WithLabelValues(string(next.Class), string(next.Phase)).Inc()
		case remedy.PhaseHeld:
			e.Kind = EntryHeld
		case remedy.PhaseCancelling:
			e.Kind = EntryUndoing
		case remedy.PhaseOpen, remedy.PhaseActing:
			return
		}
		l.tell(now, e)
	}
}

// A stepID tells one step of an incident from the others. Its place does not: a
// history that is too long loses some.
type stepID struct {
	rung     int
	reserved time.Time
	action   string
}

func idOf(s remedy.StepRecord) stepID { return stepID{s.Rung, s.Reserved.UTC().Round(0), s.Action} }

func sameGate(a, b remedy.GateResult) bool { return a.Gate == b.Gate }

func targets(s remedy.StepRecord) string {
	var out []string
	for _, o := range s.Orders {
		out = append(out, o.Order.Target.String())
	}
	return strings.Join(out, ", ")
}

func ended(s remedy.StepRecord) string {
	text := fmt.Sprintf("%s after %s", s.Ending, remedy.Duration(s.Ended.Sub(s.Reserved).Round(time.Second)))
	if s.Note != "" {
		text += ": " + s.Note
	}
	return text
}
