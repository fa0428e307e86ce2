package collector

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/xid"
)

// Limits of what is remembered of one node. The memory of a storm is bounded by them.
const (
	maxGPUs  = 256 // whole GPUs that were ever seen in this boot
	maxCodes = 128 // XIDs of one GPU with a counter of their own; the rest is in "other"
	maxMarks = 512 // events of one counter that are known when they are told again
)

// sameEvent is how far apart two tellings of one event may lie where the kernel log
// and the driver both tell of it.
const sameEvent = 2 * time.Second

// toldTwice reports whether the driver and the reader of the kernel log both tell of
// an XID, each with its own clock.
func toldTwice(code int) bool { return code == 79 || code == 119 || code == 120 }

// A book is what is remembered of a node's GPUs in one boot: who they are, what each
// source last said of them, and their counters. It reads no clock and is not safe for
// concurrent use; what it gives to a view is never changed afterwards.
type book struct {
	node     string
	sources  int
	bootID   string
	gpus     []*gpu      // by index, then key
	switches []*nvswitch // by labels
	version  uint64      // grows with everything that must survive a restart
	// late is, by source, how much later an event may have been dated than it happened.
	late map[string]time.Duration
}

// A gpu is one whole GPU. MIG instances are not told apart here.
type gpu struct {
	key    string // its UUID, or what else tells it apart
	slot   int    // small number of its own, below maxGPUs
	index  int
	uuid   string
	pci    string
	seen   time.Time
	states []state // by source
	xids   tally
	links  tally           // errors of its NVLinks
	labels string          // of its series, rendered
	lost   bool            // and it was told
	failed map[string]bool // health checks, and it was told
}

// A state is what one source said of a GPU, and when.
type state struct {
	up fleet.Truth
	at time.Time
}

// A mark is one event that was counted.
type mark struct {
	XID int   `json:"xid"`
	At  int64 `json:"at"` // ns since 1970
	// Kernel is the same by the clock of the kernel's log; 0 where nobody has told it.
	Kernel int64    `json:"kernel,omitempty"`
	By     []teller `json:"by,omitempty"` // who told of it; never changed in place
}

// A teller is a source that told of an event, and its time for it.
type teller struct {
	Source string `json:"source"`
	At     int64  `json:"at"` // ns since 1970
}

// of returns the time that a source has for the event.
func (m *mark) of(source string) (at int64, ok bool) {
	for _, t := range m.By {
		if t.Source == source {
			return t.At, true
		}
	}
	return 0, false
}

// apart is how much later m is dated than x, by the dates that are nearest to each other: a
// source may have an event by the kernel's clock, or by that of everybody else.
func (m *mark) apart(x *mark) int64 {
	d := m.At - x.At
	for _, dates := range [...][2]int64{{m.Kernel, x.At}, {m.At, x.Kernel}} {
		other := dates[0] - dates[1]
		if dates[0] != 0 && dates[1] != 0 && max(other, -other) < max(d, -d) {
			d = other
		}
	}
	return d
}

func newBook(node string, sources int) *book {
	return &book{node: node, sources: sources, late: map[string]time.Duration{}}
}

// gpuKey tells GPUs apart: by UUID, and by what there is where a source has none.
func gpuKey(g fleet.SampledGPU) string {
	return cmp.Or(g.UUID, busID(g.PCI), "gpu "+strconv.Itoa(g.Index))
}

// busID writes an address as DCGM does, whoever wrote it.
func busID(s string) string {
	if s == "" {
		return ""
	}
	p, err := xid.ParsePCI(s)
	if err != nil {
		return s
	}
	return p.BusID()
}

// list takes in the GPUs that source i sees and returns the slot of each, -1 for one
// over the limit, and how many those were.
func (b *book) list(i int, s *fleet.Samples) (slots []int, cut int) {
	slots = make([]int, len(s.GPUs))
	for n, g := range s.GPUs {
		known := b.find(g, s.At)
		if known == nil {
			slots[n] = -1
			cut++
			continue
		}
		slots[n] = known.slot
		known.seen = s.At
		if s.TellsNVLink {
			for k := range linkErrors {
				known.links.counter(k + 1) // there from 0 on
			}
		}
		// Instances of one GPU are listed one by one: the GPU is up if one of them is.
		if st := &known.states[i]; !st.at.Equal(s.At) || st.up != fleet.True {
			*st = state{g.Up, s.At}
		}
	}
	return slots, cut
}

