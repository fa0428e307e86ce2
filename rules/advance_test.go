package rules

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

func wantHistory(t *testing.T, in remedy.Incident, want ...string) {
	t.Helper()
	if d := cmp.Diff(want, history(in)); d != "" {
		t.Errorf("history differs (-want +got):\n%s", d)
	}
}

func TestTheWholeLadderIsWalkedStepByStep(t *testing.T) {
	p := newPatient(t, xid79())
	for _, want := range []struct {
		action, targets string
		within          time.Duration
	}{
		{"cordon", "gpu-a-02", 2 * time.Minute},
		{"checkpoint", "dev/eval train/llm", 2 * time.Minute},
		{"stop", "dev/eval train/llm", 10 * time.Minute},
		{"start", "dev/eval train/llm", 10 * time.Minute},
		{"drain", "gpu-a-02", 10 * time.Minute},
		{"reboot", "gpu-a-02", 20 * time.Minute},
		{"verify", "gpu-a-02", 30 * time.Minute},
		{"release", "gpu-a-02", 10 * time.Minute},
	} {
		var to []string
		for _, o := range p.orders {
			to = append(to, o.Target.String())
			if o.Action != want.action || o.Deadline != p.now.Add(want.within) || o.Node != ill || o.BootID != "boot-1" || o.Incident != p.in.Name {
				t.Errorf("order %+v, want a %s within %v", o, want.action, want.within)
			}
			if want := "XID 79 on GPU 3 of gpu-a-02 (playbook gpu-lost)"; o.Cause != want || o.Actor != "stoker" {
				t.Errorf("cause %q by %q, want %q by stoker", o.Cause, o.Actor, want)
			}
		}
		if got := strings.Join(to, " "); got != want.targets {
			t.Fatalf("at rung %d orders are for %q, want %s of %s", p.in.Rung, got, want.action, want.targets)
		}
		if p.in.Phase != remedy.PhaseOpen {
			t.Errorf("before %s the phase is %s, want open", want.action, p.in.Phase)
		}
		p.reserve()
		if p.in.Phase != remedy.PhaseActing {
			t.Errorf("in %s the phase is %s, want acting", want.action, p.in.Phase)
		}
		if again := p.advance(); len(again) > 0 {
			t.Errorf("while %s runs there are orders %v", want.action, again)
		}
		p.end(remedy.Done, "")
		p.advance()
	}
	wantHistory(
		t, p.in,
		"cordon gpu-a-02: done",
		"checkpoint dev/eval train/llm: done",
		"stop dev/eval train/llm: done",
		"start dev/eval train/llm: done",
		"drain gpu-a-02: done",
		"reboot gpu-a-02: done",
		"verify gpu-a-02: done",
		"release gpu-a-02: done",
		"resolved: healed: every step of gpu-lost is done",
	)
	if p.in.Rung != len(p.in.Ladder) || p.in.Closed != p.now || !p.in.Quiet.IsZero() {
		t.Errorf("rung %d, closed %v, quiet until %v; want %d, %v and no quiet", p.in.Rung, p.in.Closed, p.in.Quiet, len(p.in.Ladder), p.now)
	}
}

func TestEveryOrderHasAKeyOfItsOwn(t *testing.T) {
	p := newPatient(t, xid79())
	twin := fleet.JobRef{Kind: "PyTorchJob.kubeflow.org", Namespace: "train", Name: "llm"}
	p.change(func(s *fleet.Snapshot) {
		pod := s.Pods["pod-0"]
		pod.UID, pod.Job = "pod-9", twin
		s.Pods["pod-9"] = pod
		j := s.Jobs[llm]
		j.Ref = twin
		s.Jobs[twin] = j
		pod.UID, pod.Job = "pod-8", fleet.JobRef{Kind: "Job.batch", Namespace: "dev", Name: "llm"}
		s.Pods["pod-8"] = pod
		j.Ref = pod.Job
		s.Jobs[pod.Job] = j
	})
	p.finish()
	keys := map[string]bool{}
	for _, s := range p.in.Steps {
		for _, o := range s.Orders {
			if keys[o.Order.Key] {
				t.Errorf("key %s is there twice", o.Order.Key)
			}
			if !strings.HasPrefix(o.Order.Key, p.in.Name+"/") {
				t.Errorf("key %s does not begin with its incident's name", o.Order.Key)
			}
			keys[o.Order.Key] = true
		}
	}
	if want := 5 + 3*4; len(keys) != want {
		t.Errorf("%d keys, want %d", len(keys), want)
	}

	// A year later the incident has been forgotten and its name is free again. The
	// marks that its orders left are still on the job.
	next := newPatient(t, xid79())
	next.in.Opened = p.in.Opened.AddDate(1, 0, 0)
	next.now = next.in.Opened
	next.finish()
	for _, s := range next.in.Steps {
		for _, o := range s.Orders {
			if keys[o.Order.Key] {
				t.Errorf("key %s was used by an earlier incident of that name", o.Order.Key)
			}
		}
	}
}

