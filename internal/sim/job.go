package sim

import (
	"fmt"
	"math/bits"
	"slices"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/sim/truth"
)

// A state is where a job is in its life.
//
//	         place           containers run        loaded
//	waiting ───────► starting ───────────► loading ──────► training ──► succeeded
//	   ▲                 │                    │               │  │
//	   │                 └──── a process or a pod ends ───────┘  │ a GPU is lost
//	   │ backoff, and                 │                          ▼
//	   │ old pods gone                ▼                         hung
//	   └────────────────────────── backing ◄── watchdog, pod gone ┘
//
//	any of these ── suspended by its object ──► stopped ── let run again ──► waiting
//	backing, too often ──► failed
//
// A job that has left the cluster is deleted.
type state int

const (
	waiting state = iota
	starting
	loading
	training
	hung
	backing
	stopped
	succeeded
	failed
	deleted
)

// active reports whether the job's gang is placed.
func (s state) active() bool { return s >= starting && s <= hung }

// over reports whether the job will not run again.
func (s state) over() bool { return s >= succeeded }

// A job is one training job, what the cluster says of it, and where it really is.
type job struct {
	spec    JobSpec
	ref     fleet.JobRef
	key     uint64 // of its random numbers
	number  int    // how many were submitted before it
	uid     string
	version fleet.Version

	state state
	enter int   // changes of state so far: what was planned in an earlier one is void
	since int64 // of the state

	pods []*pod // also those of older gangs that are not gone
	gang int    // attempts at a gang so far; pods of an earlier one are old

	// Progress is counted in ms of training: position is what this attempt has, best what
	// any attempt ever had. Training from position to best is work that is done again.
	position int64
	best     int64
	milepost int // milestones planned so far: earlier ones are void

	saved    []saved // complete checkpoints, oldest first
	writing  bool
	written  int    // checkpoints begun so far
	saveNext string // the request to obey when the one that is being written is complete

	suspended          bool
	optOut             string
	asked, answered    string
	stoppedBy          string
	startedBy          string
	resume             string
	avoid              []string
	recipes, env       map[string]string // see fleet.Job
	recipeBy           string
	attempt            int
	priority           int
	remark             string // of Stoker's, for whoever owns it
	preempted          string // the key of the newest order that took effect
	literal            bool   // the next start takes resume at its word
	showed             bool   // the program of the gang has begun to count its steps
	crashes            int
	retryDue           bool // backing, and the backoff is over
	ran                bool // has run before
	started            int64
	submitted, endedAt int64
	blame              int // the fault that what is lost now is charged to
	slow               int // the fault by which it makes half the progress; none when negative
}

// A pod is one worker of a gang, or something else that runs on a node and needs no GPU.
type pod struct {
	uid, name, namespace string
	job                  *job // nil: of no job
	gang                 int
	index                int    // of the worker
	node                 *node  // nil while it has no place
	gpus                 uint64 // mask of those it holds
	running              bool
	terminating          bool
	resident             bool // belongs to its node
	controlled           bool // a controller would make another one
	kept                 bool // a disruption budget does not let it go
	dead                 bool // its processes have ended, and nobody can tell the cluster yet
	labels               []fleet.Label

	use   truth.Use // what its GPUs go into
	since int64
	blame int
}

// held is what the pod holds, in thousandths of a GPU.
func (p *pod) held() int {
	if p.job == nil {
		return 0
	}
	return bits.OnesCount64(p.gpus) * p.job.spec.share()
}

// current are the pods of the newest gang.
func (j *job) current() []*pod {
	out := make([]*pod, 0, j.spec.Workers)
	for _, p := range j.pods {
		if p.gang == j.gang {
			out = append(out, p)
		}
	}
	return out
}

// demand is what the whole gang holds when it runs, in thousandths of a GPU.
func (j *job) demand() int { return j.spec.Workers * j.spec.each() }

func (j *job) length() int64 { return j.spec.Iterations * j.spec.Iteration.Milliseconds() }

// Submit brings a job into the cluster now, beside those of the configuration. Its time
// is not used.
func (s *Simulation) Submit(spec JobSpec) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.cfg
	c.Jobs = []JobSpec{spec}
	if err := c.defaultJobs(); err != nil {
		return fmt.Errorf("submit: %w", err)
	}
	if _, taken := s.byRef[spec.Ref()]; taken {
		return fmt.Errorf("submit: there is a job %s already", spec.Ref())
	}
	s.submit(c.Jobs[0])
	return nil
}

