package rules

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// deep is a copy that shares nothing at all with the incident.
func deep(in remedy.Incident) remedy.Incident {
	in = in.Clone()
	for i, e := range in.Evidence {
		in.Evidence[i].Labels = maps.Clone(e.Labels)
	}
	for i, l := range in.Ladder {
		in.Ladder[i].Params = slices.Clone(l.Params)
	}
	for _, s := range in.Steps {
		for i := range s.Orders {
			o := &s.Orders[i]
			o.Order.Params = slices.Clone(o.Order.Params)
			if o.Receipt != nil {
				r := *o.Receipt
				r.Pods = slices.Clone(r.Pods)
				o.Receipt = &r
			}
			if o.Outcome != nil {
				out := *o.Outcome
				o.Outcome = &out
			}
		}
	}
	return in
}

// differ is [cmp.Diff], which takes its time, of what is not alike to the last bit.
func differ[T any](x, y T) string {
	if reflect.DeepEqual(x, y) {
		return ""
	}
	return cmp.Diff(x, y)
}

// walker drives one incident through whatever may happen, and holds what must never
// be otherwise.
type walker struct {
	*patient
	rt *rapid.T
	// stopped is what the cluster knows of the jobs: true while our stop holds.
	stopped map[fleet.JobRef]bool
	told    int
}

func TestAdvanceKeepsItsPromises(t *testing.T) {
	phases := map[remedy.Phase]int{}
	rapid.Check(t, func(rt *rapid.T) {
		e := rapid.SampledFrom([]func() remedy.Evidence{xid79, unready, stalledJob}).Draw(rt, "evidence")()
		w := walker{patient: newPatient(rt, e), rt: rt, stopped: map[fleet.JobRef]bool{}}
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			w.happen()
			w.step()
		}
		ends := rapid.Bool().Draw(rt, "a state ends")
		// From here on everything works and a person looks after the node.
		for i := range 200 {
			if w.in.Phase.Closed() {
				break
			}
			if w.in.Phase == remedy.PhaseHeld && i%10 == 9 {
				uncordon(w.patient)
			}
			if i == 20 && ends && !remedy.Classes[w.in.Class].Event {
				w.over()
			}
			w.now = w.now.Add(time.Minute)
			w.carryOut(func(remedy.Order) remedy.Ending { return remedy.Done })
			w.step()
		}
		phases[w.in.Phase]++
		if w.in.Phase.Closed() {
			return
		}
		if w.in.Phase != remedy.PhaseHeld || w.in.Current() != nil {
			rt.Fatalf("with everything working it is still %s:\n%s", w.in.Phase, strings.Join(history(w.in), "\n"))
		}
	})
	for _, p := range []remedy.Phase{remedy.PhaseResolved, remedy.PhaseCancelled, remedy.PhaseHeld} {
		if phases[p] == 0 {
			t.Errorf("no run ended %s; the test looks at too little: %v", p, phases)
		}
	}
}

