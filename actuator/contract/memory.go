package contract

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// Memory is a cluster in memory, with a clock that goes on by a second with each
// snapshot. It has nodes, gangs that are placed whole, pods, and repairs that do
// nothing by themselves. It is the reference of the contract and for unit tests.
type Memory struct {
	mu      sync.Mutex
	now     time.Time
	last    fleet.Version
	prev    fleet.Snapshot
	nodes   map[string]fleet.Node
	pods    map[string]fleet.Pod
	jobs    map[fleet.JobRef]fleet.Job
	repairs map[string]actuator.Repair
	refused map[string]bool // uids under a budget that lets none go
	claims  map[fleet.JobRef][]actuator.Claim
	stuck   map[string]bool // nodes whose pods do not go though asked
}

// NewMemory makes a cluster of n empty nodes with 8 GPUs each.
func NewMemory(n int) *Memory {
	m := &Memory{
		now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), nodes: map[string]fleet.Node{}, pods: map[string]fleet.Pod{},
		jobs: map[fleet.JobRef]fleet.Job{}, repairs: map[string]actuator.Repair{}, refused: map[string]bool{}, stuck: map[string]bool{},
		claims: map[fleet.JobRef][]actuator.Claim{},
	}
	for i := range n {
		name := fmt.Sprintf("gpu-a-%02d", i+1)
		gpus := fleet.Resources{GPUs: 8}
		m.nodes[name] = fleet.Node{
			Name: name, UID: "uid-" + name, Version: m.next(), BootID: "boot-1-" + name, Capacity: gpus, Allocatable: gpus,
			Ready: fleet.Condition{Status: fleet.True, Since: m.now.Add(-time.Hour)},
		}
	}
	return m
}

func (m *Memory) next() fleet.Version { m.last++; return m.last }

// Cluster is the cluster itself.
func (m *Memory) Cluster() actuator.Cluster { return m }

// Nodes are the names of all nodes, in order.
func (m *Memory) Nodes() []string { return slices.Sorted(maps.Keys(m.nodes)) }

// Now is the cluster's time.
func (m *Memory) Now() time.Time { m.mu.Lock(); defer m.mu.Unlock(); return m.now }

// Change changes a node as its kubelet or a person would.
func (m *Memory) Change(node string, change func(*fleet.Node)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.nodes[node]
	change(&n)
	n.Version = m.next()
	m.nodes[node] = n
}

// ChangeJob changes a job as its controller or a person would.
func (m *Memory) ChangeJob(ref fleet.JobRef, change func(*fleet.Job)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	j := m.jobs[ref]
	change(&j)
	j.Version = m.next()
	m.jobs[ref] = j
}

// Stick makes the pods of a node stay though they are asked to go, as where the node is dead.
func (m *Memory) Stick(node string) { m.mu.Lock(); defer m.mu.Unlock(); m.stuck[node] = true }

// Snapshot lets the cluster go on for a second and shows it.
func (m *Memory) Snapshot() fleet.Snapshot {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = m.now.Add(time.Second)
	maps.DeleteFunc(m.pods, func(_ string, p fleet.Pod) bool {
		boot := m.nodes[p.Node].BootID
		return p.Terminating && !m.stuck[p.Node] || p.BootID != boot && !m.stuck[p.Node]
	})
	for _, ref := range slices.SortedFunc(maps.Keys(m.jobs), fleet.JobRef.Compare) {
		m.jobs[ref] = m.advance(m.jobs[ref])
	}
	f := fleet.NewFacts()
	f.Nodes, f.Pods, f.Jobs = maps.Clone(m.nodes), maps.Clone(m.pods), maps.Clone(m.jobs)
	m.prev = f.Snapshot(m.now, m.prev)
	return m.prev
}

// advance is the job's controller: pods of a suspended job are asked to go, those of
// one that may run are placed, all or none.
func (m *Memory) advance(j fleet.Job) fleet.Job {
	var have []fleet.Pod
	for _, p := range m.pods {
		if p.Job == j.Ref {
			have = append(have, p)
		}
	}
	was := j
	switch {
	case j.Phase.Ended():
	case j.Suspended:
		for _, p := range have {
			p.Terminating = true
			m.pods[p.UID] = p
		}
		j.Phase, j.Started = fleet.JobSuspended, time.Time{}
	case len(have) == 0 && m.place(j):
		j.Phase, j.Started = fleet.JobRunning, m.now
	case len(have) == 0:
		j.Phase = fleet.JobPending
	}
	if j.Phase != was.Phase {
		j.Version = m.next()
	}
	return j
}

func (m *Memory) place(j fleet.Job) bool {
	var free []string
	for _, name := range m.Nodes() {
		n, used := m.nodes[name], 0
		for _, p := range m.pods {
			if p.Node == name {
				used += p.GPUs
			}
		}
		if n.Available() && !slices.Contains(j.Avoid, name) && n.Allocatable.GPUs-used >= j.Each.GPUs {
			free = append(free, name)
		}
	}
	if len(free) < j.Workers {
		return false
	}
	for i, name := range free[:j.Workers] {
		p := m.pod(name, fmt.Sprintf("%s-%d", j.Ref.Name, i))
		p.Job, p.GPUs, p.Controlled = j.Ref, j.Each.GPUs, true
		m.pods[p.UID] = p
	}
	return true
}

