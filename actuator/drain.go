package actuator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

var drainSpec = Spec{
	Info: remedy.ActionInfo{
		Name: "drain", Doc: "Asks every pod on the node to go, within disruption budgets, and waits until they are gone. Pods that belong to the node stay.",
		Scope: remedy.ScopeNode, Effect: remedy.EffectHarm, Within: 10 * time.Minute,
	},
	RBAC: []Rule{
		{Resource: "nodes", Verbs: []string{"get"}},
		{Resource: "pods", Verbs: []string{"get", "list"}},
		{Resource: "pods/eviction", Verbs: []string{"create"}},
	},
	New: func(d Deps) Action { return drain{d.Cluster, d.Cluster} },
}

// drain evicts each pod once. What a disruption budget refuses is asked again when
// the order is started again.
type drain struct {
	nodes Nodes
	pods  Pods
}

func (a drain) Start(ctx context.Context, o remedy.Order) (remedy.Receipt, error) {
	n, err := liveNode(ctx, a.nodes, o)
	if err != nil {
		return remedy.Receipt{}, err
	}
	if why := takenOver(n, o); why != "" {
		return remedy.Receipt{}, failf(remedy.Yielded, "%s", why)
	}
	on, err := a.pods.PodsOn(ctx, n.Name)
	if err != nil {
		return remedy.Receipt{}, fmt.Errorf("list the pods on %s: %w", n.Name, err)
	}
	r := remedy.Receipt{Version: n.Version, Found: true}
	var evict []fleet.PodRef
	var forlorn []string
	for _, p := range on {
		if p.Resident || spared(o.Spare, p.UID) || o.Target.GPU != "" && p.GPUs == 0 {
			continue
		}
		if p.BootID == "" {
			p.BootID = n.BootID
		}
		r.Pods = append(r.Pods, p.PodRef)
		switch {
		case p.Terminating: // asked already
		case !p.Controlled:
			forlorn = append(forlorn, pod(p.PodRef))
		default:
			evict = append(evict, p.PodRef)
		}
	}
	if len(forlorn) > 0 {
		return remedy.Receipt{}, failf(remedy.Rejected, "nothing would make %s anew; a person has to move or delete what is there", list(forlorn))
	}
	refused, err := a.evict(ctx, evict)
	if err != nil {
		return remedy.Receipt{}, err
	}
	r.Found = len(evict) == 0
	r.Note = list(refused)
	return r, nil
}

// evict asks pods to go. A budget's refusal is returned as text; errors of another
// kind do not keep the other pods from being asked.
func (a drain) evict(ctx context.Context, pods []fleet.PodRef) (refused []string, err error) {
	var errs []error
	worst := remedy.Rejected
	for _, p := range pods {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("evict %s: %w", pod(p), context.Cause(ctx))
		}
		err := a.pods.Evict(ctx, p)
		switch {
		case err == nil, endingOf(err) == remedy.Gone:
		case endingOf(err) == remedy.Conflict:
			refused = append(refused, fmt.Sprintf("%s (%v)", pod(p), err))
		default:
			if endingOf(err) != remedy.Rejected {
				worst = remedy.Unclear
			}
			errs = append(errs, fmt.Errorf("evict %s: %w", pod(p), err))
		}
	}
	if len(errs) > 0 {
		return nil, &remedy.Failure{Ending: worst, Err: errors.Join(errs...)}
	}
	return refused, nil
}

func (drain) Check(now time.Time, f fleet.Snapshot, o remedy.Order, r remedy.Receipt) (remedy.Outcome, bool) {
	if stale(f, r) {
		return remedy.Outcome{}, false
	}
	n, ok := knownNode(f, o)
	switch {
	case !ok:
		return ended(remedy.Gone, "%s is gone", o.Target.Node)
	case n.Version < r.Version:
		return unfinished(now, o, "%s has not been seen as it was when its pods were asked to go", n.Name)
	}
	if why := takenOver(n, o); why != "" {
		return ended(remedy.Yielded, "%s", why)
	}
	left := f.Left(r.Pods)
	var unasked []fleet.PodRef
	for _, p := range left {
		if !f.Pods[p.UID].Terminating {
			unasked = append(unasked, p)
		}
	}
	newcomers := newcomers(f, n.Name, append(slices.Clone(o.Spare), r.Pods...))
	switch {
	case len(left) == 0 && len(newcomers) == 0:
		return ended(remedy.Done, "%s gone from %s", count(len(r.Pods), "pod"), n.Name)
	case len(unasked) == 0 && len(newcomers) == 0:
		return unfinished(now, o, "%s on %s: %s", count(len(left), "pod"), n.Name, lingers(f, left))
	case late(now, o):
		return unfinished(now, o, "%s on %s: %s", count(len(left)+len(newcomers), "pod"), n.Name, holdups(f, left, newcomers, r.Note))
	}
	return ended(remedy.Conflict, "%s", holdups(f, unasked, newcomers, r.Note))
}

// newcomers are pods with GPUs on a node that are not among those asked to go.
func newcomers(f fleet.Snapshot, node string, asked []fleet.PodRef) []fleet.PodRef {
	have := make(map[string]bool, len(asked))
	for _, p := range asked {
		have[p.UID] = true
	}
	var out []fleet.PodRef
	for _, p := range f.PodsOn(node) {
		if !p.Resident && p.GPUs > 0 && !have[p.UID] {
			out = append(out, p.PodRef)
		}
	}
	return f.Left(out)
}

// holdups says what keeps a node from being empty: what budgets refused, when that is
// known, else what is there.
func holdups(f fleet.Snapshot, left, newcomers []fleet.PodRef, refused string) string {
	if refused != "" && len(newcomers) == 0 {
		return refused
	}
	return lingers(f, append(append([]fleet.PodRef(nil), left...), newcomers...))
}
