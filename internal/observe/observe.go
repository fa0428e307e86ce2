// Package observe turns what sources tell into the fleet: objects of the cluster by one
// [Observer] for each kind, and whatever else knows facts by one [Filler] each.
//
// It owns what an object means and how facts are merged. It reads no clock, talks to
// nobody and changes no object that it is shown; what it does not understand stays
// unknown. Observers run in order on one goroutine, nodes before pods before jobs.
package observe

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"stoker.dev/stoker/internal/fleet"
)

// Cluster is the name of the cluster's objects among the sources of a snapshot. What
// an observer tells was true when that source was last known to be alive.
const Cluster = "kubernetes"

// An Observer turns objects of some kinds into facts. It keeps nothing and changes no
// object; facts may point into objects, which are not changed later either.
type Observer interface {
	Kinds() []schema.GroupVersionKind
	Observe(objs []unstructured.Unstructured, into *fleet.Facts)
}

// A Trimmer is an observer that needs little of its objects. A cache keeps of each
// only what Trim leaves.
type Trimmer interface {
	// Trim returns a new object with what the observer reads of obj.
	Trim(obj map[string]any) map[string]any
}
