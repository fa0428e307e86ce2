package exporter

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"stoker.dev/stoker/internal/fleet"
)

// Limits of what is remembered and told.
const (
	maxPlaces = 2048   // GPUs and MIG instances
	maxWindow = 512    // codes of one of them
	maxEvents = 10_000 // of one page
)

// A history is what pages have shown of XIDs before. From it and the next page follow
// the events that are new; it is the only place where that is decided.
//
// Where the page has window counts for a GPU they alone decide: a count that rises by
// n is n events. The last code, which never goes away, decides where there are none:
// when it changes, that is one event. On first sight of a GPU a last code is history,
// of a time that nobody knows, while a window count is of the last minutes.
type history map[place]*past

// A place is a GPU or a MIG instance of it: the exporter counts them apart.
type place struct{ uuid, instance string }

// A past is what was shown of one place.
type past struct {
	last     int // newest code that was shown and was one
	windows  map[int]*window
	windowed bool // the page before this one had window counts
	seen     time.Time
}

// A window is the count of one code.
type window struct {
	count int
	rose  time.Time // when it was last seen to rise
}

// A sight is what one page shows of a place.
type sight struct {
	last   int // 0: nothing
	counts map[int]int
	width  time.Duration // of the window
	window bool          // the page has window counts, if only to say that there are none
}

// sights reads what a page shows of XIDs.
func sights(p *Page) map[place]*sight {
	out := map[place]*sight{}
	for _, g := range p.GPUs {
		out[place{g.UUID, g.Instance}] = &sight{counts: map[int]int{}, width: defaultWindow}
	}
	for i := range p.Values {
		v := &p.Values[i]
		if v.GPU < 0 || v.Field != lastXID && v.Field != windowed {
			continue
		}
		n, ok := wholeNumber(v.Value)
		if !ok {
			continue
		}
		g := p.GPUs[v.GPU]
		s := out[place{g.UUID, g.Instance}]
		if v.Field == lastXID {
			s.last = n
			continue
		}
		s.window = true
		code := 0
		for _, l := range v.Labels {
			switch l.Name {
			case "xid":
				code, _ = strconv.Atoi(l.Value)
			case "window_size_in_ms":
				if ms, err := strconv.ParseInt(l.Value, 10, 32); err == nil && ms > 0 {
					s.width = time.Duration(ms) * time.Millisecond
				}
			}
		}
		if code > 0 && n > 0 {
			// The page may have a series twice, with labels that we don't look at.
			s.counts[code] = max(s.counts[code], n)
		}
	}
	return out
}

// wholeNumber returns x if it is one that a code or a count can be.
func wholeNumber(x float64) (int, bool) {
	if !(x >= 0 && x <= 1<<31) || x != float64(int(x)) {
		return 0, false
	}
	return int(x), true
}

// A rise is a number of new events of one code on one whole GPU.
type rise struct {
	uuid string
	xid  int
	n    int
}

// advance takes in a page that was read at now and returns what is new on it, by GPU
// and code. It returns the number of codes that there was no room for.
func (h history) advance(now time.Time, p *Page) (rises []rise, dropped int) {
	sum := map[rise]int{}
	for at, s := range sights(p) {
		was, known := h[at]
		if !known {
			if len(h) >= maxPlaces && !h.forget(now) {
				dropped += len(s.counts)
				continue
			}
			was = &past{windows: map[int]*window{}}
			h[at] = was
		}
		was.seen = now
		switch {
		case s.window:
			dropped += was.count(now, s, func(code, n int) { sum[rise{at.uuid, code, 0}] += n })
		case known && s.last > 0 && s.last != was.last:
			sum[rise{at.uuid, s.last, 0}]++
			// A window that is shown from the next page on will hold this event.
			was.add(now, s.last)
		}
		if s.last > 0 {
			was.last = s.last
		}
		was.windowed = s.window
	}
	for r, n := range sum {
		r.n = n
		rises = append(rises, r)
	}
	slices.SortFunc(rises, func(a, b rise) int {
		return cmp.Or(cmp.Compare(a.uuid, b.uuid), cmp.Compare(a.xid, b.xid))
	})
	return rises, dropped
}

// count compares window counts with those of the page before.
func (w *past) count(now time.Time, s *sight, rose func(code, n int)) (dropped int) {
	if !w.windowed {
		// Between two pages that don't follow each other, what had been counted
		// has left the window when it is older than that.
		maps.DeleteFunc(w.windows, func(_ int, x *window) bool { return now.Sub(x.rose) > s.width })
	}
	maps.DeleteFunc(w.windows, func(code int, _ *window) bool { return s.counts[code] == 0 })
	for code, n := range s.counts {
		x := w.windows[code]
		if x == nil {
			if len(w.windows) >= maxWindow {
				dropped++
				continue
			}
			x = &window{}
			w.windows[code] = x
		}
		if n > x.count {
			rose(code, n-x.count)
			x.rose = now
		}
		x.count = n
	}
	return dropped
}

// add notes an event that no window has shown yet.
func (w *past) add(now time.Time, code int) {
	if x := w.windows[code]; x != nil {
		x.count, x.rose = x.count+1, now
	} else if len(w.windows) < maxWindow {
		w.windows[code] = &window{1, now}
	}
}

// forget makes room by dropping the place that was not shown for longest. It returns
// false when all were shown at now.
func (h history) forget(now time.Time) bool {
	var oldest place
	at := now
	for k, w := range h {
		if w.seen.Before(at) {
			oldest, at = k, w.seen
		}
	}
	delete(h, oldest)
	return at.Before(now)
}

// events makes events of rises: the newest of each at now, those before it at most
// 1 ms apart, since the page has no times and two events of one code must not have
// the same. All lie after prev, the time of the page before. It returns how many were
// over the limit.
func events(now, prev time.Time, rises []rise, gpus []fleet.SampledGPU) (out []fleet.XIDEvent, dropped int) {
	for _, r := range rises {
		gpu := slices.IndexFunc(gpus, func(g fleet.SampledGPU) bool { return g.UUID == r.uuid })
		n := min(r.n, maxEvents-len(out))
		dropped += r.n - n
		step := time.Millisecond
		if !prev.IsZero() && prev.Before(now) {
			step = min(step, now.Sub(prev)/time.Duration(n+1))
		}
		for i := range n {
			out = append(out, fleet.XIDEvent{GPU: gpu, XID: r.xid, At: now.Add(-step * time.Duration(n-1-i))})
		}
	}
	return out, dropped
}
