package actuator

import (
	"errors"
	"fmt"

	"stoker.dev/stoker/internal/config"
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// BudgetConfig bounds how many nodes with GPUs may be out at once, in the whole fleet
// or in each group of nodes with the same value of a label.
type BudgetConfig struct {
	Name           string        `yaml:"name"`
	MaxUnavailable config.Amount `yaml:"maxUnavailable"` // of the nodes of the group, rounded down
	AtLeast        *int          `yaml:"atLeast"`        // nodes, where a share comes to less; 1 when left out
	By             string        `yaml:"by"`             // label of nodes; empty: one group
}

// Validate fills in the defaults.
func (c *BudgetConfig) Validate(path string) error {
	var errs []error
	if c.Name == "" {
		errs = append(errs, config.Errorf(config.Key(path, "name"), "is missing; what waits says by this name which budget is used up"))
	}
	if c.MaxUnavailable == (config.Amount{}) {
		errs = append(errs, config.Errorf(config.Key(path, "maxUnavailable"), "is missing or 0: no node could ever be cordoned; for that there is mode: dry-run"))
	}
	switch {
	case !c.MaxUnavailable.Shared && c.AtLeast == nil:
	case c.AtLeast == nil:
		c.AtLeast = new(1)
	case !c.MaxUnavailable.Shared:
		errs = append(errs, config.Errorf(config.Key(path, "atLeast"), "goes with a share, such as maxUnavailable: 10%%"))
	case *c.AtLeast < 0:
		errs = append(errs, config.Errorf(config.Key(path, "atLeast"), "%d is negative", *c.AtLeast))
	}
	return errors.Join(errs...)
}

// limit is how many of n nodes may be out.
func (c BudgetConfig) limit(n int) int {
	most := c.MaxUnavailable.Of(n)
	if c.MaxUnavailable.Shared && c.AtLeast != nil {
		most = max(most, *c.AtLeast)
	}
	return most
}

// budgetGate lets a hold pass while no more nodes are out than the budget has. It
// counts every node that can't take work, whoever made it so, and those whose hold is
// reserved and not seen yet. A node that is out already costs nothing, and steps after
// the hold have their place already.
type budgetGate struct{ config BudgetConfig }

func (g budgetGate) Name() string { return "budget " + g.config.Name }

func (g budgetGate) Ask(q Question) remedy.GateResult {
	if q.Incident.Class == remedy.ClassNodeNotice {
		return pass("the node goes anyway, and its jobs have no time to wait")
	}
	reserved := map[string]bool{}
	for _, in := range q.Incidents {
		if in.Name == q.Incident.Name {
			in = q.Incident
		}
		for _, node := range held(in) {
			reserved[node] = true
		}
	}
	wanted, first := map[string]string{}, "" // node → group
	for _, o := range q.Orders {
		if o.Role != remedy.RoleHold {
			continue
		}
		n, ok := q.Fleet.Nodes[o.Target.Node]
		if !ok {
			return wait("node %s is not known", o.Target.Node)
		}
		if !reserved[n.Name] && n.Available() {
			wanted[n.Name] = g.group(n)
			if first == "" {
				first = n.Name
			}
		}
	}
	if len(wanted) == 0 {
		return pass("takes no further node out")
	}
	size, out, more := map[string]int{}, map[string]int{}, map[string]int{}
	for name, n := range q.Fleet.Nodes {
		_, asked := wanted[name]
		if n.Capacity.GPUs == 0 && len(n.GPUs) == 0 && !n.Hold.Any() && !reserved[name] && !asked {
			continue // not a node of ours
		}
		group := g.group(n)
		size[group]++
		switch {
		case asked:
			more[group]++
		case reserved[name] || !n.Available():
			out[group]++
		}
	}
	for _, name := range q.Fleet.NodeNames() { // in order, so that the answer does not vary
		group, asked := wanted[name]
		if asked && out[group]+more[group] > g.config.limit(size[group]) {
			return wait("%s", g.numbers(group, out[group], size[group]))
		}
	}
	group := wanted[first]
	return pass("%s", g.numbers(group, out[group], size[group]))
}

// group is which nodes share the budget with n. Nodes without the label are one group.
func (g budgetGate) group(n fleet.Node) string {
	if g.config.By == "" {
		return ""
	}
	return n.Labels[g.config.By]
}

func (g budgetGate) numbers(group string, out, size int) string {
	where := ""
	switch {
	case g.config.By != "" && group == "":
		where = fmt.Sprintf(" without label %s", g.config.By)
	case g.config.By != "":
		where = fmt.Sprintf(" with %s=%s", g.config.By, group)
	}
	most := fmt.Sprint(g.config.limit(size))
	if g.config.MaxUnavailable.Shared {
		most += " (" + g.config.MaxUnavailable.String() + ")"
	}
	return fmt.Sprintf("%d of %d nodes%s are out, %s may be", out, size, where, most)
}
