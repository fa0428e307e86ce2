package rules

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// sorted is what Correlate made of evidence, in words.
func sorted(changed []remedy.Incident, notes []Note) string {
	var out []string
	for _, in := range changed {
		verb := "opens"
		if in.Version != "" {
			verb = "joins"
		}
		out = append(out, fmt.Sprintf("%s %s #%d with %d", verb, in.Subject, in.Occurrence, in.EvidenceCount))
	}
	for _, n := range notes {
		out = append(out, "noted: "+n.Reason)
	}
	return strings.Join(out, "; ")
}

// closedBefore is an incident about the evidence that closed two minutes after it.
func closedBefore(e remedy.Evidence, phase remedy.Phase) remedy.Incident {
	in := remedy.Incident{
		Name: remedy.IncidentName(e.Class, e.Subject, 1), Occurrence: 1, Subject: e.Subject, Class: e.Class, BootID: e.BootID, Phase: phase,
		Opened: e.At.Add(time.Second), Closed: e.At.Add(2 * time.Minute), Version: "7",
	}
	in.AddEvidence(e)
	return in
}

func openSince(e remedy.Evidence) remedy.Incident {
	in := closedBefore(e, remedy.PhaseActing)
	in.Closed = time.Time{}
	return in
}

// healed is an incident that was repaired by a reboot: fault at t0, reboot ordered
// after 10 minutes, verified from the 15th on, given back and closed in the 20th.
func healed() remedy.Incident {
	in := closedBefore(xid79(), remedy.PhaseResolved)
	in.Closed = t0.Add(20 * time.Minute)
	step := func(role remedy.Role, from, to int) remedy.StepRecord {
		return remedy.StepRecord{
			Role: role, Reserved: t0.Add(time.Duration(from) * time.Minute), Ended: t0.Add(time.Duration(to) * time.Minute), Ending: remedy.Done,
			Orders: make([]remedy.OrderRecord, 1),
		}
	}
	in.Steps = []remedy.StepRecord{step(remedy.RoleHold, 0, 1), step(remedy.RoleRenew, 10, 15), step(remedy.RoleVerify, 15, 19), step(remedy.RoleRelease, 19, 20)}
	return in
}