// happen is one thing that the cluster, a person or a source of evidence does.
func (w *walker) happen() {
	switch rapid.SampledFrom([]string{"act", "act", "act", "act", "wait", "uncordon", "unhold", "unsuspend", "vanish", "appear", "replace", "boot", "event", "over", "odd"}).Draw(w.rt, "happens") {
	case "act":
		ending := rapid.SampledFrom([]remedy.Ending{
			remedy.Done, remedy.Done, remedy.Done, remedy.Done, remedy.Done, remedy.Done,
			remedy.Late, remedy.Rejected, remedy.Gone, remedy.Yielded, "sideways",
		})
		w.carryOut(func(remedy.Order) remedy.Ending { return ending.Draw(w.rt, "ending") })
	case "wait":
		w.now = w.now.Add(time.Duration(rapid.IntRange(0, 7200).Draw(w.rt, "seconds")) * time.Second)
	case "uncordon":
		if _, ok := w.f.Nodes[ill]; ok {
			uncordon(w.patient)
		}
	case "unhold":
		if _, ok := w.f.Nodes[ill]; ok {
			w.node(func(n *fleet.Node) { n.Hold = fleet.Hold{} })
		}
	case "unsuspend":
		w.job(llm, func(j *fleet.Job) { j.Suspended, j.Phase = false, fleet.JobRunning })
		w.stopped[llm] = false
	case "vanish":
		w.change(func(s *fleet.Snapshot) { delete(s.Nodes, ill) })
	case "appear":
		if _, ok := w.f.Nodes[ill]; !ok {
			w.change(func(s *fleet.Snapshot) { s.Nodes[ill] = cluster(t0).Nodes[ill] })
		}
	case "replace":
		w.change(func(s *fleet.Snapshot) {
			n := cluster(t0).Nodes[ill]
			n.UID, n.BootID = "uid-new", "boot-9"
			s.Nodes[ill] = n
		})
	case "boot":
		if _, ok := w.f.Nodes[ill]; ok {
			w.node(func(n *fleet.Node) { n.BootID += "'" })
		}
	case "event":
		w.told++
		boot := rapid.SampledFrom([]string{"", "boot-1", "boot-2", w.f.Nodes[ill].BootID}).Draw(w.rt, "boot")
		ago := time.Duration(rapid.IntRange(-60, 300).Draw(w.rt, "ago")) * time.Second
		e := changed(w.in.Evidence[0], func(e *remedy.Evidence) { e.At, e.Seen, e.BootID, e.Resolved = w.now.Add(-ago), w.now, boot, false })
		w.patient.told(e)
	case "over":
		w.patient.told(changed(w.in.Evidence[len(w.in.Evidence)-1], func(e *remedy.Evidence) { e.Resolved = true }))
	case "odd":
		w.now = w.now.Add(-10 * time.Second) // a clock that is set back
	}
}

// carryOut ends the orders that run, each in its own way.
func (w *walker) carryOut(ending func(remedy.Order) remedy.Ending) {
	cur := w.in.Current()
	if cur == nil {
		return
	}
	w.now = w.now.Add(time.Second)
	in := deep(w.in)
	for i := range in.Current().Orders {
		o := &in.Current().Orders[i]
		if o.Outcome != nil {
			continue
		}
		e := ending(o.Order)
		if _, there := w.f.Nodes[ill]; !there && o.Order.Target.Node != "" {
			e = remedy.Gone
		}
		if e != remedy.Rejected {
			o.Receipt = &remedy.Receipt{At: w.now}
		}
		if e == remedy.Done {
			o.Receipt.Version = w.effect(o.Order)
		}
		switch job := o.Order.Target.Job; o.Order.Role {
		case remedy.RoleStop:
			w.stopped[job] = w.stopped[job] || e == remedy.Done || e == remedy.Late
		case remedy.RoleStart:
			// Rejected is told to a person, in the reason.
			w.stopped[job] = w.stopped[job] && e != remedy.Done && e != remedy.Gone && e != remedy.Yielded && e != remedy.Rejected
		default:
		}
		o.Outcome = &remedy.Outcome{Ending: e, Note: "why"}
	}
	w.in = in
}

// step is one tick: advance, and most often reserve.
func (w *walker) step() {
	before, fleetBefore := deep(w.in), w.f
	w.now = w.now.Add(time.Second)
	next, orders := Advance(w.now, w.f, w.in, nil, w.cfg)
	if d := differ(before, w.in); d != "" {
		w.rt.Fatalf("Advance has changed what it was given (-before +after):\n%s", d)
	}
	again, ordersAgain := Advance(w.now, w.f, w.in, nil, w.cfg)
	if d := differ(next, again) + differ(orders, ordersAgain); d != "" {
		w.rt.Fatalf("Advance decided two ways (-first +second):\n%s", d)
	}
	w.compare(before, next, orders)
	closes := !w.in.Phase.Closed() && next.Phase.Closed()
	w.in, w.orders, w.f = next, orders, fleetBefore
	if closes {
		w.ended()
	}
	if len(orders) > 0 && rapid.IntRange(0, 9).Draw(w.rt, "gates") > 0 {
		unreserved := deep(next)
		w.in = Reserve(w.now, w.f, next, orders, nil)
		if d := differ(unreserved, next); d != "" {
			w.rt.Fatalf("Reserve has changed what it was given (-before +after):\n%s", d)
		}
		w.compare(next, w.in, nil)
	}
}

