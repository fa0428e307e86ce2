// Package actuator turns orders into changes of the cluster and tells how they
// ended. It is the one door: nothing else changes the cluster.
//
// An action starts a change and returns when the API has answered; whether the
// change has taken effect is asked of a snapshot, later, without waiting. Before
// anything harmful, gates are asked. The cluster itself is behind the small
// interfaces of this file, which Kubernetes and the simulated fleet implement and
// one contract test holds. No action keeps state, sleeps, retries or reads a clock.
package actuator

import (
	"context"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// An Action changes the cluster without waiting for the effect.
type Action interface {
	// Start makes the change and returns when the API has answered. It looks first:
	// where the mark of the order's key is there already, nothing is written and the
	// receipt says Found. Errors carry a [remedy.Failure] where the cluster has said
	// what became of the change; any other error means that nobody knows.
	Start(ctx context.Context, o remedy.Order) (remedy.Receipt, error)
	// Check reports whether the order has ended, and how. It is pure. A snapshot that
	// is older than the receipt ends nothing.
	Check(now time.Time, f fleet.Snapshot, o remedy.Order, r remedy.Receipt) (remedy.Outcome, bool)
}

// Cluster is everything that actions may do to a cluster. Reads are live, never from
// a cache; writes carry the uid and version of what was read as preconditions and end
// in a [remedy.Failure] with Conflict when it has changed since.
type Cluster interface {
	Nodes
	Pods
	Jobs
	Volumes
	Repairs
}

// Nodes reads and marks nodes.
type Nodes interface {
	// Node reads one node; a Failure with Gone when there is none.
	Node(ctx context.Context, name string) (fleet.Node, error)
	// MarkNode writes hold and unschedulable in one change, if the node is still n.
	MarkNode(ctx context.Context, n fleet.Node, hold fleet.Hold, unschedulable bool) (fleet.Node, error)
}

// Pods reads and evicts pods.
type Pods interface {
	PodsOn(ctx context.Context, node string) ([]fleet.Pod, error)
	PodsOf(ctx context.Context, job fleet.JobRef) ([]fleet.Pod, error)
	// Evict asks one pod to go, by its uid, so that disruption budgets are respected: a
	// budget that refuses is a Failure with Conflict that names it. Gone when it has gone.
	Evict(ctx context.Context, p fleet.PodRef) error
}

// Jobs reads and changes jobs of any framework. Each write leaves the order's key on
// the job, so that the next look finds it.
type Jobs interface {
	Job(ctx context.Context, ref fleet.JobRef) (fleet.Job, error)
	// AskCheckpoint asks the training code to save now; it answers on the job.
	AskCheckpoint(ctx context.Context, j fleet.Job, key string) (fleet.Job, error)
	// StopJob takes the whole gang off its nodes and keeps the object.
	StopJob(ctx context.Context, j fleet.Job, key string) (fleet.Job, error)
	// StartJob lets a stopped job run again.
	StartJob(ctx context.Context, j fleet.Job, key string, with Restart) (fleet.Job, error)
	// SetRecipe gives the pods of a stopped job, when they run again, these values to read.
	// Values of an earlier recipe that env does not name stay.
	SetRecipe(ctx context.Context, j fleet.Job, key string, env map[string]string) (fleet.Job, error)
}

// Volumes reads what jobs mount.
type Volumes interface {
	// ClaimsOf reads the volume claims that the job's pods mount by name.
	ClaimsOf(ctx context.Context, j fleet.Job) ([]Claim, error)
}

// A Claim is one volume claim of a job.
type Claim struct {
	Name  string
	Lacks string // what keeps pods from mounting it, such as "is Pending"; empty: nothing is known to
}

// A Restart says how a stopped job goes on.
type Restart struct {
	Resume string   // for the pods' annotation stoker.dev/resume-from; empty: the job finds its checkpoint itself
	Avoid  []string // nodes that its pods should not land on
}

// Repairs runs repairs on nodes from a template that is pinned in our own
// configuration and namespace.
type Repairs interface {
	// Repair reads the repair of that name; a Failure with Gone when there is none.
	Repair(ctx context.Context, name string) (Repair, error)
	// CreateRepair creates it under its name. One that is there is a Failure with Conflict.
	CreateRepair(ctx context.Context, r Repair) (Repair, error)
}

// A Repair is one run of the repair template on one node.
type Repair struct {
	Name   string // deterministic, from the order's key
	Action string // such as "reboot"
	Key    string
	Node   string
	GPU    string // uuid, of a repair of one GPU
	// BootID is the boot that the repair is meant for: it must do nothing in another.
	BootID  string
	Version fleet.Version
	Done    bool // has ended, and well
	Failed  bool
	Note    string
}
