// Package truth is what really is so in the simulated fleet: which faults there are,
// what each GPU-second went into, and whether what was done about them was right.
//
// Nothing that observes, decides or acts may read it: only the simulation, which writes
// it, and its report import this package, which a test holds. It reads no clock; times
// are durations since the start of the simulation, and the unit of its accounts is a
// thousandth of a GPU for one millisecond, so that sums are exact.
package truth

import (
	"slices"
	"time"
)

// A Kind is a kind of fault, or of noise that looks like one.
type Kind string

// The kinds.
const (
	GPULost    Kind = "gpu-lost"
	GPUECC     Kind = "gpu-ecc"
	GPUDriver  Kind = "gpu-driver"
	NVLinkDown Kind = "nvlink-down"
	GPUHot     Kind = "gpu-hot"
	NodeLost   Kind = "node-lost"
	BootHangs  Kind = "boot-hangs"
	SpotNotice Kind = "spot-notice"

	JobCrash Kind = "job-crash"
	JobHang  Kind = "job-hang"
	JobOOM   Kind = "job-oom"

	// Noise: nothing is broken.
	TelemetryLost   Kind = "telemetry-lost"
	Throttle        Kind = "throttle"
	SensorBlank     Kind = "sensor-blank"
	NVLinkBlip      Kind = "nvlink-blip"
	ExporterRestart Kind = "exporter-restart"
)

// A KindInfo says what holds for every fault of a kind.
type KindInfo struct {
	Doc string // one sentence
	// Ill says that a node is ill while the fault lasts: cordoning it is right.
	Ill bool
	// Wanted says that neither cordoning the node nor telling people is to miss the fault.
	Wanted bool
	// Class is that of the incidents that are about it; empty where there are none. One of
	// another class tells nobody of the fault.
	Class string
	// Noise says that the kind is no fault at all, and only looks like one.
	Noise bool
	// Where the fault is to happen: on a node, on a GPU of it, or at a job.
	Node, GPU, Job bool
	// Lasts says that the fault has a length of its own. Others are over at once, or
	// last until something cures them.
	Lasts bool
}

// Kinds describes every kind.
var Kinds = map[Kind]KindInfo{
	GPULost:    {Doc: "A GPU falls off the bus with XID 79; the job on it hangs. A boot brings it back.", Ill: true, Wanted: true, Class: "gpu-lost", Node: true, GPU: true, Job: true},
	GPUECC:     {Doc: "A GPU has an uncontained memory error, XID 95; the job on it crashes, and its GPUs log XID 45. A reset or a boot cures it.", Ill: true, Wanted: true, Class: "gpu-ecc", Node: true, GPU: true, Job: true},
	GPUDriver:  {Doc: "The firmware of a GPU does not answer, XID 119; the job on it hangs. A reset or a boot cures it.", Ill: true, Wanted: true, Class: "gpu-driver", Node: true, GPU: true, Job: true},
	NVLinkDown: {Doc: "An NVLink fails with XID 74; the job on it crashes. A reset or a boot cures it.", Ill: true, Wanted: true, Class: "gpu-nvlink", Node: true, GPU: true, Job: true},
	GPUHot:     {Doc: "A GPU is too hot for a time and runs at half its speed, and the whole gang with it.", Ill: true, Wanted: true, Class: "gpu-hot", Node: true, GPU: true, Job: true, Lasts: true},
	NodeLost:   {Doc: "A node stops and comes back by itself after a time. The cluster itself sees it.", Ill: true, Class: "node-unready", Node: true, Job: true, Lasts: true},
	BootHangs:  {Doc: "The next boot of the node does not come to its end; only cutting its power helps.", Ill: true, Wanted: true, Node: true},
	SpotNotice: {Doc: "A node of the spot pool is announced to go, and goes two minutes later. Others come when there is capacity.", Ill: true, Class: "node-notice", Node: true},

	JobCrash: {Doc: "The program of a job fails and all its GPUs log XID 45, again and again. Nothing is broken.", Job: true},
	JobHang:  {Doc: "The program of a job hangs until its own watchdog ends it. Nothing is broken.", Job: true},
	JobOOM:   {Doc: "The program of a job runs out of memory and ends. Nothing is broken.", Job: true},

	TelemetryLost:   {Doc: "The node's telemetry cannot be read for a time. Nothing is broken.", Noise: true, Node: true, Job: true, Lasts: true},
	Throttle:        {Doc: "A GPU lowers its clocks for a moment. Nothing is broken.", Noise: true, Node: true, GPU: true, Job: true, Lasts: true},
	SensorBlank:     {Doc: "A GPU's sensors give no values for a moment. Nothing is broken.", Noise: true, Node: true, GPU: true, Job: true, Lasts: true},
	NVLinkBlip:      {Doc: "An error counter of a GPU's NVLinks shows one for a moment, as after a boot. Nothing is broken.", Noise: true, Node: true, GPU: true, Lasts: true},
	ExporterRestart: {Doc: "What reads the driver's log starts anew, and tells every XID of this boot again, with its old time. Nothing is broken.", Noise: true, Node: true},
}

