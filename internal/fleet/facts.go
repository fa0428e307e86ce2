package fleet

import (
	"maps"
	"slices"
	"time"
)

// Facts is a fleet that is being put together by observers, one after the other,
// on one goroutine. Make it with [NewFacts].
type Facts struct {
	Nodes  map[string]Node
	Pods   map[string]Pod
	Jobs   map[JobRef]Job
	Queues map[string]Queue
	// Failures are ends of pods by the job that owned them, whether or not it is known.
	Failures map[JobRef][]Failure
	Sources  map[string]time.Time
	Alerts   Alerting
}

// NewFacts returns facts about nothing.
func NewFacts() *Facts {
	return &Facts{Nodes: map[string]Node{}, Pods: map[string]Pod{}, Jobs: map[JobRef]Job{}, Queues: map[string]Queue{}, Failures: map[JobRef][]Failure{}, Sources: map[string]time.Time{}}
}

// Snapshot freezes the facts at now. What has changed since prev, the snapshot
// before it, gets its Since from now; what has not keeps the earlier one. Facts must
// not be used afterwards.
func (f *Facts) Snapshot(now time.Time, prev Snapshot) Snapshot {
	for name, n := range f.Nodes {
		n.AllocatableSince = now
		if old, ok := prev.Nodes[name]; ok && old.UID == n.UID && old.Allocatable.GPUs == n.Allocatable.GPUs {
			n.AllocatableSince = old.AllocatableSince
		}
		f.Nodes[name] = n
	}
	for uid, p := range f.Pods {
		// A pod belongs to the boot in which it was first seen: what outlives a reboot
		// in the API does not outlive it on the machine.
		if old, ok := prev.Pods[uid]; ok && old.BootID != "" {
			p.BootID = old.BootID
		} else if n, ok := f.Nodes[p.Node]; ok && p.BootID == "" {
			p.BootID = n.BootID
		}
		f.Pods[uid] = p
	}
	nodes := nodesOf(f.Pods)
	for ref, j := range f.Jobs {
		if old, ok := prev.Jobs[ref]; ok && old.UID == j.UID {
			j.Places = old.Places
		}
		j.Places = placed(j.Places, nodes[ref], now)
		f.Jobs[ref] = j
	}
	for ref, list := range f.Failures {
		if j, ok := f.Jobs[ref]; ok {
			j.Failures = Few(list)
			f.Jobs[ref] = j
		}
	}
	alerts := f.Alerts
	alerts.Path.Since = now
	if alerts.Path.Status == prev.Alerts.Path.Status && !prev.At.IsZero() {
		alerts.Path.Since = prev.Alerts.Path.Since
	}
	return Snapshot{At: now, Nodes: f.Nodes, Pods: f.Pods, Jobs: f.Jobs, Queues: f.Queues, Sources: maps.Clone(f.Sources), Alerts: alerts}
}

// nodesOf are the nodes of each job's pods, in order.
func nodesOf(pods map[string]Pod) map[JobRef][]string {
	out := map[JobRef][]string{}
	for _, p := range pods {
		if p.Node != "" && p.Job != (JobRef{}) && !slices.Contains(out[p.Job], p.Node) {
			out[p.Job] = append(out[p.Job], p.Node)
		}
	}
	for _, nodes := range out {
		slices.Sort(nodes)
	}
	return out
}
