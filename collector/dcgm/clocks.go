package dcgm

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"stoker.dev/stoker/internal/fleet"
)

// clockReasons are the bits of field 112, lowest first, as dcgm-exporter names them.
var clockReasons = [...]string{
	"gpu_idle", "clocks_setting", "power_cap", "hw_slowdown", "sync_boost", "sw_thermal", "hw_thermal", "hw_power_brake", "display_clocks",
}

// clockOverlap is how far samples are read again before what was read: one has the time
// at which it was measured, and is there a little later.
const clockOverlap = 5 * time.Second

// clocks is what is remembered of why the clocks of GPUs were held down.
type clocks struct {
	window  *window
	samples bool // each sample with a reason counts, as in dcgm-exporter, not each beginning of one
	readTo  time.Time
	last    map[uint32]clockSample // of each GPU
}

type clockSample struct {
	ts   int64 // us since 1970
	bits int64
}

func newClocks(width time.Duration, samples bool) *clocks {
	return &clocks{window: newWindow(width), samples: samples, last: map[uint32]clockSample{}}
}

// take adds what was read of a GPU, in order of time. A reason that was there at the
// first sample is no event: nobody saw it begin. It returns for how many there was no room.
func (c *clocks) take(gpu uint32, ts, bits int64) (cut int) {
	was, known := c.last[gpu]
	if known && ts <= was.ts {
		return 0
	}
	c.last[gpu] = clockSample{ts, bits}
	began := bits &^ was.bits
	switch {
	case c.samples:
		began = bits
	case !known:
		began = 0
	}
	for bit := range clockReasons {
		if began&(1<<bit) != 0 && !c.window.add(GroupEntityPair{FE_GPU, gpu}, bit, ts) {
			cut++
		}
	}
	return cut
}

// readClocks reads the samples of field 112 since the last time.
func (r *reader) readClocks() error {
	if r.w.clocks == 0 {
		return nil
	}
	r.s.thread.During("reading clock events")
	since := time.UnixMicro(1)
	if !r.clocks.readTo.IsZero() {
		since = r.clocks.readTo.Add(-clockOverlap)
	}
	next, err := r.engine.GetValuesSince(r.w.gpuGroup, r.w.clocks, since, &r.events)
	if err != nil {
		return err
	}
	cut := r.events.Cut()
	found := make([]FieldValue, 0, r.events.Len())
	for i := range r.events.Len() {
		if v := r.events.At(i); v.FieldID == fieldClocks && v.Entity.EntityGroupId == FE_GPU {
			found = append(found, v)
		}
	}
	r.clocks.window.forget(r.now)
	slices.SortFunc(found, func(x, y FieldValue) int { return cmp.Compare(x.Ts, y.Ts) })
	for _, v := range found {
		cut += r.clocks.take(v.Entity.EntityId, v.Ts, v.Int64)
	}
	r.s.drop(cut)
	if next.UnixMicro() > 0 {
		r.clocks.advance(next)
	}
	return nil
}

// advance ends a reading that began at now, by the engine's clock.
func (c *clocks) advance(now time.Time) {
	if now.Before(c.readTo) {
		// The clock was set back: what is to come has times that were read already.
		for gpu, s := range c.last {
			c.last[gpu] = clockSample{0, s.bits}
		}
	}
	c.readTo = now
}

// addClocks shows how often clocks were held down lately, and why.
func (r *reader) addClocks(into *fleet.Samples, places []place) {
	width := fleet.Label{Name: "window_size_in_ms", Value: strconv.FormatInt(r.clocks.window.width.Milliseconds(), 10)}
	for at, p := range places {
		if p.entity.EntityGroupId != FE_GPU {
			continue
		}
		base := r.labels[p.entity]
		sums := r.clocks.window.counts(p.entity, time.UnixMicro(r.now))
		from := r.now - r.clocks.window.width.Microseconds()
		if last, known := r.clocks.last[p.gpu]; r.clocks.samples && (!known || last.ts < from) {
			// As dcgm-exporter does, though nothing is known of this GPU.
			into.Values = append(into.Values, fleet.Sample{Field: clockCount, GPU: at, Labels: append(slices.Clone(base), width)})
		}
		for _, bit := range slices.Sorted(maps.Keys(sums)) {
			into.Values = append(into.Values, fleet.Sample{
				Field: clockCount, GPU: at, Value: float64(sums[bit]),
				Labels: append(slices.Clone(base), fleet.Label{Name: "clock_event", Value: clockReasons[bit]}, width),
			})
		}
	}
}
