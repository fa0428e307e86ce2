package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/internal/sim/truth"
)

// A Cluster is what Stoker may see and change of a simulation: what Kubernetes would
// show it, and nothing else. Calls take no virtual time.
type Cluster struct{ s *Simulation }

var _ actuator.Cluster = (*Cluster)(nil)

func failf(e remedy.Ending, format string, args ...any) error {
	return &remedy.Failure{Ending: e, Err: fmt.Errorf(format, args...)}
}

// enter takes the lock, unless the caller has gone.
func (c *Cluster) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return failf(remedy.Conflict, "nothing was sent: %w", context.Cause(ctx))
	}
	c.s.mu.Lock()
	return nil
}

// unchanged reports whether the object is still what the caller has read.
func unchanged(what, uid, wantUID string, v, want fleet.Version) error {
	switch {
	case uid != wantUID:
		return failf(remedy.Gone, "%s is another object than the one with uid %s", what, wantUID)
	case v != want:
		return failf(remedy.Conflict, "%s has changed: it is at version %d, not %d", what, v, want)
	}
	return nil
}

// Node reads one node.
func (c *Cluster) Node(ctx context.Context, name string) (fleet.Node, error) {
	if err := c.enter(ctx); err != nil {
		return fleet.Node{}, err
	}
	defer c.s.mu.Unlock()
	n, ok := c.s.byName[name]
	if !ok {
		return fleet.Node{}, failf(remedy.Gone, "there is no node %s", name)
	}
	return c.s.nodeFact(n), nil
}

// MarkNode writes hold and unschedulable.
func (c *Cluster) MarkNode(ctx context.Context, was fleet.Node, hold fleet.Hold, unschedulable bool) (fleet.Node, error) {
	if err := c.enter(ctx); err != nil {
		return fleet.Node{}, err
	}
	s := c.s
	defer s.mu.Unlock()
	n, ok := s.byName[was.Name]
	if !ok {
		return fleet.Node{}, failf(remedy.Gone, "there is no node %s", was.Name)
	}
	if err := unchanged("node "+n.name, n.uid, was.UID, n.version, was.Version); err != nil {
		return fleet.Node{}, err
	}
	if unschedulable && !n.unschedulable {
		s.judge(truth.Cordon, n.name, s.record.Ill(n.name), "nothing is wrong with the node")
		s.record.Notice(s.since(), n.name)
	}
	if !unschedulable && n.unschedulable {
		s.judge(truth.Release, n.name, !s.record.Ill(n.name), "the node is still ill")
	}
	n.hold, n.unschedulable = copyHold(hold), unschedulable
	s.change(n)
	return s.nodeFact(n), nil
}

// judge writes down what Stoker did, and whether it was right.
func (s *Simulation) judge(verb truth.Verb, target string, right bool, why string) {
	if right {
		why = ""
	} else {
		s.tell(EventFault, "%s of %s is wrong: %s", verb, target, why)
	}
	s.record.Did(s.since(), verb, target, why)
}

// PodsOn lists the pods on a node.
func (c *Cluster) PodsOn(ctx context.Context, node string) ([]fleet.Pod, error) {
	if err := c.enter(ctx); err != nil {
		return nil, err
	}
	defer c.s.mu.Unlock()
	n, ok := c.s.byName[node]
	if !ok {
		return nil, nil // as a list with a field selector would answer
	}
	return podFacts(n.pods), nil
}

// PodsOf lists the pods of a job, also when the job itself is gone.
func (c *Cluster) PodsOf(ctx context.Context, ref fleet.JobRef) ([]fleet.Pod, error) {
	if err := c.enter(ctx); err != nil {
		return nil, err
	}
	defer c.s.mu.Unlock()
	var of []*pod
	for _, p := range c.s.pods {
		if p.job != nil && p.job.ref == ref {
			of = append(of, p)
		}
	}
	return podFacts(of), nil
}

