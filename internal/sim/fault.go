package sim

import (
	"math/bits"
	"slices"
	"time"

	"stoker.dev/stoker/internal/sim/truth"
)

const (
	xidFellOff = 79  // the GPU has fallen off the bus
	xidECC     = 95  // an uncontained memory error
	xidGSP     = 119 // the firmware of the GPU does not answer
	xidNVLink  = 74  // an NVLink error
	xidChannel = 45  // channels removed after an error or the end of a program
)

// A breakage is how a GPU breaks.
type breakage struct {
	xid     int
	off     bool // it is not on the bus any more
	crashes bool // the job on it ends at once; else it hangs
	what    string
}

var breakages = map[truth.Kind]breakage{
	truth.GPULost:    {xidFellOff, true, false, "falls off the bus"},
	truth.GPUECC:     {xidECC, false, true, "has a memory error that it could not contain"},
	truth.GPUDriver:  {xidGSP, false, false, "does not answer its driver any more"},
	truth.NVLinkDown: {xidNVLink, false, true, "has lost an NVLink"},
}

// blipFor is how long a link's error counter shows one that is none: for one poll, in ms.
const blipFor = 10_000

// strike lets fault i happen now or, where it names a job, as soon as that trains.
func (s *Simulation) strike(i int) {
	f := s.cfg.Faults[i]
	n, g := s.byName[f.Node], f.GPU
	if f.Node != "" && n == nil {
		return // the machine has been taken away, and there is none in its place
	}
	var j *job
	if f.Job != "" {
		if j = s.jobNamed(f.Job); j == nil || j.state != training {
			s.pending = append(s.pending, i)
			return
		}
		n, g = s.someGPU(i, j)
	}
	switch f.Kind {
	case truth.GPULost, truth.GPUECC, truth.GPUDriver, truth.NVLinkDown:
		s.breakGPU(i, n, g, breakages[f.Kind])
	case truth.GPUHot:
		s.overheat(i, n, g)
	case truth.NodeLost:
		s.stopNode(i, n)
	case truth.SpotNotice:
		s.notice(i, n)
	case truth.JobCrash:
		s.storm(i, j)
	case truth.JobHang, truth.JobOOM:
		s.record.Begin(i, s.since(), "", 0, false)
		s.record.End(i, s.since())
		if f.Kind == truth.JobHang {
			s.hang(j, i)
			return
		}
		s.tell(EventFault, "the program of %s runs out of memory", j.ref)
		j.blame = i
		s.crash(j, true)
	case truth.TelemetryLost:
		n.deaf++
		s.record.Begin(i, s.since(), n.name, 0, n.unschedulable)
		s.tell(EventFault, "the telemetry of %s is lost", n.name)
		s.after(f.For.Milliseconds(), func() {
			n.deaf--
			s.record.End(i, s.since())
			s.tell(EventFault, "the telemetry of %s is back", n.name)
		})
	case truth.Throttle, truth.SensorBlank, truth.NVLinkBlip, truth.ExporterRestart:
		s.disturb(i, n, g)
	case truth.BootHangs:
		n.hangs = i
	}
}

// disturb lets telemetry tell something that means nothing.
func (s *Simulation) disturb(i int, n *node, g int) {
	f := s.cfg.Faults[i]
	until := s.now + f.For.Milliseconds()
	s.record.Begin(i, s.since(), n.name, g, n.unschedulable)
	s.after(f.For.Milliseconds(), func() { s.record.End(i, s.since()) })
	on := &n.gpus[g]
	if f.Kind == truth.ExporterRestart {
		n.reread++
	}
	for kind, till := range map[truth.Kind]*int64{truth.Throttle: &on.throttled, truth.SensorBlank: &on.blank, truth.NVLinkBlip: &on.blip} {
		if f.Kind == kind {
			*till = until
		}
	}
}

// overheat lets a GPU run at half its speed for a time.
func (s *Simulation) overheat(i int, n *node, g int) {
	if !n.up || n.gpus[g].hot != none {
		return
	}
	s.record.Begin(i, s.since(), n.name, g, n.unschedulable)
	s.tell(EventFault, "GPU %d of %s is too hot and runs at half its speed", g, n.name)
	s.heatTo(n, g, i)
	s.after(s.cfg.Faults[i].For.Milliseconds(), func() {
		s.record.End(i, s.since())
		s.tell(EventFault, "GPU %d of %s has cooled down", g, n.name)
		s.heatTo(n, g, none)
	})
}

// heatTo sets the fault by which a GPU is too hot, and the pace of the job on it.
func (s *Simulation) heatTo(n *node, g, fault int) {
	n.gpus[g].hot = fault
	for _, j := range n.gpus[g].trains() {
		j.position = s.progress(j)
		j.best = max(j.best, j.position)
		j.since, j.slow = s.now, heat(j)
		s.spendAll(j)
		s.milestone(j)
	}
}

