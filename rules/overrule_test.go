package rules

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

const byPerson = "cancelled: a person has uncordoned gpu-a-02"

func uncordon(p *patient) { p.node(func(n *fleet.Node) { n.Unschedulable = false }) }

func TestAPersonWhoUncordonsTheNodeWinsAtEveryStep(t *testing.T) {
	ladder := []string{
		"cordon gpu-a-02: done", "checkpoint dev/eval train/llm: done", "stop dev/eval train/llm: done", "start dev/eval train/llm: done",
		"drain gpu-a-02: done", "reboot gpu-a-02: done", "verify gpu-a-02: done",
	}
	const start, release, cancelled = "start dev/eval train/llm: done", "release gpu-a-02: done", "cancelled: " + byPerson
	for i, tc := range []struct {
		step  string
		runs  []string // from the step on, when it runs at the time
		ended []string // after the step, when it has just ended
	}{
		{"checkpoint", []string{"checkpoint dev/eval train/llm: yielded, abandoned: " + byPerson[len("cancelled: "):], release}, []string{release}},
		{"stop", []string{"stop dev/eval train/llm: yielded, abandoned: " + byPerson[len("cancelled: "):], start, release}, []string{start, release}},
		{"start", []string{start, release}, []string{release}}, // it goes on: undoing would do the same
		{"drain", []string{"drain gpu-a-02: yielded, abandoned: " + byPerson[len("cancelled: "):], release}, []string{release}},
		{"reboot", []string{"reboot gpu-a-02: yielded, abandoned: " + byPerson[len("cancelled: "):], release}, []string{release}},
		{"verify", []string{"verify gpu-a-02: yielded, abandoned: " + byPerson[len("cancelled: "):], release}, []string{release}},
	} {
		t.Run("while "+tc.step+" runs", func(t *testing.T) {
			p := newPatient(t, xid79())
			p.do(tc.step)
			uncordon(p)
			p.advance()
			if p.in.Phase != remedy.PhaseCancelling {
				t.Errorf("phase %s, want cancelling", p.in.Phase)
			}
			if len(p.orders) > 0 {
				p.reserve()
			}
			p.finish()
			wantHistory(t, p.in, append(append(append([]string(nil), ladder[:i+1]...), tc.runs...), cancelled)...)
		})
		t.Run("when "+tc.step+" has just ended", func(t *testing.T) {
			p := newPatient(t, xid79())
			p.do(tc.step)
			p.end(remedy.Done, "")
			uncordon(p)
			p.finish()
			wantHistory(t, p.in, append(append(append([]string(nil), ladder[:i+2]...), tc.ended...), cancelled)...)
			if want := p.in.Closed.Add(DefaultQuiet); p.in.Quiet != want {
				t.Errorf("quiet until %v, want %v", p.in.Quiet, want)
			}
		})
	}
	t.Run("but our own release is no person's", func(t *testing.T) {
		p := newPatient(t, xid79())
		p.do("release")
		p.effect(p.in.Current().Orders[0].Order)
		p.advance()
		if p.in.Phase != remedy.PhaseActing {
			t.Errorf("phase %s, want acting", p.in.Phase)
		}
		p.finish()
		wantHistory(t, p.in, append(append([]string(nil), ladder...), release, "resolved: healed: every step of gpu-lost is done")...)
	})
}

func TestWhatIsAPersonsChangeAndWhatIsNot(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(p *patient)
		want   string // in the incident's reason; empty: it goes on
	}{
		"taking our mark off the node": {
			func(p *patient) { p.node(func(n *fleet.Node) { n.Hold = fleet.Hold{} }) }, "a person has removed the hold from gpu-a-02",
		},
		"letting a stopped job run": {
			func(p *patient) { p.job(llm, func(j *fleet.Job) { j.Suspended = false }) }, "a person has started train/llm",
		},
		"not an old snapshot from before our change": {
			func(p *patient) {
				p.change(func(s *fleet.Snapshot) { s.Nodes[ill], s.Jobs[llm] = cluster(t0).Nodes[ill], cluster(t0).Jobs[llm] })
			}, "",
		},
		"not one without versions": {
			func(p *patient) {
				uncordon(p)
				p.change(func(s *fleet.Snapshot) {
					n := s.Nodes[ill]
					n.Version = 0
					s.Nodes[ill] = n
				})
			}, "",
		},
		"not a job that has ended": {
			func(p *patient) {
				p.job(llm, func(j *fleet.Job) { j.Suspended, j.Phase = false, fleet.JobSucceeded })
			}, "",
		},
		"not a job that somebody else has stopped again": {
			func(p *patient) {
				p.job(llm, func(j *fleet.Job) { j.Suspended, j.StoppedBy = false, "another" })
			}, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPatient(t, xid79())
			p.do("stop")
			p.end(remedy.Done, "")
			tc.change(p)
			p.advance()
			want := remedy.PhaseOpen
			if tc.want != "" {
				want = remedy.PhaseCancelling
			}
			if p.in.Phase != want || !strings.Contains(p.in.Reason, tc.want) {
				t.Errorf("%s: %s; want %s with %q", p.in.Phase, p.in.Reason, want, tc.want)
			}
		})
	}
	t.Run("not letting a job run that we let run", func(t *testing.T) {
		p := newPatient(t, xid79())
		p.do("start")
		p.job(llm, func(j *fleet.Job) { j.Suspended = false })
		p.advance()
		if p.in.Phase != remedy.PhaseActing {
			t.Errorf("%s: %s; want acting", p.in.Phase, p.in.Reason)
		}
	})
}

