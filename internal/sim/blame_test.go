package sim

import (
	"testing"
	"time"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/internal/sim/truth"
)

// TestWhoHasToLeaveAnIllNodeIsCharged holds that a fault costs what the jobs lose that it did
// not hit, but that have to leave its node, whoever makes them.
func TestWhoHasToLeaveAnIllNodeIsCharged(t *testing.T) {
	hit := trainsAt + 250*time.Second
	for name, leave := range map[string]func(*run){
		"stopped": func(r *run) { r.stopStart(actuator.Restart{Avoid: []string{"gpu-a-01"}}) },
		"evicted": func(r *run) {
			if err := r.cluster.Evict(t.Context(), r.pods("t/llm")[0].PodRef); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, one(1, 4, Fault{At: hit, Kind: GPULost, Node: "gpu-a-01", GPU: 7}))
			r.to(hit + 10*time.Second)
			r.hold("gpu-a-01")
			leave(r)
			r.until("it is done", 2*time.Hour, func() bool { return len(r.ended) == 1 })
			c := r.record.Cases()[0]
			if got, want := c.Lost[truth.LostWork].Hours(), 4*60./3600; got < want || got > want+4*5./3600 {
				t.Errorf("the fault is charged with %.3f GPU-hours of work that was lost, want the 60 s of 4 GPUs, %.3f, and what was done until it ended", got, want)
			}
			if got, want := c.Lost[truth.Restart].Hours(), 4*90./3600; got < want {
				t.Errorf("the fault is charged with %.3f GPU-hours of the new start, want %.3f at least", got, want)
			}
			if err := r.check(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestANodeThatIsHeldForHeatIsCharged holds that a fault which leaves all GPUs allocatable
// costs the GPUs that nobody may have for it, as far as somebody waits, until the node is
// given back.
func TestANodeThatIsHeldForHeatIsCharged(t *testing.T) {
	cfg := one(8, 8, Fault{At: 10 * time.Minute, Kind: GPUHot, Node: "gpu-a-01", For: 10 * time.Minute})
	cfg.Jobs[0].At = 11 * time.Minute // it wants every node, and waits for the one
	r := start(t, cfg)
	r.to(11 * time.Minute)
	r.hold("gpu-a-01")
	r.to(31 * time.Minute)
	if got, want := r.Report().Faults[0].GPUHours, 8*20./60; !near(got, want) {
		t.Errorf("the fault is charged with %.3f GPU-hours, want %.3f: 20 minutes of 8 GPUs, 10 of them after it was over", got, want)
	}
}

// TestAStopOfAJobThatMakesUpForALossIsWrong holds that one fault does not excuse two stops.
func TestAStopOfAJobThatMakesUpForALossIsWrong(t *testing.T) {
	hit := trainsAt + 250*time.Second
	r := start(t, one(1, 8, Fault{At: hit, Kind: NVLinkDown, Node: "gpu-a-01", GPU: 1}))
	r.to(hit)
	r.until("it does its lost work again", 5*time.Minute, func() bool { return r.jobs[0].state == training })
	if r.jobs[0].blame == none {
		t.Fatal("it has lost nothing")
	}
	if _, err := r.cluster.StopJob(t.Context(), r.job("t/llm"), "again"); err != nil {
		t.Fatal(err)
	}
	if got := r.Report(); got.WrongStops != 1 {
		t.Errorf("%d wrong stops, want 1: nothing is wrong with the job any more", got.WrongStops)
	}
}