// heat is the fault by which one of the job's GPUs is too hot; none when there is none.
func heat(j *job) int {
	for _, p := range j.current() {
		for mask := p.gpus; mask != 0; mask &= mask - 1 {
			if f := p.node.gpus[bits.TrailingZeros64(mask)].hot; f != none {
				return f
			}
		}
	}
	return none
}

// pace is how much longer an iteration takes now than it should.
func (j *job) pace() int64 {
	if j.slow != none {
		return 2
	}
	return 1
}

func (s *Simulation) jobNamed(name string) *job {
	for _, j := range s.jobs {
		if j.ref.String() == name {
			return j
		}
	}
	return nil
}

// strikeWaiting lets the faults happen that have waited for the job to train.
func (s *Simulation) strikeWaiting(j *job) {
	for _, i := range slices.Clone(s.pending) {
		if s.cfg.Faults[i].Job != j.ref.String() {
			continue
		}
		s.pending = slices.DeleteFunc(s.pending, func(o int) bool { return o == i })
		s.while(j, s.cfg.between(Span{30 * time.Second, 90 * time.Second}, concernFault, j.key, uint64(i)), func() { s.strike(i) })
	}
}

// someGPU is one of the GPUs that the job holds.
func (s *Simulation) someGPU(i int, j *job) (*node, int) {
	pods := j.current()
	p := pods[s.cfg.random(concernFault, j.key, uint64(i))%uint64(len(pods))]
	mask := p.gpus
	for range s.cfg.random(concernFault, j.key, uint64(i)^1<<32) % uint64(bits.OnesCount64(p.gpus)) {
		mask &= mask - 1
	}
	return p.node, bits.TrailingZeros64(mask)
}

// breakGPU lets a GPU break. Nothing says so but the driver's log and the device plugin,
// which does not offer the GPU any more.
func (s *Simulation) breakGPU(i int, n *node, g int, how breakage) {
	if !n.up || n.lost&(1<<g) != 0 {
		return // nothing that could break
	}
	s.record.Begin(i, s.since(), n.name, g, n.unschedulable)
	s.settleNode(n)
	n.lost |= 1 << g
	if how.off {
		n.off |= 1 << g
	}
	n.faults[g] = i
	n.gpus[g].incurable = s.cfg.Faults[i].Incurable
	n.blame = i
	s.attend(i, n)
	s.logXID(n, g, how.xid)
	s.tell(EventFault, "GPU %d of %s %s (XID %d)", g, n.name, how.what, how.xid)
	s.change(n)
	for _, j := range n.gpus[g].trains() {
		s.fallWith(j, i, how)
	}
}

// fallWith ends or hangs a job for the fault of a GPU that it trains on.
func (s *Simulation) fallWith(j *job, i int, how breakage) {
	if !how.crashes {
		s.hang(j, i)
		return
	}
	// What ends with the job is told of after what has ended it.
	for _, o := range j.current() {
		for mask := o.gpus; mask != 0; mask &= mask - 1 {
			other, at := o.node, bits.TrailingZeros64(mask)
			wait := 500 + int64(s.cfg.random(concernStorm, hash(other.gpus[at].uuid), uint64(i))%4000)
			s.after(wait, func() { s.logXID(other, at, xidChannel) })
		}
	}
	j.blame = i
	s.tell(EventFault, "%s ends", j.ref)
	s.crash(j, false)
}

// faultOf is the fault by which one of the GPUs is lost.
func (n *node) faultOf(gpus uint64) int {
	if lost := gpus & n.lost; lost != 0 {
		return n.faults[bits.TrailingZeros64(lost)]
	}
	return none
}

// storm lets the program of a job fail. The driver tells of it for each of its GPUs,
// again and again, while nothing is wrong with any of them.
func (s *Simulation) storm(i int, j *job) {
	s.record.Begin(i, s.since(), "", 0, false)
	s.record.End(i, s.since())
	events := 0
	for _, p := range j.current() {
		for mask := p.gpus; mask != 0; mask &= mask - 1 {
			g, n := bits.TrailingZeros64(mask), p.node
			key := hash(n.gpus[g].uuid)
			count := 20 + s.cfg.random(concernStorm, key, uint64(i))%21
			for k := range count {
				wait := int64(s.cfg.random(concernStorm, key, uint64(i)<<32|(k+1)) % 90_000)
				s.after(wait, func() { s.logXID(n, g, xidChannel) })
				events++
			}
		}
	}
	s.tell(EventFault, "the program of %s fails: XID %d will be logged %d times on %s", j.ref, xidChannel, events, nodesOf(j))
	j.blame = i
	s.crash(j, true)
}
