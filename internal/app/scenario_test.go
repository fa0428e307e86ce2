package app

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"stoker.dev/stoker/internal/sim"
)

func scenarios(t *testing.T) map[string]sim.Scenario {
	t.Helper()
	files, err := filepath.Glob("../sim/testdata/*.txtar")
	if err != nil || len(files) < 15 {
		t.Fatalf("%d scenarios, %v", len(files), err)
	}
	out := map[string]sim.Scenario{}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		sc, err := sim.ParseScenario(filepath.Base(name), data)
		if err != nil {
			t.Fatal(err)
		}
		out[strings.TrimSuffix(sc.Name, ".txtar")] = sc
	}
	return out
}

// TestScenarios is the regression suite of policy: one file for each kind of incident.
func TestScenarios(t *testing.T) {
	for name, sc := range scenarios(t) {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			failed, err := runScenario(t.Context(), sc, lameness{}, &printer{out: &log})
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range failed {
				t.Errorf("line %d: %s: %s", f.Line, f, f.Got)
			}
			if t.Failed() {
				t.Log(log.String())
			}
		})
	}
}

// TestAStokerThatLacksSomethingFailsAScenario takes something from Stoker and wants the
// suite to notice.
func TestAStokerThatLacksSomethingFailsAScenario(t *testing.T) {
	all := scenarios(t)
	for name, tc := range map[string]struct {
		lame     lameness
		scenario string
		because  string
	}{
		"without detection a fault is missed":            {lameness{told: nothing}, "gpu-lost", "missedFaults = 0"},
		"without verification an ill node is given back": {lameness{noVerification: true}, "gpu-incurable", "wrongReleases = 0"},
		"without gates half of a fleet is taken out":     {lameness{noGates: true}, "power-event", "mostCordoned = 2"},
		"without the planner an idle holder keeps all":   {lameness{noPlanner: true}, "idle-notebook", "preemptions = 1"},
	} {
		t.Run(name, func(t *testing.T) {
			failed, err := runScenario(t.Context(), all[tc.scenario], tc.lame, nil)
			if err != nil {
				t.Fatal(err)
			}
			var lines []string
			for _, f := range failed {
				lines = append(lines, f.String())
			}
			if !strings.Contains(strings.Join(lines, "\n"), tc.because) {
				t.Errorf("%s fails for %q, want %q among it", tc.scenario, lines, tc.because)
			}
		})
	}
}

func TestAScenarioSaysWhatDoesNotHold(t *testing.T) {
	name := filepath.Join(t.TempDir(), "x.txtar")
	text := "Why.\n\n-- fleet --\nnodes 1\nfor 10m\n-- expect --\ncordons 3\nincidents 0\n"
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err := Scenario(t.Context(), &out, name)
	if err == nil || !strings.Contains(err.Error(), "1 of 2 expectations") || !strings.Contains(out.String(), "FAIL  cordons = 3: it is 0\nok    incidents = 0\n") {
		t.Errorf("%v\n%s", err, out.String())
	}
}