func (w *walker) compare(was, next remedy.Incident, orders []remedy.Order) {
	fail := func(format string, args ...any) {
		w.rt.Helper()
		w.rt.Fatalf("%s:\n%s", fmt.Sprintf(format, args...), strings.Join(history(next), "\n"))
	}
	if was.Phase.Closed() && differ(was, next) != "" {
		fail("a closed incident has changed")
	}
	if next.Rung < was.Rung || next.Rung > len(next.Ladder) {
		fail("rung %d after %d of %d", next.Rung, was.Rung, len(next.Ladder))
	}
	running := 0
	for i, s := range next.Steps {
		if s.Running() {
			running++
			if i != len(next.Steps)-1 {
				fail("a step runs that is not the newest")
			}
		}
	}
	if running > 1 || running == 1 && len(orders) > 0 {
		fail("%d steps run and %d orders are asked for", running, len(orders))
	}
	if next.Phase.Closed() && (running > 0 || next.Closed.IsZero()) {
		fail("it closed with %d steps that run, at %v", running, next.Closed)
	}
	if len(next.Steps) > remedy.MaxSteps || len(next.Evidence) > remedy.MaxEvidence {
		fail("%d steps and %d evidence are kept", len(next.Steps), len(next.Evidence))
	}
	for _, o := range orders {
		harm := o.Effect == remedy.EffectHarm
		if harm && (next.Phase == remedy.PhaseHeld || next.Phase == remedy.PhaseCancelling) {
			fail("%s is ordered of an incident that is %s", o.Action, next.Phase)
		}
		if o.Role == remedy.RoleRelease && next.Phase == remedy.PhaseOpen {
			if v := next.Ended(remedy.RoleVerify); v == nil {
				fail("the node is given back and nobody has verified it")
			}
		}
		if w.in.Subject.Kind == remedy.SubjectJob && (o.Target.Job != llm || o.Target.Node != "" || o.Node != "") {
			fail("%s of %v is ordered of an incident about a job", o.Action, o.Target)
		}
		if harm && o.Role != remedy.RoleHold && len(was.Steps) > 0 && over(was) {
			fail("%s is ordered though the state is over", o.Action)
		}
	}
	keys := map[string]bool{}
	for _, s := range next.Steps {
		for _, o := range s.Orders {
			if keys[o.Order.Key] {
				fail("key %s is there twice", o.Order.Key)
			}
			keys[o.Order.Key] = true
		}
	}
}

// ended holds what an incident owes when it closes.
func (w *walker) ended() {
	for job, stopped := range w.stopped {
		if stopped {
			w.rt.Fatalf("%s was stopped and is left so:\n%s", job, strings.Join(history(w.in), "\n"))
		}
	}
	if w.in.Phase != remedy.PhaseCancelled {
		return
	}
	asked := true
	for _, s := range w.in.Steps {
		switch {
		case s.Skipped:
		case s.Role == remedy.RoleHold:
			asked = false
		case s.Role == remedy.RoleRelease:
			asked = true
		}
	}
	if _, there := w.f.Nodes[ill]; there && !asked {
		w.rt.Fatalf("the node is left held:\n%s", strings.Join(history(w.in), "\n"))
	}
}

// events are evidence of faults in a few places; two of them are either one event or
// well apart in time.
func events(rt *rapid.T) []remedy.Evidence {
	one := rapid.Custom(func(rt *rapid.T) remedy.Evidence {
		class := rapid.SampledFrom([]remedy.Class{remedy.ClassGPULost, remedy.ClassGPUECC, remedy.ClassGPUHot, remedy.ClassNodeUnready, remedy.ClassNone, "new"}).Draw(rt, "class")
		at := t0.Add(time.Duration(rapid.IntRange(-20, 4).Draw(rt, "at")) * 10 * time.Minute)
		s := remedy.Subject{Kind: remedy.SubjectNode, Node: rapid.SampledFrom([]string{ill, well, "unheard-of"}).Draw(rt, "node")}
		if remedy.Classes[class].Subject == remedy.SubjectGPU {
			g := rapid.IntRange(0, 2).Draw(rt, "gpu")
			s.Kind = remedy.SubjectGPU
			switch rapid.IntRange(0, 2).Draw(rt, "named by") {
			case 0:
				s.Index = fmt.Sprint(g)
			case 1:
				s.PCI = fmt.Sprintf("0000:%x:00.0", 0x17+g)
			case 2:
				s.Index, s.UUID = fmt.Sprint(g), fmt.Sprintf("GPU-%d-%d", map[string]int{ill: 0, well: 1}[s.Node], g)
			}
			if s.Node == "unheard-of" {
				s.Index, s.PCI, s.UUID = fmt.Sprint(g), "", "" // nobody could tell two names of one GPU from two GPUs
			}
		}
		return remedy.Evidence{
			Class: class, Subject: s, At: at, Source: rapid.SampledFrom([]string{"rules", "alertmanager", "collector"}).Draw(rt, "source"),
			BootID: rapid.SampledFrom([]string{"", "boot-1", "boot-0"}).Draw(rt, "boot"), Resolved: rapid.IntRange(0, 4).Draw(rt, "over") == 0,
		}
	})
	return rapid.SliceOfN(one, 0, 12).Draw(rt, "events")
}

