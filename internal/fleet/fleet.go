// Package fleet describes what exists: nodes, the GPUs in them, the pods and the
// jobs on those GPUs, as one immutable [Snapshot] in which each fact has its age.
//
// It imports nothing but the standard library, and every other package may import
// it. It decides nothing, reads no clock and talks to nobody: observers fill
// [Facts], [Facts.Snapshot] freezes them, and everything that decides reads the
// snapshot. Who holds a Snapshot may not change what it points to.
package fleet

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Truth is a fact with three values. What is not known is neither true nor false,
// and the zero value is not known.
type Truth string

// The three values of a [Truth].
const (
	Unknown Truth = ""
	True    Truth = "true"
	False   Truth = "false"
)

// TruthOf turns what is known into a Truth.
func TruthOf(b bool) Truth {
	if b {
		return True
	}
	return False
}

// A Condition is a Truth and the time since when it has been so.
type Condition struct {
	Status Truth     `json:"status,omitempty"`
	Since  time.Time `json:"since,omitzero"`
}

// HeldFor reports whether the condition is True and has been for d at now.
func (c Condition) HeldFor(now time.Time, d time.Duration) bool {
	return c.Status == True && !now.Before(c.Since.Add(d))
}

// Resources is an amount of what jobs ask for and nodes have.
type Resources struct {
	GPUs        int   `json:"gpus,omitempty"`        // GPUs, whole unless Share says else
	Share       int   `json:"share,omitempty"`       // of each of them, in thousandths; zero: they are whole
	MilliCPU    int64 `json:"milliCPU,omitempty"`    // thousandths of a core
	MemoryBytes int64 `json:"memoryBytes,omitempty"` // bytes
}

// MilliGPUs is the amount of GPUs in thousandths of one.
func (r Resources) MilliGPUs() int { return milli(r.GPUs, r.Share) }

func milli(gpus, share int) int {
	if share == 0 {
		share = 1000
	}
	return gpus * share
}

// A Version orders the states of one object: a later write has a higher one. In
// Kubernetes it is the resource version, comparable as a number since 1.35; zero
// means that it is not known.
type Version uint64

// A Node is one machine with GPUs as the cluster and telemetry tell of it.
type Node struct {
	Name          string
	UID           string
	Version       Version
	BootID        string // changes with every boot; empty where not known
	Pool          string
	Labels        map[string]string
	Ready         Condition
	Unschedulable bool
	Hold          Hold   // our mark; zero when we hold nothing here
	OptOut        string // why a person keeps Stoker away; empty: nobody does
	Capacity      Resources
	Allocatable   Resources
	// AllocatableSince is when Allocatable.GPUs last changed, as far as this process has seen.
	AllocatableSince time.Time
	// GPUs is what telemetry has told of, in order of index; empty when it has never told.
	GPUs []GPU
	// Telemetry is True while samples of the node arrive, False once they have stopped
	// and Unknown where none were ever seen. False says nothing about the GPUs.
	Telemetry Condition
	Seen      time.Time // when the cluster last told us of the node
}

// Available reports whether new work can land on the node, as far as is known.
func (n Node) Available() bool { return !n.Unschedulable && n.Ready.Status == True }

// GPU finds a GPU of the node by UUID.
func (n Node) GPU(uuid string) (GPU, bool) {
	for _, g := range n.GPUs {
		if g.UUID == uuid {
			return g, true
		}
	}
	return GPU{}, false
}

// A GPU is one physical GPU as telemetry tells of it.
type GPU struct {
	Index   int
	UUID    string
	PCI     string // bus address as the source spells it
	Model   string
	Up      Truth     // False: the driver has lost it
	XID     int       // newest error code; 0 when none was seen
	XIDTime time.Time // event time of XID
	Seen    time.Time // time of the newest sample
	// Pods are those that hold it, in order; several where it is shared. Empty also where
	// nobody tells which pods hold which GPUs.
	Pods []PodName
	// Usage is of the whole GPU, while it has been held by whoever has it now.
	Usage Usage
}

// A Hold is our mark on a node: which incidents want it kept free, and since when.
// The node is given back when the last hold goes, and only if we took it.
type Hold struct {
	Incidents map[string]time.Time `json:"incidents,omitempty"`
	// Cordoned says that the node was schedulable before us, so that giving it back is ours to do.
	Cordoned bool `json:"cordoned,omitempty"`
	// Why is one sentence for whoever looks at the node.
	Why string `json:"why,omitempty"`
}

