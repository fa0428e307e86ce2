package sim

import (
	"context"
	"maps"
	"slices"
	"time"

	"stoker.dev/stoker/internal/fleet"
)

// Source is the name of the cluster's objects among the sources of a snapshot. Pages show
// it: nobody shall take this cluster for a real one.
const Source = "simulated"

// Fill adds every node, pod and job that Kubernetes would show at now. What telemetry
// tells is not among it.
func (c *Cluster) Fill(ctx context.Context, now time.Time, into *fleet.Facts) error {
	if err := c.enter(ctx); err != nil {
		return err
	}
	s := c.s
	defer s.mu.Unlock()
	for _, n := range s.nodes {
		if n.vacant {
			continue
		}
		f := s.nodeFact(n)
		f.Seen = now
		into.Nodes[n.name] = f
		for _, p := range n.pods {
			into.Pods[p.uid] = podFact(p)
		}
	}
	for _, j := range s.jobs {
		f := s.jobFact(j)
		f.Seen = now
		into.Jobs[j.ref] = f
		for _, p := range j.pods {
			if p.node == nil {
				into.Pods[p.uid] = podFact(p)
			}
		}
	}
	for _, q := range s.cfg.Queues {
		into.Queues[q.Name] = fleet.Queue{Name: q.Name, Quota: q.Quota}
	}
	into.Sources[Source] = now
	return nil
}

// Snapshot returns what Kubernetes alone would show, as a snapshot with prev before it.
func (c *Cluster) Snapshot(ctx context.Context, now time.Time, prev fleet.Snapshot) (fleet.Snapshot, error) {
	f := fleet.NewFacts()
	if err := c.Fill(ctx, now, f); err != nil {
		return fleet.Snapshot{}, err
	}
	return f.Snapshot(now, prev), nil
}

const (
	milliCPUPerGPU = 16_000
	memoryPerGPU   = 256 << 30
)

func resources(gpus int) fleet.Resources {
	return fleet.Resources{GPUs: gpus, MilliCPU: int64(gpus) * milliCPUPerGPU, MemoryBytes: int64(gpus) * memoryPerGPU}
}

func (s *Simulation) nodeFact(n *node) fleet.Node {
	allocatable := resources(len(n.gpus))
	allocatable.GPUs = n.allocatable()
	return fleet.Node{
		Name: n.name, UID: n.uid, Version: n.version, BootID: n.bootID, Pool: n.labels["stoker.dev/pool"], Labels: n.labels,
		Ready:         fleet.Condition{Status: n.ready, Since: s.time(n.readySince)},
		Unschedulable: n.unschedulable, Hold: copyHold(n.hold), OptOut: n.optOut,
		Capacity: resources(len(n.gpus)), Allocatable: allocatable,
		Seen: s.time(s.now),
	}
}

func copyHold(h fleet.Hold) fleet.Hold {
	h.Incidents = maps.Clone(h.Incidents)
	return h
}

func podFact(p *pod) fleet.Pod {
	f := fleet.Pod{
		PodRef:  fleet.PodRef{Namespace: p.namespace, Name: p.name, UID: p.uid},
		Running: p.running, Terminating: p.terminating, Resident: p.resident, Controlled: p.controlled,
	}
	if p.node != nil {
		f.Node = p.node.name
	}
	if p.job != nil {
		f.Job, f.GPUs, f.Share = p.job.ref, p.job.spec.GPUs, p.job.spec.Share
	}
	return f
}

func (s *Simulation) jobFact(j *job) fleet.Job {
	f := fleet.Job{
		Ref: j.ref, UID: j.uid, Version: j.version, Queue: j.spec.Queue, Team: j.ref.Namespace,
		Workers: j.spec.Workers, Each: j.spec.resources(), Phase: j.phase(), Suspended: j.suspended, Attempt: j.attempt,
		CheckpointAsked: j.asked, CheckpointAnswered: j.answered, StoppedBy: j.stoppedBy, StartedBy: j.startedBy,
		Resume: j.resume, Avoid: slices.Clone(j.avoid), Recipes: j.recipes, Env: j.env, RecipeBy: j.recipeBy, OptOut: j.optOut, Seen: s.time(s.now),
		Submitted: s.time(j.submitted), Priority: j.priority, PreemptedBy: j.preempted,
	}
	if f.Phase == fleet.JobRunning && j.state != stopped {
		f.Started = s.time(j.started)
	}
	if k := len(j.saved) - 1; k >= 0 {
		f.Checkpoint = fleet.Checkpoint{Step: j.saved[k].step, URI: j.saved[k].uri, At: s.time(j.saved[k].at)}
	}
	return f
}

// phase is what the job's status tells. One that was told to stop has not, until its
// last pod is gone.
func (j *job) phase() fleet.JobPhase {
	switch j.state {
	case waiting, starting, backing:
		return fleet.JobPending
	case loading, training, hung:
		return fleet.JobRunning
	case stopped:
		switch {
		case len(j.pods) == 0:
			return fleet.JobSuspended
		case slices.ContainsFunc(j.pods, func(p *pod) bool { return p.running }):
			return fleet.JobRunning
		}
		return fleet.JobPending
	case succeeded:
		return fleet.JobSucceeded
	case failed:
		return fleet.JobFailed
	case deleted:
	}
	return ""
}