// submit brings a job into the cluster. One whose name is taken is refused there.
func (s *Simulation) submit(spec JobSpec) {
	if _, taken := s.byRef[spec.Ref()]; taken {
		s.tell(EventJob, "%s is refused: there is such a job", spec.Ref())
		return
	}
	j := &job{
		spec: spec, ref: spec.Ref(), key: hash(spec.Ref().String()), number: s.arrived, uid: s.uid(),
		state: backing, blame: none, slow: none, submitted: s.now,
	}
	s.arrived++
	s.jobs = append(s.jobs, j)
	s.byRef[j.ref] = j
	s.tell(EventJob, "%s is queued: %s", j.ref, gangOf(j))
	s.revive(j)
}

func gangOf(j *job) string {
	if j.spec.Share > 0 {
		return fmt.Sprintf("%.4g of a GPU", float64(j.spec.Share)/truth.Whole)
	}
	if j.spec.Workers == 1 {
		return count(j.spec.GPUs, "GPU")
	}
	return count(j.spec.Workers, "node") + " x " + count(j.spec.GPUs, "GPU")
}

// revive makes a new gang of pods and lets it wait for a place.
func (s *Simulation) revive(j *job) {
	j.gang++
	for i := range j.spec.Workers {
		s.addPod(j, i)
	}
	s.become(j, waiting)
	s.enqueue(j)
}

func (s *Simulation) addPod(j *job, i int) {
	p := &pod{uid: s.uid(), namespace: j.ref.Namespace, job: j, gang: j.gang, index: i, controlled: true, blame: none}
	p.name = podName(j.ref.Name, i, p.uid)
	p.labels = []fleet.Label{{Name: "namespace", Value: p.namespace}, {Name: "pod", Value: p.name}, {Name: "container", Value: "train"}}
	j.pods = append(j.pods, p)
	s.pods[p.uid] = p
}

// become puts the job into another state. What it was doing ends; what its GPUs go
// into from now on follows from the state.
func (s *Simulation) become(j *job, to state) {
	if j.state == training {
		j.position = s.progress(j)
		j.best = max(j.best, j.position)
	}
	j.writing, j.saveNext = false, ""
	j.state, j.since = to, s.now
	j.enter++
	s.write(&j.version)
	s.spendAll(j)
}

// while plans something that happens only if the job is still in its present state.
func (s *Simulation) while(j *job, ms int64, do func()) {
	enter := j.enter
	s.after(ms, func() {
		if j.enter == enter {
			do()
		}
	})
}

// progress is the training that the present attempt has behind it, in ms.
func (s *Simulation) progress(j *job) int64 {
	if j.state != training {
		return j.position
	}
	return j.position + (s.now-j.since)/j.pace()
}

func (s *Simulation) iteration(j *job) int64 {
	return s.progress(j) / j.spec.Iteration.Milliseconds()
}

// spendAll writes into the ledger what the GPUs of the job go into now.
func (s *Simulation) spendAll(j *job) {
	use := truth.Restart
	switch j.state {
	case training:
		use = truth.Useful
		switch {
		case j.spec.Idle:
			use, j.blame = truth.Idle, none // there is nothing to make up for
		case s.progress(j) < j.best:
			use = truth.LostWork
		}
	case hung:
		use = truth.Broken
	case starting, loading:
		if !j.ran {
			use = truth.Starting
		}
	case waiting, backing, stopped, succeeded, failed, deleted:
	}
	blame := j.blame
	if use == truth.Useful {
		j.blame, blame = none, none // all that was lost is made up for
		if j.slow != none {
			use, blame = truth.Slow, j.slow
		}
	}
	for _, p := range j.pods {
		if p.node == nil || p.dead {
			continue
		}
		if p.gang == j.gang {
			s.spend(p, use, blame)
		} else {
			s.spend(p, truth.Restart, j.blame)
		}
	}
}

func (s *Simulation) spend(p *pod, use truth.Use, blame int) {
	s.settlePod(p)
	s.ledger.Add(p.use, -p.held())
	s.ledger.Add(use, p.held())
	p.use, p.blame = use, blame
}

// settlePod charges the pod's fault for what its GPUs were kept from.
func (s *Simulation) settlePod(p *pod) {
	if p.use != truth.Useful {
		s.record.Lose(p.blame, p.use, truth.GPUTime((s.now-p.since)*int64(p.held())))
	}
	p.since = s.now
}

