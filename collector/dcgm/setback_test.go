package dcgm

import (
	"testing"
	"time"
)

// TestClockEventsAfterTheClockWasSetBack: what comes then counts, though it seems to be of before.
func TestClockEventsAfterTheClockWasSetBack(t *testing.T) {
	c := newClocks(time.Hour, false)
	noon := time.Unix(1_800_000_000, 0)
	c.take(1, noon.UnixMicro(), 0)
	c.advance(noon)
	c.take(1, noon.Add(-time.Minute).UnixMicro(), 4) // late, and known
	c.advance(noon.Add(-30 * time.Minute))
	c.take(1, noon.Add(-29*time.Minute).UnixMicro(), 4)
	if got := c.window.counts(GroupEntityPair{FE_GPU, 1}, noon); got[2] != 1 || len(got) != 1 {
		t.Errorf("counted %v, want one power_cap", got)
	}
}
