package actuator

import (
	"context"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

var resetSpec = Spec{
	Info: remedy.ActionInfo{
		Name: "reset", Doc: "Resets the incident's GPU by the repair template, once, when nothing holds it any more. The ladder goes on when that does not help.",
		Scope: remedy.ScopeNode, Effect: remedy.EffectHarm, Within: 5 * time.Minute, Optional: true, Of: remedy.OfGPU,
	},
	RBAC: repairRules,
	New:  func(d Deps) Action { return reset{newMender(d)} },
}

// lookSoon is how long a reset is left alone before its repair is looked at: nothing in
// a snapshot shows how far it is.
const lookSoon = 5 * time.Second

// reset mends the incident's GPU.
type reset struct{ mender }

func (a reset) Start(ctx context.Context, o remedy.Order) (remedy.Receipt, error) {
	rep, found, err := a.mend(ctx, o, func(n fleet.Node) error {
		if o.Target.GPU == "" {
			return failf(remedy.Rejected, "which GPU of %s it is, is not known", n.Name)
		}
		return empty(ctx, a.pods, n, func(p fleet.Pod) bool { return spared(o.Spare, p.UID) })
	})
	if err != nil {
		return remedy.Receipt{}, err
	}
	return remedy.Receipt{Found: found, Ended: rep.Done, Note: rep.Note}, nil
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
