package sim

import (
	"cmp"
	"math/bits"
	"slices"

	"stoker.dev/stoker/internal/sim/truth"
)

// A queue holds jobs that wait: by priority, and of one priority who was submitted first
// is first. Of one that is strict, a first job that does not fit lets nobody pass.
type queue struct {
	name   string
	quota  int // thousandths of GPUs; zero: everything
	strict bool
	jobs   []*job
	held   int // thousandths of GPUs that its jobs have now
}

func (s *Simulation) queue(name string) *queue {
	for _, q := range s.queues {
		if q.name == name {
			return q
		}
	}
	q := &queue{name: name, strict: true}
	for _, spec := range s.cfg.Queues {
		if spec.Name == name {
			q.quota, q.strict = spec.Quota*truth.Whole, spec.Strict
		}
	}
	s.queues = append(s.queues, q)
	return q
}

// enqueue lets the job wait, in the place that priority and submission give it: a job
// that is started anew does not go to the end.
func (s *Simulation) enqueue(j *job) {
	q := s.queue(j.spec.Queue)
	i, _ := slices.BinarySearchFunc(q.jobs, j, func(a, b *job) int {
		return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.number, b.number))
	})
	q.jobs = slices.Insert(q.jobs, i, j)
	s.want(j.demand())
	s.kick()
}

func (s *Simulation) dequeue(j *job) {
	q := s.queue(j.spec.Queue)
	if i := slices.Index(q.jobs, j); i >= 0 {
		q.jobs = slices.Delete(q.jobs, i, i+1)
		s.want(-j.demand())
		s.kick() // who stands behind it may fit
	}
}

// schedulerDelay is the time from a change of the cluster to the scheduler's next look, in ms.
const schedulerDelay = 1000

// kick wakes the scheduler, if anybody waits.
func (s *Simulation) kick() {
	if s.kicked || s.ledger.Wanted() == 0 {
		return
	}
	s.kicked = true
	s.after(schedulerDelay, func() {
		s.kicked = false
		s.schedule()
	})
}

// schedule places gangs, whole or not at all. Who stays within the quota of his queue
// comes before who borrows; of those priority decides, then submission. A job that holds
// what becomes free for itself lets nobody pass at all.
func (s *Simulation) schedule() {
	next := make([]int, len(s.queues)) // of each queue, the first job that was not looked at
	for {
		var first *job
		var from int
		borrows := false
		for i, q := range s.queues {
			if next[i] >= len(q.jobs) {
				continue
			}
			j := q.jobs[next[i]]
			b := q.quota > 0 && q.held+j.demand() > q.quota
			if first == nil || before(j, b, first, borrows) {
				first, from, borrows = j, i, b
			}
		}
		if first == nil {
			return
		}
		q := s.queues[from]
		nodes := s.fit(first)
		switch {
		case nodes != nil:
			s.dequeue(first)
			s.place(first, nodes)
			for i := range next {
				if s.queues[i] == q && !q.strict {
					next[i] = 0 // others of the queue may be within its quota no longer
				}
			}
		case first.priority >= holdsRoom:
			return
		case q.strict:
			next[from] = len(q.jobs)
		default:
			next[from]++
		}
	}
}

// before reports whether a job is served before another one.
func before(a *job, aBorrows bool, b *job, bBorrows bool) bool {
	switch {
	case (a.priority >= holdsRoom) != (b.priority >= holdsRoom):
		return a.priority >= holdsRoom
	case aBorrows != bBorrows:
		return !aBorrows
	}
	return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.number, b.number)) < 0
}

// fit finds a node for each pod of a gang: the one on which least is left free, of
// those the first. It returns nil when the gang does not fit whole.
func (s *Simulation) fit(j *job) []*node {
	if j.spec.Share > 0 {
		if n := s.fitPart(j); n != nil {
			return []*node{n}
		}
	}
	if s.room.slots(j.spec.GPUs) < j.spec.Workers {
		return nil
	}
	nodes := make([]*node, 0, j.spec.Workers)
	for range j.spec.Workers {
		i := s.room.best(j.spec.GPUs, func(i int) bool {
			n := s.nodes[i]
			return !n.carries(j.spec) || slices.Contains(j.avoid, n.name)
		})
		if i < 0 {
			break
		}
		n := s.nodes[i]
		nodes = append(nodes, n)
		n.cpu, n.memory = n.cpu+j.spec.MilliCPU, n.memory+j.spec.MemoryBytes
		s.room.move(i, s.room.at[i]-j.spec.GPUs)
	}
	// What was looked at is not taken yet.
	for _, n := range nodes {
		n.cpu, n.memory = n.cpu-j.spec.MilliCPU, n.memory-j.spec.MemoryBytes
		s.room.move(n.index, n.free())
	}
	if len(nodes) < j.spec.Workers {
		return nil
	}
	return nodes
}

// carries reports whether cores and memory for another pod are left.
func (n *node) carries(j JobSpec) bool {
	whole := int64(len(n.gpus))
	return n.cpu+j.MilliCPU <= whole*milliCPUPerGPU && n.memory+j.MemoryBytes <= whole*memoryPerGPU
}

// place binds the pods of a gang to nodes.
func (s *Simulation) place(j *job, nodes []*node) {
	pods := j.current()
	use := truth.Restart
	if !j.ran {
		use = truth.Starting
	}
	for i, p := range pods {
		n := nodes[i]
		p.node = n
		n.pods = append(n.pods, p)
		n.cpu, n.memory = n.cpu+j.spec.MilliCPU, n.memory+j.spec.MemoryBytes
		n.give(p)
		s.queue(j.spec.Queue).held += p.held()
		p.since, p.use, p.blame = s.now, use, j.blame
		s.ledger.Add(use, p.held())
		s.refresh(n)
	}
	s.bound(j)
}

// noRoom is the slot of a node that takes nothing.
const noRoom = -1

// A room is an index of nodes by the GPUs that are free on them: for each number a set
// of nodes, as bits. A gang is placed without looking at nodes that do not fit.
type room struct {
	at    []int // of each node: its slot
	sets  [][]uint64
	count []int
}

func newRoom(nodes, gpus int) room {
	r := room{at: make([]int, nodes), sets: make([][]uint64, gpus+1), count: make([]int, gpus+1)}
	for i := range r.at {
		r.at[i] = noRoom
	}
	for f := range r.sets {
		r.sets[f] = make([]uint64, (nodes+63)/64)
	}
	return r
}

// move puts a node into another slot and reports whether it has more room there.
func (r *room) move(i, slot int) (more bool) {
	was := r.at[i]
	if was == slot {
		return false
	}
	if was >= 0 {
		r.sets[was][i/64] &^= 1 << (i % 64)
		r.count[was]--
	}
	if slot >= 0 {
		r.sets[slot][i/64] |= 1 << (i % 64)
		r.count[slot]++
	}
	r.at[i] = slot
	return slot > was
}

// slots is how many pods of so many GPUs fit, if nothing else matters.
func (r *room) slots(gpus int) int {
	n := 0
	for free := gpus; free < len(r.count); free++ {
		n += r.count[free] * (free / gpus)
	}
	return n
}

// best is the first node with least room that fits; negative when there is none.
func (r *room) best(gpus int, avoid func(int) bool) int {
	for free := gpus; free < len(r.sets); free++ {
		if r.count[free] == 0 {
			continue
		}
		for w, set := range r.sets[free] {
			for set != 0 {
				i := w*64 + bits.TrailingZeros64(set)
				if !avoid(i) {
					return i
				}
				set &= set - 1
			}
		}
	}
	return -1
}
