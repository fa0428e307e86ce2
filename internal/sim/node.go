package sim

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/sim/truth"
)

// A node is one machine, and what the cluster says of it.
type node struct {
	index   int
	name    string
	uid     string
	version fleet.Version
	labels  map[string]string

	up         bool // the machine runs
	boot       int  // how often it has been booted
	bootID     string
	ready      fleet.Truth
	readySince int64
	plugin     bool // the device plugin has told of the GPUs in this boot

	unschedulable bool
	counted       bool // among the cordoned
	hold          fleet.Hold
	optOut        string

	gpus []gpu
	lost uint64 // mask of GPUs that are broken: the device plugin does not offer them
	off  uint64 // mask of those of them that are not on the bus
	held uint64 // mask of GPUs that pods hold, whole or in parts
	cut  uint64 // mask of those of them that are held in parts
	pods []*pod // in the order in which they came

	deaf   int         // faults that keep the telemetry from being read
	hangs  int         // the fault that keeps the next boot from ending; none when negative
	down   int         // the fault by which the node has stopped; none when negative
	faults map[int]int // of lost GPUs, by index: the fault
	log    xidLog
	reread int // how often what reads the log has started anew

	spot      bool  // rented on the spot market
	vacant    bool  // taken away, and nothing has come in its place
	noticed   int   // the fault that announces its end; none when negative
	noticedAt int64 // ms
	toldOver  bool  // that the notice is over was told
	paidTo    int64 // until when its price is in the cost

	cpu    int64 // thousandths of a core that pods hold
	memory int64 // bytes that pods hold

	// What the free GPUs go into, as the ledger has it.
	booked   [numUses]int // thousandths
	bookedAt int64
	blame    int // the fault to which what is not free is charged, until it takes work again; none when negative
}

const numUses = int(truth.Free) + 1

// none is no fault.
const none = -1

// A gpu is one physical GPU. It keeps its identity through boots and losses.
type gpu struct {
	uuid, pci string
	device    string // such as nvidia0
	holders   []*pod // in the order in which they came; several where it is held in parts
	used      int    // thousandths of it that they hold
	memory    int    // MiB of its memory that they need
	incurable bool
	hot       int   // the fault by which it is too hot; none when negative
	throttled int64 // until when its clocks are low, in ms
	blank     int64 // until when its sensors tell nothing
	blip      int64 // until when an error counter of its links shows one
}

// nodeName names node i: gpu-b-03 is the third of the second rack.
func (c *Config) nodeName(i int) string {
	rack := ""
	for r := i / c.NodesPerRack; ; r = r/26 - 1 {
		rack = string(rune('a'+r%26)) + rack
		if r < 26 {
			break
		}
	}
	return fmt.Sprintf("gpu-%s-%02d", rack, i%c.NodesPerRack+1)
}

// nodeNumber is the number of the node of that name; negative when there is none.
func nodeNumber(c *Config, name string) int {
	for i := range c.Nodes {
		if c.nodeName(i) == name {
			return i
		}
	}
	return -1
}

func (s *Simulation) addNode(i int) {
	n := &node{
		index: i, name: s.cfg.nodeName(i), uid: s.uid(),
		up: true, ready: fleet.True, plugin: true, hangs: none, down: none, noticed: none, blame: none,
		gpus: make([]gpu, s.cfg.GPUsPerNode), faults: map[int]int{},
	}
	n.bootID = s.uid()
	n.labels = map[string]string{
		"kubernetes.io/hostname": n.name,
		"nvidia.com/gpu.present": "true",
		"nvidia.com/gpu.product": strings.ReplaceAll(s.cfg.Model, " ", "-"),
		"stoker.dev/pool":        s.cfg.Pool,
		"topology.rack":          n.name[:strings.LastIndexByte(n.name, '-')],
	}
	n.spot = s.cfg.isSpot(i)
	n.pool(&s.cfg)
	for g := range n.gpus {
		n.gpus[g] = gpu{hot: none, uuid: "GPU-" + s.uid(), pci: fmt.Sprintf("00000000:%02X:00.0", 0x0a+0x10*g), device: fmt.Sprintf("nvidia%d", g)}
	}
	s.nodes = append(s.nodes, n)
	s.byName[n.name] = n
	s.write(&n.version)
	s.addResident(n)
	s.refresh(n)
}

