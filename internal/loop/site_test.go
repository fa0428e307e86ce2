package loop

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// t0 is when the tests' faults happen.
var t0 = time.Date(2026, 11, 30, 14, 2, 7, 0, time.UTC)

// took is how long after its start an action of the site is done.
var took = map[string]time.Duration{
	"cordon": time.Second, "checkpoint": 20 * time.Second, "stop": 30 * time.Second, "start": time.Second, "drain": 40 * time.Second,
	"reboot": 2 * time.Minute, "verify": 5 * time.Minute, "release": time.Second,
}

// A site is a small model of a cluster with an actuator in front of it: it is the
// loop's World and Actuator. What was done in it, and how often, is counted.
type site struct {
	mu    sync.Mutex
	nodes map[string]fleet.Node
	jobs  map[fleet.JobRef]fleet.Job
	pods  map[string]fleet.Pod

	marks   map[string]bool // keys of orders that were carried out
	effects map[string]int  // action and target → how often it was really done
	starts  []remedy.Order  // every call of Start, found or not
	admits  []remedy.Order  // every order that gates were asked about

	// Before and after are asked around the effect of each Start. Their error is the
	// answer of the Start; what before refuses has no effect.
	before, after func(o remedy.Order) error
	// gate answers for one order; nil: all pass.
	gate func(o remedy.Order) []remedy.GateResult
	// ends overrules how an order ends; nil: it is done once its time is over.
	ends    func(now time.Time, o remedy.Order) (remedy.Outcome, bool)
	unknown error // of Snapshot
}

// newSite has n nodes of eight GPUs, and one gang of one worker on each.
func newSite(n int) *site {
	s := &site{
		nodes: map[string]fleet.Node{}, jobs: map[fleet.JobRef]fleet.Job{}, pods: map[string]fleet.Pod{},
		marks: map[string]bool{}, effects: map[string]int{},
	}
	for i := range n {
		name := nodeName(i)
		gpus := make([]fleet.GPU, 8)
		for g := range gpus {
			gpus[g] = fleet.GPU{Index: g, UUID: fmt.Sprintf("GPU-%d-%d", i, g), Up: fleet.True}
		}
		s.nodes[name] = fleet.Node{
			Name: name, UID: "uid-" + name, Version: 1, BootID: "boot-1", GPUs: gpus, Ready: fleet.Condition{Status: fleet.True, Since: t0},
			Capacity: fleet.Resources{GPUs: 8}, Allocatable: fleet.Resources{GPUs: 8},
		}
		ref := fleet.JobRef{Kind: "Job.sim", Namespace: "train", Name: fmt.Sprintf("job-%02d", i)}
		s.jobs[ref] = fleet.Job{Ref: ref, UID: "uid-" + ref.Name, Version: 1, Workers: 1, Each: fleet.Resources{GPUs: 4}, Phase: fleet.JobRunning, Started: t0.Add(-time.Hour)}
		s.pods[ref.Name] = fleet.Pod{PodRef: fleet.PodRef{Namespace: "train", Name: ref.Name, UID: ref.Name, Node: name}, Job: ref, GPUs: 4, Running: true}
	}
	return s
}

func nodeName(i int) string { return fmt.Sprintf("gpu-%02d", i) }

// lost is that a GPU of the node is lost.
func lost(node, gpu int) remedy.Evidence {
	return remedy.Evidence{
		Subject: remedy.Subject{Kind: remedy.SubjectGPU, Node: nodeName(node), Index: fmt.Sprint(gpu)}, Class: remedy.ClassGPULost,
		BootID: "boot-1", At: t0, Seen: t0.Add(time.Second), Source: "rules", Summary: fmt.Sprintf("XID 79 on GPU %d of %s", gpu, nodeName(node)),
	}
}

func (s *site) Snapshot(_ context.Context, now time.Time) (fleet.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unknown != nil {
		return fleet.Snapshot{}, s.unknown
	}
	return fleet.Snapshot{At: now, Nodes: maps.Clone(s.nodes), Jobs: maps.Clone(s.jobs), Pods: maps.Clone(s.pods)}, nil
}

