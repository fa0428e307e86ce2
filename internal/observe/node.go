package observe

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"stoker.dev/stoker/actuator/jobs/manifest"
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// PoolKeys are the node labels that name a node's pool, the first that is there counts.
var PoolKeys = []string{"stoker.dev/pool", "karpenter.sh/nodepool", "cloud.google.com/gke-nodepool", "eks.amazonaws.com/nodegroup"}

// Nodes observes nodes. Its zero value knows no pools.
type Nodes struct {
	PoolKeys []string // labels that name the pool, in order
}

// Kinds is the core node.
func (Nodes) Kinds() []schema.GroupVersionKind {
	return []schema.GroupVersionKind{{Version: "v1", Kind: "Node"}}
}

// Observe adds the nodes.
func (o Nodes) Observe(objs []unstructured.Unstructured, into *fleet.Facts) {
	seen := into.Sources[Cluster]
	for i := range objs {
		n := o.Node(objs[i].Object, seen)
		into.Nodes[n.Name] = n
	}
}

// Node reads one node as the cluster told of it at seen.
func (o Nodes) Node(obj map[string]any, seen time.Time) fleet.Node {
	n := fleet.Node{
		Name:          manifest.String(obj, "metadata", "name"),
		UID:           manifest.String(obj, "metadata", "uid"),
		Version:       manifest.Version(obj),
		BootID:        manifest.String(obj, "status", "nodeInfo", "bootID"),
		Labels:        manifest.Strings(obj, "metadata", "labels"),
		Ready:         manifest.ConditionOf(obj, "Ready"),
		Unschedulable: manifest.Bool(obj, "spec", "unschedulable"),
		OptOut:        manifest.OptOut(obj),
		Capacity:      manifest.Amounts(manifest.Map(obj, "status", "capacity")),
		Allocatable:   manifest.Amounts(manifest.Map(obj, "status", "allocatable")),
		Seen:          seen,
	}
	for _, key := range o.PoolKeys {
		if pool := n.Labels[key]; pool != "" {
			n.Pool = pool
			break
		}
	}
	var err error
	if n.Hold, err = hold(manifest.Annotation(obj, remedy.MarkHold)); err != nil {
		n.OptOut = unreadable + err.Error()
	}
	return n
}

const unreadable = remedy.MarkHold + " cannot be read, a person has to mend or remove it: "

// HoldUnreadable reports whether the node's hold could not be read. Such a node counts
// as held by nobody, so that it is not released, and as opted out, so that nothing is
// begun on it: whose it is, and whether it was schedulable before us, nobody knows.
func HoldUnreadable(n fleet.Node) bool { return strings.HasPrefix(n.OptOut, unreadable) }

func hold(mark string) (fleet.Hold, error) {
	if mark == "" {
		return fleet.Hold{}, nil
	}
	dec := json.NewDecoder(strings.NewReader(mark))
	dec.DisallowUnknownFields() // what a newer version keeps there must not be lost by writing it back
	var h fleet.Hold
	if err := dec.Decode(&h); err != nil {
		return fleet.Hold{}, err
	}
	if dec.More() {
		return fleet.Hold{}, fmt.Errorf("something follows after %d bytes", dec.InputOffset())
	}
	return h, nil
}

// Trim keeps what Node reads.
func (Nodes) Trim(obj map[string]any) map[string]any {
	status := map[string]any{
		"capacity":    manifest.PickAmounts(manifest.Map(obj, "status", "capacity")),
		"allocatable": manifest.PickAmounts(manifest.Map(obj, "status", "allocatable")),
		"nodeInfo":    manifest.Pick(manifest.Map(obj, "status", "nodeInfo"), "bootID"),
	}
	for _, c := range manifest.List(obj, "status", "conditions") {
		if manifest.String(c, "type") == "Ready" {
			status["conditions"] = []any{manifest.Pick(c, "type", "status", "lastTransitionTime")}
		}
	}
	meta := manifest.PickMeta(obj, remedy.MarkHold, remedy.MarkOptOut)
	if labels := manifest.Map(obj, "metadata", "labels"); labels != nil {
		meta["labels"] = labels
	}
	return map[string]any{"metadata": meta, "spec": manifest.Pick(manifest.Map(obj, "spec"), "unschedulable"), "status": status}
}
