package sim

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/sim/truth"
)

// part is a job on a part of a GPU that trains for an hour.
func part(name string, share int) JobSpec {
	return JobSpec{Namespace: "t", Name: name, Workers: 1, GPUs: 1, Share: share, Iterations: 3600, Iteration: time.Second}
}

// holds says which GPUs a job holds, such as gpu-a-01/0.
func (r *run) holds(job string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for _, p := range r.jobNamed(job).pods {
		for g := range 16 {
			if p.gpus&(1<<g) != 0 {
				out = append(out, fmt.Sprintf("%s/%d", p.node.name, g))
			}
		}
	}
	return strings.Join(out, " ")
}

// TestPartsOfAGPUAreTogether holds that parts fill a GPU that is cut before another one is
// cut, and no more of it than there is, also of its memory.
func TestPartsOfAGPUAreTogether(t *testing.T) {
	full := part("full", 500)
	hungry := part("hungry", 250)
	hungry.GPUMemory = 60_000
	r := start(t, Config{Nodes: 2, Jobs: []JobSpec{part("half", 500), part("quarter", 250), full, hungry, {
		Namespace: "t", Name: "whole", At: time.Second, Workers: 2, GPUs: 5, Iterations: 3600, Iteration: time.Second,
	}}})
	r.to(5 * time.Minute)
	if err := r.check(); err != nil {
		t.Fatal(err)
	}
	if half, quarter := r.holds("t/half"), r.holds("t/quarter"); half != quarter || half == "" {
		t.Errorf("a half is on %s and a quarter on %s, want one GPU", half, quarter)
	}
	if got := r.holds("t/full"); got == r.holds("t/half") {
		t.Errorf("a half is on %s, of which a quarter is left", got)
	}
	if got := r.holds("t/hungry"); got == r.holds("t/half") || got == r.holds("t/full") {
		t.Errorf("who needs 60 GB is on %s, whose memory it does not fit into", got)
	}
	if got := r.ledger.GPUs(truth.Useful); got != 500+250+500+250+10*truth.Whole {
		t.Errorf("%d thousandths are useful, want those of all five", got)
	}
	f := fleet.NewFacts()
	if err := r.cluster.Fill(t.Context(), r.Now(), f); err != nil {
		t.Fatal(err)
	}
	if j := f.Jobs[part("half", 0).Ref()]; j.GPUs() != 1 || j.MilliGPUs() != 500 || j.GPUTime(time.Hour) != 30*time.Minute {
		t.Errorf("the cluster tells of %+v, want a half of one GPU", j.Each)
	}
}

// TestAFaultHitsAllWhoShareTheGPU holds that each job on it hangs or ends, and is charged
// with its own part.
func TestAFaultHitsAllWhoShareTheGPU(t *testing.T) {
	for kind, hangs := range map[truth.Kind]bool{truth.GPULost: true, truth.GPUECC: false} {
		t.Run(string(kind), func(t *testing.T) {
			r := start(t, Config{
				Nodes: 1, Jobs: []JobSpec{part("half", 500), part("quarter", 250)},
				Faults: []Fault{{At: 10 * time.Minute, Kind: kind, Job: "t/half"}},
			})
			r.to(8 * time.Minute)
			at := r.holds("t/half")
			r.to(15 * time.Minute)
			if err := r.check(); err != nil {
				t.Fatal(err)
			}
			for _, job := range []string{"t/half", "t/quarter"} {
				r.mu.Lock()
				state := r.jobNamed(job).state
				r.mu.Unlock()
				if (state == hung) != hangs {
					t.Errorf("%s is in state %d after %s, hangs: want %t", job, state, kind, hangs)
				}
				if !hangs && r.holds(job) == at {
					t.Errorf("%s is on %s again, which is broken", job, at)
				}
			}
			if got := r.ledger.GPUs(truth.Broken); hangs && got != truth.Whole {
				t.Errorf("%d thousandths are broken, want one GPU: both parts and what is left of it", got)
			}
		})
	}
}

// TestPartsAddUpToTheWhole lets jobs on whole GPUs and on parts of them come, end, break
// and be preempted at any time: the uses of all parts are exactly the time of all GPUs.
func TestPartsAddUpToTheWhole(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cfg := Config{Seed: rapid.Uint64().Draw(rt, "seed"), Nodes: 2, GPUsPerNode: 2}
		for i := range rapid.IntRange(1, 12).Draw(rt, "jobs") {
			j := part(fmt.Sprint("j", i), rapid.SampledFrom([]int{0, 0, 143, 250, 333, 500, 700}).Draw(rt, "share"))
			j.At = time.Duration(rapid.IntRange(0, 3600).Draw(rt, "at")) * time.Second
			j.Iterations = int64(rapid.IntRange(10, 3600).Draw(rt, "iterations"))
			j.Idle = rapid.IntRange(0, 4).Draw(rt, "idle") == 0
			if j.Share > 0 {
				j.GPUMemory = rapid.SampledFrom([]int{0, 10_000, 70_000}).Draw(rt, "memory")
			}
			cfg.Jobs = append(cfg.Jobs, j)
		}
		for range rapid.IntRange(0, 4).Draw(rt, "faults") {
			f := Fault{At: time.Duration(rapid.IntRange(60, 7200).Draw(rt, "fault")) * time.Second, Node: "gpu-a-01", GPU: rapid.IntRange(0, 1).Draw(rt, "gpu")}
			f.Kind = rapid.SampledFrom([]truth.Kind{truth.GPULost, truth.GPUECC, truth.GPUHot, truth.NodeLost}).Draw(rt, "kind")
			if truth.Kinds[f.Kind].Lasts {
				f.For = 10 * time.Minute
			}
			cfg.Faults = append(cfg.Faults, f)
		}
		r := start(t, cfg)
		for at := time.Duration(0); at <= 3*time.Hour; at += time.Duration(rapid.IntRange(60, 1200).Draw(rt, "step")) * time.Second {
			r.to(at)
			if err := r.check(); err != nil {
				rt.Fatalf("after %v: %v", at, err)
			}
		}
	})
}

// TestAPartThatIsFreeIsGiven holds that who waits for a part of a GPU gets it when another
// one leaves, though no whole GPU becomes free.
func TestAPartThatIsFreeIsGiven(t *testing.T) {
	short := part("short", 500)
	short.Iterations = 300
	late := part("late", 500)
	late.At = time.Minute
	r := start(t, Config{Nodes: 1, GPUsPerNode: 1, Jobs: []JobSpec{part("long", 500), short, late}})
	r.to(3 * time.Minute)
	if got := r.holds("t/late"); got != "" {
		t.Fatalf("it is on %s, which is full", got)
	}
	r.to(15 * time.Minute)
	if r.holds("t/late") != r.holds("t/long") {
		t.Errorf("it is on %q, want the part that was given back", r.holds("t/late"))
	}
	if err := r.check(); err != nil {
		t.Error(err)
	}
}

func TestSharesOfGPUsAreRead(t *testing.T) {
	for text, want := range map[string][2]int{"8": {8, 0}, "0.25": {1, 250}, "0.5": {1, 500}, ".143": {1, 143}} {
		if gpus, share, err := parseGPUs(text); err != nil || [2]int{gpus, share} != want {
			t.Errorf("%q is %d GPUs, %d thousandths, %v; want %v", text, gpus, share, err, want)
		}
	}
	for _, bad := range []string{"1.5", "0.0001", "x", "", "-0.5", "NaN"} {
		if _, _, err := parseGPUs(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}
