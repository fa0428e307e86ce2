package sim

import (
	"testing"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/sim/truth"
)

// TestTheDemonstrationShowsItsThreeThings runs it for many seeds without Stoker: the
// fault hits the gang of four nodes while there is a node to go to, the storm hits the
// other gang, and telemetry is lost where a job trains.
func TestTheDemonstrationShowsItsThreeThings(t *testing.T) {
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
		} {
			if c := cases[i]; c.Kind != want.kind || c.Begun < want.from || c.Begun > want.to || i != 0 && !c.Over {
				t.Errorf("seed %d: fault %d is %+v, want %s between %v and %v", seed, i+1, c, want.kind, want.from, want.to)
			}
		}
		for _, name := range []string{"nlp/llm-7b", "vision/vit-large"} {
			if got := r.job(name).Phase; got != fleet.JobRunning {
				t.Errorf("seed %d: after two hours %s is %s, want running", seed, name, got)
			}
		}
	}
}
