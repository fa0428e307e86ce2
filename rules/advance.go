package rules

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// recoveryWithin is how long a stopped job of a held or cancelled incident is waited
// for until it can run again. Long: giving up would lose the job.
const recoveryWithin = 24 * time.Hour

// unknownNode is how long an incident waits for a node that nobody has heard of.
const unknownNode = 15 * time.Minute

// Advance walks an incident as far as it goes without acting: it takes in evidence,
// closes the step that has ended, notices a person's changes, and returns the orders
// of the next step. The orders are not reserved yet: gates are asked between this and
// [Reserve]. No orders means that there is nothing to do now.
//
// It is pure. Whatever the fleet shows, a closed incident stays closed, and an order
// is only ever made for the rung after the last one that ended.
func Advance(now time.Time, f fleet.Snapshot, in remedy.Incident, ev []remedy.Evidence, cfg Playbooks) (remedy.Incident, []remedy.Order) {
	if in.Phase.Closed() {
		return in, nil
	}
	w := walk{now: now, fleet: f, cfg: cfg, in: in.Clone()}
	for _, e := range ev {
		w.in.AddEvidence(e)
	}
	if w.in.Phase == remedy.PhaseOpen || w.in.Phase == remedy.PhaseActing || w.in.Phase == remedy.PhaseHeld {
		if why := w.overruled(); why != "" {
			w.cancel(why)
		}
	}
	var orders []remedy.Order
	switch w.in.Phase {
	case remedy.PhaseOpen, remedy.PhaseActing:
		orders = w.climb()
	case remedy.PhaseHeld:
		orders = w.hold()
	case remedy.PhaseCancelling:
		orders = w.undo()
	case remedy.PhaseResolved, remedy.PhaseCancelled:
	}
	return w.in, orders
}

// Reserve writes into the incident that the orders of its next step will now be
// started: after it is stored, and only then, they may be. gates are the answers that
// let them pass.
func Reserve(now time.Time, f fleet.Snapshot, in remedy.Incident, orders []remedy.Order, gates []remedy.GateResult) remedy.Incident {
	in = in.Clone()
	first := orders[0]
	rec := remedy.StepRecord{Rung: in.Rung, Action: first.Action, Role: first.Role, Reserved: now, Deadline: first.Deadline, Gates: gates}
	if in.Phase == remedy.PhaseOpen {
		in.Phase = remedy.PhaseActing
	} else if in.Phase != remedy.PhaseActing {
		rec.Rung = offLadder
	}
	for _, o := range orders {
		o.Reserved = now
		rec.Orders = append(rec.Orders, remedy.OrderRecord{Order: o})
		if o.Role == remedy.RoleStop {
			if j, ok := f.Jobs[o.Target.Job]; ok {
				in.Losses = append(in.Losses, remedy.Loss{
					Job: j.Ref, GPUHours: float64(j.GPUs()) * j.Unsaved(now).Hours(), Cause: "unsaved work", Step: j.Checkpoint.Step,
				})
			}
		}
	}
	in.Waiting = nil
	in.Steps = append(in.Steps, rec)
	if len(in.Steps) > remedy.MaxSteps {
		in.Steps = slices.Delete(in.Steps, 1, 2)
	}
	return in
}

// offLadder is the rung of steps that only recover.
const offLadder = -1

// A walk is one call of Advance.
type walk struct {
	now   time.Time
	fleet fleet.Snapshot
	cfg   Playbooks
	in    remedy.Incident
}

// climb goes up the ladder until a step has to be done or is still running.
func (w *walk) climb() []remedy.Order {
	if len(w.in.Ladder) == 0 {
		w.tell()
		return nil
	}
	if w.unknown() {
		return nil
	}
	for {
		if cur := w.in.Current(); cur != nil {
			w.watchVerify(cur)
			if !allEnded(cur) {
				return nil
			}
			if !w.close(cur) {
				return w.turn()
			}
			w.in.Rung++
			w.in.Phase = remedy.PhaseOpen
		}
		if w.in.Rung >= len(w.in.Ladder) {
			w.resolve("healed: every step of " + w.in.Playbook + " is done")
			return nil
		}
		if w.in.Rung == 0 && len(w.in.Steps) == 0 && w.bootedSince() {
			w.resolve("the node has been booted since the fault, before anything was done")
			return nil
		}
		orders, skip := w.orders(w.in.Ladder[w.in.Rung])
		if skip == "" {
			return orders
		}
		step := w.in.Ladder[w.in.Rung]
		w.in.Steps = append(w.in.Steps, remedy.StepRecord{
			Rung: w.in.Rung, Action: step.Action, Role: step.Role, Reserved: w.now, Ended: w.now, Skipped: true, Note: skip,
		})
		w.in.Rung++
	}
}

