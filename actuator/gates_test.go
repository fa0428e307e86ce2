package actuator_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/internal/config"
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// gated is an actuator behind gates, without a cluster.
func gated(t interface{ Fatal(args ...any) }, gates ...actuator.Gate) *actuator.Actuator {
	a, err := actuator.New(slog.New(slog.DiscardHandler), nil, actuator.Actions, gates, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// rack is n nodes, of which the first out are unschedulable.
func rack(n, out int) []fleet.Node {
	nodes := make([]fleet.Node, n)
	for i := range nodes {
		nodes[i] = whole(func(n *fleet.Node) {
			n.Name = fmt.Sprintf("gpu-a-%02d", i+1)
			n.Hold, n.Unschedulable = fleet.Hold{}, i < out
			n.Labels = map[string]string{"rack": fmt.Sprintf("r%d", i/4)}
		})
	}
	return nodes
}

// incident is one that was opened minutes after the others, with steps.
func incident(name string, minutes int, steps ...remedy.StepRecord) remedy.Incident {
	return remedy.Incident{Name: name, Phase: remedy.PhaseActing, Opened: t0.Add(time.Duration(minutes) * time.Minute), Steps: steps, Ladder: []remedy.Step{{Action: "cordon"}, {Action: "drain"}}, Rung: 1}
}

// caring is an incident of the first node that stops and starts its jobs, at a rung.
func caring(name string, minutes, rung int) remedy.Incident {
	in := incident(name, minutes)
	in.Subject = remedy.Subject{Kind: remedy.SubjectGPU, Node: "gpu-a-01", Index: "3"}
	in.Ladder = []remedy.Step{{Action: "cordon", Role: remedy.RoleHold}, {Action: "stop", Role: remedy.RoleStop}, {Action: "start", Role: remedy.RoleStart}}
	in.Rung = rung
	return in
}

func aboutJob(in *remedy.Incident) {
	in.Subject = remedy.Subject{Kind: remedy.SubjectJob, Namespace: llm.Namespace, Name: llm.Name}
}

// step is one of a role for one target; ending is empty while it runs.
func step(action string, to remedy.Target, ending remedy.Ending) remedy.StepRecord {
	info, _ := actuator.Actions.Info(action)
	s := remedy.StepRecord{Action: action, Role: info.Role, Ending: ending, Orders: []remedy.OrderRecord{{Order: remedy.Order{Action: action, Role: info.Role, Target: to}}}}
	if ending != "" {
		s.Orders[0].Outcome = &remedy.Outcome{Ending: ending}
	}
	return s
}

func budget(t *testing.T, b actuator.BudgetConfig) actuator.GatesConfig {
	t.Helper()
	if err := b.Validate("budget"); err != nil {
		t.Fatal(err)
	}
	return actuator.GatesConfig{Budgets: []actuator.BudgetConfig{b}}
}

var free = actuator.GatesConfig{Budgets: []actuator.BudgetConfig{}}

func TestGates(t *testing.T) {
	tenth := budget(t, actuator.BudgetConfig{Name: "fleet", MaxUnavailable: config.Amount{Percent: 10, Shared: true}})
	two := budget(t, actuator.BudgetConfig{Name: "fleet", MaxUnavailable: config.Amount{Count: 2}})
	byRack := budget(t, actuator.BudgetConfig{Name: "rack", MaxUnavailable: config.Amount{Count: 1}, By: "rack"})
	node := func(i int) remedy.Target { return remedy.Target{Node: fmt.Sprintf("gpu-a-%02d", i)} }
	ask := func(action string, to remedy.Target) remedy.Order {
		o := remedy.Order{Action: action, Target: to, Node: "gpu-a-01", Incident: inc, Actor: "stoker"}
		return o
	}
	jobs := []fleet.Job{{Ref: llm}}
	shy := []fleet.Job{{Ref: llm, OptOut: "demo on Monday"}}
	pod := worker("p1", "gpu-a-01", "")

	for name, tc := range map[string]struct {
		mode     actuator.Mode // empty: auto
		gates    actuator.GatesConfig
		nodes    []fleet.Node
		jobs     []fleet.Job
		pods     []fleet.Pod
		others   []remedy.Incident
		incident func(*remedy.Incident)
		orders   []remedy.Order
		gate     string // that waits; empty: all pass
		reason   string // of the gate that waits, or of the last
	}{
		"in auto mode what no gate minds passes":             {nodes: rack(1, 0), orders: []remedy.Order{ask("cordon", node(1))}},
		"a dry run says what it would do":                    {mode: actuator.ModeDryRun, nodes: rack(1, 0), orders: []remedy.Order{ask("cordon", node(1))}, gate: "mode", reason: "would cordon gpu-a-01: the mode of the service is dry-run"},
		"a dry run does not even ask":                        {mode: actuator.ModeDryRun, nodes: rack(1, 0), jobs: jobs, orders: []remedy.Order{ask("checkpoint", remedy.Target{Job: llm})}, gate: "mode", reason: "would checkpoint train/llm"},
		"a dry run gives back":                               {mode: actuator.ModeDryRun, nodes: rack(1, 1), orders: []remedy.Order{ask("release", node(1))}, reason: "what only gives back always passes"},
		"harm waits for a person":                            {mode: actuator.ModeApprove, nodes: rack(1, 0), orders: []remedy.Order{ask("cordon", node(1))}, gate: "mode", reason: "cordon of gpu-a-01 waits for a person: the mode of the service is approve"},
		"what a person has asked for waits for none":         {mode: actuator.ModeApprove, nodes: rack(1, 0), orders: []remedy.Order{{Action: "cordon", Target: node(1), Actor: "ada"}}},
		"asking waits for no person":                         {mode: actuator.ModeApprove, nodes: rack(1, 0), jobs: jobs, orders: []remedy.Order{ask("checkpoint", remedy.Target{Job: llm})}},
		"a playbook may be stricter than the service":        {nodes: rack(1, 0), incident: func(in *remedy.Incident) { in.Mode, in.Playbook = "approve", "gpu-lost" }, orders: []remedy.Order{ask("cordon", node(1))}, gate: "mode", reason: "the mode of playbook gpu-lost is approve"},
		"a playbook may not be freer":                        {mode: actuator.ModeApprove, nodes: rack(1, 0), incident: func(in *remedy.Incident) { in.Mode = "auto" }, orders: []remedy.Order{ask("cordon", node(1))}, gate: "mode", reason: "the mode of the service is approve"},
		"a mode that is not known is a dry run":              {nodes: rack(1, 0), incident: func(in *remedy.Incident) { in.Mode = "cautious" }, orders: []remedy.Order{ask("cordon", node(1))}, gate: "mode", reason: "dry-run"},
		"an action that is not known does harm":              {mode: actuator.ModeDryRun, nodes: rack(1, 0), orders: []remedy.Order{{Action: "explode", Effect: remedy.EffectRecovery, Target: node(1)}}, gate: "mode", reason: "would explode gpu-a-01"},
		"an action that is not known waits for a person too": {mode: actuator.ModeApprove, nodes: rack(1, 0), orders: []remedy.Order{{Action: "explode", Target: node(1)}}, gate: "mode", reason: "explode of gpu-a-01 waits for a person"},
		"an order can't call its own harm recovery":          {mode: actuator.ModeDryRun, nodes: rack(1, 0), orders: []remedy.Order{{Action: "drain", Effect: remedy.EffectRecovery, Target: node(1)}}, gate: "mode", reason: "would drain gpu-a-01"},

		"an opted out node waits":                   {nodes: optedOut(rack(1, 0)), orders: []remedy.Order{ask("cordon", node(1))}, gate: "opt-out", reason: "node gpu-a-01 is opted out: being debugged"},
		"an opted out node is looked at":            {nodes: optedOut(rack(1, 1)), orders: []remedy.Order{ask("verify", node(1))}},
		"an opted out node is given back":           {nodes: optedOut(rack(1, 1)), orders: []remedy.Order{ask("release", node(1))}},
		"an opted out job is not stopped":           {nodes: rack(1, 1), jobs: shy, orders: []remedy.Order{ask("stop", remedy.Target{Job: llm})}, gate: "opt-out", reason: "job train/llm is opted out: demo on Monday"},
		"an opted out job is not asked":             {nodes: rack(1, 1), jobs: shy, orders: []remedy.Order{ask("checkpoint", remedy.Target{Job: llm})}, gate: "opt-out"},
		"an opted out job is started again":         {nodes: rack(1, 1), jobs: shy, orders: []remedy.Order{ask("start", remedy.Target{Job: llm})}},
		"an opted out job's node is not drained":    {nodes: rack(1, 1), jobs: shy, pods: []fleet.Pod{pod}, orders: []remedy.Order{ask("drain", node(1))}, gate: "opt-out", reason: "job train/llm"},
		"an opted out job that stays is no reason":  {nodes: rack(1, 1), jobs: shy, pods: []fleet.Pod{pod}, orders: []remedy.Order{{Action: "reset", Target: node(1), Node: "gpu-a-01", Actor: "stoker", Spare: []fleet.PodRef{pod.PodRef}}}},
		"an opted out job that may hold the GPU is": {nodes: rack(1, 1), jobs: shy, pods: []fleet.Pod{pod}, orders: []remedy.Order{ask("reset", node(1))}, gate: "opt-out", reason: "job train/llm"},
		"of a node that goes, jobs do not wait for who came first": {
			nodes: rack(1, 1), jobs: jobs, pods: []fleet.Pod{pod}, incident: func(in *remedy.Incident) { in.Class = remedy.ClassNodeNotice },
			others: []remedy.Incident{incident("b", -5, step("cordon", node(1), remedy.Done))}, orders: []remedy.Order{ask("stop", remedy.Target{Job: llm})},
		},
		"but for what is under way at the job": {
			nodes: rack(1, 1), jobs: jobs, pods: []fleet.Pod{pod}, incident: func(in *remedy.Incident) { in.Class = remedy.ClassNodeNotice },
			others: []remedy.Incident{incident("b", -5, step("cordon", node(1), remedy.Done), step("stop", remedy.Target{Job: llm}, ""))},
			orders: []remedy.Order{ask("stop", remedy.Target{Job: llm})}, gate: "busy", reason: "stop of train/llm for b has not ended",
		},
		"an opted out job's node is cordoned":               {nodes: rack(1, 0), jobs: shy, pods: []fleet.Pod{pod}, orders: []remedy.Order{ask("cordon", node(1))}},
		"a job is not stopped for the sake of an opted out": {nodes: optedOut(rack(1, 1)), jobs: jobs, orders: []remedy.Order{ask("stop", remedy.Target{Job: llm})}, gate: "opt-out", reason: "node gpu-a-01"},

		"a node has one running order":                             {nodes: rack(1, 1), others: []remedy.Incident{incident("b", +5, step("drain", node(1), ""))}, orders: []remedy.Order{ask("reboot", node(1))}, gate: "busy", reason: "drain of gpu-a-01 for b has not ended"},
		"a job has one running order":                              {nodes: rack(1, 1), jobs: jobs, others: []remedy.Incident{incident("b", +5, step("stop", remedy.Target{Job: llm}, ""))}, orders: []remedy.Order{ask("stop", remedy.Target{Job: llm})}, gate: "busy", reason: "stop of train/llm for b has not ended"},
		"who came first goes up its ladder first":                  {nodes: rack(1, 1), others: []remedy.Incident{incident("b", -5, step("cordon", node(1), remedy.Done))}, orders: []remedy.Order{ask("drain", node(1))}, gate: "busy", reason: "b came first to gpu-a-01 and is at drain 2/2"},
		"who came later does not keep us":                          {nodes: rack(1, 1), others: []remedy.Incident{incident("b", +5, step("cordon", node(1), remedy.Done))}, orders: []remedy.Order{ask("drain", node(1))}},
		"who came first and has given back does not either":        {nodes: rack(1, 1), others: []remedy.Incident{incident("b", -5, step("cordon", node(1), remedy.Done), step("release", node(1), remedy.Done))}, orders: []remedy.Order{ask("drain", node(1))}},
		"who is on another node does not either":                   {nodes: rack(2, 2), others: []remedy.Incident{incident("b", -5, step("drain", node(2), ""))}, orders: []remedy.Order{ask("drain", node(1))}},
		"a node can have several holds":                            {nodes: rack(1, 1), others: []remedy.Incident{incident("b", -5, step("cordon", node(1), remedy.Done), step("reboot", node(1), ""))}, orders: []remedy.Order{ask("cordon", node(1))}},
		"a job stopped by another waits for its start":             {nodes: rack(2, 1), jobs: jobs, others: []remedy.Incident{incident("b", -5, step("stop", remedy.Target{Job: llm}, remedy.Done))}, orders: []remedy.Order{ask("stop", remedy.Target{Job: llm})}, gate: "busy", reason: "b came first to train/llm"},
		"a job started again by another is free":                   {nodes: rack(2, 1), jobs: jobs, others: []remedy.Incident{incident("b", -5, step("stop", remedy.Target{Job: llm}, remedy.Done), step("start", remedy.Target{Job: llm}, remedy.Done))}, orders: []remedy.Order{ask("stop", remedy.Target{Job: llm})}},
		"another's hold that is being written keeps nobody":        {nodes: rack(1, 1), others: []remedy.Incident{incident("b", +5, step("cordon", node(1), ""))}, orders: []remedy.Order{ask("drain", node(1))}},
		"a job is left to a node's incident, whichever came first": {nodes: rack(1, 1), jobs: jobs, pods: []fleet.Pod{pod}, incident: aboutJob, others: []remedy.Incident{caring("b", +5, 0)}, orders: []remedy.Order{ask("stop", remedy.Target{Job: llm})}, gate: "busy", reason: "train/llm runs on gpu-a-01, and b is to stop and start it (at cordon 1/3)"},
		"but not once that has started it":                         {nodes: rack(1, 1), jobs: jobs, pods: []fleet.Pod{pod}, incident: aboutJob, others: []remedy.Incident{caring("b", +5, 3)}, orders: []remedy.Order{ask("stop", remedy.Target{Job: llm})}},
		"nor where it runs on another node":                        {nodes: rack(1, 1), jobs: jobs, pods: []fleet.Pod{worker("p1", "gpu-a-02", "")}, incident: aboutJob, others: []remedy.Incident{caring("b", -5, 0)}, orders: []remedy.Order{ask("stop", remedy.Target{Job: llm})}},
		"giving back waits for nobody":                             {nodes: rack(1, 1), others: []remedy.Incident{incident("b", -5, step("reboot", node(1), ""))}, orders: []remedy.Order{ask("release", node(1))}},

		"within the budget a node is held":                         {gates: tenth, nodes: rack(40, 3), orders: []remedy.Order{ask("cordon", node(40))}, reason: "3 of 40 nodes are out, 4 (10%) may be"},
		"over the budget it waits, and says the numbers":           {gates: tenth, nodes: rack(40, 4), orders: []remedy.Order{ask("cordon", node(40))}, gate: "budget fleet", reason: "4 of 40 nodes are out, 4 (10%) may be"},
		"a share is rounded down":                                  {gates: tenth, nodes: rack(39, 3), orders: []remedy.Order{ask("cordon", node(39))}, gate: "budget fleet", reason: "3 of 39 nodes are out, 3 (10%) may be"},
		"a small pool may have one out (B4)":                       {gates: tenth, nodes: rack(3, 0), orders: []remedy.Order{ask("cordon", node(3))}, reason: "0 of 3 nodes are out, 1 (10%) may be"},
		"a small pool may have no more than one out":               {gates: tenth, nodes: rack(3, 1), orders: []remedy.Order{ask("cordon", node(3))}, gate: "budget fleet"},
		"a node that is out already costs nothing":                 {gates: tenth, nodes: rack(3, 2), orders: []remedy.Order{ask("cordon", node(1))}, reason: "takes no further node out"},
		"a node that does not answer is out":                       {gates: two, nodes: unready(rack(9, 1), 2, fleet.False), orders: []remedy.Order{ask("cordon", node(9))}, gate: "budget fleet", reason: "2 of 9 nodes are out, 2 may be"},
		"a node of which nothing is known is out":                  {gates: two, nodes: unready(rack(9, 1), 2, fleet.Unknown), orders: []remedy.Order{ask("cordon", node(9))}, gate: "budget fleet"},
		"a node whose hold is reserved is out":                     {gates: two, nodes: rack(9, 1), others: []remedy.Incident{incident("b", -5, step("cordon", node(5), ""))}, orders: []remedy.Order{ask("cordon", node(9))}, gate: "budget fleet"},
		"a node whose hold may be there is out":                    {gates: two, nodes: rack(9, 1), others: []remedy.Incident{incident("b", -5, step("cordon", node(5), remedy.Unclear))}, orders: []remedy.Order{ask("cordon", node(9))}, gate: "budget fleet"},
		"a node whose hold is reserved costs a second one nothing": {gates: two, nodes: rack(9, 2), others: []remedy.Incident{incident("b", -5, step("cordon", node(5), ""))}, orders: []remedy.Order{ask("cordon", node(5))}, reason: "takes no further node out"},
		"a node whose hold was refused is not out":                 {gates: two, nodes: rack(9, 1), others: []remedy.Incident{incident("b", -5, step("cordon", node(5), remedy.Rejected))}, orders: []remedy.Order{ask("cordon", node(9))}},
		"a node counts once, held and out":                         {gates: two, nodes: rack(9, 1), others: []remedy.Incident{incident("b", -5, step("cordon", node(1), remedy.Done))}, orders: []remedy.Order{ask("cordon", node(9))}},
		"a released node is not out":                               {gates: two, nodes: rack(9, 1), others: []remedy.Incident{incident("b", -5, step("cordon", node(5), remedy.Done), step("release", node(5), remedy.Done))}, orders: []remedy.Order{ask("cordon", node(9))}},
		"nodes without GPUs do not count":                          {gates: tenth, nodes: append(rack(19, 1), plain(30)...), orders: []remedy.Order{ask("cordon", node(19))}, gate: "budget fleet", reason: "1 of 19 nodes"},
		"a node that has lost all of its GPUs counts":              {gates: two, nodes: bare(rack(9, 2), 9), orders: []remedy.Order{ask("cordon", node(9))}, gate: "budget fleet", reason: "2 of 9 nodes"},
		"a node that nobody knows waits":                           {gates: two, nodes: rack(9, 0), orders: []remedy.Order{ask("cordon", node(77))}, gate: "budget fleet", reason: "gpu-a-77 is not known"},
		"steps after the hold have their place":                    {gates: two, nodes: rack(9, 5), orders: []remedy.Order{ask("drain", node(9))}},
		"several holds of one step are counted together":           {gates: two, nodes: rack(9, 1), orders: []remedy.Order{ask("cordon", node(8)), ask("cordon", node(9))}, gate: "budget fleet", reason: "1 of 9 nodes are out, 2 may be"},
		"a budget by rack does not mind other racks":               {gates: byRack, nodes: rack(8, 2), orders: []remedy.Order{ask("cordon", node(8))}, reason: "0 of 4 nodes with rack=r1 are out, 1 may be"},
		"a budget by rack keeps its own":                           {gates: byRack, nodes: rack(8, 1), orders: []remedy.Order{ask("cordon", node(4))}, gate: "budget rack", reason: "1 of 4 nodes with rack=r0 are out, 1 may be"},
		"nodes without the label share one budget":                 {gates: byRack, nodes: unlabelled(rack(8, 1)), orders: []remedy.Order{ask("cordon", node(8))}, gate: "budget rack", reason: "1 of 8 nodes without label rack are out"},
		"a release passes though the budget is used up (B1)":       {gates: two, nodes: rack(3, 3), orders: []remedy.Order{ask("release", node(1))}, reason: "what only gives back always passes"},
		"a start passes though the node is opted out and busy":     {gates: two, nodes: optedOut(rack(3, 3)), jobs: shy, others: []remedy.Incident{incident("b", -5, step("stop", remedy.Target{Job: llm}, ""))}, orders: []remedy.Order{ask("start", remedy.Target{Job: llm})}},
	} {
		t.Run(name, func(t *testing.T) {
			mode := tc.mode
			if mode == "" {
				mode = actuator.ModeAuto
			}
			cfg := tc.gates
			if cfg.Budgets == nil {
				cfg = free
			}
			in := incident(inc, 0)
			if tc.incident != nil {
				tc.incident(&in)
			}
			f := world(t0, tc.nodes, tc.jobs, tc.pods...)
			results := gated(t, actuator.Gates(mode, cfg)...).Admit(t0, f, append(tc.others, in), in, tc.orders)
			var waits []string
			reason := ""
			for _, r := range results {
				if r.Reason == "" {
					t.Errorf("gate %s gives no reason", r.Gate)
				}
				if !r.Pass {
					waits = append(waits, r.Gate)
				}
				if !r.Pass || len(waits) == 0 {
					reason = r.Reason
				}
			}
			if got := strings.Join(waits, ","); got != tc.gate || !strings.Contains(reason, tc.reason) {
				t.Errorf("waits for %q (%s), want %q (%s)", got, reason, tc.gate, tc.reason)
			}
		})
	}
}

func optedOut(nodes []fleet.Node) []fleet.Node {
	nodes[0].OptOut = "being debugged"
	return nodes
}

func unready(nodes []fleet.Node, i int, s fleet.Truth) []fleet.Node {
	nodes[i-1].Ready.Status = s
	return nodes
}

func unlabelled(nodes []fleet.Node) []fleet.Node {
	for i := range nodes {
		nodes[i].Labels = nil
	}
	return nodes
}

func bare(nodes []fleet.Node, i int) []fleet.Node {
	nodes[i-1].Capacity, nodes[i-1].Allocatable = fleet.Resources{}, fleet.Resources{}
	return nodes
}

// plain are nodes without GPUs.
func plain(n int) []fleet.Node {
	out := make([]fleet.Node, n)
	for i := range out {
		out[i] = fleet.Node{Name: fmt.Sprintf("cpu-%02d", i), Ready: fleet.Condition{Status: fleet.True}}
	}
	return out
}

func TestAllGatesAreAsked(t *testing.T) {
	cfg := budget(t, actuator.BudgetConfig{Name: "fleet", MaxUnavailable: config.Amount{Count: 1}})
	in := incident(inc, 0)
	order := remedy.Order{Action: "cordon", Target: remedy.Target{Node: "gpu-a-01"}, Incident: inc}
	nodes := optedOut(rack(1, 0))
	got := gated(t, actuator.Gates(actuator.ModeDryRun, cfg)...).Admit(t0, world(t0, nodes, nil), nil, in, []remedy.Order{order})
	want := []remedy.GateResult{
		{Gate: "mode", Reason: "would cordon gpu-a-01: the mode of the service is dry-run"},
		{Gate: "opt-out", Reason: "node gpu-a-01 is opted out: being debugged"},
		{Gate: "silence", Pass: true, Reason: "no Alertmanager is asked for silences"},
		{Gate: "watchdog", Pass: true, Reason: "alerts arrive, or no proof of it is awaited"},
		{Gate: "busy", Pass: true, Reason: "nothing else is under way there"},
		{Gate: "budget fleet", Pass: true, Reason: "0 of 1 nodes are out, 1 may be"},
	}
	if d := cmp.Diff(got, want); d != "" {
		t.Errorf("answers (-got +want):\n%s", d)
	}
}

func TestOtherGatesAfterAChangeOfConfiguration(t *testing.T) {
	a := gated(t, actuator.Gates(actuator.ModeDryRun, free)...)
	b := a.WithGates(actuator.Gates(actuator.ModeAuto, free))
	order := []remedy.Order{{Action: "cordon", Target: remedy.Target{Node: "gpu-a-01"}}}
	f := world(t0, rack(1, 0), nil)
	if r := a.Admit(t0, f, nil, remedy.Incident{}, order); r[0].Pass {
		t.Error("the dry run acts")
	}
	if r := b.Admit(t0, f, nil, remedy.Incident{}, order); !r[0].Pass {
		t.Error("the auto mode waits")
	}
}

func TestGatesAreConfigured(t *testing.T) {
	type file struct {
		Mode  actuator.Mode        `yaml:"mode"`
		Gates actuator.GatesConfig `yaml:"gates"`
	}
	for name, tc := range map[string]struct {
		yaml string
		want []string // mistakes, or the names of the gates
	}{
		"nothing said is a dry run with a budget of a tenth": {"", []string{"mode", "opt-out", "silence", "watchdog", "busy", "budget fleet"}},
		"an empty list is no budget":                         {"gates: {budgets: []}", []string{"mode", "opt-out", "silence", "watchdog", "busy"}},
		"budgets are asked in their order":                   {"mode: auto\ngates: {budgets: [{name: b, maxUnavailable: 2}, {name: a, maxUnavailable: 5%, by: rack}]}", []string{"mode", "opt-out", "silence", "watchdog", "busy", "budget b", "budget a"}},
		"an unknown mode is told":                            {"mode: autp", []string{`f.yaml:1:7: mode: unknown mode "autp"; did you mean "auto"?`}},
		"a budget says what it lacks": {"gates:\n  budgets:\n  - {by: rack}\n", []string{
			"f.yaml:3:5: gates.budgets[0].maxUnavailable: is missing or 0: no node could ever be cordoned; for that there is mode: dry-run",
			"f.yaml:3:5: gates.budgets[0].name: is missing; what waits says by this name which budget is used up",
		}},
		"a budget of a number has no floor":  {"gates: {budgets: [{name: a, maxUnavailable: 2, atLeast: 1}]}", []string{"f.yaml:1:57: gates.budgets[0].atLeast: goes with a share, such as maxUnavailable: 10%"}},
		"a floor is not negative":            {"gates: {budgets: [{name: a, maxUnavailable: 2%, atLeast: -1}]}", []string{"f.yaml:1:58: gates.budgets[0].atLeast: -1 is negative"}},
		"two budgets have two names":         {"gates: {budgets: [{name: a, maxUnavailable: 2}, {name: a, maxUnavailable: 3}]}", []string{`f.yaml:1:56: gates.budgets[1].name: there is another budget named "a"`}},
		"what is not built yet is not taken": {"gates: {budgets: [{name: a, maxUnavailable: 2, per: 10m}]}", []string{`f.yaml:1:48: gates.budgets[0].per: unknown key "per"; known: atLeast, by, maxUnavailable, name`}},
	} {
		t.Run(name, func(t *testing.T) {
			var c file
			var got []string
			if err := config.Decode("f.yaml", []byte(tc.yaml), &c); err != nil {
				got = strings.Split(err.Error(), "\n")
			} else {
				for _, g := range actuator.Gates(c.Mode, c.Gates) {
					got = append(got, g.Name())
				}
			}
			if d := cmp.Diff(got, tc.want); d != "" {
				t.Errorf("(-got +want):\n%s", d)
			}
		})
	}
}

func TestTheStricterModeIsInForce(t *testing.T) {
	order := []actuator.Mode{actuator.ModeDryRun, actuator.ModeApprove, actuator.ModeAuto}
	for i, a := range order {
		for j, b := range order {
			if got, want := a.Stricter(b), order[min(i, j)]; got != want {
				t.Errorf("%s and %s: %s, want %s", a, b, got, want)
			}
		}
	}
}
