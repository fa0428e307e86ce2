package sim

import (
	"context"
	"slices"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/internal/sim/truth"
)

var _ actuator.Queues = (*Cluster)(nil)

// holdsRoom is the priority from which on a job that does not fit lets nobody pass: what
// becomes free is kept for it.
const holdsRoom = actuator.HoldsRoom

// Prioritise sets the priority of a job in its queue.
func (c *Cluster) Prioritise(ctx context.Context, was fleet.Job, key string, priority int) (fleet.Job, error) {
	if err := c.enter(ctx); err != nil {
		return fleet.Job{}, err
	}
	s := c.s
	defer s.mu.Unlock()
	j, err := c.live(was)
	if err != nil {
		return fleet.Job{}, err
	}
	if j.state.over() {
		return fleet.Job{}, failf(remedy.Gone, "job %s has ended", j.ref)
	}
	s.write(&j.version)
	if j.state != waiting {
		j.priority = priority
		return s.jobFact(j), nil
	}
	s.dequeue(j)
	j.priority = priority
	s.enqueue(j)
	return s.jobFact(j), nil
}

// Preempt takes the gang off its nodes and puts the job back into its queue.
func (c *Cluster) Preempt(ctx context.Context, was fleet.Job, key string) (fleet.Job, error) {
	if err := c.enter(ctx); err != nil {
		return fleet.Job{}, err
	}
	s := c.s
	defer s.mu.Unlock()
	j, err := c.live(was)
	switch {
	case err != nil:
		return fleet.Job{}, err
	case j.state.over():
		return fleet.Job{}, failf(remedy.Gone, "job %s has ended", j.ref)
	case !j.state.active():
		return fleet.Job{}, failf(remedy.Rejected, "job %s does not run", j.ref)
	}
	why := ""
	if s.ledger.Wanted() == 0 {
		why = "nobody waits"
	}
	s.judge(truth.Preempt, j.ref.String(), why == "", why)
	j.preempted = key
	s.become(j, backing)
	j.retryDue = true
	for _, p := range slices.Clone(j.pods) {
		s.terminate(p)
	}
	return s.jobFact(j), nil
}

// Tell writes a remark on the job's object, for whoever owns it.
func (c *Cluster) Tell(ctx context.Context, was fleet.Job, key, text string) (fleet.Job, error) {
	if err := c.enter(ctx); err != nil {
		return fleet.Job{}, err
	}
	s := c.s
	defer s.mu.Unlock()
	j, err := c.live(was)
	if err != nil {
		return fleet.Job{}, err
	}
	s.write(&j.version)
	j.remark = text
	return s.jobFact(j), nil
}
