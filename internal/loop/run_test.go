package loop

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/internal/store"
	"stoker.dev/stoker/rules"
)

// run runs a loop over a site of one node for a while, on time that is made up, and
// returns when it ticked. What is done is called after that long, with the loop.
func run(t *testing.T, s *site, cfg Config, every, lasts time.Duration, after time.Duration, do func(l *Loop)) []time.Duration {
	t.Helper()
	var ticks []time.Duration
	began := time.Now()
	watch := &watcher{site: s, seen: func() { ticks = append(ticks, time.Since(began)) }}
	l := New(slog.New(slog.DiscardHandler), prometheus.NewRegistry(), &store.Memory{}, watch, nil, s, cfg, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- l.Run(ctx, every, time.Now) }()
	time.Sleep(after)
	do(l)
	synctest.Wait()
	time.Sleep(lasts - after)
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run ended with %v, want nil", err)
	}
	return ticks
}

func TestRunTicksOnTimeAndWhenEvidenceComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{Playbooks: rules.Playbooks{MaxAge: time.Hour}}
		ticks := run(t, newSite(1), cfg, 10*time.Second, 48*time.Second, 23*time.Second, func(l *Loop) {
			e := lost(0, 3)
			e.At = time.Now()
			for range 5 { // the first opens an incident, and the others tell nothing new
				if err := l.Ingest(t.Context(), time.Now(), []remedy.Evidence{e}); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
			}
		})
		at := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
		// It is told, and over: after that the pause doubles up to the usual one.
		want := []time.Duration{0, at(10), at(20), at(23), at(23.1), at(23.3), at(23.7), at(24.5), at(26.1), at(29.3), at(35.7), at(45.7)}
		if d := cmp.Diff(want, ticks); d != "" {
			t.Errorf("it ticked at other times (-want +got):\n%s", d)
		}
	})
}

// TestALadderDoesNotWaitForTheTick: where everything is done at once, eight steps are not
// eight seconds; where something takes long, it is not looked at more often for that.
func TestALadderDoesNotWaitForTheTick(t *testing.T) {
	for name, tc := range map[string]struct {
		takes  time.Duration // the drain
		within time.Duration
		ticks  int // at most
	}{
		"all at once":            {0, 2 * time.Second, 35},
		"a drain of ten minutes": {10 * time.Minute, 10*time.Minute + 3*time.Second, 600 + 45},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(1)
				var l *Loop
				var healed time.Duration
				began := time.Now()
				s.ends = func(now time.Time, o remedy.Order) (remedy.Outcome, bool) {
					if o.Action == "drain" && now.Sub(o.Reserved) < tc.takes {
						return remedy.Outcome{Ending: remedy.Late}, false
					}
					if o.Action == "release" {
						healed = time.Since(began)
					}
					return remedy.Outcome{Ending: remedy.Done}, true
				}
				steps := ladder()
				steps[4].Within = remedy.Duration(time.Hour)
				cfg := Config{Playbooks: rules.Playbooks{List: []rules.Playbook{{Name: "p", Class: remedy.ClassGPULost, Steps: steps}}, MaxAge: time.Hour}}
				ticks := run(t, s, cfg, time.Second, tc.within+10*time.Second, 0, func(got *Loop) {
					l = got
					e := lost(0, 3)
					e.At, e.Seen = time.Now(), time.Time{}
					if err := l.Ingest(t.Context(), time.Now(), []remedy.Evidence{e}); err != nil {
						t.Fatal(err)
					}
				})
				t.Logf("given back after %v, %d ticks", healed, len(ticks))
				if in := l.Incidents()[0]; in.Phase != remedy.PhaseResolved || healed > tc.within || len(ticks) > tc.ticks+10 {
					t.Errorf("%s (%s), given back after %v in %d ticks; want within %v and %d ticks", in.Phase, in.StepName(), healed, len(ticks), tc.within, tc.ticks)
				}
			})
		})
	}
}

// A watcher is a world that says when it is looked at.
type watcher struct {
	*site
	seen func()
}

func (w *watcher) Snapshot(ctx context.Context, now time.Time) (fleet.Snapshot, error) {
	w.seen()
	return w.site.Snapshot(ctx, now)
}
