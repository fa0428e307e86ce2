package kmsg

import (
	"fmt"
	"testing"
	"time"
)

func TestTheKernelsClockIsMeasured(t *testing.T) {
	const day = 24 * time.Hour
	for name, tc := range map[string]struct {
		was  drift
		lag  time.Duration
		now  time.Duration // since boot
		want time.Duration
	}{
		"a node that has been up for a month":     {drift{}, 90 * time.Second, 30 * day, 90 * time.Second},
		"a clock that is fast":                    {drift{}, -90 * time.Second, 30 * day, -90 * time.Second},
		"a process that had no time to read":      {drift{2 * time.Second, day}, 9 * time.Second, day + time.Hour, 2 * time.Second},
		"what no clock can be":                    {drift{}, 10 * time.Second, time.Hour, 0},
		"what no clock can be, the other way":     {drift{}, -10 * time.Second, time.Hour, 0},
		"it goes on":                              {drift{2 * time.Second, day}, 2100 * time.Millisecond, day + time.Hour, 2100 * time.Millisecond},
		"a time that was before the last measure": {drift{2 * time.Second, day}, time.Second, day, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			d := tc.was
			d.measure(tc.lag, tc.now)
			if d.By != tc.want {
				t.Errorf("%v, want %v", d.By, tc.want)
			}
		})
	}
}

// TestANodeThatHasBeenUpForLong: the kernel's clock is 90 seconds behind, and an XID is dated
// when it happened nevertheless. The date by the kernel's clock, which another reader of the
// same log has, goes along.
func TestANodeThatHasBeenUpForLong(t *testing.T) {
	const up, behind = 30 * 24 * time.Hour, 90 * time.Second
	k := newKernel(t, "0000:1a:00.0")
	s := k.open()
	start := time.Now()
	s.clock = func() (time.Time, time.Duration) { now := time.Now(); return now, up + now.Sub(start) }
	say := func(text string) {
		record := fmt.Sprintf("3,%d,%d,-;%s\n", k.number, (up + time.Since(start) - behind).Microseconds(), text)
		k.number++
		if _, err := k.log.WriteString(record); err != nil {
			t.Fatal(err)
		}
	}
	say("NVRM: Xid (PCI:0000:1a:00): 48, of before")
	k.collect(s)
	time.Sleep(20 * time.Millisecond) // the reader waits
	say("anything")
	say("NVRM: Xid (PCI:0000:1a:00): 31, Ch 1")
	got := k.collect(s)
	if len(got.Events) != 1 {
		t.Fatalf("%d events, want the 31 alone: %v", len(got.Events), told(got))
	}
	e := got.Events[0]
	if age := time.Since(e.At); age < -time.Second || age > time.Second {
		t.Errorf("it happened %v ago, want about now", age)
	}
	if d := e.At.Sub(e.Kernel) - behind; d < -time.Second || d > time.Second {
		t.Errorf("the kernel's date is %v earlier, want %v", e.At.Sub(e.Kernel), behind)
	}
}

// TestAClockThatIsSetBack: what comes afterwards is no history, and is dated by the new time.
func TestAClockThatIsSetBack(t *testing.T) {
	k := newKernel(t, "0000:1a:00.0")
	s := k.open()
	back := time.Duration(0)
	s.clock = func() (time.Time, time.Duration) {
		wall, sinceBoot := clock()
		return wall.Add(-back), sinceBoot
	}
	k.say(6, 0, "anything")
	k.collect(s)
	time.Sleep(20 * time.Millisecond) // the reader waits
	k.say(3, 0, "NVRM: Xid (PCI:0000:1a:00): 31, Ch 1")
	if got := k.collect(s); len(got.Events) != 1 {
		t.Fatalf("%d events before the clock is set, want one", len(got.Events))
	}
	s.mu.Lock()
	back = time.Hour
	s.mu.Unlock()
	k.say(3, 0, "NVRM: Xid (PCI:0000:1a:00): 43, Ch 2")
	got := k.collect(s)
	if len(got.Events) != 1 {
		t.Fatalf("%d events after it, want one", len(got.Events))
	}
	if age := time.Now().Add(-time.Hour).Sub(got.Events[0].At); age < -time.Second || age > 5*time.Second {
		t.Errorf("it is %v old by the new time", age)
	}
}