func TestTheSameDecisionHasTheSameKeys(t *testing.T) {
	p, q := newPatient(t, xid79()), newPatient(t, xid79())
	q.now = q.now.Add(3 * time.Second)
	q.advance()
	if p.orders[0].Key != q.orders[0].Key {
		t.Errorf("keys %s and %s of one decision made twice", p.orders[0].Key, q.orders[0].Key)
	}
}

func TestStepsWithNothingToDoAreSkippedWithAReason(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*patient)
		want   []string
	}{
		"a node without jobs needs no checkpoint, stop and start": {
			func(p *patient) { p.change(func(s *fleet.Snapshot) { clear(s.Pods) }) },
			[]string{
				"cordon gpu-a-02: done",
				"checkpoint: skipped, no job holds a GPU of the node",
				"stop: skipped, no job holds a GPU of the node",
				"start: skipped, no job was stopped",
				"drain gpu-a-02: done", "reboot gpu-a-02: done", "verify gpu-a-02: done", "release gpu-a-02: done",
				"resolved: healed: every step of gpu-lost is done",
			},
		},
		"a job that has ended is left alone": {
			func(p *patient) {
				p.job(llm, func(j *fleet.Job) { j.Phase = fleet.JobSucceeded })
				p.job(eval, func(j *fleet.Job) { j.Phase = fleet.JobFailed })
			},
			[]string{
				"cordon gpu-a-02: done",
				"checkpoint: skipped, no job holds a GPU of the node",
				"stop: skipped, no job holds a GPU of the node",
				"start: skipped, no job was stopped",
				"drain gpu-a-02: done", "reboot gpu-a-02: done", "verify gpu-a-02: done", "release gpu-a-02: done",
				"resolved: healed: every step of gpu-lost is done",
			},
		},
		"a node that somebody boots during the ladder is not booted again": {
			func(p *patient) {
				p.do("drain")
				p.node(func(n *fleet.Node) { n.BootID = "boot-7" })
			},
			[]string{
				"cordon gpu-a-02: done", "checkpoint dev/eval train/llm: done", "stop dev/eval train/llm: done", "start dev/eval train/llm: done",
				"drain gpu-a-02: done",
				"reboot: skipped, the node has been booted already",
				"verify gpu-a-02: done", "release gpu-a-02: done",
				"resolved: healed: every step of gpu-lost is done",
			},
		},
		"a node that vanishes after the first step is given up, and its jobs are not": {
			func(p *patient) {
				p.do("stop")
				p.end(remedy.Done, "")
				p.change(func(s *fleet.Snapshot) { delete(s.Nodes, ill) })
			},
			[]string{
				"cordon gpu-a-02: done", "checkpoint dev/eval train/llm: done", "stop dev/eval train/llm: done", "start dev/eval train/llm: done",
				"drain: skipped, the node is gone", "reboot: skipped, the node is gone", "verify: skipped, the node is gone", "release: skipped, the node is gone",
				"resolved: the node is gone",
			},
		},
		"a scope of a newer version is passed over": {
			func(p *patient) { p.in.Ladder[4].Scope = "rack" },
			[]string{
				"cordon gpu-a-02: done", "checkpoint dev/eval train/llm: done", "stop dev/eval train/llm: done", "start dev/eval train/llm: done",
				`drain: skipped, scope "rack" is not known to this version`,
				"reboot gpu-a-02: done", "verify gpu-a-02: done", "release gpu-a-02: done",
				"resolved: healed: every step of gpu-lost is done",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPatient(t, xid79())
			tc.change(p)
			p.finish()
			wantHistory(t, p.in, tc.want...)
		})
	}
}