func TestCorrelateSortsEvidence(t *testing.T) {
	at := func(e remedy.Evidence, d time.Duration) remedy.Evidence {
		return changed(e, func(e *remedy.Evidence) { e.At = t0.Add(d) })
	}
	boot := func(e remedy.Evidence, id string) remedy.Evidence {
		return changed(e, func(e *remedy.Evidence) { e.BootID = id })
	}
	over := func(e remedy.Evidence) remedy.Evidence {
		return changed(e, func(e *remedy.Evidence) { e.Resolved = true })
	}
	class := func(c remedy.Class) remedy.Evidence {
		return changed(xid79(), func(e *remedy.Evidence) { e.Class = c })
	}
	vetoed := closedBefore(xid79(), remedy.PhaseCancelled)
	vetoed.Quiet = vetoed.Closed.Add(time.Hour)
	hot := class(remedy.ClassGPUHot)
	otherHot := changed(hot, func(e *remedy.Evidence) { e.Labels["alertname"] = "GPUSlowdown" })
	for name, tc := range map[string]struct {
		incidents []remedy.Incident
		ev        []remedy.Evidence
		now       time.Duration // after t0
		change    func(*fleet.Snapshot)
		want      string
	}{
		"a fault opens an incident": {nil, []remedy.Evidence{xid79()}, time.Minute, nil, "opens gpu-a-02/gpu-3 #1 with 1"},
		"an event that three sources tell of is one": {
			nil, []remedy.Evidence{
				xid79(),
				changed(xid79(), func(e *remedy.Evidence) {
					e.Source, e.At, e.Subject = "collector", t0.Add(time.Second), remedy.Subject{Kind: remedy.SubjectGPU, Node: ill, PCI: "00000000:1A:00.0"}
				}),
				changed(xid79(), func(e *remedy.Evidence) {
					e.Source, e.BootID, e.Subject = "alertmanager", "", remedy.Subject{Kind: remedy.SubjectGPU, Node: ill, Index: "3"}
				}),
			}, time.Minute, nil, "opens gpu-a-02/gpu-3 #1 with 1",
		},
		"a second event joins the open incident":    {[]remedy.Incident{openSince(xid79())}, []remedy.Evidence{at(xid79(), time.Minute)}, 2 * time.Minute, nil, "joins gpu-a-02/gpu-3 #1 with 2"},
		"the same event again changes nothing (M3)": {[]remedy.Incident{openSince(xid79())}, []remedy.Evidence{xid79()}, 2 * time.Minute, nil, ""},
		"another GPU of the node is another":        {[]remedy.Incident{openSince(xid79())}, []remedy.Evidence{changed(xid79(), func(e *remedy.Evidence) { e.Subject = remedy.Subject{Kind: remedy.SubjectGPU, Node: ill, Index: "4"} })}, time.Minute, nil, "opens gpu-a-02/gpu-4 #1 with 1"},
		"another class of the GPU is another":       {[]remedy.Incident{openSince(xid79())}, []remedy.Evidence{class(remedy.ClassGPUECC)}, time.Minute, nil, "opens gpu-a-02/gpu-3 #1 with 1"},
		"the same GPU number elsewhere is another":  {[]remedy.Incident{openSince(xid79())}, []remedy.Evidence{changed(xid79(), func(e *remedy.Evidence) { e.Subject = remedy.Subject{Kind: remedy.SubjectGPU, Node: well, Index: "3"} })}, time.Minute, nil, "opens gpu-a-03/gpu-3 #1 with 1"},
		"a fault that changes nothing is noted":     {nil, []remedy.Evidence{class(remedy.ClassNone)}, time.Minute, nil, "noted: it changes no GPU's or node's state"},
		"a class of a newer version is noted":       {nil, []remedy.Evidence{class("gpu-molten")}, time.Minute, nil, `noted: class "gpu-molten" is not known to this version`},
		"an event that is too old is noted":         {nil, []remedy.Evidence{xid79()}, 61 * time.Minute, nil, "noted: it is 1h1m0s old, and 1h0m0s is the limit"},
		"a state is never too old":                  {nil, []remedy.Evidence{hot}, 61 * time.Minute, nil, "opens gpu-a-02/gpu-3 #1 with 1"},
		"a clock ahead of ours by minutes is borne": {nil, []remedy.Evidence{at(xid79(), 10*time.Minute), at(xid79(), 10*time.Minute)}, time.Minute, nil, "opens gpu-a-02/gpu-3 #1 with 1"},
		"a clock ahead of ours by hours is noted":   {nil, []remedy.Evidence{at(xid79(), 3*time.Hour)}, 0, nil, "noted: it is said to happen in 3h0m0s; somebody's clock is wrong"},
		"an event of an earlier boot is noted":      {nil, []remedy.Evidence{boot(xid79(), "boot-0")}, 10 * time.Minute, nil, "noted: it is from an earlier boot of the node"},
		"an event of a boot that the snapshot is too old to know is acted on": {
			nil,
			[]remedy.Evidence{boot(at(xid79(), 10*time.Minute), "boot-2")},
			10 * time.Minute, func(f *fleet.Snapshot) { f.At = t0.Add(9 * time.Minute) },
			"opens gpu-a-02/gpu-3 #1 with 1",
		},
		"an event of a boot that the kubelet has not told of yet is acted on": {
			nil, []remedy.Evidence{boot(at(xid79(), 9*time.Minute), "boot-2")}, 10 * time.Minute, nil, "opens gpu-a-02/gpu-3 #1 with 1",
		},
		"an event of an earlier boot does not join": {
			[]remedy.Incident{openSince(xid79())}, []remedy.Evidence{boot(at(xid79(), 4*time.Minute), "boot-0")}, 10 * time.Minute, nil, "noted: it is from an earlier boot of the node",
		},
		"that the alert of an event is over is noted":   {[]remedy.Incident{openSince(xid79())}, []remedy.Evidence{over(xid79())}, 10 * time.Minute, nil, "noted: that its alert is over says nothing about the fault"},
		"that a state is over is told to its incident":  {[]remedy.Incident{openSince(hot)}, []remedy.Evidence{over(hot)}, 10 * time.Minute, nil, "joins gpu-a-02/gpu-3 #1 with 1"},
		"that a state is over opens nothing":            {nil, []remedy.Evidence{over(hot)}, 10 * time.Minute, nil, "noted: it is over and no incident was open for it"},
		"a state lasts while one of its alerts does":    {[]remedy.Incident{openSince(hot)}, []remedy.Evidence{over(hot), otherHot}, 10 * time.Minute, nil, "noted: another alert says that it is not over"},
		"and in whatever order they are told":           {[]remedy.Incident{openSince(hot)}, []remedy.Evidence{otherHot, over(hot)}, 10 * time.Minute, nil, "noted: another alert says that it is not over"},
		"a closed incident has dealt with its event":    {[]remedy.Incident{closedBefore(xid79(), remedy.PhaseResolved)}, []remedy.Evidence{xid79()}, 10 * time.Minute, nil, "noted: gpu-lost-gpu-a-02-gpu-3-0909e3 has dealt with it"},
		"and with what was before it closed":            {[]remedy.Incident{closedBefore(xid79(), remedy.PhaseResolved)}, []remedy.Evidence{at(xid79(), time.Minute)}, 10 * time.Minute, nil, "noted: gpu-lost-gpu-a-02-gpu-3-0909e3 has dealt with it"},
		"a later event is the next occurrence":          {[]remedy.Incident{closedBefore(xid79(), remedy.PhaseResolved)}, []remedy.Evidence{at(xid79(), 5*time.Minute)}, 10 * time.Minute, nil, "opens gpu-a-02/gpu-3 #2 with 1"},
		"a person's veto is kept for a while":           {[]remedy.Incident{vetoed}, []remedy.Evidence{at(xid79(), 5*time.Minute)}, 10 * time.Minute, nil, "noted: gpu-lost-gpu-a-02-gpu-3-0909e3 was cancelled by a person; quiet until 2026-11-30T15:04:07Z"},
		"and no longer":                                 {[]remedy.Incident{vetoed}, []remedy.Evidence{at(xid79(), 70*time.Minute)}, 70 * time.Minute, nil, "opens gpu-a-02/gpu-3 #2 with 1"},
		"a veto is not about another class":             {[]remedy.Incident{vetoed}, []remedy.Evidence{changed(class(remedy.ClassGPUECC), func(e *remedy.Evidence) { e.At = t0.Add(5 * time.Minute) })}, 10 * time.Minute, nil, "opens gpu-a-02/gpu-3 #1 with 1"},
		"what happened before the repair is dealt with": {[]remedy.Incident{healed()}, []remedy.Evidence{boot(at(xid79(), 14*time.Minute), "")}, 21 * time.Minute, nil, "noted: gpu-lost-gpu-a-02-gpu-3-0909e3 has dealt with it"},
		"what happened while it was verified and is told late is not": {
			[]remedy.Incident{healed()}, []remedy.Evidence{boot(at(xid79(), 16*time.Minute), "")}, 21 * time.Minute, nil, "opens gpu-a-02/gpu-3 #2 with 1",
		},
		"what happened in the boot of the repair is not": {
			[]remedy.Incident{healed()},
			[]remedy.Evidence{boot(at(xid79(), 14*time.Minute), "boot-2")},
			21 * time.Minute,
			func(f *fleet.Snapshot) {
				n := f.Nodes[ill]
				n.BootID = "boot-2"
				f.Nodes[ill] = n
			}, "opens gpu-a-02/gpu-3 #2 with 1",
		},
		"a later event in the boot before is dealt with too": {
			[]remedy.Incident{healed()}, []remedy.Evidence{at(xid79(), 11*time.Minute)}, 21 * time.Minute, nil, "noted: gpu-lost-gpu-a-02-gpu-3-0909e3 has dealt with it",
		},
	} {
		t.Run(name, func(t *testing.T) {
			now := t0.Add(tc.now)
			f := cluster(now)
			if tc.change != nil {
				tc.change(&f)
			}
			if got := sorted(Correlate(now, f, tc.incidents, tc.ev, compiled(t, wholeLadder))); got != tc.want {
				t.Errorf("it\n%s, want\n%s", got, tc.want)
			}
		})
	}
}