func podFacts(pods []*pod) []fleet.Pod {
	out := make([]fleet.Pod, len(pods))
	for i, p := range pods {
		out[i] = podFact(p)
	}
	slices.SortFunc(out, func(a, b fleet.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	return out
}

// Evict asks a pod to go.
func (c *Cluster) Evict(ctx context.Context, ref fleet.PodRef) error {
	if err := c.enter(ctx); err != nil {
		return err
	}
	s := c.s
	defer s.mu.Unlock()
	p, ok := s.pods[ref.UID]
	if !ok || p.namespace != ref.Namespace || p.name != ref.Name {
		return failf(remedy.Gone, "pod %s/%s with uid %s is gone", ref.Namespace, ref.Name, ref.UID)
	}
	if p.terminating {
		return nil
	}
	if why := s.protected(p); why != "" {
		return failf(remedy.Conflict, "%s", why)
	}
	if p.node != nil {
		s.judge(truth.Evict, p.namespace+"/"+p.name, s.record.Ill(p.node.name), "nothing is wrong with "+p.node.name)
	}
	if p.job != nil {
		s.evacuate(p.job)
	}
	s.terminate(p)
	return nil
}

// protected names the disruption budget that does not let a pod go; empty when none does.
func (s *Simulation) protected(p *pod) string {
	if p.kept {
		return fmt.Sprintf("disruption budget %s/%s does not let it go", p.namespace, p.name)
	}
	j := p.job
	if j == nil || j.spec.MinAvailable == 0 || p.node == nil {
		return ""
	}
	up := 0
	for _, o := range j.pods {
		if o.running && !o.terminating && !o.dead {
			up++
		}
	}
	if up > j.spec.MinAvailable {
		return ""
	}
	return fmt.Sprintf("disruption budget %s lets none of %d running pods go, %d are needed", j.ref, up, j.spec.MinAvailable)
}

// live finds a job for a change.
func (c *Cluster) live(was fleet.Job) (*job, error) {
	j, ok := c.s.byRef[was.Ref]
	if !ok {
		return nil, failf(remedy.Gone, "there is no job %s", was.Ref)
	}
	return j, unchanged("job "+j.ref.String(), j.uid, was.UID, j.version, was.Version)
}

// Job reads one job.
func (c *Cluster) Job(ctx context.Context, ref fleet.JobRef) (fleet.Job, error) {
	if err := c.enter(ctx); err != nil {
		return fleet.Job{}, err
	}
	defer c.s.mu.Unlock()
	j, ok := c.s.byRef[ref]
	if !ok {
		return fleet.Job{}, failf(remedy.Gone, "there is no job %s", ref)
	}
	return c.s.jobFact(j), nil
}

// AskCheckpoint leaves a request on the job. Only one that trains will answer.
func (c *Cluster) AskCheckpoint(ctx context.Context, was fleet.Job, key string) (fleet.Job, error) {
	if err := c.enter(ctx); err != nil {
		return fleet.Job{}, err
	}
	s := c.s
	defer s.mu.Unlock()
	j, err := c.live(was)
	if err != nil {
		return fleet.Job{}, err
	}
	j.asked = key
	s.write(&j.version)
	if j.state == training && j.answered != key {
		s.answer(j)
	}
	return s.jobFact(j), nil
}

// StopJob suspends the job.
func (c *Cluster) StopJob(ctx context.Context, was fleet.Job, key string) (fleet.Job, error) {
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
	// That it still does again what it lost to a fault is no reason to stop it once more.
	right := j.blame != none && j.state != training
	for _, p := range j.pods {
		right = right || p.node != nil && s.record.Ill(p.node.name)
	}
	s.judge(truth.Stop, j.ref.String(), right, "no fault touches the job")
	s.evacuate(j)
	j.stoppedBy = key
	s.suspend(j)
	return s.jobFact(j), nil
}

// suspend writes into the job's object that it shall not run.
func (s *Simulation) suspend(j *job) {
	if j.suspended {
		s.write(&j.version)
		return
	}
	j.suspended = true
	s.stop(j)
}

// StartJob lets the job run again.
func (c *Cluster) StartJob(ctx context.Context, was fleet.Job, key string, with actuator.Restart) (fleet.Job, error) {
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
	s.judge(truth.Start, j.ref.String(), true, "")
	j.startedBy, j.resume, j.avoid, j.literal = key, with.Resume, slices.Clone(with.Avoid), true
	j.attempt++
	s.unsuspend(j)
	return s.jobFact(j), nil
}

// unsuspend writes into the job's object that it may run. Its controller makes new pods
// at once, also beside old ones: waiting for those is the caller's to do.
func (s *Simulation) unsuspend(j *job) {
	if !j.suspended {
		s.write(&j.version)
		return
	}
	j.suspended = false
	s.revive(j)
}

// errDown is why nothing on a node answers.
var errDown = errors.New("connection refused: the node is down")