func (m *Memory) pod(node, name string) fleet.Pod {
	ref := fleet.PodRef{Namespace: "train", Name: name, UID: fmt.Sprintf("pod-%d", m.next()), Node: node, BootID: m.nodes[node].BootID}
	return fleet.Pod{PodRef: ref, Running: true}
}

// Until shows the cluster second after second, for an hour of its time.
func (m *Memory) Until(t *testing.T, what string, ok func(fleet.Snapshot) bool) fleet.Snapshot {
	t.Helper()
	for range 3600 {
		if f := m.Snapshot(); ok(f) {
			return f
		}
	}
	t.Fatalf("%s: not within an hour", what)
	return fleet.Snapshot{}
}

// RunJob makes a job and waits until it runs.
func (m *Memory) RunJob(t *testing.T, name string, workers, gpus int) fleet.JobRef {
	t.Helper()
	ref := fleet.JobRef{Kind: "Job.batch", Namespace: "train", Name: name}
	m.ChangeJob(ref, func(j *fleet.Job) {
		*j = fleet.Job{Ref: ref, UID: "uid-" + name, Workers: workers, Each: fleet.Resources{GPUs: gpus}}
	})
	m.Until(t, name+" runs", func(f fleet.Snapshot) bool { return f.Jobs[ref].Phase == fleet.JobRunning })
	return ref
}

// RunPod puts a pod without GPUs on a node.
func (m *Memory) RunPod(_ *testing.T, node string, kind PodKind) fleet.PodRef {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.pod(node, fmt.Sprintf("%s-%d", kind, len(m.pods)))
	p.Controlled, p.Resident = kind != PodBare, kind == PodResident
	m.pods[p.UID] = p
	return p.PodRef
}

// Refuse puts a pod under a budget that lets none go.
func (m *Memory) Refuse(_ *testing.T, p fleet.PodRef) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refused[p.UID] = true
}

// Allow removes the budget of a pod.
func (m *Memory) Allow(_ *testing.T, p fleet.PodRef) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.refused, p.UID)
}

// Cordon does what a person does.
func (m *Memory) Cordon(_ *testing.T, node string, unschedulable bool) {
	m.Change(node, func(n *fleet.Node) { n.Unschedulable = unschedulable })
}

// Suspend does what a person does.
func (m *Memory) Suspend(_ *testing.T, ref fleet.JobRef, suspend bool) {
	m.ChangeJob(ref, func(j *fleet.Job) { j.Suspended = suspend })
}

// Save is the training code.
func (m *Memory) Save(_ *testing.T, ref fleet.JobRef, key string, c fleet.Checkpoint) {
	m.ChangeJob(ref, func(j *fleet.Job) { j.Checkpoint, j.CheckpointAnswered = c, cmp.Or(key, j.CheckpointAnswered) })
}

// Boot gives the node a new boot.
func (m *Memory) Boot(_ *testing.T, node string) {
	m.Change(node, func(n *fleet.Node) { n.BootID += "+" })
}

// FailRepair makes a repair fail.
func (m *Memory) FailRepair(_ *testing.T, repair, note string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.repairs[repair]
	r.Failed, r.Note = true, note
	m.repairs[repair] = r
}

// GPU is a uuid for a GPU of the node.
func (m *Memory) GPU(node string) string { return "GPU-0-of-" + node }

// EndRepair ends a repair well.
func (m *Memory) EndRepair(_ *testing.T, repair string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.repairs[repair]
	r.Done = true
	m.repairs[repair] = r
}

func failure(e remedy.Ending, format string, args ...any) error {
	return &remedy.Failure{Ending: e, Err: fmt.Errorf(format, args...)}
}

// DropRepair deletes a repair, as a person would who does not want it.
func (m *Memory) DropRepair(repair string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.repairs, repair)
}

// Repairs are the names of the repairs that there are.
func (m *Memory) Repairs() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.repairs))
}

// Node reads a node.
func (m *Memory) Node(_ context.Context, name string) (fleet.Node, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, ok := m.nodes[name]
	if !ok {
		return n, failure(remedy.Gone, "no node %s", name)
	}
	return n, nil
}

// MarkNode marks a node.
func (m *Memory) MarkNode(_ context.Context, n fleet.Node, hold fleet.Hold, unschedulable bool) (fleet.Node, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	is, ok := m.nodes[n.Name]
	switch {
	case !ok || is.UID != n.UID:
		return n, failure(remedy.Gone, "no node %s", n.Name)
	case is.Version != n.Version:
		return n, failure(remedy.Conflict, "node %s has changed", n.Name)
	}
	is.Hold, is.Unschedulable, is.Version = hold, unschedulable, m.next()
	m.nodes[n.Name] = is
	return is, nil
}

