package dcgm

import (
	"slices"
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

// reach is how far before now the next samples may lie that were not read before.
func (t *tape) reach() time.Duration {
	if t.readTo.IsZero() {
		return 0
	}
	return t.overlap
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
	t.readTo = now // also when the clock was set back
	before := t.since().UnixMicro()
	for x := range t.seen {
		if x.ts < before {
			delete(t.seen, x)
		}
	}
}

// newest remembers an XID as the last one of an entity of a GPU, unless a newer one is known.
func (c *cursor) newest(e GroupEntityPair, uuid string, code int, ts int64) {
	for i := range c.Last {
		l := &c.Last[i]
		if l.Group == e.EntityGroupId && l.ID == e.EntityId && l.UUID == uuid {
			if ts >= l.At {
				l.Code, l.At = code, ts
			}
			return
		}
	}
	if len(c.Last) < maxEntities {
		c.Last = append(c.Last, lastXIDView{e.EntityGroupId, e.EntityId, uuid, code, ts})
	}
}

// follow looks whether the clock was set back before anything that is remembered: what
// happens from now on is then no history, and newer than what was last. By how much it may
// have happened before now is given.
func (c *cursor) follow(now time.Time, before time.Duration) {
	if now.Before(c.Begin) {
		c.Begin = now.Add(-before)
	}
	for i := range c.Last {
		if l := &c.Last[i]; l.At > now.UnixMicro() {
			l.At = now.Add(-before).UnixMicro()
		}
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

// readEvents reads what has happened since the last time.
func (r *reader) readEvents() error {
	r.s.thread.During("reading events")
	r.now = r.at.UnixMicro()
	first := time.Time{}
	for _, e := range r.w.events {
		next, err := r.engine.GetValuesSince(e.group, e.fields, r.tape.since(), &r.events)
		if err != nil {
			return err
		}
		if first.IsZero() {
			first = next
			if first.UnixMicro() > 0 {
				r.s.mu.Lock()
				r.s.cursor.follow(first, r.tape.reach())
				r.s.mu.Unlock()
			}
		}
		r.takeEvents()
	}
	if first.UnixMicro() > 0 {
		r.now = first.UnixMicro()
		r.bridge(first)
		r.tape.advance(first)
	}
	return nil
}

func (r *reader) takeEvents() {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	r.s.cut += r.events.Cut()
	r.window.forget(r.now)
	begin := r.s.cursor.Begin.UnixMicro()
	for i := range r.events.Len() {
		v := r.events.At(i)
		fresh, ok := r.tape.fresh(sample{v.Entity, v.FieldID, v.Ts, v.Int64})
		if !ok {
			r.s.cut++
		}
		history := v.Ts < begin // nobody knows whether it was counted before
		if !fresh || v.Int64 <= 0 || v.Int64 > maxCode || history && v.FieldID != fieldXID {
			continue
		}
		e := event{field: v.FieldID, code: int(v.Int64), at: time.UnixMicro(v.Ts)}
		switch v.FieldID { //nolint:exhaustive // a field is a number, and there are some thousand
		case fieldBind:
			r.log.Info("driver was attached or detached", "event", v.Int64)
			r.rebind = r.rebind || e.code == bindDone
			continue
		case fieldXID:
			ok = r.located(&e, v.Entity)
			r.s.cursor.newest(v.Entity, e.gpu.UUID, e.code, v.Ts)
			if !r.window.add(v.Entity, e.code, v.Ts) {
				r.s.cut++
			}
			if history {
				continue
			}
			r.w.rewatch = r.w.rewatch || e.code == pageFault
		case fieldNVLink:
			ok = r.located(&e, v.Entity) && nvlinkErrors[e.code] != ""
		case fieldFatalSXID, fieldSXID:
			e.number, e.address = v.Entity.EntityId, r.w.address(v.Entity.EntityId)
		default:
			continue
		}
		if !ok || len(r.s.pending) >= maxPending {
			r.s.cut++
			continue
		}
		r.s.pending = append(r.s.pending, e)
	}
}

// located notes which GPU an event is of.
func (r *reader) located(e *event, of GroupEntityPair) bool {
	gpu, ok := r.gpuOf(of)
	if ok {
		g, _ := r.who(gpu)
		e.gpu = sampled(g, fleet.Unknown)
	}
	return ok
}

const (
	bindDone  = 2  // of field 6: the engine has the driver again
	pageFault = 31 // after which profiling may only tell zeros
)

// nvlinkErrors are the values of field 450.
var nvlinkErrors = map[int]fleet.NVLinkError{1: fleet.NVLinkRecovery, 2: fleet.NVLinkFatal}

// maxCode is above every XID that there will be.
const maxCode = 99_999

// gpuOf returns the whole GPU that an entity is or is part of.
func (r *reader) gpuOf(e GroupEntityPair) (uint32, bool) {
	for range 3 {
		if e.EntityGroupId == FE_GPU {
			return e.EntityId, true
		}
		i := slices.IndexFunc(r.w.tree, func(m MigHierarchyInfo) bool { return m.Entity == e })
		if i < 0 {
			return 0, false
		}
		e = r.w.tree[i].Parent
	}
	return 0, false
}
