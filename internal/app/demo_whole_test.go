//go:build !race

// Two hours of the fleet take seconds, and minutes under the race detector.

package app

import (
	"os"
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/internal/remedy"
)

// TestTheWholeDemo runs what `make demo` shows, twice: the ladder is climbed to its end,
// the storm and the lost telemetry cost nobody anything, the README's transcript is what
// comes out, and the second time the same bytes do.
func TestTheWholeDemo(t *testing.T) {
	o := DemoOptions{For: 2 * time.Hour, Seed: 1}
	lines, r, raw := show(t, o)
	checkHealed(t, lines, r)
	transcript(t, lines)
	if len(r.Faults) != 5 || r.Noise != 1 {
		t.Errorf("%d faults and %d noise, want 5 and 1: %+v", len(r.Faults), r.Noise, r.Faults)
	}
	if r.Cordons != 3 || r.Resubmissions != 3 || r.Preemptions != 1 {
		t.Errorf("cordons %d, resubmissions %d, preemptions %d; want 3 3 1", r.Cordons, r.Resubmissions, r.Preemptions)
	}
	classes := map[remedy.Class]remedy.Phase{}
	for _, in := range r.Incidents {
		classes[in.Class] = in.Phase
	}
	for _, c := range []remedy.Class{remedy.ClassGPULost, remedy.ClassJobStalled, remedy.ClassNodeNotice, remedy.ClassGPUECC, remedy.ClassTelemetryLost} {
		if classes[c] != remedy.PhaseResolved {
			t.Errorf("the incident of class %s is %q, want it resolved", c, classes[c])
		}
	}
	again, _, rawAgain := show(t, o)
	if lines != again || string(raw) != string(rawAgain) {
		t.Error("the same options gave other bytes the second time")
	}
}

// transcript compares the README's transcript with the lines: what it shows must have
// come out, in that order.
func transcript(t *testing.T, lines string) {
	t.Helper()
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	rest, shown := lines, 0
	for line := range strings.Lines(string(readme)) {
		if len(line) < 9 || line[2] != ':' || line[5] != ':' {
			continue
		}
		shown++
		_, after, found := strings.Cut(rest, line)
		if !found {
			t.Fatalf("README shows a line that the demo does not print there:\n%s", line)
		}
		rest = after
	}
	if shown < 20 {
		t.Errorf("README shows %d lines of the demo, want its transcript", shown)
	}
}

// TestDemoHealsTheLostGPU runs the part of the demo in which a GPU falls off the bus: the
// ladder is climbed to its end.
func TestDemoHealsTheLostGPU(t *testing.T) {
	lines, r, _ := show(t, DemoOptions{For: 27 * time.Minute, Seed: 1})
	checkHealed(t, lines, r)
	if r.Cordons != 1 || r.Resubmissions != 1 {
		t.Errorf("cordons %d, resubmissions %d; want 1 1", r.Cordons, r.Resubmissions)
	}
}