// PodsOn lists the pods on a node.
func (m *Memory) PodsOn(_ context.Context, node string) ([]fleet.Pod, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return bootless(fleet.Snapshot{Pods: m.pods}.PodsOn(node)), nil
}

// PodsOf lists the pods of a job.
func (m *Memory) PodsOf(_ context.Context, job fleet.JobRef) ([]fleet.Pod, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return bootless(fleet.Snapshot{Pods: m.pods}.PodsOf(job)), nil
}

// bootless takes the boots out of pods that are read: an API object does not tell of them.
func bootless(pods []fleet.Pod) []fleet.Pod {
	for i := range pods {
		pods[i].BootID = ""
	}
	return pods
}

// Evict asks a pod to go.
func (m *Memory) Evict(_ context.Context, ref fleet.PodRef) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	p, ok := m.pods[ref.UID]
	switch {
	case !ok:
		return failure(remedy.Gone, "pod %s is gone", ref.Name)
	case m.refused[ref.UID]:
		return failure(remedy.Conflict, "disruption budget of %s lets none go", ref.Name)
	}
	p.Terminating = true
	m.pods[p.UID] = p
	return nil
}

// Job reads a job.
func (m *Memory) Job(_ context.Context, ref fleet.JobRef) (fleet.Job, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.job(ref)
}

func (m *Memory) job(ref fleet.JobRef) (fleet.Job, error) {
	j, ok := m.jobs[ref]
	if !ok {
		return j, failure(remedy.Gone, "no job %s", ref)
	}
	return j, nil
}

func (m *Memory) write(j fleet.Job, change func(*fleet.Job)) (fleet.Job, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	is, err := m.job(j.Ref)
	switch {
	case err != nil:
		return is, err
	case is.UID != j.UID:
		return is, failure(remedy.Gone, "job %s is another one", j.Ref)
	case is.Version != j.Version:
		return is, failure(remedy.Conflict, "job %s has changed", j.Ref)
	}
	change(&is)
	is.Version = m.next()
	m.jobs[j.Ref] = is
	return is, nil
}

// AskCheckpoint leaves the request on the job.
func (m *Memory) AskCheckpoint(_ context.Context, j fleet.Job, key string) (fleet.Job, error) {
	return m.write(j, func(j *fleet.Job) { j.CheckpointAsked = key })
}

// StopJob suspends the job.
func (m *Memory) StopJob(_ context.Context, j fleet.Job, key string) (fleet.Job, error) {
	return m.write(j, func(j *fleet.Job) { j.Suspended, j.StoppedBy = true, key })
}

// StartJob lets the job run again.
func (m *Memory) StartJob(_ context.Context, j fleet.Job, key string, with actuator.Restart) (fleet.Job, error) {
	return m.write(j, func(j *fleet.Job) {
		j.Suspended, j.StartedBy, j.Resume, j.Avoid = false, key, with.Resume, with.Avoid
		j.Attempt++
	})
}

// SetRecipe gives the job's pods values to read.
func (m *Memory) SetRecipe(_ context.Context, j fleet.Job, key string, env map[string]string) (fleet.Job, error) {
	return m.write(j, func(j *fleet.Job) {
		all := maps.Clone(j.Env)
		if all == nil {
			all = map[string]string{}
		}
		maps.Copy(all, env)
		j.Env, j.RecipeBy = all, key
	})
}

// Recipe writes a recipe on the job, as its owner would.
func (m *Memory) Recipe(_ *testing.T, ref fleet.JobRef, name, text string) {
	m.ChangeJob(ref, func(j *fleet.Job) {
		j.Recipes = maps.Clone(j.Recipes)
		if j.Recipes == nil {
			j.Recipes = map[string]string{}
		}
		j.Recipes[name] = text
	})
}

// Claim makes the job mount a volume claim that lacks something, or nothing.
func (m *Memory) Claim(ref fleet.JobRef, name, lacks string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.claims[ref] = append(slices.DeleteFunc(m.claims[ref], func(c actuator.Claim) bool { return c.Name == name }), actuator.Claim{Name: name, Lacks: lacks})
}

// ClaimsOf reads the volume claims of a job.
func (m *Memory) ClaimsOf(_ context.Context, j fleet.Job) ([]actuator.Claim, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.claims[j.Ref]), nil
}

// Repair reads a repair.
func (m *Memory) Repair(_ context.Context, name string) (actuator.Repair, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.repairs[name]
	if !ok {
		return r, failure(remedy.Gone, "no repair %s", name)
	}
	return r, nil
}

// CreateRepair creates a repair, once under its name.
func (m *Memory) CreateRepair(_ context.Context, r actuator.Repair) (actuator.Repair, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, taken := m.repairs[r.Name]; taken {
		return r, failure(remedy.Conflict, "repair %s is there", r.Name)
	}
	r.Version = m.next()
	m.repairs[r.Name] = r
	return r, nil
}