func TestOneEventNamesAllItsSources(t *testing.T) {
	now := t0.Add(time.Minute)
	var ev []remedy.Evidence
	for _, source := range []string{"rules", "collector", "alertmanager", "collector", "alert"} {
		ev = append(ev, changed(xid79(), func(e *remedy.Evidence) { e.Source, e.BootID = source, "" }))
	}
	ev = append(ev, xid79()) // the only one that knows the boot
	opened, _ := Correlate(now, cluster(now), nil, ev, Playbooks{MaxAge: time.Hour})
	if len(opened) != 1 || len(opened[0].Evidence) != 1 {
		t.Fatalf("%v, want one incident with one event", opened)
	}
	got := opened[0].Evidence[0]
	if want := "rules, collector, alertmanager, alert"; got.Source != want || got.BootID != "boot-1" {
		t.Errorf("told by %q in boot %q, want %q in boot-1", got.Source, got.BootID, want)
	}
}

func TestAnOpenedIncidentKnowsWhatItIsAbout(t *testing.T) {
	now := t0.Add(time.Minute)
	e := changed(xid79(), func(e *remedy.Evidence) {
		e.Subject, e.BootID = remedy.Subject{Kind: remedy.SubjectGPU, Node: ill, PCI: "0000:1a:00"}, ""
	})
	cfg := compiled(t, wholeLadder)
	opened, _ := Correlate(now, cluster(now), nil, []remedy.Evidence{e}, cfg)
	e.Subject = gpu3
	want := []remedy.Incident{{
		Name: "gpu-lost-gpu-a-02-gpu-3-0909e3", Occurrence: 1, Subject: gpu3, Class: remedy.ClassGPULost, Phase: remedy.PhaseOpen,
		Playbook: "gpu-lost", Ladder: cfg.List[0].Steps, Evidence: []remedy.Evidence{e}, EvidenceCount: 1, BootID: "boot-1", NodeUID: "uid-gpu-a-02", Opened: now,
		Reason: "opened: XID 79 on GPU 3 of gpu-a-02",
	}}
	if d := cmp.Diff(want, opened); d != "" {
		t.Errorf("incident differs (-want +got):\n%s", d)
	}
}