func (s *site) Start(ctx context.Context, o remedy.Order) (remedy.Receipt, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.starts = append(s.starts, o)
	if err := ctx.Err(); err != nil {
		return remedy.Receipt{}, err
	}
	if s.before != nil {
		if err := s.before(o); err != nil {
			return remedy.Receipt{}, err
		}
	}
	r := remedy.Receipt{Found: s.marks[o.Key]}
	if !r.Found {
		s.marks[o.Key] = true
		if done := s.effect(o); done {
			s.effects[o.Action+" "+o.Target.String()]++
		}
	}
	r.Version = s.version(o)
	if s.after != nil {
		if err := s.after(o); err != nil {
			return remedy.Receipt{}, err
		}
	}
	return r, nil
}

func (s *site) version(o remedy.Order) fleet.Version {
	if o.Target.Node != "" {
		return s.nodes[o.Target.Node].Version
	}
	return s.jobs[o.Target.Job].Version
}

// effect changes the model and reports whether there was anything to change.
func (s *site) effect(o remedy.Order) bool {
	n, j := s.nodes[o.Target.Node], s.jobs[o.Target.Job]
	switch o.Action {
	case "cordon":
		if n.Hold.Has(o.Incident) {
			return false
		}
		n.Hold, n.Unschedulable = n.Hold.With(o.Incident, o.Reserved), true
	case "release":
		if !n.Hold.Has(o.Incident) {
			return false
		}
		if n.Hold = n.Hold.Without(o.Incident); !n.Hold.Any() {
			n.Unschedulable = false
		}
	case "reboot":
		n.BootID += "'"
	case "checkpoint":
		j.CheckpointAsked = o.Key
	case "stop":
		if j.Suspended {
			return false
		}
		j.Suspended, j.Phase, j.StoppedBy = true, fleet.JobSuspended, o.Key
		maps.DeleteFunc(s.pods, func(_ string, p fleet.Pod) bool { return p.Job == j.Ref })
	case "start":
		if !j.Suspended {
			return false
		}
		j.Suspended, j.Phase, j.StartedBy = false, fleet.JobRunning, o.Key
		j.Attempt++
	case "drain", "verify":
		return true
	}
	if n.Name != "" {
		n.Version++
		s.nodes[n.Name] = n
	}
	if o.Target.Job != (fleet.JobRef{}) {
		j.Version++
		s.jobs[j.Ref] = j
	}
	return true
}

func (s *site) Check(now time.Time, f fleet.Snapshot, o remedy.Order, r remedy.Receipt) (remedy.Outcome, bool) {
	if !f.At.After(r.At) {
		return remedy.Outcome{}, false
	}
	if s.ends != nil {
		if out, ended := s.ends(now, o); ended || out.Ending != "" {
			return out, ended
		}
	}
	switch {
	case now.Sub(r.At) >= took[o.Action]:
		return remedy.Outcome{Ending: remedy.Done}, true
	case !now.Before(o.Deadline):
		return remedy.Outcome{Ending: remedy.Late, Note: "its time is over"}, true
	}
	return remedy.Outcome{}, false
}

func (s *site) Admit(_ time.Time, _ fleet.Snapshot, _ []remedy.Incident, _ remedy.Incident, orders []remedy.Order) []remedy.GateResult {
	s.admits = append(s.admits, orders...)
	if s.gate == nil {
		return []remedy.GateResult{{Gate: "all", Pass: true, Reason: "nothing is against it"}}
	}
	return s.gate(orders[0])
}

// uncordon is what a person does.
func (s *site) uncordon(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[node]
	n.Unschedulable = false
	n.Version++
	s.nodes[node] = n
}

// started reports whether an order of the action was really carried out.
func (s *site) started(action string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for what := range s.effects {
		if strings.HasPrefix(what, action+" ") {
			return true
		}
	}
	return false
}

