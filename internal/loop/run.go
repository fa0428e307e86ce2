package loop

import (
	"context"
	"fmt"
	"time"
)

// Run ticks every so often, and at once when evidence has changed an incident, until
// ctx ends. It returns nil then: errors of single ticks are in the journal, and the
// next tick tries again. Only one Run may go on at a time.
func (l *Loop) Run(ctx context.Context, every time.Duration, now func() time.Time) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		if ctx.Err() != nil {
			return nil // being told to end is not an error
		}
		if err := l.Tick(ctx, now()); err != nil && ctx.Err() == nil {
			l.log.Warn("tick incomplete", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		case <-l.wake:
		}
	}
}

// Look brings what Incidents and Fleet return up to date without acting on it: a replica
// that does not lead can answer too. What was looked at is not kept: a leader reads anew.
func (l *Loop) Look(ctx context.Context, now time.Time) error {
	if err := l.begin(ctx); err != nil {
		return err
	}
	defer l.end()
	l.loaded = false
	if err := l.load(ctx); err != nil {
		return err
	}
	f, err := l.world.Snapshot(ctx, now)
	if err != nil {
		return fmt.Errorf("observe the fleet: %w", err)
	}
	l.publish(&f)
	l.loaded = false
	return nil
}
