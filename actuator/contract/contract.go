// Package contract is the test that every cluster behind the actuator passes, the
// simulated one and Kubernetes alike, with every action that there is. [Memory] is
// the reference: the smallest cluster that does what the interfaces say.
//
// It is imported by tests only.
package contract

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// A Backend is a cluster under test, with the hands that are not Stoker's: people,
// training code, and what makes a cluster go on.
type Backend interface {
	Cluster() actuator.Cluster
	// Nodes are the names of at least six nodes with 8 GPUs each, that are ready,
	// schedulable, empty and unmarked. Other tests do not use them.
	Nodes() []string
	// Now is the cluster's time, never before that of a snapshot which was returned.
	Now() time.Time
	// Until lets the cluster go on until a snapshot, taken after the call and at a
	// later time than any before, satisfies ok. It fails the test when that takes too long.
	Until(t *testing.T, what string, ok func(fleet.Snapshot) bool) fleet.Snapshot

	// RunJob makes a job of so many workers with gpus GPUs each and returns when all run.
	// Pods of it that go are made anew unless the job is stopped.
	RunJob(t *testing.T, name string, workers, gpus int) fleet.JobRef
	// RunPod puts a running pod without GPUs on a node.
	RunPod(t *testing.T, node string, kind PodKind) fleet.PodRef
	// Refuse puts the pod under a disruption budget that lets none go; Allow removes it.
	Refuse(t *testing.T, p fleet.PodRef)
	Allow(t *testing.T, p fleet.PodRef)
	// Cordon and Suspend do what a person does with kubectl.
	Cordon(t *testing.T, node string, unschedulable bool)
	Suspend(t *testing.T, job fleet.JobRef, suspend bool)
	// Save is the training code: a complete checkpoint, and the answer to the request.
	Save(t *testing.T, job fleet.JobRef, key string, c fleet.Checkpoint)
	// Recipe writes a recipe on the job, as its owner would, and nothing else.
	Recipe(t *testing.T, job fleet.JobRef, name, text string)
	// Boot gives the node a new boot, as the repair of it would.
	Boot(t *testing.T, node string)
	// GPU is the uuid of a GPU of the node.
	GPU(node string) string
	// FailRepair makes the named repair fail, with a note.
	FailRepair(t *testing.T, repair, note string)
	// EndRepair lets the named repair, which is no boot, come to a good end.
	EndRepair(t *testing.T, repair string)
}

// A PodKind says whose a pod is.
type PodKind string

// The kinds of pods that [Backend.RunPod] makes.
const (
	PodControlled PodKind = "controlled" // a controller would make another one
	PodBare       PodKind = "bare"       // nobody would
	PodResident   PodKind = "resident"   // belongs to the node
)

// Run runs the contract. newBackend is called for each test.
func Run(t *testing.T, newBackend func(t *testing.T) Backend) {
	t.Helper()
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) { s.run(newBench(t, newBackend(t))) })
	}
	t.Run("every action, started again after its answer was lost, finds its effect and writes nothing", func(t *testing.T) {
		for _, action := range actuator.Actions.Names() {
			t.Run(action, func(t *testing.T) { repeat(newBench(t, newBackend(t)), action) })
		}
	})
	t.Run("every action says gone of a target that is not there", func(t *testing.T) {
		for _, action := range actuator.Actions.Names() {
			t.Run(action, func(t *testing.T) { absent(newBench(t, newBackend(t)), action) })
		}
	})
}

// A bench is one backend with an actuator on it, and what tests do with them.
type bench struct {
	*testing.T
	Backend

	door    *actuator.Actuator
	watched *watched
	orders  int
}

func newBench(t *testing.T, b Backend) *bench {
	t.Helper()
	w := &watched{Cluster: b.Cluster()}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	door, err := actuator.New(log, w, actuator.Actions, nil, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	return &bench{T: t, Backend: b, door: door, watched: w}
}

// order makes the incident's next order. The ill node is the first one.
func (b *bench) order(action, incident string, to remedy.Target) remedy.Order {
	b.Helper()
	info, ok := actuator.Actions.Info(action)
	if !ok {
		b.Fatalf("there is no action %s", action)
	}
	b.orders++
	return remedy.Order{
		Key: fmt.Sprintf("%s/%d-%s/%s", incident, b.orders, action, to), Incident: incident, Action: action,
		Effect: info.Effect, Role: info.Role, Target: to, Node: b.Nodes()[0], Cause: "GPU 3 fell off the bus (XID 79)", Actor: "stoker",
		Reserved: b.Now(), Deadline: b.Now().Add(info.Within),
	}
}

// node reads the ill node.
func (b *bench) node() fleet.Node {
	b.Helper()
	n, err := b.Cluster().Node(b.Context(), b.Nodes()[0])
	if err != nil {
		b.Fatal(err)
	}
	return n
}

func (b *bench) job(ref fleet.JobRef) fleet.Job {
	b.Helper()
	j, err := b.Cluster().Job(b.Context(), ref)
	if err != nil {
		b.Fatal(err)
	}
	return j
}

// on is the ill node as a target, and of a job as one.
func (b *bench) on() remedy.Target {
	b.Helper()
	n := b.node()
	return remedy.Target{Node: n.Name, UID: n.UID}
}

func (b *bench) of(ref fleet.JobRef) remedy.Target {
	b.Helper()
	return remedy.Target{Job: ref, UID: b.job(ref).UID}
}

// start starts an order as the loop does: a conflict is tried again.
func (b *bench) start(o remedy.Order) remedy.Receipt {
	b.Helper()
	for range 20 {
		r, err := b.door.Start(b.Context(), o)
		if err == nil {
			r.At = b.Now()
			return r
		}
		if ending(err) != remedy.Conflict {
			b.Fatalf("start %s: %v", o.Action, err)
		}
		b.Until(b.T, "the next try", func(fleet.Snapshot) bool { return true })
	}
	b.Fatalf("start %s of %s: a conflict each time", o.Action, o.Target)
	return remedy.Receipt{}
}

// refused starts an order that is not to start, and returns what is said against it.
func (b *bench) refused(o remedy.Order, want remedy.Ending) string {
	b.Helper()
	writes := b.watched.writes
	_, err := b.door.Start(b.Context(), o)
	if err == nil || ending(err) != want {
		b.Fatalf("start %s: %v (%s), want %s", o.Action, err, ending(err), want)
	}
	if b.watched.writes != writes {
		b.Errorf("%s was refused after %d writes", o.Action, b.watched.writes-writes)
	}
	return err.Error()
}

// end waits for the end of an order.
func (b *bench) end(o remedy.Order, r remedy.Receipt) remedy.Outcome {
	b.Helper()
	var out remedy.Outcome
	b.Until(b.T, o.Action+" ends", func(f fleet.Snapshot) bool {
		var ok bool
		out, ok = b.door.Check(b.Now(), f, o, r)
		return ok
	})
	return out
}

// do starts an order and waits until it is done.
func (b *bench) do(o remedy.Order) remedy.Receipt {
	b.Helper()
	r := b.start(o)
	if out := b.end(o, r); out.Ending != remedy.Done {
		b.Fatalf("%s ended %s (%s), want done", o.Action, out.Ending, out.Note)
	}
	return r
}

// ending sorts an error as the loop does.
func ending(err error) remedy.Ending {
	if f, ok := errors.AsType[*remedy.Failure](err); ok {
		return f.Ending
	}
	return remedy.Unclear
}
