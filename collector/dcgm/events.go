package dcgm

import (
	"time"

	"stoker.dev/stoker/internal/fleet"
)

// Bounds of what is remembered of events.
const (
	maxPending = 20_000 // found and not told, when nobody asks
	maxSeen    = 50_000 // samples in the overlap
)

// An event is something that was found to have happened.
type event struct {
	field   Short
	code    int
	at      time.Time
	gpu     fleet.SampledGPU // of which it is, but for those of a switch:
	number  uint32
	address string // empty where it is not known
}

// A sample is what tells two events apart: the engine gives no two samples of a field of
// an entity the same time.
type sample struct {
	entity GroupEntityPair
	field  Short
	ts     int64 // us since 1970
	value  int64
}

// A tape is what was read of the engine's event samples. Samples turn up late, with times
// before what was read already, so that each reading begins before the last one ended,
// and what it repeats is known by this.
type tape struct {
	overlap time.Duration
	readTo  time.Time // when the last reading that succeeded began
	seen    map[sample]struct{}
}

func newTape(overlap time.Duration) *tape {
	return &tape{overlap: overlap, seen: map[sample]struct{}{}}
}

// since is where the next reading begins. The first one has all that the engine has.
func (t *tape) since() time.Time {
	if t.readTo.IsZero() {
		return time.UnixMicro(1)
	}
	return t.readTo.Add(-t.overlap)
}

// fresh reports whether a sample was not read before; ok is false when there is no room
// to remember it.
func (t *tape) fresh(x sample) (fresh, ok bool) {
	if _, known := t.seen[x]; known {
		return false, true
	}
	if len(t.seen) >= maxSeen {
		return false, false
	}
	t.seen[x] = struct{}{}
	return true, true
}

// advance ends a reading that began at now, by the engine's clock.
func (t *tape) advance(now time.Time) {
	if now.Before(t.readTo) {
		// The clock was set back: what is to come has times that were read already.
		t.readTo = now
		return
	}
	t.readTo = now
	before := t.since().UnixMicro()
	for x := range t.seen {
		if x.ts < before {
			delete(t.seen, x)
		}
	}
}

// newest remembers an XID as the last one of an entity, unless a newer one is known.
func (c *cursor) newest(e GroupEntityPair, code int, ts int64) {
	for i := range c.Last {
		l := &c.Last[i]
		if l.Group == e.EntityGroupId && l.ID == e.EntityId {
			if ts >= l.At {
				l.Code, l.At = code, ts
			}
			return
		}
	}
	if len(c.Last) < maxEntities {
		c.Last = append(c.Last, lastXIDView{e.EntityGroupId, e.EntityId, code, ts})
	}
}

// bridge notes for how long nobody can say what has happened, when an engine was read up
// to now that is not the one of the reading before: what only that one knew went with it.
func (r *reader) bridge(now time.Time) {
	if r.severed && !r.tape.readTo.IsZero() {
		gap := max(0, now.Sub(r.tape.readTo))
		r.log.Warn("XIDs that only the engine knew may be lost", "for", gap)
		r.s.mu.Lock()
		r.s.self.gap += gap
		r.s.mu.Unlock()
	}
	r.severed = false
}