// find returns the GPU, which it adds where it is new; nil when there is no room.
func (b *book) find(g fleet.SampledGPU, now time.Time) *gpu {
	key := gpuKey(g)
	for _, have := range b.gpus {
		if have.key == key {
			b.identify(have, g)
			return have
		}
	}
	if have := b.alias(g); have != nil {
		return have
	}
	slot := len(b.gpus)
	if slot >= maxGPUs {
		// The one that nobody has listed for longest makes room, if all listed it before now.
		oldest := slices.MinFunc(b.gpus, func(x, y *gpu) int { return x.seen.Compare(y.seen) })
		if !oldest.seen.Before(now) {
			return nil
		}
		slot = oldest.slot
		b.gpus = slices.DeleteFunc(b.gpus, func(x *gpu) bool { return x == oldest })
	}
	added := &gpu{key: key, slot: slot, index: g.Index, states: make([]state, b.sources)}
	for _, code := range xid.StateChanging() {
		added.xids.counter(code)
	}
	added.xids.counter(other)
	b.identify(added, g)
	b.gpus = append(b.gpus, added)
	b.sort()
	b.version++
	return added
}

// alias returns the GPU that a source means which knows it by its address or number
// alone, or that others knew so before g told who it is.
func (b *book) alias(g fleet.SampledGPU) *gpu {
	pci := busID(g.PCI)
	for _, have := range b.gpus {
		same := pci != "" && busID(have.pci) == pci || have.pci == "" && have.uuid == "" && have.index == g.Index
		switch {
		case !same || g.UUID != "" && have.uuid != "":
		case g.UUID == "":
			return have // who knows less changes nothing
		default:
			have.key = g.UUID
			b.identify(have, g)
			return have
		}
	}
	return nil
}

// identify takes over what a source says of who a GPU is. What is lost is not asked:
// it may come without its address.
func (b *book) identify(have *gpu, g fleet.SampledGPU) {
	uuid, pci := cmp.Or(g.UUID, have.uuid), cmp.Or(g.PCI, have.pci)
	if have.labels != "" && (g.Up == fleet.False || have.index == g.Index && have.uuid == uuid && have.pci == pci) {
		return
	}
	have.index, have.uuid, have.pci = g.Index, uuid, pci
	b.label(have)
	b.sort()
	b.version++
}

func (b *book) label(g *gpu) {
	dst := appendLabel(nil, "node", b.node)
	index := ""
	if g.index >= 0 {
		index = strconv.Itoa(g.index)
	}
	dst = appendLabel(append(dst, ','), "gpu", index)
	dst = appendLabel(append(dst, ','), "UUID", g.uuid)
	g.labels = string(appendLabel(append(dst, ','), "pci_bus_id", g.pci))
	g.xids.stale, g.links.stale = true, true
}

func (b *book) sort() {
	slices.SortFunc(b.gpus, func(x, y *gpu) int {
		return cmp.Or(cmp.Compare(x.index, y.index), cmp.Compare(x.key, y.key))
	})
}

// count counts an XID that a source told of, unless it was counted before. It returns
// false for ok when the event names no GPU of s or no XID, or there is no room for its GPU.
func (b *book) count(source string, s *fleet.Samples, e fleet.XIDEvent) (counted, ok bool) {
	g := b.place(s, e.GPU)
	if g == nil || e.XID <= 0 {
		return false, false
	}
	news := g.xids.count(source, e.XID, e.At, e.Kernel, s.At, b.late)
	if news != known {
		b.version++
	}
	return news == fresh, true
}

