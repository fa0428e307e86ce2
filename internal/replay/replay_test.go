package replay

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"stoker.dev/stoker/internal/fleet"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// engine is one node's source.
type engine struct {
	down   bool
	temp   float64
	use    float64
	events []fleet.XIDEvent
}

func (e *engine) Collect(_ context.Context, into *fleet.Samples) error {
	if e.down {
		return errors.New("no answer")
	}
	into.BootID = "boot"
	into.GPUs = append(into.GPUs, fleet.SampledGPU{Index: 0, UUID: "GPU-0", Up: fleet.True})
	for field, v := range map[string]float64{usageField: e.use, tempField: e.temp, slowdownField: 90} {
		into.Values = append(into.Values, fleet.Sample{Field: field, Value: v, Labels: []fleet.Label{{Name: "namespace", Value: "t"}, {Name: "pod", Value: "p"}}})
	}
	into.Events = append(into.Events, e.events...)
	e.events = nil
	return nil
}

// reader polls a node every 10 s and tells what it said, by class and whether it is over.
type reader struct {
	t   *testing.T
	d   *Direct
	now time.Time
}

func (r *reader) until(d time.Duration) (told []string) {
	for end := t0.Add(d); r.now.Before(end); r.now = r.now.Add(10 * time.Second) {
		r.d.Poll(r.t.Context(), r.now)
		ev, err := r.d.Evidence(r.t.Context(), r.now)
		if err != nil {
			r.t.Fatal(err)
		}
		for _, e := range ev {
			line := string(e.Class) + " " + e.Subject.String()
			if e.Resolved {
				line += " is over"
			}
			told = append(told, line)
		}
	}
	return told
}

func same(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: told %q, want %q", what, got, want)
		return
	}
	for i := range got {
		if got[i] != want[i] {
			t.Errorf("%s: told %q, want %q", what, got, want)
		}
	}
}

func TestWhatTheShortWayTells(t *testing.T) {
	e := &engine{temp: 60, use: 0.9}
	step := int64(0)
	steps := func() []Step { return []Step{{"t", "j", step}} }
	r := &reader{t: t, d: NewDirect([]Node{{Name: "n", Events: e, Usage: e}}, steps), now: t0}
	moves := func(d time.Duration) []string { // with a job that makes a step in each poll
		var told []string
		for end := r.now.Add(d); r.now.Before(end); {
			step++
			told = append(told, r.until(r.now.Add(10*time.Second).Sub(t0))...)
		}
		return told
	}
	same(t, "while all is well", moves(20*time.Minute))

	e.events = []fleet.XIDEvent{{GPU: 0, XID: 79, At: r.now}}
	same(t, "an XID", moves(time.Minute), "gpu-lost n/gpu-0")

	e.down = true
	same(t, "silence under two minutes", moves(time.Minute))
	same(t, "silence of three", moves(2*time.Minute), "telemetry-lost n")
	e.down = false
	same(t, "the end of the silence", moves(time.Minute), "telemetry-lost n is over")

	e.temp = 95
	same(t, "heat under five minutes", moves(4*time.Minute))
	same(t, "heat of seven", moves(3*time.Minute), "gpu-hot n/gpu-0")
	e.temp = 60
	same(t, "cool under five minutes", moves(4*time.Minute))
	same(t, "cool of seven", moves(3*time.Minute), "gpu-hot n/gpu-0 is over")

	same(t, "no step for ten minutes", r.until(r.now.Add(10*time.Minute).Sub(t0)))
	same(t, "no step for twelve", r.until(r.now.Add(2*time.Minute).Sub(t0)), "job-stalled t/j")
	same(t, "a step", moves(time.Minute), "job-stalled t/j is over")
}

func TestWhatIsNotKnownIsToldAsSuch(t *testing.T) {
	e := &engine{use: 0.4}
	r := &reader{t: t, d: NewDirect([]Node{{Name: "n", Events: e, Usage: e}}, nil), now: t0}
	ref := fleet.JobRef{Namespace: "t", Name: "j"}
	facts := func() *fleet.Facts {
		f := fleet.NewFacts()
		f.Nodes["n"] = fleet.Node{Name: "n"}
		f.Jobs[ref] = fleet.Job{Ref: ref}
		f.Pods["u"] = fleet.Pod{PodRef: fleet.PodRef{UID: "u", Namespace: "t", Name: "p", Node: "n"}, Job: ref, GPUs: 1}
		if err := r.d.Fill(t.Context(), r.now, f); err != nil {
			t.Fatal(err)
		}
		return f
	}
	if f := facts(); f.Nodes["n"].Telemetry.Status != fleet.Unknown || !f.Jobs[ref].Usage.At.IsZero() {
		t.Errorf("before anything was told: %+v, %+v", f.Nodes["n"].Telemetry, f.Jobs[ref].Usage)
	}
	r.until(20 * time.Minute)
	f := facts()
	if u := f.Jobs[ref].Usage; math.Abs(u.Mean-0.4) > 1e-9 || u.Over != 10*time.Minute || f.Nodes["n"].GPUs[0].Up != fleet.True {
		t.Errorf("usage %+v, GPU %+v", u, f.Nodes["n"].GPUs[0])
	}
	e.down = true
	r.until(21 * time.Minute)
	if f := facts(); f.Nodes["n"].Telemetry.Status != fleet.False || f.Nodes["n"].GPUs[0].Up != fleet.Unknown {
		t.Errorf("while it is silent: %+v, GPU %+v", f.Nodes["n"].Telemetry, f.Nodes["n"].GPUs[0])
	}
	r.until(40 * time.Minute)
	if u := facts().Jobs[ref].Usage; !u.At.IsZero() && u.At.Equal(r.now) && u.Over == 10*time.Minute && e.down {
		t.Errorf("usage that nobody has read for 20 minutes is told as of now: %+v", u)
	}
}

func TestOnlyFaultsOfHardwareDrain(t *testing.T) {
	for code, want := range map[int]bool{79: true, 95: true, 119: true, 74: true, 48: true, 45: false, 13: false, 94: false, 63: false, 9999: false} {
		if got := Acts(code); got != want {
			t.Errorf("XID %d drains: %t, want %t", code, got, want)
		}
	}
}

func TestMeansHaveTheIntervalOfStudent(t *testing.T) {
	for name, tc := range map[string]struct {
		values    []float64
		mean, low float64
	}{
		"of nothing":    {nil, 0, 0},
		"of one value":  {[]float64{3}, 3, 3},
		"of two values": {[]float64{1, 3}, 2, 2 - 12.706},
		"of five":       {[]float64{1, 2, 3, 4, 5}, 3, 3 - 2.776*math.Sqrt(2.5/5)},
	} {
		if got := MeanOf(tc.values); math.Abs(got.Mean-tc.mean) > 1e-9 || math.Abs(got.Low-tc.low) > 1e-9 || got.Runs != len(tc.values) {
			t.Errorf("%s: %+v, want mean %g and low %g", name, got, tc.mean, tc.low)
		}
	}
	for freedom, want := range map[int]float64{40: 2.0211, 49: 2.0096, 100: 1.9840, 1000: 1.9623} {
		if got := student(freedom); math.Abs(got-want) > 5e-4 {
			t.Errorf("quantile of %d degrees: %.4f, want %.4f", freedom, got, want)
		}
	}
}
