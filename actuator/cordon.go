package actuator

import (
	"context"
	"fmt"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

var cordonSpec = Spec{
	Info: remedy.ActionInfo{
		Name: "cordon", Doc: "Keeps new work off the node and marks it with the incident.",
		Scope: remedy.ScopeNode, Effect: remedy.EffectHarm, Role: remedy.RoleHold, Within: 2 * time.Minute,
	},
	RBAC: []Rule{{Resource: "nodes", Verbs: []string{"get", "patch"}}},
	New:  func(d Deps) Action { return cordon{d.Cluster} },
}

// cordon adds the incident to the node's hold. Pods that are there stay.
type cordon struct{ nodes Nodes }

func (c cordon) Start(ctx context.Context, o remedy.Order) (remedy.Receipt, error) {
	n, err := liveNode(ctx, c.nodes, o)
	if err != nil {
		return remedy.Receipt{}, err
	}
	switch {
	case n.Hold.Has(o.Incident) && n.Unschedulable:
		return remedy.Receipt{Version: n.Version, Found: true}, nil
	case n.Hold.Has(o.Incident):
		return remedy.Receipt{}, failf(remedy.Yielded, "%s was uncordoned by a person", n.Name)
	case n.Hold.Any() && !n.Unschedulable:
		// Cordoning again would hide from the other incident that it was overruled.
		return remedy.Receipt{}, failf(remedy.Conflict, "%s was uncordoned by a person under the hold of %s, which has to give it up first", n.Name, holders(n.Hold))
	}
	hold := n.Hold.With(o.Incident, o.Reserved)
	if !n.Hold.Any() {
		hold.Cordoned = !n.Unschedulable // else somebody has cordoned it before us, and it stays theirs
	}
	hold.Why = o.Cause
	m, err := c.nodes.MarkNode(ctx, n, hold, true)
	if err != nil {
		return remedy.Receipt{}, fmt.Errorf("cordon %s: %w", n.Name, err)
	}
	return remedy.Receipt{Version: m.Version}, nil
}

func (cordon) Check(now time.Time, f fleet.Snapshot, o remedy.Order, r remedy.Receipt) (remedy.Outcome, bool) {
	if stale(f, r) {
		return remedy.Outcome{}, false
	}
	n, ok := knownNode(f, o)
	if !ok {
		return ended(remedy.Gone, "%s is gone", o.Target.Node)
	}
	if n.Version < r.Version {
		return unfinished(now, o, "the change of %s has not been seen", n.Name)
	}
	if why := takenOver(n, o); why != "" {
		return ended(remedy.Yielded, "%s", why)
	}
	if !n.Hold.Cordoned {
		return ended(remedy.Done, "%s had been cordoned before by somebody else", n.Name)
	}
	return ended(remedy.Done, "%s takes no new work", n.Name)
}