// Any reports whether any incident holds the node.
func (h Hold) Any() bool { return len(h.Incidents) > 0 }

// Has reports whether the named incident holds the node.
func (h Hold) Has(incident string) bool { _, ok := h.Incidents[incident]; return ok }

// With returns the hold with the incident added, and without changing h.
func (h Hold) With(incident string, since time.Time) Hold {
	m := make(map[string]time.Time, len(h.Incidents)+1)
	maps.Copy(m, h.Incidents)
	m[incident] = since.UTC()
	h.Incidents = m
	return h
}

// Without returns the hold without the incident, and without changing h.
func (h Hold) Without(incident string) Hold {
	m := maps.Clone(h.Incidents)
	delete(m, incident)
	if len(m) == 0 {
		return Hold{}
	}
	h.Incidents = m
	return h
}

// A PodRef names one pod for ever: the uid is never used again.
type PodRef struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	UID       string `json:"uid"`
	Node      string `json:"node,omitempty"`
	// BootID is the node's when the pod was seen on it. A node with another boot id no longer runs the pod.
	BootID string `json:"bootID,omitempty"`
}

// A Pod is one pod that has not ended.
type Pod struct {
	PodRef

	Job         JobRef // zero when no job that we know owns it
	GPUs        int    // that it has, whole unless Share says else
	Share       int    // of each of them, in thousandths; zero: they are whole
	Running     bool
	Terminating bool // has been asked to go
	Resident    bool // belongs to the node (DaemonSet, static pod): no drain removes it
	Controlled  bool // a controller makes another one when it goes
}

// MilliGPUs is what the pod has of GPUs, in thousandths of one.
func (p Pod) MilliGPUs() int { return milli(p.GPUs, p.Share) }

// A Snapshot is the fleet at one time. It is not changed after it was made.
type Snapshot struct {
	At    time.Time
	Nodes map[string]Node
	Pods  map[string]Pod // by uid
	Jobs  map[JobRef]Job
	// Queues are those that are known by name.
	Queues map[string]Queue
	// Sources says when each source of facts last answered. A source that is missing never has.
	Sources map[string]time.Time
	Alerts  Alerting
}

// PodsOn returns the pods on a node, by namespace and name.
func (s Snapshot) PodsOn(node string) []Pod {
	var out []Pod
	for _, p := range s.Pods {
		if p.Node == node {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, comparePods)
	return out
}

// PodsOf returns the pods of a job, by namespace and name.
func (s Snapshot) PodsOf(job JobRef) []Pod {
	var out []Pod
	for _, p := range s.Pods {
		if p.Job == job {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, comparePods)
	return out
}

// JobsOn returns the jobs that hold GPUs of a node, each once, in order of name.
func (s Snapshot) JobsOn(node string) []JobRef {
	seen := map[JobRef]bool{}
	for _, p := range s.Pods {
		if p.Node == node && p.GPUs > 0 && p.Job != (JobRef{}) {
			seen[p.Job] = true
		}
	}
	return slices.SortedFunc(maps.Keys(seen), JobRef.Compare)
}

// Left returns those of the pods that may still run: their uid is there and their
// node has not been booted anew since.
func (s Snapshot) Left(pods []PodRef) []PodRef {
	var left []PodRef
	for _, p := range pods {
		if _, there := s.Pods[p.UID]; !there {
			continue
		}
		if n, ok := s.Nodes[p.Node]; ok && p.BootID != "" && n.BootID != "" && n.BootID != p.BootID {
			continue // fenced: that boot has ended
		}
		left = append(left, p)
	}
	return left
}

// NodesOf returns the nodes of a job's pods, also of those that have ended badly lately,
// each once, in order of name.
func (s Snapshot) NodesOf(job JobRef) []string {
	seen := map[string]bool{}
	for _, p := range s.Pods {
		if p.Job == job && p.Node != "" {
			seen[p.Node] = true
		}
	}
	for _, f := range s.Jobs[job].Failures {
		if f.Pod.Node != "" {
			seen[f.Pod.Node] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// NodeNames returns the names of all nodes, in order.
func (s Snapshot) NodeNames() []string { return slices.Sorted(maps.Keys(s.Nodes)) }

func comparePods(a, b Pod) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
}
