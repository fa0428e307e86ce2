package observe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"stoker.dev/stoker/internal/fleet"
)

// A Filler adds what one source knows at now. It answers from what is at hand, and sets
// its own entry of Facts.Sources to when it was last told anything. It may add to and
// correct what fillers before it have told.
type Filler interface {
	Fill(ctx context.Context, now time.Time, into *fleet.Facts) error
}

// A Source is a filler with its name, which is that of its entry in Facts.Sources.
type Source struct {
	Name   string
	Filler Filler
	// Needed says that without the source nothing is known. What any other source would
	// have told is unknown while it fails, and the time of its last answer stays.
	Needed bool
	// MaxAge is how old the source's last answer may be. What is older is not known any
	// more, and the source counts as failing. Zero: of any age.
	MaxAge time.Duration
}

// World is the fleet as all sources together know it. It may be used by several
// goroutines, one after the other.
type World struct {
	log     *slog.Logger
	sources []Source

	mu      sync.Mutex
	prev    fleet.Snapshot
	failing map[string]bool // so that a failure is logged once, and its end
}

// NewWorld returns a world that asks the sources in their order.
func NewWorld(log *slog.Logger, sources ...Source) *World {
	return &World{log: log, sources: sources, failing: map[string]bool{}}
}

// Snapshot asks every source and freezes what they tell. An error means that a source
// that is needed has failed, or that ctx has ended; the next snapshot then still knows
// what has changed since the last good one.
func (w *World) Snapshot(ctx context.Context, now time.Time) (fleet.Snapshot, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	facts := fleet.NewFacts()
	var errs []error
	for _, s := range w.sources {
		if err := ctx.Err(); err != nil {
			return fleet.Snapshot{}, fmt.Errorf("observe: %w", context.Cause(ctx))
		}
		before := facts
		if !s.Needed {
			before = copyOf(facts)
		}
		err := s.Filler.Fill(ctx, now, facts)
		if told := facts.Sources[s.Name]; err == nil && s.MaxAge > 0 && now.Sub(told) > s.MaxAge {
			err = fmt.Errorf("what it knows is of %s, more than %s ago", told.UTC().Format(time.TimeOnly), s.MaxAge)
		}
		w.tell(ctx, s, err)
		if err == nil {
			continue
		}
		if s.Needed {
			errs = append(errs, fmt.Errorf("observe %s: %w", s.Name, err))
			continue
		}
		facts = before // half of what it would have told is not a fact
		if last, ok := w.prev.Sources[s.Name]; ok {
			facts.Sources[s.Name] = last
		}
	}
	if len(errs) > 0 {
		return fleet.Snapshot{}, errors.Join(errs...)
	}
	w.prev = facts.Snapshot(now, w.prev)
	return w.prev, nil
}

// Last returns the newest good snapshot; its zero value when there was none.
func (w *World) Last() fleet.Snapshot {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.prev
}

func (w *World) tell(ctx context.Context, s Source, err error) {
	if (err != nil) == w.failing[s.Name] {
		return
	}
	w.failing[s.Name] = err != nil
	if err != nil {
		w.log.LogAttrs(ctx, slog.LevelWarn, "source does not answer", slog.String("source", s.Name), slog.Any("err", err))
		return
	}
	w.log.LogAttrs(ctx, slog.LevelInfo, "source answers again", slog.String("source", s.Name))
}

func copyOf(f *fleet.Facts) *fleet.Facts {
	return &fleet.Facts{Nodes: maps.Clone(f.Nodes), Pods: maps.Clone(f.Pods), Jobs: maps.Clone(f.Jobs), Queues: maps.Clone(f.Queues), Failures: maps.Clone(f.Failures), Sources: maps.Clone(f.Sources), Alerts: f.Alerts}
}
