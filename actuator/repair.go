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
