//go:build !race

// Two hours of the fleet take seconds, and minutes under the race detector.

package app

import (
	"os"
	"strings"
	"testing"
	"time"
)

// TestTheWholeDemo runs what `make demo` shows, twice: the ladder is climbed to its end,
// the storm and the lost telemetry cost nobody anything, the README's transcript is what
// comes out, and the second time the same bytes do.
func TestTheWholeDemo(t *testing.T) {
	o := DemoOptions{For: 2 * time.Hour, Seed: 1}
	lines, r, raw := show(t, o)
	checkHealed(t, lines, r)
	transcript(t, lines)
	if len(r.Faults) != 2 || r.Noise != 1 {
		t.Errorf("%d faults and %d noise, want 2 and 1: %+v", len(r.Faults), r.Noise, r.Faults)
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
