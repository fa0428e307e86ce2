package app

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/internal/sim"
)

// compare runs a comparison and returns its table and its report.
func compare(t *testing.T, o CompareOptions) (string, CompareReport, []byte) {
	t.Helper()
	o.Report = filepath.Join(t.TempDir(), "report.json")
	var out bytes.Buffer
	if err := Compare(t.Context(), &out, o); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(o.Report)
	if err != nil {
		t.Fatal(err)
	}
	var r CompareReport
	if err := json.Unmarshal(raw, &r); err != nil {
		t.Fatal(err)
	}
	return out.String(), r, raw
}

// TestACompareIsTheSameEveryTime holds that neither the order of runs nor what else the
// machine does is in what comes out.
func TestACompareIsTheSameEveryTime(t *testing.T) {
	o := CompareOptions{For: 2 * time.Hour, Seed: 3, Seeds: 2}
	table, r, raw := compare(t, o)
	again, _, rawAgain := compare(t, o)
	if table != again || !bytes.Equal(raw, rawAgain) {
		t.Error("the same options gave other bytes the second time")
	}
	var keys map[string]map[string]json.RawMessage
	if err := json.Unmarshal(raw, &keys); err == nil {
		t.Error("all of the report are objects; the test looks in the wrong place")
	}
	var top map[string]json.RawMessage
	if err := json.Unmarshal(raw, &top); err != nil {
		t.Fatal(err)
	}
	for _, arm := range []string{"with", "without"} {
		var a map[string]json.RawMessage
		if err := json.Unmarshal(top[arm], &a); err != nil {
			t.Fatalf("%s: %v", arm, err)
		}
		for _, key := range strings.Fields("faults incidents cordons wrongCordons missedFaults resubmissions lostGPUHours goodput meanJCTSeconds p99JCTSeconds gpuHoursLostPerFault") {
			if _, ok := a[key]; !ok {
				t.Errorf("%s has no %s", arm, key)
			}
		}
	}
	if r.With.Intervals["goodput"].Runs != 2 || r.Difference.Goodput.Runs != 2 {
		t.Errorf("intervals %+v of two runs, difference %+v", r.With.Intervals, r.Difference)
	}
}

// TestTheDrainersAreNoStrawMen holds that the policies to compare with do what is said of
// them: they cordon at once, wait, boot and give back.
func TestTheDrainersAreNoStrawMen(t *testing.T) {
	cfg := sim.Config{
		Seed: 1, Nodes: 2,
		Jobs: []sim.JobSpec{
			{Namespace: "t", Name: "hit", Workers: 1, GPUs: 1, Iterations: 20_000, Iteration: time.Second},
			{Namespace: "t", Name: "other", Workers: 1, GPUs: 1, Iterations: 6_000, Iteration: time.Second},
		},
		Faults: []sim.Fault{{At: 20 * time.Minute, Kind: sim.GPULost, Node: "gpu-a-01", GPU: 0}},
	}
	for p, want := range map[policy][2]time.Duration{ // when the node is well again
		policyWait:   {100 * time.Minute, 115 * time.Minute},
		policyDelete: {60*time.Minute + 20*time.Minute, 95 * time.Minute},
	} {
		run, err := trial{fleet: cfg, policy: p, horizon: 3 * time.Hour}.run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		f := run.report.Faults[0]
		ended := time.Duration((f.AtSeconds + f.EndedAfterSeconds) * float64(time.Second))
		if run.report.Cordons != 1 || f.NoticedAfterSeconds > 20 || ended < want[0] || ended > want[1] {
			t.Errorf("%s: cordons %d, noticed after %.0f s, well at %s; want 1, at once, between %s and %s", p, run.report.Cordons, f.NoticedAfterSeconds, ended, want[0], want[1])
		}
	}
}

func TestLateAndDoubledAlertsOpenNothing(t *testing.T) {
	cfg := sim.Config{
		Seed: 5, Nodes: 4,
		Jobs:   []sim.JobSpec{{Namespace: "t", Name: "llm", Workers: 2, GPUs: 8, Iterations: 10_000, Iteration: time.Second}},
		Faults: []sim.Fault{{At: 10 * time.Minute, Kind: sim.GPULost, Job: "t/llm"}, {At: 60 * time.Minute, Kind: sim.ExporterRestart, Node: "gpu-a-01"}},
	}
	for seed := range uint64(8) {
		cfg.Seed = seed
		run, err := trial{fleet: cfg, policy: policyStoker, horizon: 3 * time.Hour}.run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		lost := 0
		for _, in := range run.incidents {
			if in.Class == remedy.ClassGPULost {
				lost++
			}
		}
		if lost != 1 || run.report.Cordons != 1 || run.report.WrongCordons != 0 {
			t.Errorf("seed %d: %d incidents and %d cordons for one lost GPU, %d wrong", seed, lost, run.report.Cordons, run.report.WrongCordons)
		}
	}
}
