package actuator

import (
	"context"
	"fmt"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

var stopSpec = Spec{
	Info: remedy.ActionInfo{
		Name: "stop", Doc: "Takes each job on the node off all of its nodes, the gang whole, keeps the job, and waits until every old pod is gone or its node has been booted anew.",
		Scope: remedy.ScopeJobs, Effect: remedy.EffectHarm, Role: remedy.RoleStop, Within: 10 * time.Minute,
	},
	RBAC: []Rule{{Resource: "nodes", Verbs: []string{"get"}}, {Resource: "pods", Verbs: []string{"list"}}},
	New:  func(d Deps) Action { return stop{d.Cluster, d.Cluster, d.Cluster} },
}

// maxBoots bounds how many nodes are read to learn the boots that a job's pods run in.
// A pod whose boot is not known is waited for until it is gone.
const maxBoots = 256

// stop suspends a job that runs. One that somebody else has suspended stays theirs.
type stop struct {
	jobs  Jobs
	pods  Pods
	nodes Nodes
}

func (a stop) Start(ctx context.Context, o remedy.Order) (remedy.Receipt, error) {
	j, err := liveJob(ctx, a.jobs, o)
	if err != nil {
		return remedy.Receipt{}, err
	}
	r := remedy.Receipt{Version: j.Version, Found: true}
	switch {
	case j.Phase.Ended():
		return remedy.Receipt{}, failf(remedy.Gone, "%s has ended (%s)", j.Ref, j.Phase)
	case j.StoppedBy == o.Key, j.Suspended && by(j.StoppedBy, o.Incident):
	case j.Suspended:
		r.Note = j.Ref.String() + " was suspended by somebody else"
	default:
		m, err := a.jobs.StopJob(ctx, j, o.Key)
		if err != nil {
			return remedy.Receipt{}, fmt.Errorf("stop %s: %w", j.Ref, err)
		}
		r = remedy.Receipt{Version: m.Version}
	}
	// Read after the stop: what was there before it is there still, or gone.
	pods, err := a.pods.PodsOf(ctx, j.Ref)
	if err != nil {
		return remedy.Receipt{}, fmt.Errorf("list the pods of %s: %w", j.Ref, err)
	}
	r.Pods = a.boots(ctx, pods)
	return r, nil
}

// boots names the pods, with the boot of their nodes where it can be learned.
func (a stop) boots(ctx context.Context, pods []fleet.Pod) []fleet.PodRef {
	boots := map[string]string{}
	out := make([]fleet.PodRef, len(pods))
	for i, p := range pods {
		out[i] = p.PodRef
		if p.BootID != "" || p.Node == "" {
			continue
		}
		boot, read := boots[p.Node]
		if !read && len(boots) < maxBoots {
			if n, err := a.nodes.Node(ctx, p.Node); err == nil {
				boot = n.BootID
			}
			boots[p.Node] = boot
		}
		out[i].BootID = boot
	}
	return out
}

func (stop) Check(now time.Time, f fleet.Snapshot, o remedy.Order, r remedy.Receipt) (remedy.Outcome, bool) {
	if stale(f, r) {
		return remedy.Outcome{}, false
	}
	j, ok := knownJob(f, o)
	if !ok {
		return ended(remedy.Gone, "%s is gone", o.Target.Job)
	}
	ours := by(j.StoppedBy, o.Incident)
	switch {
	case j.Phase.Ended():
		return ended(remedy.Gone, "%s has ended (%s)", j.Ref, j.Phase)
	case j.Version < r.Version:
		return unfinished(now, o, "the stop has not been seen on %s", j.Ref)
	case !j.Suspended && j.Version == r.Version && !r.Found:
		return unfinished(now, o, "%s has not taken the stop", j.Ref)
	case !j.Suspended && (ours || !r.Found):
		return ended(remedy.Yielded, "%s was started by somebody else", j.Ref)
	}
	left := f.Left(r.Pods)
	if ours {
		left = f.Left(refs(f.PodsOf(j.Ref), r.Pods))
	}
	if len(left) > 0 {
		return unfinished(now, o, "%s of %s may still run: %s", count(len(left), "pod"), j.Ref, lingers(f, left))
	}
	if !ours {
		return ended(remedy.Done, "%s was suspended by somebody else; its old pods are gone", j.Ref)
	}
	return ended(remedy.Done, "%s of %s gone", count(len(r.Pods), "pod"), j.Ref)
}

// refs is known, which tells most of each pod, and those of pods that are not in it.
func refs(pods []fleet.Pod, known []fleet.PodRef) []fleet.PodRef {
	out := append([]fleet.PodRef(nil), known...)
	have := make(map[string]bool, len(known))
	for _, p := range known {
		have[p.UID] = true
	}
	for _, p := range pods {
		if !have[p.UID] {
			out = append(out, p.PodRef)
		}
	}
	return out
}
