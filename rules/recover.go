package rules

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// recoveryWithin is how long a stopped job of a held or cancelled incident is waited
// for until it can run again. Long: giving up would lose the job.
const recoveryWithin = 24 * time.Hour

// undoStart are the parameters of the starts of a cancelled incident: a person has
// said that the node is fit, so its jobs may land there again, however often they
// were started anew before.
const undoStart = `{"avoid":"none"}`

// hold keeps a failed incident: the node stays as it is, and jobs that we stopped are
// started again as soon as they can be.
func (w *walk) hold() []remedy.Order {
	orders, busy := w.recover(w.step(remedy.RoleStart, ""))
	if !busy {
		if reason := w.outlived(); reason != "" {
			w.resolve(reason)
		}
	}
	return orders
}

// anotherNode is why nothing more is done to a node: it is not the one that failed.
const anotherNode = "another node has taken the place of the one that failed"

// replaced reports whether the node is another machine than the one that failed, under
// its name. Before anything was done it may only have registered anew, in the same boot;
// after that, what marked it as ours is gone in any case.
func (w *walk) replaced() bool {
	n, there := w.fleet.Nodes[w.in.Subject.Node]
	was := w.in.NodeUID
	if hold := reserved(w.in, remedy.RoleHold); hold != nil {
		was = hold.Orders[0].Order.Target.UID
	}
	if !there || was == "" || n.UID == "" || n.UID == was {
		return false
	}
	return begun(w.in) || n.BootID == "" || n.BootID != w.in.BootID
}

// leave ends the ladder of a node that was replaced, once what was stopped runs again.
func (w *walk) leave() []remedy.Order {
	if len(w.owed()) == 0 {
		w.resolve(anotherNode)
		return nil
	}
	w.in.Phase, w.in.Reason, w.in.Waiting = remedy.PhaseHeld, anotherNode+"; what was stopped is started again", nil
	return w.hold()
}

// outlived says why a held incident has nothing left that a person could do; empty
// while it has.
func (w *walk) outlived() string {
	n, there := w.fleet.Nodes[w.in.Subject.Node]
	hold := reserved(w.in, remedy.RoleHold)
	switch {
	case w.replaced():
		return anotherNode
	case w.in.Subject.Node != "" && !there:
		return "the node is gone"
	case w.in.Rung >= len(w.in.Ladder):
		return "healed: every step of " + w.in.Playbook + " is done, and what was stopped runs again"
	case hold != nil && reserved(w.in, remedy.RoleRelease) != nil && !n.Hold.Has(w.in.Name):
		return "the node was given back after all"
	case !n.Hold.Has(w.in.Name) && w.over():
		if !begun(w.in) {
			return "over by itself; nothing was done"
		}
		return "over by itself, after a step had failed"
	case !n.Hold.Has(w.in.Name) && w.bootedSince():
		return "the node has been booted since the fault, and is not held"
	}
	if w.in.Subject.Kind == remedy.SubjectJob {
		switch j, there := w.subject(); {
		case !there || j.Phase.Ended():
			return "the job is gone or has ended"
		case j.Started.After(w.newest()):
			return j.Ref.String() + " has been started anew since"
		}
	}
	return ""
}

// undo gives back what the incident has taken, and ends it.
func (w *walk) undo() []remedy.Order {
	orders, busy := w.recover(w.step(remedy.RoleStart, undoStart))
	if busy {
		return orders
	}
	if w.holds() {
		if orders, skip := w.orders(w.step(remedy.RoleRelease, "")); skip == "" {
			return orders
		}
	}
	if why := w.refused(); why != "" {
		w.in.Reason += "; " + why
	}
	w.in.Phase, w.in.Closed, w.in.Quiet, w.in.Waiting = remedy.PhaseCancelled, w.now, w.now.Add(w.cfg.Quiet), nil
	return nil
}

// recover closes the recovery step that has ended and orders the start of jobs that
// are still owed one. It is busy until there are none.
func (w *walk) recover(start remedy.Step) (orders []remedy.Order, busy bool) {
	if cur := w.in.Current(); cur != nil {
		if !allEnded(cur) {
			return nil, true
		}
		w.end(cur)
	}
	if len(w.owed()) == 0 {
		return nil, false
	}
	start.Within = remedy.Duration(recoveryWithin)
	orders, _ = w.orders(start)
	return orders, true
}

