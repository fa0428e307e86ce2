package rules

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"

	"stoker.dev/stoker/internal/config"
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// t0 is when the tests' faults happen.
var t0 = time.Date(2026, 11, 30, 14, 2, 7, 0, time.UTC)

const (
	ill  = "gpu-a-02"
	well = "gpu-a-03"
	uuid = "GPU-8f2b6c1e-0000-4a4e-9b1d-3c5a7e9f1b22"
)

var (
	llm  = fleet.JobRef{Kind: "Job.batch", Namespace: "train", Name: "llm"}
	eval = fleet.JobRef{Kind: "Job.batch", Namespace: "dev", Name: "eval"}
	gpu3 = remedy.Subject{Kind: remedy.SubjectGPU, Node: ill, UUID: uuid, PCI: "0000:1a:00.0", Index: "3"}
	node = remedy.Subject{Kind: remedy.SubjectNode, Node: ill}
)

// cluster is two nodes of eight GPUs, a gang on both and a small job on the first.
func cluster(at time.Time) fleet.Snapshot {
	f := fleet.NewFacts()
	for i, name := range []string{ill, well} {
		gpus := make([]fleet.GPU, 8)
		for g := range gpus {
			gpus[g] = fleet.GPU{Index: g, UUID: fmt.Sprintf("GPU-%d-%d", i, g), PCI: fmt.Sprintf("00000000:%X:00.0", 0x17+g), Up: fleet.True}
		}
		if name == ill {
			gpus[3].UUID = uuid
		}
		f.Nodes[name] = fleet.Node{
			Name: name, UID: "uid-" + name, Version: 10, BootID: "boot-1", Ready: fleet.Condition{Status: fleet.True, Since: at.Add(-time.Hour)},
			Capacity: fleet.Resources{GPUs: 8}, Allocatable: fleet.Resources{GPUs: 8}, GPUs: gpus, Seen: at,
		}
	}
	for i, p := range []struct {
		job  fleet.JobRef
		node string
	}{{llm, ill}, {llm, well}, {eval, ill}} {
		uid := fmt.Sprint("pod-", i)
		f.Pods[uid] = fleet.Pod{PodRef: fleet.PodRef{Namespace: p.job.Namespace, Name: uid, UID: uid, Node: p.node}, Job: p.job, GPUs: 4, Running: true, Controlled: true}
	}
	f.Jobs[llm] = fleet.Job{
		Ref: llm, UID: "uid-llm", Version: 20, Workers: 2, Each: fleet.Resources{GPUs: 4}, Phase: fleet.JobRunning,
		Started: at.Add(-10 * time.Hour), Checkpoint: fleet.Checkpoint{Step: 18200, At: at.Add(-30 * time.Minute)},
	}
	f.Jobs[eval] = fleet.Job{Ref: eval, UID: "uid-eval", Version: 20, Workers: 1, Each: fleet.Resources{GPUs: 4}, Phase: fleet.JobRunning, Started: at.Add(-time.Hour)}
	return f.Snapshot(at, fleet.Snapshot{})
}

func xid79() remedy.Evidence {
	return remedy.Evidence{
		Subject: gpu3, Class: remedy.ClassGPULost, BootID: "boot-1", At: t0, Seen: t0.Add(time.Second), Source: "rules",
		Summary: "XID 79 on GPU 3 of gpu-a-02", Labels: map[string]string{"alertname": "GPUXidGpuLost", "xid": "79", "node": ill, "pool": "a"},
	}
}

func unready() remedy.Evidence {
	return remedy.Evidence{Subject: node, Class: remedy.ClassNodeUnready, At: t0, Seen: t0, Source: "rules", Labels: map[string]string{"alertname": "NodeUnready"}}
}

func changed(e remedy.Evidence, f func(*remedy.Evidence)) remedy.Evidence {
	e.Labels = maps.Clone(e.Labels)
	f(&e)
	return e
}

// actionList stands in for the actions of the actuator.
type actionList []remedy.ActionInfo

var actions = actionList{
	{Name: "cordon", Scope: remedy.ScopeNode, Effect: remedy.EffectHarm, Role: remedy.RoleHold, Within: 2 * time.Minute},
	{Name: "checkpoint", Scope: remedy.ScopeJobs, Effect: remedy.EffectAsk, Role: remedy.RoleSave, Within: 2 * time.Minute, Optional: true},
	{Name: "stop", Scope: remedy.ScopeJobs, Effect: remedy.EffectHarm, Role: remedy.RoleStop, Within: 10 * time.Minute},
	{Name: "start", Scope: remedy.ScopeJobs, Effect: remedy.EffectRecovery, Role: remedy.RoleStart, Within: 10 * time.Minute},
	{Name: "drain", Scope: remedy.ScopeNode, Effect: remedy.EffectHarm, Within: 10 * time.Minute},
	{Name: "reboot", Scope: remedy.ScopeNode, Effect: remedy.EffectHarm, Role: remedy.RoleRenew, Within: 20 * time.Minute},
	{Name: "reset", Scope: remedy.ScopeNode, Effect: remedy.EffectHarm, Within: 5 * time.Minute, Optional: true, Of: remedy.OfGPU},
	{Name: "verify", Scope: remedy.ScopeNode, Effect: remedy.EffectAsk, Role: remedy.RoleVerify, Within: 30 * time.Minute},
	{Name: "watch", Scope: remedy.ScopeJobs, Effect: remedy.EffectAsk, Role: remedy.RoleVerify, Within: time.Hour},
	{Name: "release", Scope: remedy.ScopeNode, Effect: remedy.EffectRecovery, Role: remedy.RoleRelease, Within: 10 * time.Minute},
}

