package sim

import (
	"slices"
	"testing"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/sim/truth"
)

// TestTheDemonstrationShowsWhatItSays runs it for many seeds without Stoker: the fault
// hits the gang of four nodes while there is a node to go to, the others strike where and
// when they should, and a job comes for which the notebook leaves no room.
func TestTheDemonstrationShowsWhatItSays(t *testing.T) {
	odd := map[uint64]bool{}
	for seed := range uint64(40) {
		r := start(t, Demo(seed))
		spare := -1
		for r.Elapsed() < 2*time.Hour {
			r.by(time.Second)
			if r.Elapsed()%(10*time.Minute) == 0 {
				if err := r.check(); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			}
			if spare >= 0 || len(r.record.Cases()) == 0 || !r.record.Cases()[0].Active {
				continue
			}
			spare = 0
			for _, n := range r.nodes {
				if n.takes() && n.free() == 8 {
					spare++
				}
			}
		}
		if spare != 1 {
			t.Errorf("seed %d: %d whole nodes are spare when the GPU is lost, want 1", seed, spare)
		}
		cases := r.record.Cases()
		for i, want := range []struct {
			kind     truth.Kind
			from, to time.Duration
		}{
			{GPULost, 14 * time.Minute, 20 * time.Minute},
			{JobCrash, 52 * time.Minute, 60 * time.Minute},
			{TelemetryLost, 78 * time.Minute, 86 * time.Minute},
			{JobHang, 26 * time.Minute, 28 * time.Minute},
			{SpotNotice, 40 * time.Minute, 44 * time.Minute},
			{GPUECC, 60 * time.Minute, 66 * time.Minute},
		} {
			if c := cases[i]; c.Kind != want.kind || c.Begun < want.from || c.Begun > want.to || want.kind != GPULost && want.kind != GPUECC && !c.Over {
				t.Logf("seed %d: fault %d is %+v, want %s between %v and %v", seed, i+1, c, want.kind, want.from, want.to)
				odd[seed] = true
			}
		}
		// The notebook keeps its GPUs, unless the broken ones, which nobody repairs in
		// that time, have left no whole node for it either.
		for name, want := range map[string][]fleet.JobPhase{
			"vision/notebook": {fleet.JobRunning, fleet.JobPending}, "nlp/finetune": {fleet.JobPending},
			"nlp/llm-7b": {fleet.JobRunning}, "vision/vit-large": {fleet.JobRunning},
		} {
			if got := r.job(name).Phase; !slices.Contains(want, got) {
				t.Logf("seed %d: after two hours %s is %s, want %v", seed, name, got, want)
				odd[seed] = true
			}
		}
	}
	if len(odd) > 2 {
		t.Errorf("%d of 40 fleets go otherwise than they should without Stoker", len(odd))
	}
}