// turn goes on after a step that failed has left the ladder.
func (w *walk) turn() []remedy.Order {
	switch w.in.Phase {
	case remedy.PhaseHeld:
		return w.hold()
	case remedy.PhaseCancelling:
		return w.undo()
	case remedy.PhaseOpen, remedy.PhaseActing, remedy.PhaseResolved, remedy.PhaseCancelled:
	}
	return nil
}

// tell handles an incident for which nothing is to be done.
func (w *walk) tell() {
	if remedy.Classes[w.in.Class].Event {
		w.resolve("told; no playbook has steps for it")
		return
	}
	if n := len(w.in.Evidence); n > 0 && w.in.Evidence[n-1].Resolved {
		w.resolve("over by itself; nothing was done")
	}
}

// unknown reports whether the ladder has to wait since nobody knows the node. A node
// that we have already acted on and that is gone is another matter: see orders.
func (w *walk) unknown() bool {
	if w.in.Subject.Node == "" || len(w.in.Steps) > 0 {
		return false
	}
	if _, ok := w.fleet.Nodes[w.in.Subject.Node]; ok {
		return false
	}
	if w.now.Sub(w.in.Opened) > unknownNode {
		w.resolve("the cluster has no node " + w.in.Subject.Node)
		return true
	}
	w.in.Waiting = []remedy.GateResult{{Gate: "fleet", Reason: "the cluster does not know node " + w.in.Subject.Node}}
	return true
}

// bootedSince reports whether the node has left the boot in which the fault was seen.
func (w *walk) bootedSince() bool {
	n, ok := w.fleet.Nodes[w.in.Subject.Node]
	return ok && remedy.Classes[w.in.Class].Event && w.in.BootID != "" && n.BootID != "" && n.BootID != w.in.BootID
}

// watchVerify fails a verification during which the fault came back.
func (w *walk) watchVerify(cur *remedy.StepRecord) {
	if cur.Role != remedy.RoleVerify {
		return
	}
	node := w.fleet.Nodes[w.in.Subject.Node]
	for _, e := range w.in.Evidence {
		if e.Resolved || !e.At.After(cur.Reserved) || e.BootID != "" && e.BootID != node.BootID {
			continue
		}
		for i := range cur.Orders {
			if cur.Orders[i].Outcome == nil {
				cur.Orders[i].Outcome = &remedy.Outcome{Ending: remedy.Rejected, Note: "the fault came back: " + e.String()}
			}
		}
	}
}

func allEnded(s *remedy.StepRecord) bool {
	return !slices.ContainsFunc(s.Orders, func(o remedy.OrderRecord) bool { return o.Outcome == nil })
}

// close ends a step whose orders have all ended and reports whether the ladder goes on.
func (w *walk) close(cur *remedy.StepRecord) bool {
	cur.Ended, cur.Ending = w.now, remedy.Done
	for _, o := range cur.Orders {
		if o.Outcome.Ending != remedy.Done && o.Order.Role == remedy.RoleStop {
			w.dropLoss(o.Order.Target.Job)
		}
		if o.Outcome.Note != "" {
			cur.Note = o.Outcome.Note
		}
	}
	// The worst ending is the step's.
	for _, bad := range []remedy.Ending{remedy.Yielded, remedy.Unclear, remedy.Rejected, remedy.Late, remedy.Conflict} {
		for _, o := range cur.Orders {
			if o.Outcome.Ending != bad {
				continue
			}
			cur.Ending, cur.Note = bad, o.Outcome.Note
			if bad == remedy.Yielded {
				w.cancel(fmt.Sprintf("%s of %s: %s", cur.Action, o.Order.Target, o.Outcome.Note))
				return false
			}
			if w.optional(cur) {
				return true
			}
			w.fail(fmt.Sprintf("%s of %s ended %s: %s", cur.Action, o.Order.Target, bad, o.Outcome.Note))
			return false
		}
	}
	if len(cur.Orders) > 0 && !slices.ContainsFunc(cur.Orders, func(o remedy.OrderRecord) bool { return o.Outcome.Ending != remedy.Gone }) {
		cur.Ending = remedy.Gone
	}
	return true
}