func (l actionList) Names() []string {
	var out []string
	for _, a := range l {
		out = append(out, a.Name)
	}
	return out
}

func (l actionList) Info(name string) (remedy.ActionInfo, bool) {
	i := slices.IndexFunc(l, func(a remedy.ActionInfo) bool { return a.Name == name })
	if i < 0 {
		return remedy.ActionInfo{}, false
	}
	return l[i], true
}

func (actionList) Params(action, file, path string, n *yaml.Node) (json.RawMessage, error) {
	var p struct {
		Avoid    string          `yaml:"avoid" json:"avoid,omitempty"`
		For      remedy.Duration `yaml:"for" json:"for,omitempty"`
		Attempts int             `yaml:"attempts" json:"attempts,omitempty"`
		Per      remedy.Duration `yaml:"per" json:"per,omitempty"`
	}
	if err := config.Node(file, path, n, &p); err != nil {
		return nil, err
	}
	return json.Marshal(p)
}

// compiled reads a configuration that has no mistakes.
func compiled(t rapid.TB, text string) Playbooks {
	t.Helper()
	var c Config
	if err := config.Decode("stoker.yaml", []byte(text), &c); err != nil {
		t.Fatal(err)
	}
	p, err := Compile("stoker.yaml", c, actions)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

const wholeLadder = `
playbooks:
  - name: gpu-lost
    class: gpu-lost
    match: ['pool!="dev"']
    steps: &whole
      - cordon: {}
      - checkpoint: {within: 2m}
      - stop: {}
      - start: {avoid: node}
      - drain: {within: 10m}
      - reboot: {within: 20m}
      - verify: {for: 5m}
      - release: {}
  - name: unready
    class: node-unready
    steps: *whole
  - name: stalled
    class: job-stalled
    steps:
      - checkpoint: {}
      - stop: {}
      - start: {}
`

// A patient is one incident on its way, in a cluster of which it is told by hand.
type patient struct {
	t   rapid.TB
	now time.Time
	f   fleet.Snapshot
	in  remedy.Incident
	cfg Playbooks
	// orders are of the last call of Advance, not yet reserved.
	orders []remedy.Order
}

// newPatient opens the incident of the evidence.
func newPatient(t rapid.TB, e remedy.Evidence) *patient {
	t.Helper()
	p := &patient{t: t, now: t0.Add(2 * time.Second), f: cluster(t0.Add(2 * time.Second)), cfg: compiled(t, wholeLadder)}
	opened, notes := Correlate(p.now, p.f, nil, []remedy.Evidence{e}, p.cfg)
	if len(opened) != 1 {
		t.Fatalf("%d incidents were opened, want 1; notes: %v", len(opened), notes)
	}
	p.in = opened[0]
	p.advance()
	return p
}

// change is told of the fleet by its next snapshot. What it leaves alone stays.
func (p *patient) change(f func(*fleet.Snapshot)) {
	f2 := p.f
	f2.At = p.now
	f2.Nodes, f2.Jobs, f2.Pods = maps.Clone(p.f.Nodes), maps.Clone(p.f.Jobs), maps.Clone(p.f.Pods)
	f(&f2)
	p.f = f2
}

func (p *patient) node(f func(*fleet.Node)) {
	p.change(func(s *fleet.Snapshot) {
		n := s.Nodes[ill]
		n.Version++
		f(&n)
		s.Nodes[ill] = n
	})
}

func (p *patient) job(ref fleet.JobRef, f func(*fleet.Job)) {
	p.change(func(s *fleet.Snapshot) {
		j := s.Jobs[ref]
		j.Version++
		f(&j)
		s.Jobs[ref] = j
	})
}

func (p *patient) advance() []remedy.Order {
	p.now = p.now.Add(time.Second)
	p.in, p.orders = Advance(p.now, p.f, p.in, nil, p.cfg)
	return p.orders
}

// told is evidence that comes in now.
func (p *patient) told(ev ...remedy.Evidence) []Note {
	changed, notes := Correlate(p.now, p.f, []remedy.Incident{p.in}, ev, p.cfg)
	for _, in := range changed {
		if in.Name == p.in.Name {
			p.in = in
		}
	}
	return notes
}

// reserve starts the orders of the last advance.
func (p *patient) reserve() {
	p.t.Helper()
	if len(p.orders) == 0 {
		p.t.Fatalf("there are no orders to reserve; the incident is %s: %s", p.in.Phase, p.in.Reason)
	}
	p.in = Reserve(p.now, p.f, p.in, p.orders, nil)
	p.orders = nil
}

// effect is what the order of a step does to the cluster when it is carried out.
func (p *patient) effect(o remedy.Order) fleet.Version {
	switch o.Role {
	case remedy.RoleHold:
		p.node(func(n *fleet.Node) {
			n.Unschedulable, n.Hold = true, n.Hold.With(o.Incident, o.Reserved)
			n.Hold.Cordoned = true
		})
	case remedy.RoleRelease:
		p.node(func(n *fleet.Node) { n.Unschedulable, n.Hold = false, fleet.Hold{} })
	case remedy.RoleRenew:
		p.node(func(n *fleet.Node) { n.BootID = "boot-2" })
	case remedy.RoleStop:
		p.job(o.Target.Job, func(j *fleet.Job) {
			j.Suspended, j.Phase, j.StoppedBy = true, fleet.JobSuspended, o.Key
		})
		p.change(func(s *fleet.Snapshot) {
			maps.DeleteFunc(s.Pods, func(_ string, pod fleet.Pod) bool { return pod.Job == o.Target.Job })
		})
	case remedy.RoleStart:
		p.job(o.Target.Job, func(j *fleet.Job) {
			j.Suspended, j.Phase, j.StartedBy = false, fleet.JobRunning, o.Key
		})
	case remedy.RoleNone, remedy.RoleSave, remedy.RoleVerify:
	}
	if o.Target.Node != "" {
		return p.f.Nodes[o.Target.Node].Version
	}
	return p.f.Jobs[o.Target.Job].Version
}

// end ends all orders of the step that runs, and those that are done have their effect.
func (p *patient) end(e remedy.Ending, note string) {
	p.t.Helper()
	p.endEach(func(remedy.Order) (remedy.Ending, string) { return e, note })
}

func (p *patient) endEach(f func(remedy.Order) (remedy.Ending, string)) {
	p.t.Helper()
	p.now = p.now.Add(time.Minute)
	in := p.in.Clone()
	cur := in.Current()
	if cur == nil {
		p.t.Fatalf("no step runs; the incident is %s: %s", p.in.Phase, p.in.Reason)
	}
	for i := range cur.Orders {
		o := &cur.Orders[i]
		ending, note := f(o.Order)
		if ending != remedy.Rejected { // which is said at once
			o.Receipt = &remedy.Receipt{At: p.now}
		}
		if ending == remedy.Done {
			o.Receipt.Version = p.effect(o.Order)
		}
		o.Outcome = &remedy.Outcome{Ending: ending, Note: note}
	}
	p.in = in
}

// do goes up the ladder until the step of the action has been reserved, each step
// before it being done.
func (p *patient) do(action string) {
	p.t.Helper()
	for range remedy.MaxSteps {
		if cur := p.in.Current(); cur != nil {
			if cur.Action == action {
				return
			}
			p.end(remedy.Done, "")
			p.advance()
		}
		p.reserve()
	}
	p.t.Fatalf("the ladder never came to %s:\n%s", action, strings.Join(history(p.in), "\n"))
}

// toWatch goes up the ladder until its jobs have been started and the state has to be over.
func (p *patient) toWatch() {
	p.t.Helper()
	p.do("start")
	p.end(remedy.Done, "")
	p.advance()
}

// finish carries out whatever is asked for until nothing more is.
func (p *patient) finish() {
	for range 2 * remedy.MaxSteps {
		if cur := p.in.Current(); cur != nil && cur.Orders[0].Outcome == nil {
			p.end(remedy.Done, "")
		}
		p.advance()
		if len(p.orders) == 0 {
			return
		}
		p.reserve()
	}
	p.t.Fatalf("it never ended:\n%s", strings.Join(history(p.in), "\n"))
}

// history is what became of the incident, a line for each step and one for its end.
func history(in remedy.Incident) []string {
	var out []string
	for _, s := range in.Steps {
		var to []string
		for _, o := range s.Orders {
			to = append(to, o.Order.Target.String())
		}
		line := strings.TrimSpace(s.Action+" "+strings.Join(to, " ")) + ": "
		switch {
		case s.Skipped:
			line += "skipped, "
		case s.Running():
			line += "runs"
		default:
			line += string(s.Ending)
			if s.Note != "" {
				line += ", "
			}
		}
		out = append(out, line+s.Note)
	}
	return append(out, string(in.Phase)+": "+in.Reason)
}