func TestAJobThatStallsIsStoppedAndStartedAlone(t *testing.T) {
	stalled := remedy.Evidence{
		Subject: remedy.Subject{Kind: remedy.SubjectJob, Namespace: "train", Name: "llm"}, Class: remedy.ClassJobStalled,
		At: t0, Seen: t0, Source: "rules", Labels: map[string]string{"alertname": "JobStalled"},
	}
	pending := fleet.JobRef{Kind: "Job.batch", Namespace: "train", Name: "queued"}
	// A pod that waits for a node is on the node without a name.
	waits := func(s *fleet.Snapshot) {
		s.Pods["pod-7"] = fleet.Pod{PodRef: fleet.PodRef{UID: "pod-7"}, Job: pending, GPUs: 8}
		s.Jobs[pending] = fleet.Job{Ref: pending, Phase: fleet.JobPending, Workers: 1}
	}
	t.Run("and no other job is touched", func(t *testing.T) {
		p := newPatient(t, stalled)
		p.change(waits)
		p.finish()
		wantHistory(t, p.in, "checkpoint train/llm: done", "stop train/llm: done", "start train/llm: done", "resolved: healed: every step of stalled is done")
	})
	t.Run("and nothing is touched when it is gone", func(t *testing.T) {
		p := newPatient(t, stalled)
		p.change(waits)
		p.change(func(s *fleet.Snapshot) { delete(s.Jobs, llm) })
		p.finish()
		const gone = "skipped, the job is gone or has ended"
		wantHistory(t, p.in, "checkpoint: "+gone, "stop: "+gone, "start: skipped, no job was stopped", "resolved: there was nothing to do: every step of stalled was skipped")
	})
	t.Run("and the choice between two kinds of one name never varies", func(t *testing.T) {
		p := newPatient(t, stalled)
		p.change(func(s *fleet.Snapshot) {
			for i := range 20 {
				j := s.Jobs[llm]
				j.Ref.Kind = fmt.Sprintf("Kind%02d", i)
				s.Jobs[j.Ref] = j
			}
		})
		for range 20 {
			p.advance()
			if got := p.orders[0].Target.Job; got != llm {
				t.Fatalf("order for %v, want %v", got, llm)
			}
		}
	})
	t.Run("and a failed step does not keep it open once the job is gone", func(t *testing.T) {
		p := newPatient(t, stalled)
		p.do("stop")
		p.end(remedy.Rejected, "forbidden")
		p.advance()
		if p.in.Phase != remedy.PhaseHeld {
			t.Fatalf("phase %s, want held", p.in.Phase)
		}
		p.job(llm, func(j *fleet.Job) { j.Phase = fleet.JobSucceeded })
		p.finish()
		wantHistory(t, p.in, "checkpoint train/llm: done", "stop train/llm: rejected, forbidden", "resolved: the job is gone or has ended")
	})
}

func TestStoppingWritesDownWhatIsLost(t *testing.T) {
	p := newPatient(t, xid79())
	p.do("stop")
	since := func(job fleet.JobRef, from time.Time) float64 {
		return float64(p.f.Jobs[job].GPUs()) * p.in.Current().Reserved.Sub(from).Hours()
	}
	want := []remedy.Loss{
		{Job: eval, GPUHours: since(eval, p.f.Jobs[eval].Started), Cause: "unsaved work"},
		{Job: llm, GPUHours: since(llm, p.f.Jobs[llm].Checkpoint.At), Cause: "unsaved work", Step: 18200},
	}
	if d := cmp.Diff(want, p.in.Losses); d != "" {
		t.Errorf("losses differ (-want +got):\n%s", d)
	}
	if got := p.in.Lost(); got < 8 || got > 9 {
		t.Errorf("%.2f GPU-hours in all, want a little over 4 of the gang and 4 of the small job", got)
	}
	p.end(remedy.Rejected, "forbidden")
	p.finish()
	if len(p.in.Losses) > 0 {
		t.Errorf("losses %v of a stop that was refused", p.in.Losses)
	}
	wantHistory(
		t, p.in,
		"cordon gpu-a-02: done", "checkpoint dev/eval train/llm: done", "stop dev/eval train/llm: rejected, forbidden",
		"held: needs a person: stop of dev/eval ended rejected: forbidden",
	)
}

