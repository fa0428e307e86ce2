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

// TestStokerIsBetterThanNobody runs a few fleets: what must hold of every run does, and
// what holds in the mean does for these.
func TestStokerIsBetterThanNobody(t *testing.T) {
	_, r, _ := compare(t, CompareOptions{For: 8 * time.Hour, Seed: 1, Seeds: 4})
	if w := r.With; w.WrongCordons != 0 || w.MissedFaults != 0 || w.RanTwice != 0 || w.WrongStops != 0 || w.WrongReleases != 0 {
		t.Errorf("wrong cordons %d, missed %d, ran twice %d, wrong stops %d, wrong releases %d; want none\n%s",
			w.WrongCordons, w.MissedFaults, w.RanTwice, w.WrongStops, w.WrongReleases, strings.Join(w.Mistakes, "\n"))
	}
	if r.With.Goodput <= r.Without.Goodput || r.With.LostPerFault >= r.Wait.LostPerFault {
		t.Errorf("goodput %.3f and %.3f without; lost per fault %.2f and %.2f for who waits", r.With.Goodput, r.Without.Goodput, r.With.LostPerFault, r.Wait.LostPerFault)
	}
	if r.Without.Cordons != 0 || r.Wait.Resubmissions != 0 {
		t.Errorf("without %d cordons, and %d resubmissions by who waits; want 0", r.Without.Cordons, r.Wait.Resubmissions)
	}
}

// TestTheShortWayTellsWhatTheLongWayTells runs the demonstration's fleet both ways: the
// same incidents are opened, and they take the same steps.
func TestTheShortWayTellsWhatTheLongWayTells(t *testing.T) {
	long := 95 * time.Minute
	_, r, _ := show(t, DemoOptions{For: long, Seed: 1})
	run, err := trial{fleet: sim.Demo(1), policy: policyStoker, horizon: long}.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	told := func(list []IncidentReport) (out []string) {
		for _, in := range list {
			line := string(in.Class) + " " + in.Subject + " " + string(in.Phase)
			for _, s := range in.Steps {
				line += " " + s.Action + ":" + string(s.Ending)
			}
			out = append(out, line)
		}
		return out
	}
	got, want := told(incidentReports(run.incidents, run.start)), told(r.Incidents)
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("by the short way:\n%s\nby the long way:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if len(got) < 2 {
		t.Errorf("only %d incidents: the test shows nothing", len(got))
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
