package actuator

import (
	"context"
	"fmt"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

var resetSpec = Spec{
	Info: remedy.ActionInfo{
		Name: "reset", Doc: "Resets the incident's GPU by the repair template, once, when nothing holds it any more. The ladder goes on when that does not help.",
		Scope: remedy.ScopeNode, Effect: remedy.EffectHarm, Within: 5 * time.Minute, Optional: true, Of: remedy.OfGPU,
	},
	RBAC: []Rule{
		{Resource: "nodes", Verbs: []string{"get"}},
		{Resource: "pods", Verbs: []string{"list"}},
		{Group: "batch", Resource: "jobs", Verbs: []string{"create", "get"}, Own: true},
	},
	New: func(d Deps) Action { return reset{d.Cluster, d.Cluster, d.Cluster} },
}

// lookSoon is how long a reset is left alone before its repair is looked at: nothing in
// a snapshot shows how far it is.
const lookSoon = 5 * time.Second

// reset creates one repair, whose name comes from the order's key and which does nothing
// in any other boot than the one it is meant for.
type reset struct {
	nodes   Nodes
	pods    Pods
	repairs Repairs
}

func (a reset) Start(ctx context.Context, o remedy.Order) (remedy.Receipt, error) {
	n, err := liveNode(ctx, a.nodes, o)
	if err != nil {
		return remedy.Receipt{}, err
	}
	if o.BootID != "" && n.BootID != "" && n.BootID != o.BootID {
		return remedy.Receipt{Found: true, Ended: true, Version: n.Version, Note: n.Name + " has been booted since the fault"}, nil
	}
	name := repairName(o)
	switch rep, err := a.repairs.Repair(ctx, name); {
	case err == nil && rep.Failed:
		return remedy.Receipt{}, failf(remedy.Rejected, "repair %s of %s failed: %s", name, n.Name, rep.Note)
	case err == nil && rep.Key != o.Key:
		return remedy.Receipt{}, failf(remedy.Rejected, "repair %s is of another order, %s", name, rep.Key)
	case err == nil:
		return remedy.Receipt{Found: true, Ended: rep.Done, Version: n.Version, Note: "repair " + name + " " + rep.Note}, nil
	case endingOf(err) != remedy.Gone:
		return remedy.Receipt{}, fmt.Errorf("read repair %s: %w", name, err)
	}
	if why := takenOver(n, o); why != "" {
		return remedy.Receipt{}, failf(remedy.Yielded, "%s", why)
	}
	switch {
	case o.Target.GPU == "":
		return remedy.Receipt{}, failf(remedy.Rejected, "which GPU of %s it is, is not known", n.Name)
	case n.BootID == "":
		return remedy.Receipt{}, failf(remedy.Rejected, "the boot id of %s is not known, so nobody could tell whether it was booted meanwhile", n.Name)
	}
	if err := empty(ctx, a.pods, n, func(p fleet.Pod) bool { return spared(o.Spare, p.UID) }); err != nil {
		return remedy.Receipt{}, err
	}
	rep, err := a.repairs.CreateRepair(ctx, Repair{Name: name, Action: o.Action, Key: o.Key, Node: n.Name, GPU: o.Target.GPU, BootID: n.BootID})
	if err != nil {
		return remedy.Receipt{}, fmt.Errorf("create repair %s: %w", name, err)
	}
	return remedy.Receipt{Version: n.Version, Note: "repair " + rep.Name}, nil
}

func (reset) Check(now time.Time, f fleet.Snapshot, o remedy.Order, r remedy.Receipt) (remedy.Outcome, bool) {
	if stale(f, r) {
		return remedy.Outcome{}, false
	}
	n, ok := knownNode(f, o)
	switch {
	case !ok:
		return ended(remedy.Gone, "%s is gone", o.Target.Node)
	case !r.Ended && late(now, o):
		return unfinished(now, o, "%s", r.Note)
	case !r.Ended && now.Sub(r.At) >= lookSoon:
		return remedy.Outcome{Ending: remedy.Conflict, Note: r.Note, Look: true}, true
	case !r.Ended:
		return remedy.Outcome{}, false
	}
	// That it has ended well is what the repair says. What counts is that the GPU is back.
	g, _ := n.GPU(o.Target.GPU)
	switch {
	case g.Up == fleet.False:
		return unfinished(now, o, "GPU %d of %s is lost", g.Index, n.Name)
	case n.Capacity.GPUs == 0 || n.Allocatable.GPUs != n.Capacity.GPUs:
		return unfinished(now, o, "%d of %d GPUs of %s allocatable", n.Allocatable.GPUs, n.Capacity.GPUs, n.Name)
	}
	return ended(remedy.Done, "%s, and %s has %s allocatable", r.Note, n.Name, count(n.Capacity.GPUs, "GPU"))
}