// take applies what Correlate has changed, and closes some of it.
func take(rt *rapid.T, all []remedy.Incident, changed []remedy.Incident) []remedy.Incident {
	all = slices.Clone(all)
	for _, in := range changed {
		in.Version = "1"
		if i := slices.IndexFunc(all, func(o remedy.Incident) bool { return o.Name == in.Name }); i >= 0 {
			all[i] = in
			continue
		}
		all = append(all, in)
	}
	return all
}

func TestCorrelateKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cfg := compiled(rt, wholeLadder)
		now := t0.Add(10 * time.Minute)
		var all []remedy.Incident
		for range rapid.IntRange(1, 4).Draw(rt, "rounds") {
			now = now.Add(10 * time.Minute)
			f := cluster(now)
			ev := events(rt)
			var before []remedy.Incident
			for _, in := range all {
				before = append(before, deep(in))
			}
			changed, _ := Correlate(now, f, all, ev, cfg)
			if d := differ(before, all); d != "" {
				rt.Fatalf("Correlate has changed what it was given (-before +after):\n%s", d)
			}
			after := take(rt, all, changed)

			if twice, _ := Correlate(now, f, after, lasting(ev), cfg); len(twice) > 0 {
				rt.Fatalf("the same evidence told again has changed %v", twice)
			}

			// Some are told once more, somewhere behind their first telling.
			var doubled []remedy.Evidence
			for i, e := range ev {
				doubled = append(doubled, e, ev[rapid.IntRange(0, i).Draw(rt, "again")])
			}
			if !slices.ContainsFunc(ev, func(e remedy.Evidence) bool { return e.Resolved }) {
				changed2, _ := Correlate(now, f, all, doubled, cfg)
				if d := differ(after, take(rt, all, changed2)); d != "" {
					rt.Fatalf("duplicates made a difference (-once +twice):\n%s", d)
				}
			}

			for i, a := range after {
				for _, b := range after[i+1:] {
					if a.Name == b.Name {
						rt.Fatalf("two incidents are named %s", a.Name)
					}
					if a.Class == b.Class && a.Subject.Same(b.Subject) && !a.Phase.Closed() && !b.Phase.Closed() {
						rt.Fatalf("%s and %s are open for one thing", a.Name, b.Name)
					}
				}
			}
			all = after
			for i := range all {
				if !all[i].Phase.Closed() && rapid.Bool().Draw(rt, "closes") {
					all[i].Phase, all[i].Closed = remedy.PhaseResolved, now
				}
			}
		}
	})
}

// lasting leaves out of what was told what was over by the end of it: that a state
// began and ended, told again, is that it began again.
func lasting(ev []remedy.Evidence) []remedy.Evidence {
	return slices.DeleteFunc(slices.Clone(ev), func(e remedy.Evidence) bool {
		return slices.ContainsFunc(ev, func(o remedy.Evidence) bool { return o.Class == e.Class && o.Resolved != e.Resolved })
	})
}

// over reports whether the newest that was told of a state is its end.
func over(in remedy.Incident) bool {
	newest := in.Evidence[0]
	for _, e := range in.Evidence {
		if !e.At.Before(newest.At) {
			newest = e
		}
	}
	return newest.Resolved && !remedy.Classes[in.Class].Event
}
