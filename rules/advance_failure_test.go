package rules

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"stoker.dev/stoker/internal/remedy"
)

func TestAStepThatMayFailDoesNotStopTheLadder(t *testing.T) {
	p := newPatient(t, xid79())
	p.do("checkpoint")
	p.end(remedy.Late, "train/llm did not answer")
	p.finish()
	wantHistory(
		t, p.in,
		"cordon gpu-a-02: done",
		"checkpoint dev/eval train/llm: late, train/llm did not answer",
		"stop dev/eval train/llm: done", "start dev/eval train/llm: done", "drain gpu-a-02: done", "reboot gpu-a-02: done", "verify gpu-a-02: done", "release gpu-a-02: done",
		"resolved: healed: every step of gpu-lost is done",
	)
}

func TestAStepThatFailsHoldsTheNodeAndJobsRunAgain(t *testing.T) {
	const odd = remedy.Ending("sideways") // of a newer version
	for name, tc := range map[string]struct {
		step   string
		ending remedy.Ending
		want   []string // after the steps that were done
	}{
		"a cordon that is late":     {"cordon", remedy.Late, []string{"cordon gpu-a-02: late, why", "held: needs a person: cordon of gpu-a-02 ended late: why"}},
		"a cordon that is rejected": {"cordon", remedy.Rejected, []string{"cordon gpu-a-02: rejected, why", "held: needs a person: cordon of gpu-a-02 ended rejected: why"}},
		"an ending that nobody knows is not taken for done": {
			"cordon", odd, []string{"cordon gpu-a-02: sideways, why", "held: needs a person: cordon of gpu-a-02 ended sideways: why"},
		},
		"a stop that is late has stopped the jobs, for all we know": {"stop", remedy.Late, []string{
			"stop dev/eval train/llm: late, why", "start dev/eval train/llm: done", "held: needs a person: stop of dev/eval ended late: why",
		}},
		"a stop that was refused has stopped nothing": {"stop", remedy.Rejected, []string{
			"stop dev/eval train/llm: rejected, why", "held: needs a person: stop of dev/eval ended rejected: why",
		}},
		"a start that is late is asked for again": {"start", remedy.Late, []string{
			"start dev/eval train/llm: late, why", "start dev/eval train/llm: done", "held: needs a person: start of dev/eval ended late: why",
		}},
		"a start that is refused is left to a person": {"start", remedy.Rejected, []string{
			"start dev/eval train/llm: rejected, why", "held: needs a person: start of dev/eval ended rejected: why",
		}},
		"a drain that is late":  {"drain", remedy.Late, []string{"drain gpu-a-02: late, why", "held: needs a person: drain of gpu-a-02 ended late: why"}},
		"a reboot that is late": {"reboot", remedy.Late, []string{"reboot gpu-a-02: late, why", "held: needs a person: reboot of gpu-a-02 ended late: why"}},
		"a verify that is late": {"verify", remedy.Late, []string{"verify gpu-a-02: late, why", "held: needs a person: verify of gpu-a-02 ended late: why"}},
		"a release that is late": {
			"release", remedy.Late, []string{"release gpu-a-02: late, why", "held: needs a person: release of gpu-a-02 ended late: why"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPatient(t, xid79())
			p.do(tc.step)
			before := len(p.in.Steps) - 1
			p.end(tc.ending, "why")
			p.finish()
			if d := cmp.Diff(tc.want, history(p.in)[before:]); d != "" {
				t.Errorf("history differs (-want +got):\n%s", d)
			}
			if p.in.Phase.Closed() {
				t.Errorf("phase %s: a person would not find it", p.in.Phase)
			}
		})
	}
}

func TestOneOrderOfAStepThatFailsDecidesForTheStep(t *testing.T) {
	p := newPatient(t, xid79())
	p.do("stop")
	p.endEach(func(o remedy.Order) (remedy.Ending, string) {
		if o.Target.Job == llm {
			return remedy.Late, "2 pods are left"
		}
		return remedy.Done, "1 pod gone"
	})
	p.finish()
	wantHistory(
		t, p.in,
		"cordon gpu-a-02: done", "checkpoint dev/eval train/llm: done",
		"stop dev/eval train/llm: late, 2 pods are left",
		"start dev/eval train/llm: done",
		"held: needs a person: stop of train/llm ended late: 2 pods are left",
	)
}

func TestATargetThatIsGoneIsNoFailure(t *testing.T) {
	p := newPatient(t, xid79())
	p.do("stop")
	p.endEach(func(o remedy.Order) (remedy.Ending, string) {
		if o.Target.Job == eval {
			return remedy.Gone, "dev/eval has ended"
		}
		return remedy.Done, ""
	})
	p.advance()
	if len(p.orders) != 1 || p.orders[0].Target.Job != llm {
		t.Errorf("orders %v, want the start of train/llm alone", p.orders)
	}
	if len(p.in.Losses) != 1 || p.in.Losses[0].Job != llm {
		t.Errorf("losses %v, want that of train/llm alone", p.in.Losses)
	}
}