func (w *walk) optional(cur *remedy.StepRecord) bool {
	return cur.Rung >= 0 && cur.Rung < len(w.in.Ladder) && w.in.Ladder[cur.Rung].Optional
}

func (w *walk) dropLoss(job fleet.JobRef) {
	w.in.Losses = slices.DeleteFunc(w.in.Losses, func(l remedy.Loss) bool { return l.Job == job })
}

func (w *walk) resolve(reason string) {
	w.in.Phase, w.in.Closed, w.in.Reason, w.in.Waiting = remedy.PhaseResolved, w.now, reason, nil
}

// fail leaves the ladder: the node stays held, and a person is needed.
func (w *walk) fail(reason string) {
	w.in.Phase, w.in.Reason, w.in.Waiting = remedy.PhaseHeld, "needs a person: "+reason, nil
}

// cancel leaves the ladder and starts to undo what is ours. The step that runs is
// left to itself: what it has begun is part of what is undone.
func (w *walk) cancel(reason string) {
	if cur := w.in.Current(); cur != nil {
		cur.Ended, cur.Ending, cur.Note = w.now, remedy.Yielded, "abandoned: "+reason
	}
	w.in.Phase, w.in.Reason, w.in.Waiting = remedy.PhaseCancelling, "cancelled: "+reason, nil
}

// overruled says what a person has changed that is ours; empty when nothing.
func (w *walk) overruled() string {
	in := &w.in
	for i := range in.Steps {
		s := &in.Steps[i]
		if s.Role == remedy.RoleRelease && !s.Skipped {
			return "" // given back by ourselves
		}
	}
	for _, s := range in.Steps {
		for _, o := range s.Orders {
			if o.Receipt == nil || o.Outcome == nil || o.Outcome.Ending != remedy.Done {
				continue
			}
			switch s.Role {
			case remedy.RoleHold:
				n, ok := w.fleet.Nodes[o.Order.Target.Node]
				if !ok || n.UID != o.Order.Target.UID && o.Order.Target.UID != "" || n.Version <= o.Receipt.Version {
					continue
				}
				if !n.Unschedulable {
					return "a person has uncordoned " + n.Name
				}
				if !n.Hold.Has(in.Name) {
					return "a person has removed the hold from " + n.Name
				}
			case remedy.RoleStop:
				j, ok := w.fleet.Jobs[o.Order.Target.Job]
				if ok && !w.startReserved(j.Ref) && j.Version > o.Receipt.Version && !j.Suspended && !j.Phase.Ended() && j.StoppedBy == o.Order.Key {
					return "a person has started " + j.Ref.String()
				}
			case remedy.RoleNone, remedy.RoleSave, remedy.RoleStart, remedy.RoleRenew, remedy.RoleVerify, remedy.RoleRelease:
			}
		}
	}
	return ""
}

func (w *walk) startReserved(job fleet.JobRef) bool {
	for _, s := range w.in.Steps {
		if s.Role == remedy.RoleStart && slices.ContainsFunc(s.Orders, func(o remedy.OrderRecord) bool { return o.Order.Target.Job == job }) {
			return true
		}
	}
	return false
}

// orders makes the orders of a step, or says why it is skipped.
func (w *walk) orders(step remedy.Step) ([]remedy.Order, string) {
	switch step.Scope {
	case remedy.ScopeJobs:
		jobs, none := w.jobs(step.Role)
		if len(jobs) == 0 {
			return nil, none
		}
		out := make([]remedy.Order, 0, len(jobs))
		for _, ref := range jobs[:min(len(jobs), remedy.MaxOrders)] {
			out = append(out, w.order(step, remedy.Target{Job: ref, UID: w.fleet.Jobs[ref].UID}))
		}
		return out, ""
	case remedy.ScopeNode:
		n, ok := w.fleet.Nodes[w.in.Subject.Node]
		if !ok {
			return nil, "the node is gone"
		}
		if step.Role == remedy.RoleRenew && w.bootedSince() {
			return nil, "the node has been booted already"
		}
		return []remedy.Order{w.order(step, remedy.Target{Node: n.Name, UID: n.UID})}, ""
	}
	return nil, fmt.Sprintf("scope %q is not known to this version", step.Scope)
}