func TestAnIncidentWithoutALadderIsTold(t *testing.T) {
	noted := changed(xid79(), func(e *remedy.Evidence) { e.Labels["pool"] = "dev" })
	t.Run("an event is over when it was told", func(t *testing.T) {
		p := newPatient(t, noted)
		wantHistory(t, p.in, "resolved: told; no playbook has steps for it")
	})
	hot := remedy.Evidence{Subject: gpu3, Class: remedy.ClassGPUHot, At: t0, Seen: t0, Source: "rules", Labels: map[string]string{"alertname": "GPUHot"}}
	t.Run("a state is over when its alert is", func(t *testing.T) {
		p := newPatient(t, hot)
		p.advance()
		if p.in.Phase != remedy.PhaseOpen {
			t.Fatalf("phase %s while the GPU is hot, want open", p.in.Phase)
		}
		p.told(changed(hot, func(e *remedy.Evidence) { e.Resolved = true }))
		p.finish()
		wantHistory(t, p.in, "resolved: over by itself; nothing was done")
	})
	t.Run("a state is not over while another alert says that it lasts", func(t *testing.T) {
		p := newPatient(t, hot)
		other := changed(hot, func(e *remedy.Evidence) { e.Labels["alertname"], e.At = "GPUSlowdown", t0.Add(time.Minute) })
		p.told(other)
		p.told(changed(other, func(e *remedy.Evidence) { e.Resolved = true }))
		p.advance()
		if p.in.Phase != remedy.PhaseOpen {
			t.Errorf("phase %s, want open: GPUHot still fires", p.in.Phase)
		}
	})
	t.Run("an end that was never told does not keep a state for ever", func(t *testing.T) {
		p := newPatient(t, hot) // told by a process that has ended since
		again := changed(hot, func(e *remedy.Evidence) { e.At = t0.Add(time.Hour) })
		p.told(again)
		p.told(changed(again, func(e *remedy.Evidence) { e.Resolved = true }))
		p.finish()
		wantHistory(t, p.in, "resolved: over by itself; nothing was done")
	})
}

func TestAStateThatEndsBeforeAnythingWasDoneIsOver(t *testing.T) {
	p := newPatient(t, unready())
	p.told(changed(unready(), func(e *remedy.Evidence) { e.Resolved = true }))
	p.finish()
	wantHistory(t, p.in, "resolved: over by itself; nothing was done")

	p = newPatient(t, unready())
	p.reserve()
	p.told(changed(unready(), func(e *remedy.Evidence) { e.Resolved = true }))
	p.finish()
	if got := history(p.in)[0]; got != "cordon gpu-a-02: done" || p.in.Phase != remedy.PhaseResolved {
		t.Errorf("a ladder that was begun ended with %v, want it walked to its end", history(p.in))
	}
}

func TestANodeThatIsNotKnownIsWaitedFor(t *testing.T) {
	p := newPatient(t, xid79())
	p.change(func(s *fleet.Snapshot) { delete(s.Nodes, ill) })
	p.advance()
	if len(p.orders) > 0 || len(p.in.Waiting) != 1 || p.in.Waiting[0].Gate != "fleet" {
		t.Fatalf("orders %v, waiting %v; want to wait for the fleet", p.orders, p.in.Waiting)
	}
	t.Run("and acted on when it shows up", func(t *testing.T) {
		p := *p
		p.t = t
		p.change(func(s *fleet.Snapshot) { s.Nodes[ill] = cluster(p.now).Nodes[ill] })
		p.advance()
		p.reserve()
		if len(p.in.Waiting) > 0 || p.in.Current().Action != "cordon" {
			t.Errorf("waiting %v in %v, want the cordon", p.in.Waiting, history(p.in))
		}
	})
	t.Run("and given up after a quarter of an hour", func(t *testing.T) {
		p := *p
		p.t = t
		p.now = p.in.Opened.Add(unknownNode)
		p.advance()
		wantHistory(t, p.in, "resolved: the cluster has no node gpu-a-02")
	})
}

