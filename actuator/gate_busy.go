package actuator

import (
	"slices"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// busyGate keeps incidents out of each other's way: a node and a job have one running
// order at most, and whose incident came first goes up its ladder before the others.
// Holds pass, since a node can have several. An incident about a job leaves it to one
// about a node that the job runs on.
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
			if node := cares(q, other, o); node != "" {
				return wait("%s runs on %s, and %s is to stop and start it (at %s)", o.Target.Job, node, other.Name, other.StepName())
			}
			if remedy.CompareIncidents(other, q.Incident) > 0 {
				continue
			}
			if at := owns(q.Incident, other, o); at != "" {
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

// cares names the node of an incident that has to stop and start the order's job in any
// case, since the job is on that node; empty when there is none. Of two incidents about
// one fault the node's goes first, whichever was opened first: a job that was restarted
// for its sake has no need to be restarted again.
func cares(q Question, other remedy.Incident, o remedy.Order) string {
	node, job := other.Subject.Node, o.Target.Job
	if q.Incident.Subject.Kind != remedy.SubjectJob || job == (fleet.JobRef{}) || node == "" || other.Mode == string(ModeDryRun) {
		return ""
	}
	switch other.Phase {
	case remedy.PhaseOpen, remedy.PhaseActing:
	case remedy.PhaseHeld, remedy.PhaseCancelling, remedy.PhaseResolved, remedy.PhaseCancelled:
		return ""
	}
	ahead := other.Ladder[min(max(other.Rung, 0), len(other.Ladder)):]
	if !slices.ContainsFunc(ahead, func(s remedy.Step) bool { return s.Role == remedy.RoleStop || s.Role == remedy.RoleStart }) {
		return ""
	}
	if slices.Contains(q.Fleet.NodesOf(job), node) {
		return node
	}
	return ""
}

// owns says what of the order's is taken by the other incident; empty when nothing. A node
// that goes away takes its jobs with it, whoever holds it: those wait for nobody to be
// moved.
func owns(asks, in remedy.Incident, o remedy.Order) string {
	for _, node := range held(in) {
		goes := asks.Class == remedy.ClassNodeNotice && o.Target.Node == ""
		if !goes && (node == o.Target.Node || node == o.Node) {
			return node
		}
	}
	if job := o.Target.Job; job != (fleet.JobRef{}) && slices.Contains(stopped(in), job) {
		return job.String()
	}
	return ""
}
