package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"stoker.dev/stoker/internal/fleet"
)

// People are those who change the cluster beside Stoker, with the usual tools: what
// they do does not know of Stoker's marks.
type People struct{ s *Simulation }

// People returns the people.
func (s *Simulation) People() People { return People{s} }

// Told says that people have been told of a fault of that class of a node, or of one of
// its GPUs as NODE/gpu-N, as by an incident that is open: it is not missed then, though
// nothing may be done yet.
func (p People) Told(class, subject string) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	node, gpu := subject, -1
	if name, index, ok := strings.Cut(subject, "/gpu-"); ok {
		n, err := strconv.Atoi(index)
		if err != nil {
			return
		}
		node, gpu = name, n
	}
	p.s.record.Told(p.s.since(), class, node, gpu)
}

func (p People) node(name string, do func(*node)) error {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	n, ok := p.s.byName[name]
	if !ok {
		return fmt.Errorf("there is no node %s", name)
	}
	do(n)
	p.s.change(n)
	return nil
}

// Cordon makes a node unschedulable.
func (p People) Cordon(name string) error { return p.schedulable(name, false, "cordons") }

// Uncordon makes a node schedulable. Marks stay.
func (p People) Uncordon(name string) error { return p.schedulable(name, true, "uncordons") }

func (p People) schedulable(name string, yes bool, verb string) error {
	return p.node(name, func(n *node) {
		n.unschedulable = !yes
		if !yes {
			p.s.record.Notice(p.s.since(), n.name)
		}
		p.s.tell(EventPerson, "a person %s %s", verb, n.name)
	})
}

// Unhold removes Stoker's mark from a node, and nothing else.
func (p People) Unhold(name string) error {
	return p.node(name, func(n *node) {
		n.hold = fleet.Hold{}
		p.s.tell(EventPerson, "a person removes Stoker's hold from %s", n.name)
	})
}

// OptOutNode keeps Stoker away from a node; an empty reason lets it back.
func (p People) OptOutNode(name, why string) error {
	return p.node(name, func(n *node) {
		n.optOut = why
		p.s.tell(EventPerson, "a person sets the opt-out of %s to %q", n.name, why)
	})
}

// Protect puts a pod under a disruption budget that does not let it go, or takes it from
// under one.
func (p People) Protect(uid string, yes bool) error {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	pod, ok := p.s.pods[uid]
	if !ok {
		return fmt.Errorf("there is no pod with uid %s", uid)
	}
	pod.kept = yes
	return nil
}

func (p People) job(ref fleet.JobRef, do func(*job)) error {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	j, ok := p.s.byRef[ref]
	if !ok {
		return fmt.Errorf("there is no job %s", ref)
	}
	if j.state.over() {
		return fmt.Errorf("job %s has ended", ref)
	}
	do(j)
	return nil
}

// Suspend stops a job.
func (p People) Suspend(ref fleet.JobRef) error {
	return p.job(ref, func(j *job) {
		p.s.tell(EventPerson, "a person suspends %s", j.ref)
		p.s.suspend(j)
	})
}

// Unsuspend lets a job run again. It looks for its newest checkpoint itself.
func (p People) Unsuspend(ref fleet.JobRef) error {
	return p.job(ref, func(j *job) {
		p.s.tell(EventPerson, "a person lets %s run again", j.ref)
		p.s.unsuspend(j)
	})
}

// OptOutJob keeps Stoker away from a job; an empty reason lets it back.
func (p People) OptOutJob(ref fleet.JobRef, why string) error {
	return p.job(ref, func(j *job) {
		p.s.tell(EventPerson, "a person sets the opt-out of %s to %q", j.ref, why)
		j.optOut = why
		p.s.write(&j.version)
	})
}

// DeleteJob deletes a job, which need not have ended, and with it its pods.
func (p People) DeleteJob(ref fleet.JobRef) error {
	s := p.s
	s.mu.Lock()
	defer s.mu.Unlock()
	j, ok := s.byRef[ref]
	if !ok {
		return fmt.Errorf("there is no job %s", ref)
	}
	s.tell(EventPerson, "a person deletes %s", j.ref)
	s.dequeue(j)
	s.become(j, deleted)
	s.drop(j)
	for _, pod := range slices.Clone(j.pods) {
		s.terminate(pod)
	}
	return nil
}