func TestABootBeforeAnythingWasDoneHeals(t *testing.T) {
	t.Run("and nothing is done", func(t *testing.T) {
		p := newPatient(t, xid79())
		p.node(func(n *fleet.Node) { n.BootID = "boot-2" })
		p.advance()
		wantHistory(t, p.in, "resolved: the node has been booted since the fault, before anything was done")
	})
	t.Run("unless the fault is there again, which is then one of the new boot", func(t *testing.T) {
		p := newPatient(t, xid79())
		p.node(func(n *fleet.Node) { n.BootID = "boot-2" })
		p.told(changed(xid79(), func(e *remedy.Evidence) {
			e.BootID, e.At, e.Seen = "boot-2", t0.Add(2*time.Minute), t0.Add(2*time.Minute)
		}))
		p.advance()
		if len(p.orders) != 1 || p.orders[0].BootID != "boot-2" {
			t.Fatalf("orders %+v of %v, want a cordon for boot-2", p.orders, history(p.in))
		}
	})
	t.Run("and an event that is read with the new boot's id is not one of the new boot", func(t *testing.T) {
		p := newPatient(t, xid79())
		p.node(func(n *fleet.Node) { n.BootID = "boot-2" })
		p.told(changed(xid79(), func(e *remedy.Evidence) { e.BootID, e.Seen = "boot-2", t0.Add(2*time.Minute) }))
		p.advance()
		wantHistory(t, p.in, "resolved: the node has been booted since the fault, before anything was done")
	})
	t.Run("also when what came first on the ladder was skipped", func(t *testing.T) {
		p := newPatient(t, xid79())
		p.in.Ladder = p.in.Ladder[1:]
		p.change(func(s *fleet.Snapshot) { clear(s.Pods) })
		p.advance()
		p.node(func(n *fleet.Node) { n.BootID = "boot-2" })
		p.advance()
		got := history(p.in)
		if want := "resolved: the node has been booted since the fault, before anything was done"; got[len(got)-1] != want {
			t.Errorf("%s, want %s", strings.Join(got, "\n"), want)
		}
	})
	t.Run("but a state is none of the boot's", func(t *testing.T) {
		p := newPatient(t, unready())
		p.node(func(n *fleet.Node) { n.BootID = "boot-2" })
		p.advance()
		if len(p.orders) != 1 {
			t.Errorf("orders %v of %v, want the cordon", p.orders, history(p.in))
		}
	})
}

func TestABootThatIsNotToldIsTheNodes(t *testing.T) {
	e := changed(xid79(), func(e *remedy.Evidence) { e.BootID = "" })
	p := newPatient(t, e)
	p.in.BootID = "" // opened when the fleet was not known yet
	p.advance()
	if p.orders[0].BootID != "boot-1" {
		t.Errorf("the order is for boot %q, want boot-1: nobody could tell a new boot from it", p.orders[0].BootID)
	}
}

func TestAFaultThatComesBackFailsTheRepair(t *testing.T) {
	again := func(at time.Time, boot string) remedy.Evidence {
		return changed(xid79(), func(e *remedy.Evidence) { e.At, e.Seen, e.BootID = at, at.Add(time.Second), boot })
	}
	const held = "held: needs a person: verify of gpu-a-02 ended rejected: the fault came back: XID 79 on GPU 3 of gpu-a-02"
	for name, tc := range map[string]struct {
		e    func(p *patient) remedy.Evidence
		back bool
	}{
		"in the new boot":                      {func(p *patient) remedy.Evidence { return again(p.now.Add(time.Second), "boot-2") }, true},
		"in a boot that is not told":           {func(p *patient) remedy.Evidence { return again(p.now.Add(time.Second), "") }, true},
		"in the new boot, before the look":     {func(p *patient) remedy.Evidence { return again(p.in.Current().Reserved.Add(-5*time.Second), "boot-2") }, true},
		"not when it is from the old boot":     {func(p *patient) remedy.Evidence { return again(p.now.Add(time.Second), "boot-1") }, false},
		"not when the old event is told again": {func(*patient) remedy.Evidence { return xid79() }, false},
		"not when it is old and read with the new boot's id": {
			func(*patient) remedy.Evidence { return again(t0, "boot-2") }, false,
		},
		"not when the driver told of it before the reboot": {
			func(p *patient) remedy.Evidence { return again(p.in.Steps[4].Ended, "") }, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPatient(t, xid79())
			p.do("verify")
			p.told(tc.e(p))
			p.advance()
			got := history(p.in)
			if back := got[len(got)-1] == held; back != tc.back {
				t.Errorf("came back = %t, want %t: %s", back, tc.back, got[len(got)-1])
			}
			if tc.back {
				return
			}
			p.finish()
			if p.in.Phase != remedy.PhaseResolved {
				t.Errorf("%s, want it healed", strings.Join(history(p.in), "\n"))
			}
		})
	}
	t.Run("told in the same moment as the verification ends", func(t *testing.T) {
		p := newPatient(t, xid79())
		p.do("verify")
		at := p.now
		p.end(remedy.Done, "whole for 5m")
		p.told(again(at.Add(time.Second), "boot-2"))
		p.advance()
		if got := history(p.in); got[len(got)-1] != held || p.in.Phase != remedy.PhaseHeld {
			t.Errorf("%s, want %s", strings.Join(got, "\n"), held)
		}
	})
	t.Run("in a boot that was not ours, told when that has been taken for the repair", func(t *testing.T) {
		p := newPatient(t, xid79())
		p.do("drain")
		p.node(func(n *fleet.Node) { n.BootID = "boot-2" })
		at := p.now
		p.do("verify")
		p.told(again(at, "boot-2"))
		p.advance()
		if got := history(p.in); got[len(got)-1] != held {
			t.Errorf("%s, want %s", strings.Join(got, "\n"), held)
		}
	})
	t.Run("while the release waits", func(t *testing.T) {
		p := newPatient(t, xid79())
		p.do("verify")
		p.end(remedy.Done, "")
		p.advance() // the release could be reserved now, and is not
		p.told(again(p.now.Add(time.Second), "boot-2"))
		p.advance()
		if p.in.Phase != remedy.PhaseHeld || len(p.orders) > 0 {
			t.Errorf("%s, want it held and no release", strings.Join(history(p.in), "\n"))
		}
	})
}

