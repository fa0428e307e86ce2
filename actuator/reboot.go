package actuator

import (
	"context"
	"fmt"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

var rebootSpec = Spec{
	Info: remedy.ActionInfo{
		Name: "reboot", Doc: "Boots the drained node anew by the repair template, once, and waits until it is back with a new boot id and ready.",
		Scope: remedy.ScopeNode, Effect: remedy.EffectHarm, Role: remedy.RoleRenew, Within: 20 * time.Minute,
	},
	RBAC: []Rule{
		{Resource: "nodes", Verbs: []string{"get"}},
		{Resource: "pods", Verbs: []string{"list"}},
		{Group: "batch", Resource: "jobs", Verbs: []string{"create", "get"}, Own: true},
	},
	New: func(d Deps) Action { return reboot{d.Cluster, d.Cluster, d.Cluster} },
}

// lookAgain is how long a reboot is left alone before its repair is looked at: a
// snapshot shows boots, not repairs, and a repair that has failed boots nothing.
const lookAgain = 5 * time.Minute

// reboot creates one repair, whose name comes from the order's key and which does
// nothing in any other boot than the one it is meant for.
type reboot struct {
	nodes   Nodes
	pods    Pods
	repairs Repairs
}

func (a reboot) Start(ctx context.Context, o remedy.Order) (remedy.Receipt, error) {
	n, err := liveNode(ctx, a.nodes, o)
	if err != nil {
		return remedy.Receipt{}, err
	}
	if o.BootID != "" && n.BootID != "" && n.BootID != o.BootID {
		return remedy.Receipt{BootID: o.BootID, Found: true, Note: n.Name + " has been booted since the fault"}, nil
	}
	name := repairName(o)
	switch rep, err := a.repairs.Repair(ctx, name); {
	case err == nil && rep.Failed:
		return remedy.Receipt{}, failf(remedy.Rejected, "repair %s of %s failed: %s", name, n.Name, rep.Note)
	case err == nil && rep.Key != o.Key:
		return remedy.Receipt{}, failf(remedy.Rejected, "repair %s is of another order, %s", name, rep.Key)
	case err == nil:
		return remedy.Receipt{BootID: rep.BootID, Found: true, Note: rep.Note}, nil
	case endingOf(err) != remedy.Gone:
		return remedy.Receipt{}, fmt.Errorf("read repair %s: %w", name, err)
	}
	if why := takenOver(n, o); why != "" {
		return remedy.Receipt{}, failf(remedy.Yielded, "%s", why)
	}
	if n.BootID == "" {
		return remedy.Receipt{}, failf(remedy.Rejected, "the boot id of %s is not known, so nobody could tell whether it was booted", n.Name)
	}
	if err := empty(ctx, a.pods, n, func(p fleet.Pod) bool { return p.Terminating }); err != nil {
		return remedy.Receipt{}, err
	}
	rep, err := a.repairs.CreateRepair(ctx, Repair{Name: name, Action: o.Action, Key: o.Key, Node: n.Name, BootID: n.BootID})
	if err != nil {
		return remedy.Receipt{}, fmt.Errorf("create repair %s: %w", name, err)
	}
	return remedy.Receipt{BootID: rep.BootID, Note: "repair " + name}, nil
}

func (reboot) Check(now time.Time, f fleet.Snapshot, o remedy.Order, r remedy.Receipt) (remedy.Outcome, bool) {
	if stale(f, r) {
		return remedy.Outcome{}, false
	}
	n, ok := knownNode(f, o)
	if !ok {
		return ended(remedy.Gone, "%s is gone", o.Target.Node)
	}
	booted := n.BootID != "" && r.BootID != "" && n.BootID != r.BootID
	switch {
	case booted && n.Ready.Status == fleet.True:
		// The kubelet tells both in one status, so it is the new boot that is ready.
		return ended(remedy.Done, "%s has been booted and is ready", n.Name)
	case booted:
		return unfinished(now, o, "%s has been booted and is not ready", n.Name)
	case late(now, o):
		return unfinished(now, o, "%s has no new boot", n.Name)
	case now.Sub(r.At) >= lookAgain:
		return ended(remedy.Conflict, "%s has no new boot after %s; looking at the repair again", n.Name, span(now.Sub(r.At)))
	}
	return remedy.Outcome{}, false
}
