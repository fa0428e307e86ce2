package sim

import (
	"math/bits"
	"slices"
	"time"

	"stoker.dev/stoker/internal/sim/truth"
)

const (
	xidFellOff = 79 // the GPU has fallen off the bus
	xidChannel = 45 // channels removed after an error or the end of a program
)

// strike lets fault i happen now or, where it names a job, as soon as that trains.
func (s *Simulation) strike(i int) {
	f := s.cfg.Faults[i]
	n, g := s.byName[f.Node], f.GPU
	var j *job
	if f.Job != "" {
		if j = s.jobNamed(f.Job); j == nil || j.state != training {
			s.pending = append(s.pending, i)
			return
		}
		n, g = s.someGPU(i, j)
	}
	switch f.Kind {
	case truth.GPULost:
		s.lose(i, n, g)
	case truth.JobCrash:
		s.storm(i, j)
	case truth.TelemetryLost:
		n.deaf++
		s.record.Begin(i, s.since(), n.name, 0, n.unschedulable)
		s.tell(EventFault, "the telemetry of %s is lost", n.name)
		s.after(f.For.Milliseconds(), func() {
			n.deaf--
			s.record.End(i, s.since())
			s.tell(EventFault, "the telemetry of %s is back", n.name)
		})
	case truth.BootHangs:
		n.hangs = i
	}
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
	for range s.cfg.random(concernFault, j.key, uint64(i)^1<<32) % uint64(p.held()) {
		mask &= mask - 1
	}
	return p.node, bits.TrailingZeros64(mask)
}

// lose lets a GPU fall off the bus. Nothing ends by itself: whoever works with it hangs.
func (s *Simulation) lose(i int, n *node, g int) {
	if !n.up || n.lost&(1<<g) != 0 {
		return // nothing that could fall off
	}
	s.record.Begin(i, s.since(), n.name, g, n.unschedulable)
	s.settleNode(n)
	n.lost |= 1 << g
	n.faults[g] = i
	n.gpus[g].incurable = s.cfg.Faults[i].Incurable
	n.blame = i
	s.logXID(n, g, xidFellOff)
	s.tell(EventFault, "GPU %d of %s falls off the bus (XID %d)", g, n.name, xidFellOff)
	s.change(n)
	if p := n.gpus[g].holder; p != nil && p.job != nil {
		if j := p.job; p.gang == j.gang && j.state == training {
			s.hang(j, i)
		}
	}
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