// bound goes on from the gang's place to its running containers.
func (s *Simulation) bound(j *job) {
	j.showed = false
	s.become(j, starting)
	s.while(j, s.cfg.between(s.cfg.Container, concernContainer, j.key, uint64(j.gang)), func() {
		for _, p := range j.pods {
			if p.gang != j.gang && !p.dead && p.running {
				s.record.Twice()
				s.tell(EventFault, "two gangs of %s run at the same time", j.ref)
				break
			}
		}
		for _, p := range j.current() {
			p.running = true
		}
		j.started = s.now
		from := s.restore(j)
		s.become(j, loading)
		j.ran = true
		what := "has started"
		if j.gang > 1 {
			what = "has started anew"
		}
		s.tell(EventJob, "%s %s from iteration %d on %s", j.ref, what, from, nodesOf(j))
		s.while(j, j.spec.Load.Milliseconds(), func() { s.train(j) })
	})
}

// restore sets the position to that of the checkpoint that the attempt goes on from,
// and returns its iteration. What Stoker says is obeyed once, to the letter: a
// checkpoint that is not there means the beginning.
func (s *Simulation) restore(j *job) int64 {
	var from int64
	switch {
	case j.literal && j.resume != "":
		for _, c := range j.saved {
			if c.named(j.resume) {
				from = c.step
			}
		}
	case len(j.saved) > 0:
		from = j.saved[len(j.saved)-1].step
	}
	j.literal = false
	j.position = from * j.spec.Iteration.Milliseconds()
	// Of an attempt that goes back, what came after is not there any more.
	j.saved = slices.DeleteFunc(j.saved, func(c saved) bool { return c.step > from })
	return from
}

func (s *Simulation) train(j *job) {
	j.slow, j.showed = heat(j), true
	s.become(j, training)
	for _, p := range j.current() {
		if p.gpus&p.node.lost != 0 {
			s.hang(j, p.node.faultOf(p.gpus))
			return
		}
	}
	s.milestone(j)
	if j.asked != j.answered {
		s.answer(j)
	}
	s.strikeWaiting(j)
}

// milestone plans the next thing that training comes to: the end, a checkpoint, or the
// point from which on the work is new.
func (s *Simulation) milestone(j *job) {
	at := s.progress(j)
	every := j.spec.CheckpointEvery * j.spec.Iteration.Milliseconds()
	next := j.length()
	save := (at/every + 1) * every
	if j.spec.Idle {
		save = next
	}
	next = min(next, save)
	if at < j.best {
		next = min(next, j.best)
	}
	j.milepost++
	post := j.milepost
	s.while(j, (next-at)*j.pace(), func() {
		if j.milepost != post {
			return
		}
		if next == j.length() {
			s.finish(j)
			return
		}
		if next == j.best {
			s.spendAll(j)
		}
		if next == save {
			s.save(j, "")
		}
		s.milestone(j)
	})
}

func (s *Simulation) finish(j *job) {
	s.become(j, succeeded)
	j.endedAt = s.now
	s.ended = append(s.ended, ended{submitted: j.submitted, took: s.now - j.submitted, idle: j.spec.Idle, well: true})
	for _, p := range slices.Clone(j.pods) {
		s.remove(p)
	}
	s.tell(EventJob, "%s has finished after %s", j.ref, span(time.Duration(s.now-j.submitted)*time.Millisecond))
	s.forget(j)
}

// forget removes the job from the cluster after a while.
func (s *Simulation) forget(j *job) {
	s.while(j, s.cfg.Keep.Milliseconds(), func() { s.drop(j) })
}

func (s *Simulation) drop(j *job) {
	delete(s.byRef, j.ref)
	i := slices.Index(s.jobs, j)
	s.jobs = slices.Delete(s.jobs, i, i+1)
}

// hang stops the job in the middle of its work: nothing ends, and nothing goes on.
func (s *Simulation) hang(j *job, fault int) {
	j.blame = fault
	s.become(j, hung)
	s.tell(EventFault, "%s hangs", j.ref)
	s.while(j, s.cfg.Watchdog.Milliseconds(), func() {
		s.tell(EventJob, "%s gives up by its own watchdog", j.ref)
		s.crash(j, false)
	})
}

// backoff is the pause before a job's own controller starts it anew, in ms.
func backoff(crashes int) int64 {
	return (10 * time.Second << min(max(crashes-1, 0), 5)).Milliseconds()
}

