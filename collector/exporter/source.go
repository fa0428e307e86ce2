package exporter

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"stoker.dev/stoker/internal/fleet"
)

// A Source reads pages of a dcgm-exporter, wherever they come from. A GPU that a page
// no longer shows stays listed as lost, under the identity that it had.
type Source struct {
	log  *slog.Logger
	name string
	// fetch returns the page as it is now. It may block until the context ends.
	fetch func(ctx context.Context, now time.Time) ([]byte, error)

	history  history
	known    []fleet.SampledGPU  // whole GPUs ever shown, in order of sight; Up is False for lost ones
	shown    map[string][]string // families of the last page that was believed, by UUID
	prev     time.Time           // when that was read
	late     time.Duration       // between the last two pages: what the second shows came in it
	doubted  map[string][]string // families of the last page, if it was not believed
	problems string              // that have been logged
}

func newSource(log *slog.Logger, name string, fetch func(context.Context, time.Time) ([]byte, error)) *Source {
	return &Source{log: log.With("source", name), name: name, fetch: fetch, history: history{}}
}

// Name returns what the source is called on the page.
func (s *Source) Name() string { return s.name }

// Late is the time between the last two pages: an event is dated by the second.
func (s *Source) Late() time.Duration { return s.late }

// Collect reads the page. On an error nothing of the page is used or remembered.
func (s *Source) Collect(ctx context.Context, into *fleet.Samples) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	text, err := s.fetch(ctx, into.At)
	if err != nil {
		return err
	}
	p, err := Parse(text)
	if err != nil {
		return err
	}
	families := familiesOf(&p)
	if err := s.doubt(families); err != nil {
		return err
	}
	s.complain(&p)

	rises, dropped := s.history.advance(into.At, &p)
	evs, over := events(into.At, s.prev, rises, p.GPUs)
	for i := range evs {
		evs[i].Source = s.name
	}
	s.late = 0
	if !s.prev.IsZero() {
		s.late = into.At.Sub(s.prev)
	}
	s.shown, s.prev = families, into.At
	into.GPUs = s.remember(p.GPUs)
	into.Fields, into.Values, into.Events = p.Fields, p.Values, evs
	into.Dropped = p.Dropped + dropped + over
	return nil
}

// familiesOf returns the families that a page shows of each GPU, each once.
func familiesOf(p *Page) map[string][]string {
	out := map[string][]string{}
	for i := range p.Values {
		v := &p.Values[i]
		if v.GPU < 0 {
			continue
		}
		uuid := p.GPUs[v.GPU].UUID
		// Series of one family follow each other.
		if have := out[uuid]; len(have) == 0 || have[len(have)-1] != v.Field {
			out[uuid] = append(have, v.Field)
		}
	}
	return out
}

// doubt returns an error for a page from which GPUs have gone and, for the GPUs that
// are left, families too: a page whose writer has not finished looks like that, and a
// GPU must not be called lost for it. The same is held of a page that lacks GPUs right
// after a restart. When the next page shows as much it is believed.
func (s *Source) doubt(families map[string][]string) error {
	was := s.doubted
	s.doubted = nil
	gone := 0
	for _, g := range s.known {
		// One that was lost before does not speak against the page.
		if families[g.UUID] == nil && g.Up != fleet.False {
			gone++
		}
	}
	if gone == 0 {
		return nil
	}
	lacks := ""
	if s.shown != nil {
		there := map[string]bool{}
		for _, fams := range families {
			for _, f := range fams {
				there[f] = true
			}
		}
		for uuid := range families {
			for _, f := range s.shown[uuid] {
				if !there[f] {
					lacks = max(lacks, f) // any, but the same each time
				}
			}
		}
		if lacks == "" {
			return nil
		}
		lacks = " and the family " + lacks
	}
	if maps.EqualFunc(was, families, slices.Equal) {
		return nil
	}
	s.doubted = families
	return fmt.Errorf("page lacks %d GPUs%s that it had before: it may not be finished", gone, lacks)
}