// countLink is count for an error of an NVLink.
func (b *book) countLink(source string, s *fleet.Samples, e fleet.NVLinkEvent) (counted, ok bool) {
	g, code := b.place(s, e.GPU), slices.Index(linkErrors, e.Error)+1
	if g == nil || code == 0 {
		return false, false
	}
	news := g.links.count(source, code, e.At, time.Time{}, s.At, b.late)
	if news != known {
		b.version++
	}
	return news == fresh, true
}

// linkErrors are what is counted of NVLinks; their codes are their places, from 1 on.
var linkErrors = []fleet.NVLinkError{fleet.NVLinkFatal, fleet.NVLinkRecovery}

func linkError(code int) string {
	if code > len(linkErrors) {
		return "other"
	}
	return string(linkErrors[code-1])
}

// place returns the GPU at a place of what a source told; nil when there is none, or no room.
func (b *book) place(s *fleet.Samples, at int) *gpu {
	if at < 0 || at >= len(s.GPUs) {
		return nil
	}
	return b.find(s.GPUs[at], s.At)
}

// What an event is when it is told.
const (
	known   = iota // the source has told of it before
	another        // another source has
	fresh
)

// mark remembers an event and says what it is. When all marks are in use, what is older
// than the oldest counts as told before: it can't be looked up, and a counter that is too
// low is better than one that grows by history.
//
// One source tells two events apart by their times. Two sources date one event
// differently, so that each mark takes the nearest event of each other source.
func (c *counter) mark(source string, m mark, late map[string]time.Duration) int {
	i, _ := slices.BinarySearchFunc(c.marks, m, func(x, y mark) int { return cmp.Compare(x.At, y.At) })
	partner, distance := -1, int64(0)
	for k := range c.marks {
		x := &c.marks[k]
		if x.XID != m.XID {
			continue
		}
		if at, ok := x.of(source); ok {
			if own := m.At - at; own == 0 || toldTwice(m.XID) && max(own, -own) <= int64(sameEvent) {
				return known
			}
			continue
		}
		d := m.apart(x)
		if len(x.By) == 0 { // of a file that does not say who told of it
			if d == 0 {
				return known
			}
			continue
		}
		// The new one may be dated late by its source, the old one by any of its own.
		before := int64(sameEvent + late[source])
		after := int64(sameEvent)
		for _, by := range x.By {
			after = max(after, int64(sameEvent+late[by.Source]))
		}
		if d <= before && -d <= after && (partner < 0 || max(d, -d) < distance) {
			partner, distance = k, max(d, -d)
		}
	}
	if partner >= 0 {
		c.marks[partner].Kernel = cmp.Or(c.marks[partner].Kernel, m.Kernel)
		c.marks[partner].By = append(slices.Clone(c.marks[partner].By), teller{source, m.At})
		return another
	}
	m.By = []teller{{source, m.At}}
	if len(c.marks) >= maxMarks {
		if i == 0 {
			return known
		}
		copy(c.marks, c.marks[1:i])
		c.marks[i-1] = m
		return fresh
	}
	c.marks = slices.Insert(c.marks, i, m)
	return fresh
}

// view fills in what a page shows of GPUs and NVSwitches.
func (b *book) view(v *view) {
	v.gpus = make([]gpuView, len(b.gpus))
	v.xids, v.links = make([][]codeView, len(b.gpus)), make([][]codeView, len(b.gpus))
	for n, g := range b.gpus {
		v.gpus[n] = gpuView{g.labels, slices.Clone(g.states)}
		v.xids[n] = g.xids.view(g.labels, "xid", strconv.Itoa)
		v.links[n] = g.links.view(g.labels, "error", linkError)
	}
	v.sxids = make([][]codeView, len(b.switches))
	for n, w := range b.switches {
		v.sxids[n] = w.sxids.view(w.labels, "sxid", strconv.Itoa)
	}
}

// known returns who the GPUs are.
func (b *book) known() []fleet.SampledGPU {
	out := make([]fleet.SampledGPU, len(b.gpus))
	for i, g := range b.gpus {
		out[i] = fleet.SampledGPU{Index: g.index, UUID: g.uuid, PCI: g.pci}
	}
	return out
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
