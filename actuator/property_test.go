package actuator_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/internal/config"
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// drawFleet draws nodes in racks, some of them out for whatever reason.
func drawFleet(t *rapid.T) []fleet.Node {
	n := rapid.IntRange(1, 40).Draw(t, "nodes")
	nodes := rack(n, 0)
	for i := range nodes {
		switch rapid.IntRange(0, 9).Draw(t, "state") {
		case 0:
			nodes[i].Unschedulable = true
		case 1:
			nodes[i].Ready.Status = fleet.Unknown
		case 2:
			nodes[i].Labels = nil
		case 3:
			nodes[i].Capacity = fleet.Resources{} // its plugin died
		}
	}
	return nodes
}

// out counts the nodes of each group that are out or will be.
func out(f fleet.Snapshot, by string, incidents []remedy.Incident) (size, out map[string]int) {
	size, out = map[string]int{}, map[string]int{}
	reserved := map[string]bool{}
	for _, in := range incidents {
		for _, s := range in.Steps {
			reserved[s.Orders[0].Order.Target.Node] = s.Role == remedy.RoleHold
		}
	}
	for name, n := range f.Nodes {
		group := ""
		if by != "" {
			group = n.Labels[by]
		}
		if n.Capacity.GPUs > 0 || reserved[name] || n.Hold.Any() {
			size[group]++
		}
		if (n.Capacity.GPUs > 0 || reserved[name]) && (reserved[name] || !n.Available()) {
			out[group]++
		}
	}
	return size, out
}

// TestBudgetsHold asks for holds one after the other, as ticks do with what they have
// reserved before; some are seen on the node in between, some are given back. A hold
// that passes never takes a group over its budget.
func TestBudgetsHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := drawFleet(t)
		b := actuator.BudgetConfig{Name: "b", By: rapid.SampledFrom([]string{"", "rack"}).Draw(t, "by")}
		if rapid.Bool().Draw(t, "share") {
			b.MaxUnavailable = config.Amount{Shared: true, Percent: config.Percent(rapid.IntRange(0, 100).Draw(t, "percent"))}
			b.AtLeast = new(rapid.IntRange(0, 3).Draw(t, "at least"))
		} else {
			b.MaxUnavailable = config.Amount{Count: rapid.IntRange(1, 5).Draw(t, "count")}
		}
		if err := b.Validate(""); err != nil {
			t.Fatal(err)
		}
		a := gated(t, actuator.Gates(actuator.ModeAuto, actuator.GatesConfig{Budgets: []actuator.BudgetConfig{b}})...)
		limit := func(size int) int {
			if b.MaxUnavailable.Shared {
				return max(b.MaxUnavailable.Of(size), *b.AtLeast)
			}
			return b.MaxUnavailable.Count
		}

		var incidents []remedy.Incident
		for i := range rapid.IntRange(1, 30).Draw(t, "incidents") {
			in := incident(fmt.Sprintf("inc-%d", i), i)
			to := remedy.Target{Node: rapid.SampledFrom(nodes).Draw(t, "node").Name}
			f := world(t0.Add(time.Duration(i)*time.Minute), nodes, nil)
			_, before := out(f, b.By, incidents)
			order := remedy.Order{Action: "cordon", Target: to, Incident: in.Name}
			passed := true
			for _, r := range a.Admit(f.At, f, append(incidents, in), in, []remedy.Order{order}) {
				passed = passed && r.Pass
			}
			if passed {
				in.Steps = append(in.Steps, step("cordon", to, ""))
				incidents = append(incidents, in)
				sizes, after := out(f, b.By, incidents)
				for g, n := range after {
					if n > before[g] && n > limit(sizes[g]) {
						t.Fatalf("group %q: %d of %d nodes out, %d may be", g, n, sizes[g], limit(sizes[g]))
					}
				}
			}
			switch rapid.IntRange(0, 3).Draw(t, "then") {
			case 0: // the cordon is seen
				for i := range nodes {
					for _, in := range incidents {
						if len(in.Steps) == 1 && in.Steps[0].Orders[0].Order.Target.Node == nodes[i].Name {
							nodes[i].Hold, nodes[i].Unschedulable = nodes[i].Hold.With(in.Name, t0), true
						}
					}
				}
			case 1: // the oldest gives its node back
				if len(incidents) > 0 {
					given := incidents[0].Steps[0].Orders[0].Order.Target.Node
					for i := range nodes {
						if nodes[i].Name == given && nodes[i].Hold.Has(incidents[0].Name) {
							nodes[i].Hold = nodes[i].Hold.Without(incidents[0].Name)
							nodes[i].Unschedulable = nodes[i].Hold.Any()
						}
					}
					incidents = incidents[1:]
				}
			}
		}
	})
}

// TestGatesNeverStopRecovery holds for every action that gives back, whatever the
// fleet, the mode, the budgets and the other incidents are (invariant 7).
func TestGatesNeverStopRecovery(t *testing.T) {
	var recovery []string
	for _, s := range actuator.Actions {
		if s.Info.Effect == remedy.EffectRecovery {
			recovery = append(recovery, s.Info.Name)
		}
	}
	if len(recovery) < 2 {
		t.Fatalf("actions that give back: %v, want start and release at least", recovery)
	}
	rapid.Check(t, func(t *rapid.T) {
		nodes := optedOut(drawFleet(t))
		mode := rapid.SampledFrom([]actuator.Mode{actuator.ModeDryRun, actuator.ModeApprove, actuator.ModeAuto, "other"}).Draw(t, "mode")
		cfg := actuator.GatesConfig{Budgets: []actuator.BudgetConfig{{Name: "none", MaxUnavailable: config.Amount{Shared: true}, AtLeast: new(0)}}}
		in := incident(inc, 0)
		in.Mode = rapid.SampledFrom([]string{"", "dry-run", "approve", "auto", "other"}).Draw(t, "own mode")
		to := remedy.Target{Node: nodes[0].Name}
		other := incident("b", rapid.SampledFrom([]int{-5, 5}).Draw(t, "age"), step("cordon", to, remedy.Done), step("reboot", to, ""))
		order := remedy.Order{Action: rapid.SampledFrom(recovery).Draw(t, "action"), Target: to, Node: to.Node, Incident: inc}
		f := world(t0, nodes, []fleet.Job{{Ref: llm, OptOut: "no"}})
		gates := actuator.Gates(mode, cfg)
		results := gated(t, gates...).Admit(t0, f, []remedy.Incident{other, in}, in, []remedy.Order{order})
		if len(results) != len(gates) {
			t.Fatalf("%d answers of %d gates", len(results), len(gates))
		}
		for _, r := range results {
			if !r.Pass {
				t.Fatalf("%s waits for gate %s: %s", order.Action, r.Gate, r.Reason)
			}
		}
	})
}