func TestAPersonWhoStartsOneJobGetsTheOtherBack(t *testing.T) {
	p := newPatient(t, xid79())
	p.do("stop")
	p.end(remedy.Done, "")
	p.job(llm, func(j *fleet.Job) { j.Suspended = false })
	p.finish()
	wantHistory(
		t, p.in,
		"cordon gpu-a-02: done", "checkpoint dev/eval train/llm: done", "stop dev/eval train/llm: done",
		"start dev/eval train/llm: done", // the action looks first and finds train/llm running
		"release gpu-a-02: done",
		"cancelled: cancelled: a person has started train/llm",
	)
	if p.f.Jobs[eval].Suspended {
		t.Errorf("dev/eval was left stopped")
	}
}

func TestAnOrderThatYieldsCancels(t *testing.T) {
	p := newPatient(t, xid79())
	p.do("stop")
	p.endEach(func(o remedy.Order) (remedy.Ending, string) {
		if o.Target.Job == llm {
			return remedy.Yielded, "train/llm was started by somebody else"
		}
		return remedy.Done, ""
	})
	p.finish()
	wantHistory(
		t, p.in,
		"cordon gpu-a-02: done", "checkpoint dev/eval train/llm: done",
		"stop dev/eval train/llm: yielded, train/llm was started by somebody else",
		"start dev/eval: done", // what a person has taken over is theirs
		"release gpu-a-02: done",
		"cancelled: cancelled: stop of train/llm: train/llm was started by somebody else",
	)
}

func TestCancellingStartsJobsOnTheNodeAgain(t *testing.T) {
	p := newPatient(t, xid79())
	p.do("start")
	p.end(remedy.Rejected, "started anew 3 times already; a person is needed")
	p.finish()
	if p.in.Phase != remedy.PhaseHeld {
		t.Fatalf("phase %s, want held", p.in.Phase)
	}
	uncordon(p)
	p.advance()
	if len(p.orders) != 2 || string(p.orders[0].Params) != undoStart || p.orders[0].Deadline != p.now.Add(recoveryWithin) {
		t.Errorf("orders %+v, want starts without a limit of attempts, on any node, with a day's time", p.orders)
	}
	p.finish()
	if p.f.Jobs[llm].Suspended || p.in.Phase != remedy.PhaseCancelled {
		t.Errorf("train/llm is suspended = %t, phase %s; want it to run, and cancelled", p.f.Jobs[llm].Suspended, p.in.Phase)
	}
}

func TestWhatCannotBeGivenBackIsTold(t *testing.T) {
	p := newPatient(t, xid79())
	p.do("stop")
	p.end(remedy.Done, "")
	uncordon(p)
	p.advance()
	p.reserve()
	p.end(remedy.Rejected, "forbidden")
	p.advance()
	p.reserve()
	p.end(remedy.Late, "no answer")
	p.advance()
	p.reserve() // the release is asked for again
	p.end(remedy.Rejected, "forbidden too")
	p.advance()
	wantHistory(
		t, p.in,
		"cordon gpu-a-02: done", "checkpoint dev/eval train/llm: done", "stop dev/eval train/llm: done",
		"start dev/eval train/llm: rejected, forbidden",
		"release gpu-a-02: late, no answer",
		"release gpu-a-02: rejected, forbidden too",
		"cancelled: "+byPerson+"; start of dev/eval was rejected: forbidden; start of train/llm was rejected: forbidden; release of gpu-a-02 was rejected: forbidden too",
	)
}

func TestCancellingAsksForTheReleaseOfAHoldThatMayBe(t *testing.T) {
	p := newPatient(t, xid79())
	p.reserve()
	p.end(remedy.Yielded, "uncordoned by a person")
	p.finish()
	wantHistory(
		t, p.in, "cordon gpu-a-02: yielded, uncordoned by a person", "release gpu-a-02: done",
		"cancelled: cancelled: cordon of gpu-a-02: uncordoned by a person",
	)
}