func TestManyEventsOfOneFaultAreBounded(t *testing.T) {
	now := t0.Add(30 * time.Minute)
	cfg := compiled(t, wholeLadder)
	var ev []remedy.Evidence
	for i := range 10 * remedy.MaxEvidence {
		ev = append(ev, changed(xid79(), func(e *remedy.Evidence) { e.At = t0.Add(time.Duration(i) * 10 * time.Second) }))
	}
	opened, _ := Correlate(now, cluster(now), nil, ev, cfg)
	if len(opened) != 1 {
		t.Fatalf("%d incidents, want one", len(opened))
	}
	in := opened[0]
	if in.EvidenceCount != len(ev) || len(in.Evidence) != remedy.MaxEvidence || !in.Evidence[0].At.Equal(t0) || !in.Evidence[7].At.Equal(ev[len(ev)-1].At) {
		t.Errorf("%d counted, %d kept from %v to %v; want all counted, the first and the newest kept", in.EvidenceCount, len(in.Evidence), in.Evidence[0].At, in.Evidence[7].At)
	}
	in.Version = "1"
	if again, _ := Correlate(now, cluster(now), []remedy.Incident{in}, ev, cfg); len(again) > 0 {
		t.Errorf("told again, those that are not kept were counted anew: %d", again[0].EvidenceCount)
	}
}

