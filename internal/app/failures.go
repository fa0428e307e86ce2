package app

import (
	"context"
	"time"

	"stoker.dev/stoker/internal/observe"
	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/rules"
)

// failures is a witness of jobs that have failed, in the fleet as it was last seen: a
// tick looks at the fleet before it asks its witnesses.
type failures struct {
	world  *observe.World
	maxAge time.Duration
}

// Evidence makes failures a witness of the loop.
func (f failures) Evidence(_ context.Context, now time.Time) ([]remedy.Evidence, error) {
	return rules.FailedJobs(now, f.world.Last(), f.maxAge), nil
}
