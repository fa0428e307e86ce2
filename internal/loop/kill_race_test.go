//go:build race

package loop

import "testing"

// TestAnEndAtSomePointsChangesNothing looks for races alone: all points take half a minute
// under the race detector.
func TestAnEndAtSomePointsChangesNothing(t *testing.T) { endAt(t, 7) }
