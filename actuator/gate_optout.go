package actuator

import (
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// optOutGate keeps away from nodes and jobs that a person wants left alone: their own,
// the node for whose sake a job would be changed, and the jobs whose pods an order
// would take off a node. A hold alone takes nothing from a job that runs.
type optOutGate struct{}

func (optOutGate) Name() string { return "opt-out" }

func (optOutGate) Ask(q Question) remedy.GateResult {
	for _, o := range q.Orders {
		if o.Role == remedy.RoleVerify {
			continue // looks and touches nothing
		}
		for _, name := range []string{o.Target.Node, o.Node} {
			if n := q.Fleet.Nodes[name]; n.OptOut != "" {
				return wait("node %s is opted out: %s", name, n.OptOut)
			}
		}
		jobs := []fleet.JobRef{o.Target.Job}
		if o.Target.Node != "" && harmful(o) && o.Role != remedy.RoleHold {
			jobs = leaving(q.Fleet, o)
		}
		for _, ref := range jobs {
			if j := q.Fleet.Jobs[ref]; j.OptOut != "" {
				return wait("job %s is opted out: %s", ref, j.OptOut)
			}
		}
	}
	return pass("nobody has opted out")
}

// leaving are the jobs whose pods with GPUs an order about their node does not spare.
func leaving(f fleet.Snapshot, o remedy.Order) []fleet.JobRef {
	var out []fleet.JobRef
	for _, p := range f.PodsOn(o.Target.Node) {
		if p.GPUs > 0 && p.Job != (fleet.JobRef{}) && !spared(o.Spare, p.UID) {
			out = append(out, p.Job)
		}
	}
	return out
}