func TestLeftoverIsWhatTheRepairHasNotSeen(t *testing.T) {
	add := func(in remedy.Incident, at time.Duration, boot string, f func(*remedy.Evidence)) remedy.Incident {
		in.AddEvidence(changed(xid79(), func(e *remedy.Evidence) {
			e.At, e.Seen, e.BootID = t0.Add(at), t0.Add(at+time.Second), boot
			if f != nil {
				f(e)
			}
		}))
		return in
	}
	phase := func(in remedy.Incident, p remedy.Phase) remedy.Incident { in.Phase = p; return in }
	for name, tc := range map[string]struct {
		in   remedy.Incident
		want int
	}{
		"nothing of a repair that has helped":         {healed(), 0},
		"a fault while the node was given back":       {add(healed(), 19*time.Minute, "boot-2", nil), 1},
		"not one that was known before":               {add(healed(), 19*time.Minute, "", func(e *remedy.Evidence) { e.Seen = t0.Add(2 * time.Minute) }), 0},
		"not one before the verification":             {add(healed(), 14*time.Minute, "", nil), 0},
		"one in the new boot before the verification": {add(healed(), 14*time.Minute, "boot-2", nil), 1},
		"not while the incident is open":              {phase(add(healed(), 19*time.Minute, "boot-2", nil), remedy.PhaseHeld), 0},
		"not when a person has cancelled":             {phase(add(healed(), 19*time.Minute, "boot-2", nil), remedy.PhaseCancelled), 0},
	} {
		t.Run(name, func(t *testing.T) {
			left := Leftover(tc.in)
			if len(left) != tc.want {
				t.Fatalf("%d left over, want %d: %v", len(left), tc.want, left)
			}
			if tc.want == 0 {
				return
			}
			now := t0.Add(21 * time.Minute)
			f := cluster(now)
			n := f.Nodes[ill]
			n.BootID = "boot-2"
			f.Nodes[ill] = n
			opened, notes := Correlate(now, f, []remedy.Incident{tc.in}, left, compiled(t, wholeLadder))
			if got := sorted(opened, notes); got != "opens gpu-a-02/gpu-3 #2 with 1" {
				t.Fatalf("correlated again it %s, want the next occurrence", got)
			}
			opened[0].Version = "1"
			if again, _ := Correlate(now, f, []remedy.Incident{tc.in, opened[0]}, left, compiled(t, wholeLadder)); len(again) > 0 {
				t.Errorf("and once more it %s, want nothing", sorted(again, nil))
			}
		})
	}
}

func TestAStormOfEvidenceIsSortedQuickly(t *testing.T) {
	now := t0.Add(time.Minute)
	f := fleet.NewFacts()
	var incidents []remedy.Incident
	for n := range 1000 {
		name := fmt.Sprintf("gpu-%04d", n)
		f.Nodes[name] = fleet.Node{Name: name, BootID: "boot-1"}
		for g := range 5 {
			e := changed(xid79(), func(e *remedy.Evidence) {
				e.Subject = remedy.Subject{Kind: remedy.SubjectGPU, Node: name, Index: fmt.Sprint(g)}
			})
			incidents = append(incidents, openSince(e))
		}
	}
	var ev []remedy.Evidence
	for i := range 50_000 {
		ev = append(ev, changed(xid79(), func(e *remedy.Evidence) {
			e.Subject = incidents[i%len(incidents)].Subject
			e.At = t0.Add(time.Duration(i/len(incidents)) * 5 * time.Second)
		}))
	}
	began := time.Now()
	got, _ := Correlate(now, f.Snapshot(now, fleet.Snapshot{}), incidents, ev, Playbooks{MaxAge: time.Hour})
	t.Logf("50,000 evidence over 5,000 open incidents in %v", time.Since(began).Round(time.Millisecond))
	if len(got) != len(incidents) {
		t.Errorf("%d incidents learned something, want all %d", len(got), len(incidents))
	}
}