// addResident puts the pod on the node that belongs to it: the collector.
func (s *Simulation) addResident(n *node) {
	p := &pod{uid: s.uid(), namespace: "stoker", node: n, running: true, resident: true, controlled: true, blame: none}
	p.name = "stoker-collector-" + p.uid[:5]
	n.pods = append(n.pods, p)
	s.pods[p.uid] = p
}

func (n *node) all() uint64 { return 1<<len(n.gpus) - 1 }

// free is how many GPUs a new pod could get whole.
func (n *node) free() int { return bits.OnesCount64(n.all() &^ (n.lost | n.held)) }

// takes reports whether new pods may land on the node.
func (n *node) takes() bool {
	return n.up && n.ready == fleet.True && n.plugin && !n.unschedulable
}

func (n *node) allocatable() int {
	if !n.plugin {
		return 0
	}
	return len(n.gpus) - bits.OnesCount64(n.lost)
}

// refresh writes into the ledger and the scheduler's index what the node's free GPUs
// are for now. It must be called after every change of the node.
func (s *Simulation) refresh(n *node) {
	s.settleNode(n)
	var now [numUses]int
	free := n.all() &^ (n.held &^ n.cut)
	switch {
	case !n.up || !n.plugin:
		now[truth.Repairing] = n.rest(free)
	default:
		now[truth.Broken] = n.rest(free & n.lost)
		use := truth.Free
		if n.unschedulable || n.ready != fleet.True {
			use = truth.Cordoned
		}
		now[use] = n.rest(free &^ n.lost)
	}
	for u := range now {
		if d := now[u] - n.booked[u]; d != 0 {
			s.ledger.Add(truth.Use(u), d)
		}
	}
	n.booked = now
	switch {
	case n.takes() && n.lost == 0:
		n.blame = none
	case n.blame == none && !n.takes():
		n.blame = s.record.IllBy(n.name) // as one that is hot, and cordoned for it
	}
	slot := noRoom
	if n.takes() {
		slot = n.free()
	}
	if s.room.move(n.index, slot) {
		s.kick()
	}
}

// settleNode charges the node's fault for its free GPUs that nobody could use, as many as
// somebody waited for: what nobody wants is not lost.
func (s *Simulation) settleNode(n *node) {
	if n.blame != none {
		wanted := s.ledger.Wanted()
		for u, c := range n.booked {
			if truth.Use(u) != truth.Free {
				lost := min(c, wanted)
				wanted -= lost
				s.record.Lose(n.blame, truth.Use(u), truth.GPUTime((s.now-n.bookedAt)*int64(lost)))
			}
		}
	}
	n.bookedAt = s.now
}

// want adds GPUs to those that jobs wait for, or takes them away.
func (s *Simulation) want(gpus int) {
	for _, n := range s.nodes {
		if n.blame != none {
			s.settleNode(n)
		}
	}
	s.ledger.Want(gpus)
}

// change is a write to the node's object.
func (s *Simulation) change(n *node) {
	s.write(&n.version)
	if n.unschedulable != n.counted {
		n.counted = n.unschedulable
		if s.cordoned--; n.counted {
			s.cordoned += 2
		}
		s.mostCordoned = max(s.mostCordoned, s.cordoned)
	}
	s.refresh(n)
}

func (s *Simulation) setReady(n *node, ready fleet.Truth) {
	if n.ready != ready {
		n.ready, n.readySince = ready, s.now
	}
}