// A Fault is one thing that goes wrong, as a scenario asks for it.
type Fault struct {
	At   time.Duration // since the start
	Kind Kind
	// Node and GPU (its index) say where, or Job does, as namespace/name: then it is one of
	// the nodes, and one of the GPUs, that the job holds at that time. A job that does not
	// train then is waited for.
	Node string
	GPU  int
	Job  string
	For  time.Duration // of a kind that lasts
	// Incurable is a lost GPU that no boot brings back, Stubborn a fault of one that no
	// reset cures, only a boot.
	Incurable, Stubborn bool
}

// A Case is a fault that has happened, and what became of it.
type Case struct {
	Fault
	Begun  time.Duration // when it really began: a job has to run to crash
	Ended  time.Duration // meaningful when Over
	Active bool
	Over   bool
	// Noticed is when the node was first cordoned for it, by whoever, or people were told;
	// meaningful when Seen.
	Noticed time.Duration
	Seen    bool
	// Lost is the GPU-time that was not useful because of the fault, so far, by what it
	// went into instead.
	Lost [uses]GPUTime
}

// AllLost is the GPU-time that was not useful because of the fault.
func (c Case) AllLost() GPUTime {
	var all GPUTime
	for _, t := range c.Lost {
		all += t
	}
	return all
}

// GPUTime is a number of thousandths of a GPU, each for one millisecond.
type GPUTime int64

// Hours returns GPU-hours.
func (t GPUTime) Hours() float64 { return float64(t) / (3.6e6 * Whole) }

// A Verb is something that was done to the cluster.
type Verb string

// The verbs that can be wrong.
const (
	Cordon  Verb = "cordon"
	Release Verb = "release" // of a node that was cordoned
	Stop    Verb = "stop"
	Start   Verb = "start"
	Evict   Verb = "evict"
	Repair  Verb = "repair"
	Preempt Verb = "preempt"
)

// An Act is something that Stoker did, and whether it was right.
type Act struct {
	At     time.Duration
	Verb   Verb
	Target string
	Wrong  string // why it was wrong; empty: it was right
}

// maxActs bounds the acts that are kept. Counts go on.
const maxActs = 10_000

// A Record is the truth about one run.
type Record struct {
	cases []Case
	acts  []Act
	done  map[Verb]int
	wrong map[Verb]int
	twice int
}

// NewRecord returns the record of a run with these faults to come.
func NewRecord(faults []Fault) *Record {
	r := &Record{done: map[Verb]int{}, wrong: map[Verb]int{}}
	for _, f := range faults {
		r.cases = append(r.cases, Case{Fault: f})
	}
	return r
}

