package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/internal/server"
	"stoker.dev/stoker/internal/sim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// show runs a demo and returns its lines and its report.
func show(t *testing.T, o DemoOptions) (string, DemoReport, []byte) {
	t.Helper()
	o.Report = filepath.Join(t.TempDir(), "report.json")
	var out bytes.Buffer
	if err := Demo(t.Context(), &out, o); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	raw, err := os.ReadFile(o.Report)
	if err != nil {
		t.Fatal(err)
	}
	var r DemoReport
	if err := json.Unmarshal(raw, &r); err != nil {
		t.Fatal(err)
	}
	return out.String(), r, raw
}

// TestDemoIsTheSameEveryTime holds that virtual time is exact: no clock, no order of
// goroutines and no map is in what comes out.
func TestDemoIsTheSameEveryTime(t *testing.T) {
	o := DemoOptions{For: 6 * time.Minute, Seed: 7}
	lines, _, raw := show(t, o)
	again, _, rawAgain := show(t, o)
	if lines != again || !bytes.Equal(raw, rawAgain) {
		t.Error("the same options gave other bytes the second time")
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

func TestDemoWithoutStokerHealsNothing(t *testing.T) {
	_, r, _ := show(t, DemoOptions{For: 32 * time.Minute, Seed: 1, Off: true})
	if r.Cordons != 0 || len(r.Incidents) != 0 || r.MissedFaults != 1 {
		t.Errorf("cordons %d, incidents %d, missed faults %d; want 0 0 1", r.Cordons, len(r.Incidents), r.MissedFaults)
	}
}

func TestDemoAnswersOnLoopbackOnly(t *testing.T) {
	err := Demo(t.Context(), io.Discard, DemoOptions{For: time.Minute, Listen: "0.0.0.0:0"})
	if err == nil || !strings.Contains(err.Error(), "loopback") {
		t.Errorf("listening everywhere: %v, want an error that names loopback", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("seen enough")
	var status int
	var body []byte
	o := DemoOptions{For: time.Hour, Speed: 1, Listen: "127.0.0.1:0", Listening: func(a net.Addr) {
		go func() {
			defer cancel(enough)
			resp, err := http.Get("http://" + a.String() + "/api/v1/incidents")
			if err != nil {
				return
			}
			defer resp.Body.Close()
			status = resp.StatusCode
			body, _ = io.ReadAll(resp.Body)
			http.DefaultClient.CloseIdleConnections()
		}()
	}}
	if err := Demo(ctx, io.Discard, o); !errors.Is(err, enough) {
		t.Fatalf("demo: %v, want it to be stopped", err)
	}
	if status != http.StatusOK || strings.TrimSpace(string(body)) != "[]" {
		t.Errorf("incidents: %d %q, want 200 and an empty list", status, body)
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

// TestADemoWithoutAnEndReportsWhenItIsStopped holds that what was seen is summed up.
func TestADemoWithoutAnEndReportsWhenItIsStopped(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("seen enough")
	out := &stopping{at: "has started from iteration 0", stop: func() { cancel(enough) }}
	if err := Demo(ctx, out, DemoOptions{Seed: 1}); !errors.Is(err, enough) {
		t.Errorf("demo: %v, want why it was stopped", err)
	}
	if !strings.Contains(out.String(), "goodput") {
		t.Errorf("there is no report:\n%s", out.String())
	}
}

// A stopping writer calls stop when a line with the text is written.
type stopping struct {
	bytes.Buffer
	at   string
	stop func()
}

func (s *stopping) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(s.at)) {
		s.stop()
	}
	return s.Buffer.Write(p)
}

// TestATerminalShowsHowFarItIs holds that the line of progress is gone before each event.
func TestATerminalShowsHowFarItIs(t *testing.T) {
	o := DemoOptions{For: 90 * time.Second, Seed: 1}
	plain, _, _ := show(t, o)
	o.Terminal = true
	lines, _, _ := show(t, o)
	if !strings.Contains(lines, "00:01:00 of 00:01:30 (67 %)") {
		t.Errorf("no progress is shown:\n%q", lines)
	}
	var kept strings.Builder
	for line := range strings.Lines(lines) {
		if i := strings.LastIndex(line, "\033[K"); i >= 0 {
			line = line[i+len("\033[K"):]
		}
		kept.WriteString(line)
	}
	if kept.String() != plain {
		t.Errorf("what stays on the terminal is\n%s\nand on a pipe\n%s", kept.String(), plain)
	}
}
