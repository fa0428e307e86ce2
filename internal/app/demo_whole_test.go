//go:build !race

// Two hours of the fleet take seconds, and minutes under the race detector.

package app

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/internal/server"
	"stoker.dev/stoker/internal/sim"
)

// whole is what `make demo` shows.
var whole = DemoOptions{For: 2 * time.Hour, Seed: 1}

// wholeDemo runs it, once for all tests that look at it.
var wholeDemo = sync.OnceValues(func() (ran, error) {
	dir, err := os.MkdirTemp("", "stoker-whole-")
	if err != nil {
		return ran{}, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	return runDemo(context.Background(), dir, whole)
})

func showWhole(t *testing.T) (string, DemoReport, []byte) {
	t.Helper()
	r, err := wholeDemo()
	if err != nil {
		t.Fatalf("%v\n%s", err, r.lines)
	}
	return r.lines, r.report, r.raw
}

// TestTheWholeDemo runs what `make demo` shows, twice: the ladder is climbed to its end,
// the storm and the lost telemetry cost nobody anything, the README's transcript is what
// comes out, and the second time, on a terminal, the same bytes stay there.
func TestTheWholeDemo(t *testing.T) {
	lines, r, raw := showWhole(t)
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
	o := whole
	o.Terminal = true
	shown, _, rawAgain := show(t, o)
	if !strings.Contains(shown, "01:00:00 of 02:00:00 (50 %)") {
		t.Error("no progress is shown")
	}
	var kept strings.Builder
	for line := range strings.Lines(shown) { // the line of progress is gone before each event
		if i := strings.LastIndex(line, "\033[K"); i >= 0 {
			line = line[i+len("\033[K"):]
		}
		kept.WriteString(line)
	}
	if kept.String() != lines {
		t.Errorf("what stays on the terminal is\n%s\nand on a pipe\n%s", kept.String(), lines)
	}
	if !bytes.Equal(raw, rawAgain) {
		t.Error("the same options gave another report the second time")
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

// checkHealed holds what every run of the demo must show of the lost GPU.
func checkHealed(t *testing.T, lines string, r DemoReport) {
	t.Helper()
	var healed []IncidentReport
	for _, in := range r.Incidents {
		if in.Class == remedy.ClassGPULost {
			healed = append(healed, in)
		}
	}
	if len(healed) != 1 || healed[0].Phase != remedy.PhaseResolved {
		t.Fatalf("incidents for the lost GPU: %+v, want one that is resolved\n%s", healed, lines)
	}
	var steps []string
	last := healed[0].OpenedSeconds
	for _, s := range healed[0].Steps {
		steps = append(steps, s.Action)
		if s.StartedSeconds < last || s.EndedSeconds < s.StartedSeconds {
			t.Errorf("%s ran from %.0f to %.0f, after %.0f", s.Action, s.StartedSeconds, s.EndedSeconds, last)
		}
		last = s.EndedSeconds
	}
	if got, want := strings.Join(steps, " "), "cordon checkpoint stop start drain reboot verify release"; got != want {
		t.Errorf("steps %q, want %q", got, want)
	}
	if r.WrongCordons != 0 || r.WrongStops != 0 || r.MissedFaults != 0 || r.RanTwice != 0 || len(r.Mistakes) != 0 {
		t.Errorf("wrong cordons %d, wrong stops %d, missed %d, ran twice %d; want none\n%s",
			r.WrongCordons, r.WrongStops, r.MissedFaults, r.RanTwice, strings.Join(r.Mistakes, "\n"))
	}
	if r.Goodput <= 0 || r.Goodput >= 1 || len(r.LostGPUHours) == 0 {
		t.Errorf("goodput %v, lost %v", r.Goodput, r.LostGPUHours)
	}
}

// TestTheDemoShowsItsFleet holds that what the simulated cluster and its telemetry tell is
// what the grid shows: which GPUs work, which were lost, and that nobody takes it for real.
func TestTheDemoShowsItsFleet(t *testing.T) {
	s, err := sim.New(sim.Demo(1))
	if err != nil {
		t.Fatal(err)
	}
	d, err := newDemo(s, &printer{out: io.Discard, start: s.Now()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.close(); err != nil {
			t.Error(err)
		}
	})
	h := server.Handler(slog.New(slog.DiscardHandler), prometheus.NewRegistry(), d.loop, s.Now, server.Options{ReadOnly: true, State: demoState})
	start := s.Now()
	for since := time.Duration(0); since <= 15*time.Minute; since += demoStep {
		if err := s.Step(start.Add(since)); err != nil {
			t.Fatal(err)
		}
		if err := d.step(t.Context(), start.Add(since), since); err != nil {
			t.Fatal(err)
		}
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/nodes", nil))
	text := strings.Join(strings.Fields(regexp.MustCompile("<[^>]*>").ReplaceAllString(rec.Body.String(), " ")), " ")
	for _, want := range []string{"simulated ", "All of 64 GPUs on 8 nodes", "✗ 1 faulty", "h 0 held", "nlp/llm-7b , team nlp", "pool a100"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not on the page:\n%s", want, text)
		}
	}
	for _, never := range []string{"● 0 busy", "which of them is not known", "kubernetes"} {
		if strings.Contains(text, never) {
			t.Errorf("%q is on the page:\n%s", never, text)
		}
	}
}