// owed returns the jobs that this incident has stopped, or may have, and not yet
// started again.
func (w *walk) owed() []fleet.JobRef {
	var out []fleet.JobRef
	for _, s := range w.in.Steps {
		for _, o := range s.Orders {
			ref := o.Order.Target.Job
			switch s.Role {
			case remedy.RoleStop:
				if w.stopped(o) {
					out = append(out, ref)
				}
			case remedy.RoleStart:
				if w.started(o) {
					out = slices.DeleteFunc(out, func(r fleet.JobRef) bool { return r == ref })
				}
			case remedy.RoleNone, remedy.RoleHold, remedy.RoleSave, remedy.RoleRenew, remedy.RoleVerify, remedy.RoleRelease:
			}
		}
	}
	slices.SortFunc(out, fleet.JobRef.Compare)
	return slices.Compact(out)
}

// stopped reports whether the order may have stopped its job for good. One that a
// person has taken over is theirs.
func (w *walk) stopped(o remedy.OrderRecord) bool {
	if o.Outcome == nil {
		return true
	}
	switch o.Outcome.Ending {
	case remedy.Gone, remedy.Yielded:
		return false
	case remedy.Rejected:
		return o.Receipt != nil
	case remedy.Done, remedy.Late, remedy.Conflict, remedy.Unclear:
		return true
	}
	return true
}

// started reports whether there is nothing more to do after the start of a job. A
// limit of attempts that refused it does not hold for the start that undoes.
func (w *walk) started(o remedy.OrderRecord) bool {
	if o.Outcome == nil {
		return false
	}
	switch o.Outcome.Ending {
	case remedy.Done, remedy.Gone, remedy.Yielded:
		return true
	case remedy.Rejected:
		return w.in.Phase != remedy.PhaseCancelling || string(o.Order.Params) == undoStart
	case remedy.Late, remedy.Conflict, remedy.Unclear:
		return false
	}
	return false
}

// refused says what could not be given back when undoing; empty when all was.
func (w *walk) refused() string {
	var out []string
	for _, s := range w.in.Steps {
		for _, o := range s.Orders {
			undone := s.Role == remedy.RoleStart && string(o.Order.Params) == undoStart || s.Role == remedy.RoleRelease
			if undone && o.Outcome != nil && o.Outcome.Ending == remedy.Rejected {
				out = append(out, s.Action+" of "+o.Order.Target.String()+" was rejected: "+o.Outcome.Note)
			}
		}
	}
	return strings.Join(out, "; ")
}

// holds reports whether our mark may still be on the node.
func (w *walk) holds() bool {
	held := false
	for _, s := range w.in.Steps {
		if s.Skipped {
			continue
		}
		switch s.Role {
		case remedy.RoleHold:
			held = true
		case remedy.RoleRelease:
			held = held && s.Ending != remedy.Done && s.Ending != remedy.Gone && s.Ending != remedy.Yielded && s.Ending != remedy.Rejected
		case remedy.RoleNone, remedy.RoleSave, remedy.RoleStop, remedy.RoleStart, remedy.RoleRenew, remedy.RoleVerify:
		}
	}
	return held
}

// step returns the ladder's own step of the role, or the plain one, with params if given.
func (w *walk) step(role remedy.Role, params string) remedy.Step {
	s := remedy.Step{Action: string(role), Scope: remedy.ScopeNode, Effect: remedy.EffectRecovery, Role: role, Within: remedy.Duration(10 * time.Minute)}
	if role == remedy.RoleStart {
		s.Scope = remedy.ScopeJobs
	}
	for _, l := range w.in.Ladder {
		if l.Role == role {
			s = l
		}
	}
	if params != "" {
		s.Params = json.RawMessage(params)
	}
	return s
}

// names lists jobs for people, the first few of many.
func names(jobs []fleet.JobRef) string {
	const most = 5
	var out []string
	for _, j := range jobs[:min(len(jobs), most)] {
		out = append(out, j.String())
	}
	if len(jobs) > most {
		out = append(out, "…")
	}
	return strings.Join(out, ", ")
}
