// Package collector turns what sources tell of a node's GPUs into one page in
// Prometheus' text format. It owns the loop over the sources, the XID counters,
// which only grow, and the page; what is specific to a source is in a package of its
// own below this one.
//
// A scrape reads the newest finished view and never waits for a source. A source that
// fails or hangs harms nobody else: what it told last is shown until it is too old,
// then it is unknown, and unknown is not shown at all rather than as healthy or
// faulty. The package changes nothing on the node and links nothing of the service.
package collector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"stoker.dev/stoker/internal/fleet"
)

// A Source reads telemetry of one node. Its name is a label of the page.
//
// Collect is called by one goroutine at a time and may block until ctx ends; it fills
// into, which holds nothing but the time of the collection. On an error what it has
// put into Events and Dropped still counts, and nothing else of into is used. A source tells each
// event once if it can, and must where it can't say when it happened: the collector
// counts no event twice that has the same time.
type Source interface {
	Name() string
	Collect(ctx context.Context, into *fleet.Samples) error
}

// A Resumer is a source that must know after a restart what it has already told.
// Both are called by the goroutine that calls Collect, Resume only before it.
type Resumer interface {
	// Cursor returns what is to be remembered: JSON, the same bytes while nothing changes.
	Cursor() ([]byte, error)
	// Resume takes what Cursor returned before the restart.
	Resume(cursor []byte) error
}

// An EventTeller is a source that can tell of events alone, at less cost than of
// everything, and so more often. What it fills in beside GPUs, events and Dropped is not used.
type EventTeller interface {
	CollectEvents(ctx context.Context, into *fleet.Samples) error
	// Wake returns a channel that can be read when an event may be waiting.
	Wake() <-chan struct{}
}

// A Dater is a source that dates events by when it found them. Late is how much earlier
// those of its last collection may have happened.
type Dater interface{ Late() time.Duration }

// A Closer is a source that has something to give back at the end. Nothing is asked of it
// afterwards. Close returns when ctx ends at the latest.
type Closer interface {
	Close(ctx context.Context) error
}

// Options are what a collector may be told. The zero value is useful.
type Options struct {
	// BootID is the node's. Where it is empty, a source may tell it.
	BootID string
	// Interval is the time between two collections of a source in Run; 5s when zero.
	Interval time.Duration
	// Events is the time between two looks for events of a source that can tell of them
	// alone; 1s when zero.
	Events time.Duration
	// Watchdog is how long a collection may take before its source counts as down; 10s when zero.
	Watchdog time.Duration
	// StaleAfter is the age over which values are no longer shown and a GPU's state is
	// unknown; twice the interval and the watchdog when zero.
	StaleAfter time.Duration
	// State is the file in which counters survive a restart; without one they start
	// from 0. It belongs to one boot of one node.
	State string
	// See is told of what should be heard of at once, after the page shows it, and must
	// not block. May be nil.
	See func([]Sighting)
	// Label may add labels and copies to the values of a source before they are shown. It
	// must not block, nor change labels in place. May be nil.
	Label func(*fleet.Samples)
	// Spelling is how labels are called on the series of sources.
	Spelling Spelling
	// TextOnly answers in Prometheus' text format also those who ask for OpenMetrics.
	TextOnly bool
	// Own appends families of the program's own to the page. May be nil.
	Own func(dst []byte) []byte
}

func (o *Options) defaults() {
	if o.Interval == 0 {
		o.Interval = 5 * time.Second
	}
	if o.Events == 0 {
		o.Events = time.Second
	}
	if o.Watchdog == 0 {
		o.Watchdog = 10 * time.Second
	}
	if o.StaleAfter == 0 {
		o.StaleAfter = 2*o.Interval + o.Watchdog
	}
}

// A Collector keeps what its sources have told. Drive it with Run, or with Gather
// where time is virtual, never with both. Everything else may be called at any time.
type Collector struct {
	log     *slog.Logger
	node    string
	sources []Source
	o       Options

	view  atomic.Pointer[view] // what pages are made of; replaced, never changed
	pages renderings           // what scrapes get

	mu      sync.Mutex // of those who record
	book    *book
	told    []sourceView // of each source, in order
	cursors [][]byte     // of each source; nil for one that has none
	screen  *screen
	disk    *disk // nil where nothing is to outlive a restart
	saved   saved
	sighted []Sighting // to be told
	untold  uint64     // events over maxSighted
}

