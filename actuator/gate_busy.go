package actuator

import (
	"slices"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// busyGate keeps incidents out of each other's way: a node and a job have one running
// order at most, and whose incident came first goes up its ladder before the others.
// Holds pass, since a node can have several.
type busyGate struct{}

func (busyGate) Name() string { return "busy" }

func (busyGate) Ask(q Question) remedy.GateResult {
	others := slices.SortedFunc(slices.Values(q.Incidents), remedy.CompareIncidents)
	for _, o := range q.Orders {
		if !harmful(o) || o.Role == remedy.RoleHold {
			continue
		}
		for _, other := range others {
			if other.Name == q.Incident.Name || other.Phase.Closed() {
				continue
			}
			if at, action := running(other, o.Target); at != "" {
				return wait("%s of %s for %s has not ended", action, at, other.Name)
			}
			if remedy.CompareIncidents(other, q.Incident) > 0 {
				continue
			}
			if at := owns(other, o); at != "" {
				return wait("%s came first to %s and is at %s", other.Name, at, other.StepName())
			}
		}
	}
	return pass("nothing else is under way there")
}

// running finds an order of the incident that runs on the target.
func running(in remedy.Incident, t remedy.Target) (at, action string) {
	cur := in.Current()
	if cur == nil || cur.Role == remedy.RoleHold {
		return "", ""
	}
	for _, o := range cur.Orders {
		same := o.Order.Target.Node == t.Node && o.Order.Target.Job == t.Job
		if same && o.Outcome == nil {
			return t.String(), cur.Action
		}
	}
	return "", ""
}

// owns says what of the order's is taken by the incident; empty when nothing.
func owns(in remedy.Incident, o remedy.Order) string {
	for _, node := range held(in) {
		if node == o.Target.Node || node == o.Node {
			return node
		}
	}
	if job := o.Target.Job; job != (fleet.JobRef{}) && slices.Contains(stopped(in), job) {
		return job.String()
	}
	return ""
}
