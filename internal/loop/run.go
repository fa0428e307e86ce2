package loop

import (
	"context"
	"fmt"
	"time"
)

// soon is how long after a tick that has moved something the next one comes: most of
// what is started is seen in the cluster by then.
const soon = 100 * time.Millisecond

// Run ticks every so often, at once when evidence has changed an incident, and soon after
// a tick that has moved one up its ladder, until ctx ends. While nothing moves the pause
// doubles up to the usual one, so a ladder costs a few ticks more for each of its steps,
// whatever it waits for. Run returns nil in the end: errors of single ticks are in the
// journal, and the next tick tries again. Only one Run may go on at a time.
func (l *Loop) Run(ctx context.Context, every time.Duration, now func() time.Time) error {
	least := min(soon, every)
	pause := every
	timer := time.NewTimer(every)
	defer timer.Stop()
	for {
		if ctx.Err() != nil {
			return nil // being told to end is not an error
		}
		began := time.Now()
		moved, err := l.tick(ctx, now())
		if err != nil && ctx.Err() == nil {
			l.log.Warn("tick incomplete", "err", err)
		}
		pause = min(2*pause, every)
		if moved {
			pause = least
		}
		timer.Reset(max(least, pause-time.Since(began)))
		select {
		case <-ctx.Done():
		case <-timer.C:
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