// jobs returns the jobs that a step of the role is for, or why there are none.
func (w *walk) jobs(role remedy.Role) ([]fleet.JobRef, string) {
	if role == remedy.RoleStart {
		return w.owed(), "no job was stopped"
	}
	var out []fleet.JobRef
	for _, ref := range w.fleet.JobsOn(w.in.Subject.Node) {
		if j, ok := w.fleet.Jobs[ref]; ok && !j.Phase.Ended() {
			out = append(out, ref)
		}
	}
	if w.in.Subject.Kind == remedy.SubjectJob {
		for ref := range w.fleet.Jobs {
			if ref.Namespace == w.in.Subject.Namespace && ref.Name == w.in.Subject.Name {
				out = []fleet.JobRef{ref}
			}
		}
	}
	return out, "no job holds a GPU of the node"
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
				if o.Outcome == nil || o.Outcome.Ending != remedy.Gone {
					out = append(out, ref)
				}
			case remedy.RoleStart:
				// Ended in whatever way: started, taken over by a person, or given up with a reason.
				if o.Outcome != nil && o.Outcome.Ending != remedy.Late {
					out = slices.DeleteFunc(out, func(r fleet.JobRef) bool { return r == ref })
				}
			case remedy.RoleNone, remedy.RoleHold, remedy.RoleSave, remedy.RoleRenew, remedy.RoleVerify, remedy.RoleRelease:
			}
		}
	}
	slices.SortFunc(out, fleet.JobRef.Compare)
	return slices.Compact(out)
}

// order makes one order. Its key is the incident, the place in its history and the
// action: the same decision made again by another replica has the same key.
func (w *walk) order(step remedy.Step, to remedy.Target) remedy.Order {
	key := fmt.Sprintf("%s/%d-%s", w.in.Name, len(w.in.Steps), step.Action)
	if to.Job != (fleet.JobRef{}) {
		key += "/" + to.Job.Name
	}
	return remedy.Order{
		Key: key, Incident: w.in.Name, Action: step.Action, Effect: step.Effect, Role: step.Role,
		Target: to, Node: w.in.Subject.Node, BootID: w.in.BootID, Params: step.Params,
		Cause: w.cause(), Actor: "stoker", Deadline: w.now.Add(time.Duration(step.Within)),
	}
}

func (w *walk) cause() string {
	what := string(w.in.Class)
	if len(w.in.Evidence) > 0 {
		what = w.in.Evidence[0].String()
	}
	if w.in.Playbook == "" {
		return what
	}
	return fmt.Sprintf("%s (playbook %s)", what, w.in.Playbook)
}

// hold keeps a failed incident: the node stays as it is, and jobs that we stopped are
// started again as soon as they can be.
func (w *walk) hold() []remedy.Order {
	return w.recover(w.step(remedy.RoleStart, nil))
}

// undo gives back what the incident has taken, and ends it.
func (w *walk) undo() []remedy.Order {
	// A person has said that the node is fit: its jobs may land there again.
	if orders := w.recover(w.step(remedy.RoleStart, json.RawMessage(`{"avoid":"none"}`))); orders != nil || w.in.Current() != nil {
		return orders
	}
	if w.in.Current() == nil && w.holds() {
		if orders, skip := w.orders(w.step(remedy.RoleRelease, nil)); skip == "" {
			return orders
		}
	}
	w.in.Phase, w.in.Closed, w.in.Quiet = remedy.PhaseCancelled, w.now, w.now.Add(w.cfg.Quiet)
	return nil
}

// recover closes the recovery step that has ended and orders the start of jobs that
// are still owed one.
func (w *walk) recover(start remedy.Step) []remedy.Order {
	if cur := w.in.Current(); cur != nil {
		if !allEnded(cur) {
			return nil
		}
		cur.Ended, cur.Ending = w.now, remedy.Done
		for _, o := range cur.Orders {
			if o.Outcome.Ending != remedy.Done {
				cur.Ending, cur.Note = o.Outcome.Ending, o.Outcome.Note
			}
		}
	}
	if len(w.owed()) == 0 {
		return nil
	}
	start.Within = remedy.Duration(recoveryWithin)
	orders, _ := w.orders(start)
	return orders
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
func (w *walk) step(role remedy.Role, params json.RawMessage) remedy.Step {
	s := remedy.Step{Action: string(role), Scope: remedy.ScopeNode, Effect: remedy.EffectRecovery, Role: role, Within: remedy.Duration(10 * time.Minute)}
	if role == remedy.RoleStart {
		s.Scope = remedy.ScopeJobs
	}
	for _, l := range w.in.Ladder {
		if l.Role == role {
			s = l
		}
	}
	if params != nil {
		s.Params = params
	}
	return s
}
