// Package jobs knows the kinds of training job: for each framework one [Adapter] that
// reads its objects as jobs and says what to write to stop and start one.
//
// It owns what a framework's objects mean. It writes nothing: an adapter returns a
// [Change] as data, and whoever has the connection sends it under the uid and version of
// the object that the adapter was shown. Adapters keep nothing and read no clock.
package jobs

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// Adapters are all frameworks that there are. Nothing registers at init: who adds one
// adds a file and a line here, and the contract test and the chart's role follow.
var Adapters = []Spec{Batch}

// A Spec declares one framework.
type Spec struct {
	Name     string                      // in configuration and documentation
	Doc      string                      // one sentence
	Kind     schema.GroupKind            // of its objects; written Kind.group, it is the Kind of a [fleet.JobRef]
	Resource schema.GroupVersionResource // under which the API serves them
	RBAC     []actuator.Rule             // what observing and acting need
	New      func() Adapter
}

// An Adapter reads and changes the jobs of one framework. The objects that it is
// shown are never changed. An error of a method that acts is a [remedy.Failure]: this
// is no job that we may act on like this.
type Adapter interface {
	// Kinds, Observe and Trim make every adapter an observer that a cache can feed.
	Kinds() []schema.GroupVersionKind
	Observe(objs []unstructured.Unstructured, into *fleet.Facts)
	Trim(obj map[string]any) map[string]any

	// Job reads one object as the cluster told of it at seen.
	Job(obj map[string]any, seen time.Time) fleet.Job
	// Pods returns the label selector of the job's pods. It may choose others too.
	Pods(obj map[string]any) (string, error)
	// AskCheckpoint asks the training code to save.
	AskCheckpoint(obj map[string]any, key string) (Change, error)
	// Stop takes the gang off its nodes, whole, and keeps the object.
	Stop(obj map[string]any, key string) (Change, error)
	// Start lets a stopped job run again.
	Start(obj map[string]any, key string, with actuator.Restart) (Change, error)
	// Recipe gives the pods of a stopped job values to read when they run again.
	Recipe(obj map[string]any, key string, env map[string]string) (Change, error)
	// Claims returns the names of the volume claims that the job's pods mount.
	Claims(obj map[string]any) []string
}

// A Change is one write to the job's object.
type Change struct {
	Patch map[string]any // JSON merge patch
	// Else is what to write instead when the API rejects Patch as invalid; nil: nothing.
	Else *Change
	// Note says what a person should know about this write; often empty.
	Note string
}

func failure(e remedy.Ending, format string, args ...any) error {
	return &remedy.Failure{Ending: e, Err: fmt.Errorf(format, args...)}
}

// mark returns a patch that sets annotations of the object, and removes those that are empty.
func mark(marks map[string]string) map[string]any {
	annotations := map[string]any{}
	for name, value := range marks {
		annotations[name] = value
		if value == "" {
			annotations[name] = nil
		}
	}
	return map[string]any{"metadata": map[string]any{"annotations": annotations}}
}
