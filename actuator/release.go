package actuator

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

var releaseSpec = Spec{
	Info: remedy.ActionInfo{
		Name: "release", Doc: "Removes the incident's mark from the node, and lets new work in when it was the last one and the node was not cordoned before.",
		Scope: remedy.ScopeNode, Effect: remedy.EffectRecovery, Role: remedy.RoleRelease, Within: 10 * time.Minute,
	},
	RBAC: []Rule{{Resource: "nodes", Verbs: []string{"get", "patch"}}},
	New:  func(d Deps) Action { return release{d.Cluster} },
}

// release undoes cordon, and nothing that others did.
type release struct{ nodes Nodes }

func (a release) Start(ctx context.Context, o remedy.Order) (remedy.Receipt, error) {
	n, err := liveNode(ctx, a.nodes, o)
	if err != nil {
		return remedy.Receipt{}, err
	}
	if !n.Hold.Has(o.Incident) {
		return remedy.Receipt{Version: n.Version, Found: true, Note: n.Name + " has no mark of ours"}, nil
	}
	hold := n.Hold.Without(o.Incident)
	var note string
	ours := false // whether it is ours to let new work in
	switch {
	case hold.Any():
		note = fmt.Sprintf("%s stays held by %s", n.Name, holders(hold))
	case !n.Unschedulable:
		note = n.Name + " had been uncordoned by a person"
	case !n.Hold.Cordoned:
		note = n.Name + " stays cordoned, as it was before us"
	default:
		ours, note = true, n.Name+" takes work again"
	}
	m, err := a.nodes.MarkNode(ctx, n, hold, n.Unschedulable && !ours)
	if err != nil {
		return remedy.Receipt{}, fmt.Errorf("release %s: %w", n.Name, err)
	}
	return remedy.Receipt{Version: m.Version, Note: note}, nil
}

func (release) Check(now time.Time, f fleet.Snapshot, o remedy.Order, r remedy.Receipt) (remedy.Outcome, bool) {
	if stale(f, r) {
		return remedy.Outcome{}, false
	}
	n, ok := knownNode(f, o)
	switch {
	case !ok:
		return ended(remedy.Gone, "%s is gone", o.Target.Node)
	case n.Version < r.Version:
		return unfinished(now, o, "the change of %s has not been seen", n.Name)
	case !n.Hold.Has(o.Incident):
		return ended(remedy.Done, "%s", r.Note)
	case n.Version > r.Version && r.Version != 0:
		return ended(remedy.Conflict, "somebody has put our mark back on %s", n.Name)
	}
	return unfinished(now, o, "our mark is still on %s", n.Name)
}

// holders are the incidents of a hold, for people.
func holders(h fleet.Hold) string { return list(slices.Sorted(maps.Keys(h.Incidents))) }