func TestAClockThatRunsAheadDoesNotBringTheFaultBack(t *testing.T) {
	ahead := changed(xid79(), func(e *remedy.Evidence) { e.At, e.BootID = t0.Add(20*time.Minute), "" })
	p := newPatient(t, ahead)
	p.finish()
	if p.in.Phase != remedy.PhaseResolved {
		t.Fatalf("%s, want it healed", strings.Join(history(p.in), "\n"))
	}
	if _, notes := Correlate(p.now, p.f, []remedy.Incident{p.in}, []remedy.Evidence{ahead}, p.cfg); len(notes) != 1 {
		t.Errorf("told again, the event opened another incident")
	}
}

func TestHistoryIsBoundedAndForgetsOnlyWhatIsInVain(t *testing.T) {
	p := newPatient(t, xid79())
	p.do("stop")
	p.end(remedy.Late, "")
	p.advance()
	for range 3 * remedy.MaxSteps { // the job can never be started
		p.reserve()
		if n := len(p.in.Steps); n > remedy.MaxSteps {
			t.Fatalf("%d steps are kept, %d is the limit", n, remedy.MaxSteps)
		}
		p.end(remedy.Late, "")
		p.advance()
	}
	p.reserve()
	p.end(remedy.Done, "")
	p.advance()
	got := history(p.in)
	if got[0] != "cordon gpu-a-02: done" || got[2] != "stop dev/eval train/llm: late" {
		t.Errorf("the first steps are %v; what was done to the cluster is forgotten", got[:3])
	}
	if len(p.orders) > 0 || p.in.Phase != remedy.PhaseHeld {
		t.Errorf("phase %s with orders %v, want held and none", p.in.Phase, p.orders)
	}
}

func TestAClosedIncidentTakesNothingIn(t *testing.T) {
	for _, phase := range []remedy.Phase{remedy.PhaseResolved, remedy.PhaseCancelled} {
		p := newPatient(t, xid79())
		p.in.Phase, p.in.Closed = phase, p.now
		later := changed(xid79(), func(e *remedy.Evidence) { e.At = t0.Add(time.Hour) })
		got, orders := Advance(p.now, p.f, p.in, []remedy.Evidence{later}, p.cfg)
		if d := cmp.Diff(p.in, got); d != "" || len(orders) > 0 {
			t.Errorf("a %s incident has changed, with orders %v (-want +got):\n%s", phase, orders, d)
		}
	}
}

func TestPhasesOfANewerVersionAreLeftAlone(t *testing.T) {
	p := newPatient(t, xid79())
	p.in.Phase = "paused"
	if p.advance(); len(p.orders) > 0 || p.in.Phase != "paused" {
		t.Errorf("phase %s with orders %v, want no change", p.in.Phase, p.orders)
	}
}

// storedAgain is the incident as it comes back from a store.
func storedAgain(t rapid.TB, in remedy.Incident) remedy.Incident {
	t.Helper()
	b, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var out remedy.Incident
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatal(err)
	}
	out.Version = in.Version
	return out
}

func TestAnIncidentSurvivesItsStoreAtEveryStep(t *testing.T) {
	p, q := newPatient(t, xid79()), newPatient(t, xid79())
	for _, s := range []string{"cordon", "checkpoint", "stop", "start", "drain", "reboot", "verify", "release"} {
		p.do(s)
		q.do(s)
		q.in = storedAgain(t, q.in)
		if a, b := history(p.in), history(q.in); !cmp.Equal(a, b) {
			t.Errorf("at %s it went on another way:\n%s", s, cmp.Diff(a, b))
		}
	}
}
