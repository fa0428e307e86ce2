package cluster

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// pollEvery is the time between two looks of a wait.
const pollEvery = 100 * time.Millisecond

// A Look reports whether what is waited for has come and, in a few words, what
// was seen; those words end up in the message of a wait that gave up. An error is
// taken for an obstacle that may pass, such as a server that is away.
type Look func(ctx context.Context) (done bool, seen string, err error)

// Await looks every 100 ms until look is done, for at most within. The error
// says what was waited for, for how long, and what was seen last.
func Await(ctx context.Context, what string, within time.Duration, look Look) error {
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("not within %v", within))
	defer cancel()
	start := time.Now()
	last := "nothing yet"
	for {
		done, seen, err := look(ctx)
		switch {
		case err == nil && done:
			return nil
		case err == nil:
			last = seen
		case ctx.Err() == nil: // else it tells only of our own deadline
			last = err.Error()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited %.1f s for %s: %w; last seen: %s", time.Since(start).Seconds(), what, context.Cause(ctx), last)
		case <-time.After(pollEvery):
		}
	}
}

// Await waits as the function Await does and fails the test when that gives up,
// or at once when a program of the control plane has died.
func (c *Cluster) Await(t testing.TB, what string, within time.Duration, look Look) {
	t.Helper()
	if err := c.await(t.Context(), what, within, look); err != nil {
		t.Fatal(err)
	}
}

func (c *Cluster) await(ctx context.Context, what string, within time.Duration, look Look) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	return Await(ctx, what, within, func(ctx context.Context) (bool, string, error) {
		if err := c.died(); err != nil {
			cancel(err)
		}
		return look(ctx)
	})
}