// New returns a collector of one node that has collected nothing yet. A state file
// that can't be used is a warning; the counters then start from 0.
func New(log *slog.Logger, node string, sources []Source, o Options) (*Collector, error) {
	var errs []error
	if node == "" {
		errs = append(errs, errors.New("the node has no name"))
	}
	if len(sources) == 0 {
		errs = append(errs, errors.New("there is no source"))
	}
	seen := map[string]bool{}
	for _, s := range sources {
		if seen[s.Name()] {
			errs = append(errs, fmt.Errorf("source %s is there twice", s.Name()))
		}
		seen[s.Name()] = true
	}
	for _, d := range []struct {
		name string
		d    time.Duration
	}{{"interval", o.Interval}, {"events", o.Events}, {"watchdog", o.Watchdog}, {"stale after", o.StaleAfter}} {
		if d.d < 0 {
			errs = append(errs, fmt.Errorf("%s: %v is negative", d.name, d.d))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	o.defaults()
	c := &Collector{
		log: log, node: node, sources: slices.Clone(sources), o: o,
		book:    newBook(node, len(sources)),
		told:    make([]sourceView, len(sources)),
		cursors: make([][]byte, len(sources)),
		screen:  newScreen(o.Spelling),
	}
	c.book.bootID = o.BootID
	for i, s := range sources {
		c.told[i].name = s.Name()
	}
	if o.State != "" {
		c.disk = newDisk(o.State)
		c.resume()
	}
	c.publish()
	return c, nil
}

// Gather asks every source once, one after the other, on the caller's goroutine, as
// of now. The watchdog is not set: who drives virtual time has ctx for that. The
// error names the sources that failed; what the others told is kept.
func (c *Collector) Gather(ctx context.Context, now time.Time) error {
	var errs []error
	for i, s := range c.sources {
		into := fleet.Samples{At: now}
		err := s.Collect(ctx, &into)
		c.record(i, answer{samples: &into, err: err, full: true})
		if err != nil {
			errs = append(errs, fmt.Errorf("source %s: %w", s.Name(), err))
		}
	}
	return errors.Join(errs...)
}

// AppendPage appends the page as of now to dst. It waits for nobody and, where dst
// has room, allocates nothing.
func (c *Collector) AppendPage(dst []byte, now time.Time) []byte {
	return c.appendPage(dst, c.view.Load(), now)
}

func (c *Collector) appendPage(dst []byte, v *view, now time.Time) []byte {
	dst = v.appendPage(dst, now)
	if c.o.Own != nil {
		dst = c.o.Own(dst)
	}
	return dst
}

// GPUs returns the whole GPUs that were seen in this boot, as far as it is known who they
// are. It waits for nobody; the slice must not be changed.
func (c *Collector) GPUs() []fleet.SampledGPU { return c.view.Load().known }

// MIG returns the MIG devices that the sources told of last, by UUID: with it a device's
// id is that of a GPU and instance. It waits for nobody; the slice must not be changed.
func (c *Collector) MIG() []fleet.MIGDevice { return c.view.Load().mig }

// record takes in what source i told, or that it failed. It is called by the
// goroutine that called the source's Collect, after it has returned.
func (c *Collector) record(i int, a answer) {
	if seen := c.recorded(i, a); len(seen) > 0 {
		c.o.See(seen)
	}
}

// recorded is record but for telling; it returns what is to be told.
func (c *Collector) recorded(i int, a answer) []Sighting {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sighted = nil
	s, told := a.samples, &c.told[i]
	told.asked++
	told.dropped += uint64(s.Dropped)
	if a.full {
		told.took = a.took
	}
	switch {
	case a.err != nil:
		c.fail(i, a.err)
		c.takeEvents(i, s)
	case !a.full:
		// The values stay those of the last collection, and so does whether the source is up.
		c.book.list(i, s)
		c.takeEvents(i, s)
		c.look(s)
	default:
		c.collected(i, s)
	}
	if c.disk != nil {
		// Before anybody sees the counters: what was shown must not be counted anew.
		c.note(i)
		c.save()
	}
	c.publish()
	return c.sighted
}

// collected takes in a collection that succeeded.
func (c *Collector) collected(i int, s *fleet.Samples) {
	told := &c.told[i]
	if told.err != nil {
		c.log.Info("source answers again", "source", told.name)
	}
	told.tried, told.err, told.success = true, nil, s.At
	if boot := s.BootID; c.o.BootID == "" && boot != "" && boot != c.book.bootID {
		if c.book.bootID != "" {
			// What was counted belongs to the boot that has ended, as it would if
			// this process had gone down with the node.
			c.log.Info("node was booted", "node", c.node, "boot", boot)
			c.book = newBook(c.node, len(c.sources))
		}
		c.book.bootID = boot
	}
	places, cut := c.book.list(i, s)
	if c.o.Label != nil {
		c.o.Label(s)
	}
	told.shown = c.screen.show(c.node, s, places, len(told.shown.text))
	told.dropped += uint64(cut + told.shown.dropped)
	told.mig, told.links = s.MIG, s.NVLinks
	c.takeEvents(i, s)
	c.look(s)
}

// note remembers where source i is, also after an error: it may have told events.
func (c *Collector) note(i int) {
	r, ok := c.sources[i].(Resumer)
	if !ok {
		return
	}
	cursor, err := r.Cursor()
	if err != nil {
		c.log.Warn("source can't say where it is", "source", c.told[i].name, "err", err)
		return
	}
	c.cursors[i] = cursor
}

// fail notes that source i is down. What it told before is kept.
func (c *Collector) fail(i int, err error) {
	told := &c.told[i]
	if told.err == nil || told.err.Error() != err.Error() {
		c.log.Warn("source failed", "source", told.name, "err", err)
	}
	told.tried, told.err = true, err
}

// trip notes that source i has not answered in time. Its collection goes on.
func (c *Collector) trip(i int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fail(i, err)
	c.told[i].trips++
	c.publish()
}

// maxSighted bounds the events that one collection may tell of at once; the rest is only
// counted.
const maxSighted = 256

// maxLate bounds how far apart two tellings of one event may lie.
const maxLate = time.Minute

// maxLines bounds what one collection may log of XIDs, and of NVLinks.
const maxLines = 32

// takeEvents counts what source i told. It logs one line for each GPU and XID, up to
// a limit, so that a storm does not fill the log.
func (c *Collector) takeEvents(i int, s *fleet.Samples) {
	if d, ok := c.sources[i].(Dater); ok && len(s.Events)+len(s.NVLinkErrors)+len(s.Switches) > 0 {
		c.book.late[c.told[i].name] = min(d.Late(), maxLate)
	}
	type kind struct{ gpu, xid int }
	fresh := map[kind]int{}
	for _, e := range s.Events {
		counted, ok := c.book.count(c.told[i].name, s, e)
		if !ok {
			c.told[i].dropped++
		}
		if counted {
			fresh[kind{e.GPU, e.XID}]++
			g := c.book.find(s.GPUs[e.GPU], s.At)
			c.sightEvent(g, g.xids.counter(e.XID).last, Sighting{XID: e.XID, Instance: s.GPUs[e.GPU].Instance})
		}
	}
	lines := 0
	for _, e := range s.NVLinkErrors {
		counted, ok := c.book.countLink(c.told[i].name, s, e)
		if !ok {
			c.told[i].dropped++
		}
		if counted {
			if lines++; lines <= maxLines {
				c.log.Info("nvlink error", "source", c.told[i].name, "gpu", s.GPUs[e.GPU].Index, "uuid", s.GPUs[e.GPU].UUID, "error", string(e.Error))
			}
			c.sightEvent(c.book.place(s, e.GPU), earlier(e.At, s.At), Sighting{NVLink: e.Error})
		}
	}
	for _, e := range s.Switches {
		if !c.book.countSwitch(c.told[i].name, s, e) {
			c.told[i].dropped++
		}
	}
	lines = 0
	for _, e := range s.Events {
		k := kind{e.GPU, e.XID}
		if n := fresh[k]; n > 0 {
			if lines++; lines > maxLines {
				c.log.Info("more xids", "source", c.told[i].name, "kinds", len(fresh))
				break
			}
			delete(fresh, k)
			g := s.GPUs[e.GPU]
			c.log.Info("xid", "source", c.told[i].name, "gpu", g.Index, "uuid", g.UUID, "instance", g.Instance, "xid", e.XID, "events", n)
		}
	}
}

// publish replaces what scrapes read.
func (c *Collector) publish() {
	v := &view{
		staleAfter: c.o.StaleAfter,
		labels:     nodeLabel(c.node),
		bootID:     c.book.bootID,
		sources:    slices.Clone(c.told),
		known:      c.book.known(),
		mig:        devices(c.told),
		untold:     c.untold,
		keeps:      c.disk != nil,
		kept:       c.saved.failure == nil,
		order:      merge(c.told),
	}
	c.book.view(v)
	v.nvlinks = linksText(c.told, v.known, v.gpus)
	c.view.Store(v)
}
