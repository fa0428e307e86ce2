package app

import (
	"context"
	"maps"
	"testing"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/internal/sim"
)

// Ways to be wrong about what is told.

func nothing([]remedy.Evidence) []remedy.Evidence { return nil }

// as hears every piece of evidence otherwise.
func as(change func(*remedy.Evidence)) func([]remedy.Evidence) []remedy.Evidence {
	return func(ev []remedy.Evidence) []remedy.Evidence {
		out := append([]remedy.Evidence(nil), ev...)
		for i := range out {
			change(&out[i])
		}
		return out
	}
}

// A blind cluster does not show the pods that are about to end.
type blind struct{ hands }

func (blind) PodsOf(context.Context, fleet.JobRef) ([]fleet.Pod, error) { return nil, nil }

func (b blind) Fill(ctx context.Context, now time.Time, into *fleet.Facts) error {
	err := b.hands.Fill(ctx, now, into)
	maps.DeleteFunc(into.Pods, func(_ string, p fleet.Pod) bool { return p.Terminating })
	return err
}

// TestTheSimulatorSaysThatStokerIsWrong lets Stoker misbehave, in each way that a report
// counts: what is nought for a sound Stoker is not for this one.
func TestTheSimulatorSaysThatStokerIsWrong(t *testing.T) {
	job := func(name string, workers, gpus int) sim.JobSpec {
		return sim.JobSpec{Namespace: "t", Name: name, Workers: workers, GPUs: gpus, Iterations: 9000, Iteration: time.Second}
	}
	at := 20 * time.Minute
	lost := sim.Fault{At: at, Kind: sim.GPULost, Node: "gpu-a-01", GPU: 3}
	incurable := lost
	incurable.Incurable = true
	wrongCordons := func(r sim.Report) int { return r.WrongCordons }
	missed := func(r sim.Report) int { return r.MissedFaults }
	for name, tc := range map[string]struct {
		lame   lameness
		faults []sim.Fault
		grace  time.Duration
		number func(sim.Report) int
	}{
		"a fault that it does not hear of": {lameness{told: nothing}, []sim.Fault{lost}, 0, missed},
		"a fault that it takes for silence": {lameness{told: as(func(e *remedy.Evidence) {
			e.Subject, e.Class = remedy.Subject{Kind: remedy.SubjectNode, Node: e.Subject.Node}, remedy.ClassTelemetryLost
		})}, []sim.Fault{lost}, 0, missed},
		"a fault that it looks for on another node": {lameness{told: as(func(e *remedy.Evidence) {
			e.Subject, e.BootID = remedy.Subject{Kind: remedy.SubjectGPU, Node: "gpu-a-02", Index: e.Subject.Index}, ""
		})}, []sim.Fault{lost}, 0, missed},
		"a node that is not the one": {lameness{told: as(func(e *remedy.Evidence) {
			e.Subject, e.BootID = remedy.Subject{Kind: remedy.SubjectGPU, Node: "gpu-a-02", Index: e.Subject.Index}, ""
		})}, []sim.Fault{lost}, 0, wrongCordons},
		"a program's crash that it takes for a lost GPU": {lameness{told: as(func(e *remedy.Evidence) { e.Class = remedy.ClassGPULost })}, []sim.Fault{{At: at, Kind: sim.JobCrash, Job: "t/gang"}}, 0, wrongCordons},
		"the neighbour of such a program": {
			lameness{told: as(func(e *remedy.Evidence) { e.Class = remedy.ClassGPULost })},
			[]sim.Fault{{At: at, Kind: sim.JobCrash, Job: "t/gang"}},
			0, func(r sim.Report) int { return r.WrongStops },
		},
		"a node that it gives back unseen":    {lameness{noVerification: true}, []sim.Fault{incurable}, 0, func(r sim.Report) int { return r.WrongReleases }},
		"a gang that it starts beside itself": {lameness{sees: func(h hands) hands { return blind{h} }}, []sim.Fault{lost}, 4 * time.Minute, func(r sim.Report) int { return r.RanTwice }},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := sim.Config{Seed: 1, Nodes: 4, Jobs: []sim.JobSpec{job("gang", 2, 6), job("beside", 1, 2)}, Faults: tc.faults, Grace: sim.Span{Min: tc.grace, Max: tc.grace}}
			of := func(l lameness) int {
				run, err := trial{fleet: cfg, policy: policyStoker, horizon: 90 * time.Minute, lame: l}.run(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				return tc.number(run.report)
			}
			if sound, lame := of(lameness{}), of(tc.lame); sound != 0 || lame == 0 {
				t.Errorf("%d by a sound Stoker and %d by a lame one, want none and some", sound, lame)
			}
		})
	}
}