func TestAHeldIncidentEnds(t *testing.T) {
	hold := func(t *testing.T, e remedy.Evidence, step string, ending remedy.Ending) *patient {
		t.Helper()
		p := newPatient(t, e)
		p.do(step)
		p.end(ending, "why")
		p.finish()
		if p.in.Phase != remedy.PhaseHeld {
			t.Fatalf("phase %s, want held", p.in.Phase)
		}
		return p
	}
	for name, tc := range map[string]struct {
		e      remedy.Evidence
		step   string
		ending remedy.Ending
		change func(*patient)
		want   string // empty: not at all
	}{
		"when a person uncordons the node": {xid79(), "drain", remedy.Late, uncordon, "cancelled: " + byPerson},
		"when the node is gone": {
			xid79(), "drain", remedy.Late, func(p *patient) { p.change(func(s *fleet.Snapshot) { delete(s.Nodes, ill) }) }, "resolved: the node is gone",
		},
		"when another node has its name": {
			xid79(), "drain", remedy.Late, func(p *patient) {
				p.node(func(n *fleet.Node) { n.UID, n.Hold, n.Unschedulable = "uid-new", fleet.Hold{}, false })
			}, "resolved: another node has taken the place of the one that failed",
		},
		"when the release comes late": {
			xid79(), "release", remedy.Late, func(p *patient) {
				p.node(func(n *fleet.Node) { n.Hold, n.Unschedulable = fleet.Hold{}, false })
			}, "resolved: the node was given back after all",
		},
		"when a person uncordons what we could not release": {xid79(), "release", remedy.Late, uncordon, "cancelled: " + byPerson},
		"when a state is over and nothing is held": {
			unready(), "cordon", remedy.Rejected, func(p *patient) {
				p.told(changed(unready(), func(e *remedy.Evidence) { e.Resolved = true }))
			}, "resolved: over by itself, after a step had failed",
		},
		"when the node was booted and nothing is held": {
			xid79(), "cordon", remedy.Rejected, func(p *patient) { p.node(func(n *fleet.Node) { n.BootID = "boot-2" }) },
			"resolved: the node has been booted since the fault, and is not held",
		},
		"not when the node is held and was booted": {
			xid79(), "drain", remedy.Late, func(p *patient) { p.node(func(n *fleet.Node) { n.BootID = "boot-2" }) }, "",
		},
		"not when a state is over and the node is held": {
			unready(), "drain", remedy.Late, func(p *patient) {
				p.told(changed(unready(), func(e *remedy.Evidence) { e.Resolved = true }))
			}, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := hold(t, tc.e, tc.step, tc.ending)
			tc.change(p)
			p.finish()
			got := history(p.in)
			if last := got[len(got)-1]; tc.want == "" && p.in.Phase != remedy.PhaseHeld || tc.want != "" && last != tc.want {
				t.Errorf("ended as %q, want %q", last, tc.want)
			}
		})
	}
}

func TestALadderDoesNotEndWhileAJobIsStopped(t *testing.T) {
	p := newPatient(t, xid79())
	p.in.Ladder[3].Optional = true // the start
	p.do("start")
	p.end(remedy.Late, "no answer")
	p.finish()
	want := []string{
		"start dev/eval train/llm: late, no answer",
		"drain gpu-a-02: done", "reboot gpu-a-02: done", "verify gpu-a-02: done", "release gpu-a-02: done",
		"start dev/eval train/llm: done",
		"resolved: healed: every step of gpu-lost is done, and what was stopped runs again",
	}
	if d := cmp.Diff(want, history(p.in)[3:]); d != "" {
		t.Errorf("history differs (-want +got):\n%s", d)
	}
}

func TestAStopThatWasTakenAndThenRefusedIsUndone(t *testing.T) {
	p := newPatient(t, xid79())
	p.do("stop")
	p.end(remedy.Rejected, "pods cannot be listed")
	in := p.in.Clone()
	in.Current().Orders[1].Receipt = &remedy.Receipt{At: p.now, Version: 21}
	p.in = in
	p.finish()
	wantHistory(
		t, p.in,
		"cordon gpu-a-02: done", "checkpoint dev/eval train/llm: done",
		"stop dev/eval train/llm: rejected, pods cannot be listed",
		"start train/llm: done",
		"held: needs a person: stop of dev/eval ended rejected: pods cannot be listed",
	)
}

func TestRecoveryOfAHeldIncidentKeepsAwayFromTheNode(t *testing.T) {
	p := newPatient(t, xid79())
	p.do("stop")
	p.end(remedy.Late, "")
	p.advance()
	if len(p.orders) != 2 || string(p.orders[0].Params) != `{"avoid":"node"}` || p.orders[0].Deadline.Sub(p.now) != 24*time.Hour {
		t.Errorf("orders %+v, want starts as the ladder has them, with a day's time", p.orders)
	}
}
