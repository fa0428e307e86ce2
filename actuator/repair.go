package actuator

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// A mender runs one repair for an order. Its name comes from the order's key, and it does
// nothing in any other boot than the one it is meant for.
type mender struct {
	nodes   Nodes
	pods    Pods
	repairs Repairs
}

func newMender(d Deps) mender { return mender{d.Cluster, d.Cluster, d.Cluster} }

// repairRules are what the account needs to run repairs.
var repairRules = []Rule{
	{Resource: "nodes", Verbs: []string{"get"}},
	{Resource: "pods", Verbs: []string{"list"}},
	{Group: "batch", Resource: "jobs", Verbs: []string{"create", "get"}, Own: true},
}

// mend returns the order's repair, and whether it was there already. One that is not is
// created when ready has nothing against it, but for an order that is only looked at:
// there a person has deleted it. A node that has been booted since the fault counts as a
// repair that is done.
func (m mender) mend(ctx context.Context, o remedy.Order, ready func(fleet.Node) error) (rep Repair, found bool, err error) {
	n, err := liveNode(ctx, m.nodes, o)
	if err != nil {
		return rep, false, err
	}
	if o.BootID != "" && n.BootID != "" && n.BootID != o.BootID {
		return Repair{BootID: o.BootID, Done: true, Note: n.Name + " has been booted since the fault"}, true, nil
	}
	name := repairName(o)
	switch rep, err := m.repairs.Repair(ctx, name); {
	case err == nil && rep.Failed:
		return rep, false, failf(remedy.Rejected, "repair %s of %s failed: %s", name, n.Name, rep.Note)
	case err == nil && rep.Key != o.Key:
		return rep, false, failf(remedy.Rejected, "repair %s is of another order, %s", name, rep.Key)
	case err == nil:
		rep.Note = strings.TrimSpace("repair " + name + " " + rep.Note)
		return rep, true, nil
	case endingOf(err) != remedy.Gone:
		return rep, false, fmt.Errorf("read repair %s: %w", name, err)
	}
	if o.Look {
		return rep, false, failf(remedy.Yielded, "repair %s of %s was deleted by somebody else", name, n.Name)
	}
	if why := takenOver(n, o); why != "" {
		return rep, false, failf(remedy.Yielded, "%s", why)
	}
	if n.BootID == "" {
		return rep, false, failf(remedy.Rejected, "the boot id of %s is not known, so nobody could tell whether it was booted", n.Name)
	}
	if err := ready(n); err != nil {
		return rep, false, err
	}
	rep, err = m.repairs.CreateRepair(ctx, Repair{Name: name, Action: o.Action, Key: o.Key, Node: n.Name, GPU: o.Target.GPU, BootID: n.BootID})
	if err != nil {
		return rep, false, fmt.Errorf("create repair %s: %w", name, err)
	}
	rep.Note = "repair " + name
	return rep, false, nil
}

// empty reports pods on the node that hold GPUs, but for those that may: a repair under
// the others would lose work that nobody has asked them to save, or be refused.
func empty(ctx context.Context, pods Pods, n fleet.Node, may func(fleet.Pod) bool) error {
	on, err := pods.PodsOn(ctx, n.Name)
	if err != nil {
		return fmt.Errorf("list the pods on %s: %w", n.Name, err)
	}
	var busy []string
	for _, p := range on {
		if p.GPUs > 0 && !p.Resident && !may(p) {
			busy = append(busy, pod(p.PodRef))
		}
	}
	if len(busy) > 0 {
		return failf(remedy.Conflict, "%s still holds GPUs of %s", list(busy), n.Name)
	}
	return nil
}

func spared(spare []fleet.PodRef, uid string) bool {
	return slices.ContainsFunc(spare, func(p fleet.PodRef) bool { return p.UID == uid })
}

// repairName is a valid name for a Kubernetes object, the same for the same order.
func repairName(o remedy.Order) string {
	const most = 40 // of the node's name; with the rest this stays under 63
	node := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(o.Target.Node))
	node = strings.Trim(node[:min(len(node), most)], "-")
	sum := sha256.Sum256([]byte(o.Key))
	return fmt.Sprintf("%s-%s-%s", o.Action, node, hex.EncodeToString(sum[:5]))
}