// crash ends all processes of the gang. own says that the program is to blame, which
// counts against its retries. The job's own controller makes a new gang when nothing is
// left of the old one.
func (s *Simulation) crash(j *job, own bool) {
	if own {
		j.crashes++
	}
	s.dequeue(j)
	if j.crashes > j.spec.Retries {
		s.become(j, failed)
		j.endedAt = s.now
		s.ended = append(s.ended, ended{submitted: j.submitted, took: s.now - j.submitted, idle: j.spec.Idle})
		s.tell(EventJob, "%s has failed for good", j.ref)
		s.forget(j)
	} else {
		s.become(j, backing)
		j.retryDue = false
		s.while(j, backoff(j.crashes), func() {
			j.retryDue = true
			s.retry(j)
		})
	}
	for _, p := range slices.Clone(j.pods) {
		switch {
		case p.node == nil || p.node.up:
			s.remove(p)
		default:
			p.terminating = true // gone when the node is back to tell
		}
	}
}

func (s *Simulation) retry(j *job) {
	if j.state == backing && j.retryDue && len(j.pods) == 0 {
		s.revive(j)
	}
}

// evacuate charges what a job loses that has to leave an ill node to the node's fault: it
// would have gone on without it.
func (s *Simulation) evacuate(j *job) {
	for _, p := range j.pods {
		if j.blame == none && p.node != nil {
			j.blame = s.record.IllBy(p.node.name)
		}
	}
}

// stop does what follows when the job's object says that it shall not run.
func (s *Simulation) stop(j *job) {
	s.dequeue(j)
	s.become(j, stopped)
	for _, p := range slices.Clone(j.pods) {
		s.terminate(p)
	}
}

// terminate asks a pod to go. Until it does, it goes on with what it does. Where its node
// is down, nobody can tell that it has gone.
func (s *Simulation) terminate(p *pod) {
	if p.terminating {
		return
	}
	p.terminating = true
	if p.node == nil {
		s.gone(p)
		return
	}
	s.after(s.cfg.between(s.cfg.Grace, concernGrace, hash(p.uid), 0), func() {
		if p.node.up {
			s.gone(p)
		}
	})
}

// kill ends the processes of a pod whose node goes down.
func (s *Simulation) kill(p *pod) {
	if p.resident || p.dead {
		return // a resident is there again with its node, under the same name
	}
	p.dead = true
	s.spend(p, truth.Broken, p.node.blame)
	if j := p.job; j != nil && p.gang == j.gang && j.state.active() && j.state != hung {
		// The other workers wait for their peer, notice that it is gone, and end too.
		j.blame = p.node.blame
		s.become(j, hung)
		s.while(j, s.cfg.between(Span{5 * time.Second, 15 * time.Second}, concernNotice, j.key, uint64(j.gang)), func() {
			s.tell(EventJob, "%s has lost a worker and ends", j.ref)
			s.crash(j, false)
		})
	}
}

// gone is what follows when a pod leaves, whoever wanted it: a gang is not left with a
// worker less.
func (s *Simulation) gone(p *pod) {
	if _, there := s.pods[p.uid]; !there {
		return
	}
	s.remove(p)
	j := p.job
	switch {
	case j == nil:
		if p.resident {
			s.addResident(p.node)
		}
	case p.gang != j.gang:
	case j.state.active():
		s.tell(EventJob, "%s has lost a pod and ends", j.ref)
		s.crash(j, false)
	case j.state == waiting:
		s.addPod(j, p.index)
	}
}

// remove takes a pod out of the cluster and gives its GPUs back.
func (s *Simulation) remove(p *pod) {
	if _, there := s.pods[p.uid]; !there {
		return
	}
	delete(s.pods, p.uid)
	if n := p.node; n != nil {
		s.settlePod(p)
		s.ledger.Add(p.use, -p.held())
		s.settleNode(n)
		n.giveBack(p)
		if p.job != nil {
			s.queue(p.job.spec.Queue).held -= p.held()
			n.cpu, n.memory = n.cpu-p.job.spec.MilliCPU, n.memory-p.job.spec.MemoryBytes
		}
		n.pods = slices.DeleteFunc(n.pods, func(o *pod) bool { return o == p })
		s.refresh(n)
		if p.job != nil && p.job.spec.Share > 0 {
			s.kick() // a part of a GPU is free, which the node's room does not show
		}
	}
	j := p.job
	if j == nil {
		return
	}
	j.pods = slices.DeleteFunc(j.pods, func(o *pod) bool { return o == p })
	if len(j.pods) > 0 {
		return
	}
	switch j.state {
	case stopped:
		s.write(&j.version) // its phase is suspended now
		s.tell(EventJob, "%s has stopped", j.ref)
	case backing:
		s.retry(j)
	case waiting, starting, loading, training, hung, succeeded, failed, deleted:
	}
}