// state is the site in words: what was done to it, and what is left of it.
func (s *site) state() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for what, n := range s.effects {
		out = append(out, fmt.Sprintf("%s: %d times", what, n))
	}
	for _, n := range s.nodes {
		out = append(out, fmt.Sprintf("%s: boot %s, unschedulable %t, held by %v", n.Name, n.BootID, n.Unschedulable, slices.Sorted(maps.Keys(n.Hold.Incidents))))
	}
	for _, j := range s.jobs {
		out = append(out, fmt.Sprintf("%s: %s, suspended %t, attempt %d", j.Ref, j.Phase, j.Suspended, j.Attempt))
	}
	slices.Sort(out)
	return out
}

// ladder is the whole ladder for a lost GPU.
func ladder() []remedy.Step {
	step := func(action string, scope remedy.Scope, effect remedy.Effect, role remedy.Role, within time.Duration) remedy.Step {
		return remedy.Step{Action: action, Scope: scope, Effect: effect, Role: role, Within: remedy.Duration(within), Optional: role == remedy.RoleSave, Params: []byte(`{}`)}
	}
	return []remedy.Step{
		step("cordon", remedy.ScopeNode, remedy.EffectHarm, remedy.RoleHold, 2*time.Minute),
		step("checkpoint", remedy.ScopeJobs, remedy.EffectAsk, remedy.RoleSave, 2*time.Minute),
		step("stop", remedy.ScopeJobs, remedy.EffectHarm, remedy.RoleStop, 10*time.Minute),
		step("start", remedy.ScopeJobs, remedy.EffectRecovery, remedy.RoleStart, 10*time.Minute),
		step("drain", remedy.ScopeNode, remedy.EffectHarm, remedy.RoleNone, 10*time.Minute),
		step("reboot", remedy.ScopeNode, remedy.EffectHarm, remedy.RoleRenew, 20*time.Minute),
		step("verify", remedy.ScopeNode, remedy.EffectAsk, remedy.RoleVerify, 30*time.Minute),
		step("release", remedy.ScopeNode, remedy.EffectRecovery, remedy.RoleRelease, 10*time.Minute),
	}
}

// A mortal is a store that ends the life of its loop: at one of its writes, or at one
// of the site's starts, as the process would end there. Nothing that the loop does
// afterwards has an effect.
type mortal struct {
	Store
	*site

	mu     sync.Mutex
	calls  int
	dies   int  // at which of the calls; 0: never
	after  bool // the call still has its effect, and its answer is lost
	dead   bool
	writes []remedy.Incident // that were stored
	events []string          // writes and starts, in order
}

var errDead = errors.New("the process has ended")

// reach counts a call. It returns whether the call has its effect, and whether its
// answer is lost.
func (m *mortal) reach() (acts, lost bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return false, true
	}
	m.calls++
	if m.calls == m.dies {
		m.dead = true
		return m.after, true
	}
	return true, false
}

func (m *mortal) write(in remedy.Incident, write func() (remedy.Incident, error)) (remedy.Incident, error) {
	acts, lost := m.reach()
	if !acts {
		return in, errDead
	}
	stored, err := write()
	if lost {
		return in, errDead
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil {
		m.writes = append(m.writes, stored)
		m.events = append(m.events, "write "+in.Name)
	}
	return stored, err
}

func (m *mortal) Create(ctx context.Context, in remedy.Incident) (remedy.Incident, error) {
	return m.write(in, func() (remedy.Incident, error) { return m.Store.Create(ctx, in) })
}

func (m *mortal) Update(ctx context.Context, in remedy.Incident) (remedy.Incident, error) {
	return m.write(in, func() (remedy.Incident, error) { return m.Store.Update(ctx, in) })
}

func (m *mortal) Start(ctx context.Context, o remedy.Order) (remedy.Receipt, error) {
	acts, lost := m.reach()
	if !acts {
		return remedy.Receipt{}, errDead
	}
	m.mu.Lock()
	m.events = append(m.events, "start "+o.Key)
	m.mu.Unlock()
	r, err := m.site.Start(ctx, o)
	if lost {
		return remedy.Receipt{}, errDead
	}
	return r, err
}
