package dcgm

import (
	"testing"
	"time"

	"stoker.dev/stoker/internal/fleet"
)

// TestAWindowThatIsFull says so, and what has left it makes room.
func TestAWindowThatIsFull(t *testing.T) {
	const s = int64(time.Second / time.Microsecond)
	c, gpu := newClocks(time.Minute, true), GroupEntityPair{FE_GPU, 1}
	for i := range int64(maxSeen - 1) {
		if !c.window.add(gpu, 1, 1000*s+i) {
			t.Fatalf("no room after %d", i)
		}
	}
	if cut := c.take(2, 1001*s, 0b111); cut != 2 {
		t.Errorf("of three reasons with room for one %d were left out, want 2", cut)
	}
	if n := c.window.counts(gpu, time.Unix(1010, 0))[1]; n != maxSeen-1 {
		t.Errorf("%d are in the window, want %d", n, maxSeen-1)
	}
	c.window.forget(1070 * s)
	if cut := c.take(2, 1070*s, 0b111); cut != 0 {
		t.Errorf("after all have left the window %d of three reasons were left out", cut)
	}
}

// TestWhatThereWasNoRoomForIsToldOnce, also by a reading that fails.
func TestWhatThereWasNoRoomForIsToldOnce(t *testing.T) {
	s := &Source{}
	s.drop(2)
	s.drop(3)
	for _, want := range []int{5, 0} {
		var into fleet.Samples
		if s.tell(&into); into.Dropped != want {
			t.Errorf("%d dropped, want %d", into.Dropped, want)
		}
	}
}
