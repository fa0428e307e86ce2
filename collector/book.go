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
	node    string
	sources int
	bootID  string
	gpus    []*gpu // by index, then key
	version uint64 // grows with everything that must survive a restart
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
	codes  []*counter
	labels string          // of its series, rendered
	shown  []codeView      // of codes; replaced, never changed
	stale  bool            // shown is older than codes
	lost   bool            // and it was told
	failed map[string]bool // health checks, and it was told
}

// A state is what one source said of a GPU, and when.
type state struct {
	up fleet.Truth
	at time.Time
}

// A counter is one XID of one GPU. Code 0 is all that came over maxCodes.
type counter struct {
	code  int
	total uint64
	last  time.Time // event time of the newest
	marks []mark    // by time, newest last; at most maxMarks
}

// A mark is one event that was counted.
type mark struct {
	XID int   `json:"xid"`
	At  int64 `json:"at"` // ns since 1970
}

func newBook(node string, sources int) *book { return &book{node: node, sources: sources} }

// gpuKey tells GPUs apart: by UUID, and by what there is where a source has none.
func gpuKey(g fleet.SampledGPU) string {
	return cmp.Or(g.UUID, g.PCI, "gpu "+strconv.Itoa(g.Index))
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
		added.codes = append(added.codes, &counter{code: code})
	}
	b.identify(added, g)
	b.gpus = append(b.gpus, added)
	b.sort()
	b.version++
	return added
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
	dst = appendLabel(append(dst, ','), "gpu", strconv.Itoa(g.index))
	dst = appendLabel(append(dst, ','), "UUID", g.uuid)
	g.labels = string(appendLabel(append(dst, ','), "pci_bus_id", g.pci))
	g.stale = true
}

func (b *book) sort() {
	slices.SortFunc(b.gpus, func(x, y *gpu) int {
		return cmp.Or(cmp.Compare(x.index, y.index), cmp.Compare(x.key, y.key))
	})
}

// count counts an event unless it was counted before. It returns false for ok when
// the event names no GPU of s or no XID, or there is no room for its GPU.
func (b *book) count(s *fleet.Samples, e fleet.XIDEvent) (counted, ok bool) {
	if e.XID <= 0 || e.GPU < 0 || e.GPU >= len(s.GPUs) {
		return false, false
	}
	g := b.find(s.GPUs[e.GPU], s.At)
	if g == nil {
		return false, false
	}
	if e.At.IsZero() {
		e.At = s.At
	}
	c := g.counter(e.XID)
	if !c.mark(mark{e.XID, e.At.UnixNano()}) {
		return false, true
	}
	c.total++
	// A clock that runs ahead must not make the event's age negative.
	if at := earlier(e.At, s.At); at.After(c.last) {
		c.last = at
	}
	g.stale = true
	b.version++
	return true, true
}

// counter returns the counter of an XID, which it adds while there is room.
func (g *gpu) counter(code int) *counter {
	var other *counter
	for _, c := range g.codes {
		if c.code == code {
			return c
		}
		if c.code == 0 {
			other = c
		}
	}
	if len(g.codes) >= maxCodes {
		if other != nil {
			return other
		}
		code = 0
	}
	c := &counter{code: code}
	g.codes = append(g.codes, c)
	// By code, with what has none last.
	slices.SortFunc(g.codes, func(x, y *counter) int {
		return cmp.Compare(uint(x.code-1), uint(y.code-1))
	})
	return c
}

// mark remembers an event and reports whether it is new. When all marks are in use,
// what is older than the oldest counts as told before: it can't be looked up, and a
// counter that is too low is better than one that grows by history.
func (c *counter) mark(m mark) bool {
	var near int64
	if toldTwice(m.XID) {
		near = int64(sameEvent)
	}
	i, _ := slices.BinarySearchFunc(c.marks, m, func(x, y mark) int { return cmp.Compare(x.At, y.At) })
	for k := i - 1; k >= 0 && m.At-c.marks[k].At <= near; k-- {
		if c.marks[k].XID == m.XID {
			return false
		}
	}
	for k := i; k < len(c.marks) && c.marks[k].At-m.At <= near; k++ {
		if c.marks[k].XID == m.XID {
			return false
		}
	}
	if len(c.marks) >= maxMarks {
		if i == 0 {
			return false
		}
		copy(c.marks, c.marks[1:i])
		c.marks[i-1] = m
		return true
	}
	c.marks = slices.Insert(c.marks, i, m)
	return true
}

// view returns what a page shows of the GPUs.
func (b *book) view() []gpuView {
	out := make([]gpuView, len(b.gpus))
	for n, g := range b.gpus {
		if g.stale {
			g.shown = make([]codeView, len(g.codes))
			for i, c := range g.codes {
				name := "other"
				if c.code != 0 {
					name = strconv.Itoa(c.code)
				}
				g.shown[i] = codeView{string(appendLabel([]byte(g.labels+","), "xid", name)), c.total, c.last}
			}
			g.stale = false
		}
		out[n] = gpuView{g.labels, slices.Clone(g.states), g.shown}
	}
	return out
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