// complain logs what could not be used of a page, once while it stays the same.
func (s *Source) complain(p *Page) {
	text := ""
	if len(p.Problems) > 0 {
		text = errors.Join(p.Problems...).Error()
	}
	if text != s.problems && text != "" {
		s.log.Warn("parts of the page can't be used", "count", p.Dropped, "err", text)
	}
	s.problems = text
}

// remember returns the GPUs of a page and, after them, those that it no longer shows.
func (s *Source) remember(page []fleet.SampledGPU) []fleet.SampledGPU {
	here, taken := map[string]bool{}, map[string]string{}
	for _, g := range page {
		here[g.UUID] = true
		if g.PCI != "" {
			taken[g.PCI] = g.UUID
		}
	}
	// Another GPU in its place: it was taken out, not lost.
	s.known = slices.DeleteFunc(s.known, func(g fleet.SampledGPU) bool {
		other, ok := taken[g.PCI]
		return !here[g.UUID] && ok && other != g.UUID
	})
	listed := map[string]bool{}
	for _, g := range s.known {
		listed[g.UUID] = true
	}
	for _, g := range page {
		if listed[g.UUID] || len(s.known) >= maxPlaces {
			continue
		}
		listed[g.UUID] = true
		g.Instance, g.Profile, g.Up = "", "", fleet.Unknown
		s.known = append(s.known, g)
	}
	// Nothing is known of those that are gone when nothing is known of those that are here.
	up := fleet.False
	if !slices.ContainsFunc(page, func(g fleet.SampledGPU) bool { return g.Up != fleet.Unknown }) {
		up = fleet.Unknown
	}
	out := page
	for i := range s.known {
		g := &s.known[i]
		switch {
		case here[g.UUID]:
			g.Up = fleet.Unknown
		case up == fleet.False:
			g.Up = fleet.False
		}
		if !here[g.UUID] {
			lost := *g
			lost.Up = up
			out = append(out, lost)
		}
	}
	return out
}

// A cursor is what outlives a restart.
type cursor struct {
	GPUs  []fleet.SampledGPU `json:"gpus"`
	Shown []cursorPlace      `json:"shown"`
}

type cursorPlace struct {
	UUID     string         `json:"uuid"`
	Instance string         `json:"instance,omitempty"`
	Last     int            `json:"last,omitempty"`
	Windows  []cursorWindow `json:"windows,omitempty"`
}

type cursorWindow struct {
	XID   int       `json:"xid"`
	Count int       `json:"count"`
	Rose  time.Time `json:"rose"`
}

// Cursor returns which GPUs were seen and which XIDs the page has shown of them.
func (s *Source) Cursor() ([]byte, error) {
	c := cursor{GPUs: s.known}
	for at, w := range s.history {
		p := cursorPlace{UUID: at.uuid, Instance: at.instance, Last: w.last}
		for _, code := range slices.Sorted(maps.Keys(w.windows)) {
			p.Windows = append(p.Windows, cursorWindow{code, w.windows[code].count, w.windows[code].rose})
		}
		c.Shown = append(c.Shown, p)
	}
	slices.SortFunc(c.Shown, func(a, b cursorPlace) int {
		return cmp.Or(cmp.Compare(a.UUID, b.UUID), cmp.Compare(a.Instance, b.Instance))
	})
	return json.Marshal(c)
}

// Resume goes on from what [Source.Cursor] returned. What the page shows is then
// compared with what it showed before the restart.
func (s *Source) Resume(data []byte) error {
	var c cursor
	if err := json.Unmarshal(data, &c); err != nil {
		return fmt.Errorf("cursor of source %s: %w", s.name, err)
	}
	if len(c.GPUs) > maxPlaces || len(c.Shown) > maxPlaces {
		return fmt.Errorf("cursor of source %s: over %d GPUs and instances", s.name, maxPlaces)
	}
	h := history{}
	for _, p := range c.Shown {
		w := &past{last: p.Last, windows: map[int]*window{}}
		for _, x := range p.Windows[:min(len(p.Windows), maxWindow)] {
			w.windows[x.XID] = &window{x.Count, x.Rose}
		}
		h[place{p.UUID, p.Instance}] = w
	}
	s.known, s.history = c.GPUs, h
	return nil
}
