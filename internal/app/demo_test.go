package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A ran demo is its lines and its report.
type ran struct {
	lines  string
	report DemoReport
	raw    []byte
}

// runDemo runs a demo, whose report it writes into the folder. With an error there are lines.
func runDemo(ctx context.Context, dir string, o DemoOptions) (r ran, err error) {
	o.Report = filepath.Join(dir, "report.json")
	var out bytes.Buffer
	err = Demo(ctx, &out, o)
	r.lines = out.String()
	if err != nil {
		return r, err
	}
	if r.raw, err = os.ReadFile(o.Report); err != nil {
		return r, err
	}
	return r, json.Unmarshal(r.raw, &r.report)
}

// show runs a demo and returns its lines and its report.
func show(t *testing.T, o DemoOptions) (string, DemoReport, []byte) {
	t.Helper()
	r, err := runDemo(t.Context(), t.TempDir(), o)
	if err != nil {
		t.Fatalf("%v\n%s", err, r.lines)
	}
	return r.lines, r.report, r.raw
}

// TestDemoIsTheSameEveryTime holds that virtual time is exact: no clock, no order of
// goroutines and no map is in what comes out.
func TestDemoIsTheSameEveryTime(t *testing.T) {
	o := DemoOptions{For: 2 * time.Minute, Seed: 7} // TestTheWholeDemo goes on to its end
	lines, _, raw := show(t, o)
	again, _, rawAgain := show(t, o)
	if lines != again || !bytes.Equal(raw, rawAgain) {
		t.Error("the same options gave other bytes the second time")
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