// Begin writes down that fault i begins, and where. On a node that is cordoned already
// it is noticed at once: nothing more can be done by then.
func (r *Record) Begin(i int, at time.Duration, node string, gpu int, cordoned bool) {
	c := &r.cases[i]
	c.Begun, c.Active, c.Node, c.GPU = at, true, node, gpu
	if cordoned && Kinds[c.Kind].Ill {
		c.Seen, c.Noticed = true, at
	}
}

// End writes down that fault i is over. One that is over stays so.
func (r *Record) End(i int, at time.Duration) {
	if c := &r.cases[i]; c.Active {
		c.Active, c.Over, c.Ended = false, true, at
	}
}

// Lose charges GPU-time that went into a use to fault i; to none when i is negative.
func (r *Record) Lose(i int, u Use, t GPUTime) {
	if i >= 0 {
		r.cases[i].Lost[u] += t
	}
}

// Ill reports whether something is wrong with the node.
func (r *Record) Ill(node string) bool { return r.IllBy(node) >= 0 }

// IllBy is the first of the faults by which the node is ill now; negative when it is not.
func (r *Record) IllBy(node string) int {
	return slices.IndexFunc(r.cases, func(c Case) bool { return c.ill(node) })
}

func (c Case) ill(node string) bool { return c.Active && c.Node == node && Kinds[c.Kind].Ill }

// Notice writes down that a node was cordoned, by whomever: what is wrong with it was
// noticed.
func (r *Record) Notice(at time.Duration, node string) {
	r.notice(at, node, func(Case) bool { return true })
}

// Told writes down that people were told of the class of a fault, of a GPU of the node or,
// when gpu is negative, of the node. What is wrong in another way was not noticed by that.
func (r *Record) Told(at time.Duration, class, node string, gpu int) {
	r.notice(at, node, func(c Case) bool {
		info := Kinds[c.Kind]
		return info.Class == class && (gpu < 0 || gpu == c.GPU)
	})
}

func (r *Record) notice(at time.Duration, node string, of func(Case) bool) {
	for i := range r.cases {
		if c := &r.cases[i]; c.ill(node) && !c.Seen && of(*c) {
			c.Seen, c.Noticed = true, at
		}
	}
}

// Did writes down an act of Stoker's. wrong says why it was wrong; empty: it was right.
func (r *Record) Did(at time.Duration, verb Verb, target, wrong string) {
	r.done[verb]++
	if wrong != "" {
		r.wrong[verb]++
	}
	if len(r.acts) < maxActs {
		r.acts = append(r.acts, Act{At: at, Verb: verb, Target: target, Wrong: wrong})
	}
}

// Twice writes down that two gangs of one job ran at the same time.
func (r *Record) Twice() { r.twice++ }

// RanTwice is how often two gangs of one job ran at the same time.
func (r *Record) RanTwice() int { return r.twice }

// Cases returns the faults and what became of them, in the order of the scenario.
func (r *Record) Cases() []Case { return slices.Clone(r.cases) }

// Acts returns what Stoker did, oldest first, up to a limit.
func (r *Record) Acts() []Act { return slices.Clone(r.acts) }

// Done is how often something was done, Wrong how often of these it was wrong.
func (r *Record) Done(v Verb) int { return r.done[v] }

// Wrong is how often something was done that was wrong.
func (r *Record) Wrong(v Verb) int { return r.wrong[v] }

// Missed returns the faults that wanted the node to be cordoned for at least patience
// before now and were not noticed in that time.
func (r *Record) Missed(now, patience time.Duration) []Case {
	var out []Case
	for _, c := range r.cases {
		if !Kinds[c.Kind].Wanted || !c.Active && !c.Over {
			continue
		}
		end := now
		if c.Over {
			end = c.Ended
		}
		if c.Seen {
			end = c.Noticed
		}
		if end-c.Begun >= patience {
			out = append(out, c)
		}
	}
	return out
}
