package actuator

import (
	"context"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

var rebootSpec = Spec{
	Info: remedy.ActionInfo{
		Name: "reboot", Doc: "Boots the drained node anew by the repair template, once, and waits until it is back with a new boot id and ready.",
		Scope: remedy.ScopeNode, Effect: remedy.EffectHarm, Role: remedy.RoleRenew, Within: 20 * time.Minute,
	},
	RBAC: repairRules,
	New:  func(d Deps) Action { return reboot{newMender(d)} },
}

// lookAgain is how long a reboot is left alone before its repair is looked at: a
// snapshot shows boots, not repairs, and a repair that has failed boots nothing.
const lookAgain = 5 * time.Minute

// reboot mends the node by a new boot.
type reboot struct{ mender }

func (a reboot) Start(ctx context.Context, o remedy.Order) (remedy.Receipt, error) {
	rep, found, err := a.mend(ctx, o, func(n fleet.Node) error {
		return empty(ctx, a.pods, n, func(p fleet.Pod) bool { return p.Terminating })
	})
	if err != nil {
		return remedy.Receipt{}, err
	}
	return remedy.Receipt{BootID: rep.BootID, Found: found, Note: rep.Note}, nil
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
		return remedy.Outcome{Ending: remedy.Conflict, Note: r.Note, Look: true}, true
	}
	return remedy.Outcome{}, false
}
