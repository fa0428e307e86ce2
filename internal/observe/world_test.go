package observe

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/internal/fleet"
)

// fill is a filler that a test steers.
type fill func(now time.Time, into *fleet.Facts) error

func (f fill) Fill(_ context.Context, now time.Time, into *fleet.Facts) error { return f(now, into) }

func TestWorldMergesSources(t *testing.T) {
	cluster := fill(func(now time.Time, into *fleet.Facts) error {
		into.Nodes["a"] = fleet.Node{Name: "a", UID: "n", Allocatable: fleet.Resources{GPUs: 8}}
		into.Sources[Cluster] = now
		return nil
	})
	telemetry := fill(func(now time.Time, into *fleet.Facts) error {
		n := into.Nodes["a"]
		n.Telemetry = fleet.Condition{Status: fleet.True, Since: now}
		into.Nodes["a"] = n
		into.Sources["series"] = now
		return nil
	})
	w := NewWorld(slog.New(slog.DiscardHandler), Source{Name: Cluster, Filler: cluster, Needed: true}, Source{Name: "series", Filler: telemetry})
	first, err := w.Snapshot(t.Context(), seen)
	if err != nil {
		t.Fatal(err)
	}
	if n := first.Nodes["a"]; n.Telemetry.Status != fleet.True || n.Allocatable.GPUs != 8 {
		t.Errorf("node = %+v, want what both sources tell", n)
	}
	second, err := w.Snapshot(t.Context(), seen.Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if got := second.Nodes["a"].AllocatableSince; !got.Equal(seen) {
		t.Errorf("GPUs allocatable since %v, want since the first snapshot", got)
	}
	if !second.At.Equal(seen.Add(time.Minute)) {
		t.Errorf("the snapshot is of %v", second.At)
	}
}

func TestWorldWithoutOptionalSource(t *testing.T) {
	var logged bytes.Buffer
	fails := error(nil)
	w := NewWorld(slog.New(slog.NewTextHandler(&logged, nil)),
		Source{Name: Cluster, Needed: true, Filler: fill(func(now time.Time, into *fleet.Facts) error {
			into.Nodes["a"] = fleet.Node{Name: "a"}
			into.Sources[Cluster] = now
			return nil
		})},
		Source{Name: "series", Filler: fill(func(now time.Time, into *fleet.Facts) error {
			n := into.Nodes["a"]
			n.Telemetry.Status = fleet.True
			into.Nodes["a"] = n
			into.Sources["series"] = now
			return fails
		})})
	if _, err := w.Snapshot(t.Context(), seen); err != nil {
		t.Fatal(err)
	}
	fails = errors.New("no answer")
	for i := range 3 {
		s, err := w.Snapshot(t.Context(), seen.Add(time.Duration(i+1)*time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Nodes["a"].Telemetry.Status; got != fleet.Unknown {
			t.Errorf("telemetry = %q from a source that has failed, want unknown", got)
		}
		if got := s.Sources["series"]; !got.Equal(seen) {
			t.Errorf("the source answered last at %v, want %v", got, seen)
		}
	}
	fails = nil
	if s, err := w.Snapshot(t.Context(), seen.Add(time.Hour)); err != nil || s.Nodes["a"].Telemetry.Status != fleet.True {
		t.Errorf("telemetry did not come back: %v", err)
	}
	if got := strings.Count(logged.String(), "\n"); got != 2 {
		t.Errorf("logged %d lines, want one when it failed and one when it answered:\n%s", got, logged.String())
	}
}

func TestWorldWithoutNeededSource(t *testing.T) {
	fails := errors.New("pods are not listed yet")
	gpus := 8
	w := NewWorld(slog.New(slog.DiscardHandler), Source{Name: Cluster, Needed: true, Filler: fill(func(_ time.Time, into *fleet.Facts) error {
		into.Nodes["a"] = fleet.Node{Name: "a", UID: "n", Allocatable: fleet.Resources{GPUs: gpus}}
		return fails
	})})
	if _, err := w.Snapshot(t.Context(), seen); !errors.Is(err, fails) {
		t.Errorf("err = %v, want the source's", err)
	}
	fails = nil
	if _, err := w.Snapshot(t.Context(), seen.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	fails = errors.New("gone")
	if _, err := w.Snapshot(t.Context(), seen.Add(2*time.Minute)); err == nil {
		t.Error("a snapshot without a needed source had no error")
	}
	fails = nil
	s, err := w.Snapshot(t.Context(), seen.Add(3*time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Nodes["a"].AllocatableSince; !got.Equal(seen.Add(time.Minute)) {
		t.Errorf("allocatable since %v, want the first good snapshot: a failure in between is no change", got)
	}
}

func TestWorldEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := NewWorld(slog.New(slog.DiscardHandler), Source{Name: Cluster, Needed: true, Filler: fill(func(time.Time, *fleet.Facts) error { return nil })})
	if _, err := w.Snapshot(ctx, seen); !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v, want that the context has ended", err)
	}
}

// TestWorldBelievesNothingOld holds that a cluster which has fallen silent is not known:
// what was true a minute ago is no ground to act on.
func TestWorldBelievesNothingOld(t *testing.T) {
	told := seen
	w := NewWorld(slog.New(slog.DiscardHandler), Source{
		Name: Cluster, Needed: true, MaxAge: time.Minute,
		Filler: fill(func(_ time.Time, into *fleet.Facts) error { into.Sources[Cluster] = told; return nil }),
	})
	for _, tc := range []struct {
		after time.Duration
		told  bool
		known bool
	}{
		{0, false, true}, {time.Minute, false, true}, {61 * time.Second, false, false}, {62 * time.Second, true, true},
	} {
		now := seen.Add(tc.after)
		if tc.told {
			told = now
		}
		_, err := w.Snapshot(t.Context(), now)
		if (err == nil) != tc.known {
			t.Errorf("%s after the last sign of life: %v, want known %v", tc.after, err, tc.known)
		}
		if err != nil && !strings.Contains(err.Error(), "more than 1m0s ago") {
			t.Errorf("the error does not say how old it is: %v", err)
		}
	}
}