// shutDown begins a boot. The processes on the node die at once; the objects of their
// pods stay until the kubelet is back to tell. forced cuts the power, which also ends a
// boot that hangs.
func (s *Simulation) shutDown(n *node, forced bool) {
	if !n.up && !forced {
		return
	}
	boot := s.goDown(n)
	s.setReady(n, fleet.False)
	s.tell(EventNode, "%s is booted", n.name)
	s.change(n)
	if n.hangs != none && !forced {
		s.record.Begin(n.hangs, s.since(), n.name, 0, n.unschedulable)
		n.blame = n.hangs
		s.attend(n.hangs, n)
		s.tell(EventFault, "%s does not come back from its boot", n.name)
		return
	}
	if n.hangs != none {
		s.record.End(n.hangs, s.since())
		n.hangs = none
	}
	s.after(s.cfg.between(s.cfg.Boot, concernBoot, uint64(n.index), uint64(boot)), func() {
		if n.boot == boot {
			s.comeUp(n)
		}
	})
}

// goDown ends what runs on the machine and returns the number of the boot that begins.
func (s *Simulation) goDown(n *node) int {
	n.up, n.plugin = false, false
	n.log.forget() // the driver's memory ends with the boot
	n.boot++
	for _, p := range slices.Clone(n.pods) {
		s.kill(p)
	}
	return n.boot
}

// unseenAfter is how long a node may be silent until the cluster says that it does not
// know of it, in ms.
const unseenAfter = 40_000

// stopNode lets a node stop without a word. The cluster learns of it by its silence.
func (s *Simulation) stopNode(i int, n *node) {
	if !n.up {
		return
	}
	s.record.Begin(i, s.since(), n.name, 0, n.unschedulable)
	n.blame, n.down = i, i
	s.tell(EventFault, "%s stops", n.name)
	boot := s.goDown(n)
	s.change(n)
	s.after(unseenAfter, func() {
		if n.boot == boot && !n.up {
			s.setReady(n, fleet.Unknown)
			s.change(n)
		}
	})
	s.after(max(s.cfg.Faults[i].For.Milliseconds(), unseenAfter+1), func() {
		if n.boot == boot && !n.up {
			s.comeUp(n)
		}
	})
}

// comeUp ends a boot: the GPUs that a boot cures are back, and the kubelet tells that
// the pods of the old boot are no more.
func (s *Simulation) comeUp(n *node) {
	n.up = true
	n.bootID = s.uid()
	s.setReady(n, fleet.True)
	for g := range n.gpus {
		if n.lost&(1<<g) != 0 && !n.gpus[g].incurable {
			s.cure(n, g)
		}
	}
	if n.down != none {
		s.record.End(n.down, s.since())
		n.down = none
	}
	if g := s.cfg.random(concernBlip, uint64(n.index), uint64(n.boot)); g%4 == 0 {
		n.gpus[g/4%uint64(len(n.gpus))].blip = s.now + blipFor
	}
	s.tell(EventNode, "%s is back with a new boot", n.name)
	s.change(n)
	for _, p := range slices.Clone(n.pods) {
		if p.dead {
			s.gone(p)
		}
	}
	boot := n.boot
	s.after(s.cfg.between(s.cfg.Plugin, concernPlugin, uint64(n.index), uint64(boot)), func() {
		if n.boot == boot && n.up {
			n.plugin = true
			s.change(n)
		}
	})
}

// An xidLog is what the driver of a node has told of, the newest last.
type xidLog struct {
	first  int // how many were dropped before those that are kept
	events []fleet.XIDEvent
}

// maxXIDs bounds the events that are kept for a reader who is late.
const maxXIDs = 8192

func (l *xidLog) add(e fleet.XIDEvent) {
	if len(l.events) == maxXIDs {
		drop := maxXIDs / 2
		l.events = slices.Delete(l.events, 0, drop)
		l.first += drop
	}
	l.events = append(l.events, e)
}

// forget drops what nobody has read.
func (l *xidLog) forget() {
	l.first += len(l.events)
	l.events = nil
}

// from returns the events from number next on, and the number of the next one.
func (l *xidLog) from(next int) ([]fleet.XIDEvent, int) {
	end := l.first + len(l.events)
	return l.events[min(max(0, next-l.first), len(l.events)):], end
}

// logXID lets the driver tell of an error, while there is a driver.
func (s *Simulation) logXID(n *node, gpu, xid int) {
	if n.up {
		n.log.add(fleet.XIDEvent{GPU: gpu, XID: xid, At: s.time(s.now), Source: telemetrySource})
	}
}
