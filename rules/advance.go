package rules

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

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
					Job: j.Ref, GPUHours: float64(j.MilliGPUs()) / 1000 * j.Unsaved(now).Hours(), Cause: "unsaved work", Step: j.Checkpoint.Step,
				})
			}
		}
	}
	in.Waiting = nil
	in.Steps = append(in.Steps, rec)
	if len(in.Steps) > remedy.MaxSteps {
		i := foldable(in.Steps)
		in.Steps = slices.Delete(in.Steps, i, i+1)
	}
	return in
}

// offLadder is the rung of steps that only recover.
const offLadder = -1

// foldable is the place of the step that a history which is too long can spare: a try
// to recover that was in vain. A ladder alone is never that long, and its own steps
// say what is still to be given back.
func foldable(steps []remedy.StepRecord) int {
	vain := func(s remedy.StepRecord) bool { return s.Rung == offLadder && s.Ending == remedy.Late }
	return max(1, slices.IndexFunc(steps, vain))
}

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
	w.learnBoot()
	if w.in.NodeUID == "" && !begun(w.in) {
		w.in.NodeUID = w.fleet.Nodes[w.in.Subject.Node].UID
	}
	if !begun(w.in) && !w.begin() {
		return w.turn()
	}
	for {
		if cur := w.in.Current(); cur != nil {
			w.watchVerify(cur)
			switch {
			case w.needless(cur):
				cur.Ended, cur.Skipped, cur.Note = w.now, true, stateOver
			case !allEnded(cur):
				return nil
			case !w.close(cur):
				return w.turn()
			}
			w.in.Rung++
			w.in.Phase = remedy.PhaseOpen
		}
		if w.in.Rung >= len(w.in.Ladder) {
			return w.top()
		}
		if w.replaced() {
			return w.leave()
		}
		if !begun(w.in) && w.bootedSince() {
			w.resolve("the node has been booted since the fault, before anything was done")
			return nil
		}
		step := w.in.Ladder[w.in.Rung]
		if step.Role == remedy.RoleStop && w.startedAnew() {
			return nil
		}
		if v := w.in.Ended(remedy.RoleVerify); v != nil && step.Role == remedy.RoleRelease {
			if back := w.cameBack(v.Reserved); back != "" {
				w.fail(back)
				return w.turn()
			}
		}
		orders, skip := w.orders(step)
		if w.done(step.Unless) {
			orders, skip = nil, step.Unless+" has done it"
		}
		if skip == "" && w.calm(step.Role, step.Effect) {
			orders, skip = nil, stateOver
		}
		if skip == "" {
			if step.Role == remedy.RoleVerify && w.lasts(step) {
				return w.turn()
			}
			return orders
		}
		w.in.Steps = append(w.in.Steps, remedy.StepRecord{
			Rung: w.in.Rung, Action: step.Action, Role: step.Role, Reserved: w.now, Ended: w.now, Skipped: true, Note: skip,
		})
		w.in.Rung++
	}
}

// top ends an incident whose ladder has no more steps, once all that it has stopped
// runs again.
func (w *walk) top() []remedy.Order {
	_, there := w.fleet.Nodes[w.in.Subject.Node]
	switch {
	case len(w.owed()) > 0:
		w.fail("every step is done, and " + names(w.owed()) + " does not run again")
		return w.turn()
	case w.in.Subject.Node != "" && !there:
		w.resolve("the node is gone")
	case !begun(w.in):
		w.resolve("there was nothing to do: every step of " + w.in.Playbook + " was skipped")
	case w.in.Subject.Kind == remedy.SubjectJob && w.skippedAll(remedy.RoleStop):
		w.resolve("over by itself before the job was stopped")
	default:
		w.resolve("healed: every step of " + w.in.Playbook + " is done")
	}
	return nil
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
	switch {
	case remedy.Classes[w.in.Class].Event:
		w.resolve("told; no playbook has steps for it")
	case w.over():
		w.resolve("over by itself; nothing was done")
	}
}

// over reports whether a state has ended by itself: whoever told of it has said so of
// the newest time that they told of. An event does not end.
func (w *walk) over() bool {
	if remedy.Classes[w.in.Class].Event || len(w.in.Evidence) == 0 {
		return false
	}
	newest := map[string]remedy.Evidence{} // by who tells: the alert, else the source
	for _, e := range w.in.Evidence {
		who := cmp.Or(e.Labels["alertname"], e.Source)
		if old, ok := newest[who]; !ok || !e.At.Before(old.At) {
			newest[who] = e
		}
	}
	for _, e := range newest {
		if !e.Resolved {
			return false
		}
	}
	return true
}

// unknown reports whether the ladder has to wait since nobody knows the node. A node
// that we have already acted on and that is gone is another matter: see orders.
func (w *walk) unknown() bool {
	if w.in.Subject.Node == "" || begun(w.in) {
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

// learnBoot keeps the boot in which the fault is. It is the node's when the evidence
// told of none, and a later one when the fault was seen again after a boot that was
// not ours: orders are for that boot then, and the boot has healed nothing.
func (w *walk) learnBoot() {
	n, ok := w.fleet.Nodes[w.in.Subject.Node]
	past := slices.ContainsFunc(w.in.Steps, func(s remedy.StepRecord) bool { return s.Role == remedy.RoleRenew })
	if !ok || n.BootID == "" || n.BootID == w.in.BootID || past {
		return
	}
	again := slices.ContainsFunc(w.in.Evidence, func(e remedy.Evidence) bool {
		return !e.Resolved && e.BootID == n.BootID && e.At.After(lastIn(w.in))
	})
	if again || w.in.BootID == "" && !begun(w.in) {
		w.in.BootID = n.BootID
	}
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
	back := w.cameBack(cur.Reserved)
	if back == "" {
		return
	}
	for i := range cur.Orders {
		if o := &cur.Orders[i]; o.Outcome == nil || o.Outcome.Ending == remedy.Done {
			o.Outcome = &remedy.Outcome{Ending: remedy.Rejected, Note: back}
		}
	}
}

// cameBack says that the fault was seen again since the verification began, or in
// another boot than it was, or that the end of a state, without which no verification
// begins, was none; empty when it was not.
func (w *walk) cameBack(verified time.Time) string {
	boot := w.fleet.Nodes[w.in.Subject.Node].BootID
	for _, e := range w.in.Evidence {
		if e.Resolved || e.BootID != "" && e.BootID != boot {
			continue
		}
		since := verified
		if e.BootID != "" && e.BootID != w.in.BootID {
			since = bootEnded(w.in)
		}
		// An event that we knew of before is not back because a clock runs ahead.
		if e.At.After(since) && e.Seen.After(since) {
			return "the fault came back: " + e.String()
		}
	}
	if !remedy.Classes[w.in.Class].Event && !w.over() {
		return "it is not over after all: " + w.in.Evidence[len(w.in.Evidence)-1].String()
	}
	return ""
}

func allEnded(s *remedy.StepRecord) bool {
	return !slices.ContainsFunc(s.Orders, func(o remedy.OrderRecord) bool { return o.Outcome == nil })
}

// close ends a step whose orders have all ended and reports whether the ladder goes on.
func (w *walk) close(cur *remedy.StepRecord) bool {
	worst := w.end(cur)
	switch {
	case worst == nil:
		return true
	case cur.Ending == remedy.Yielded:
		w.cancel(fmt.Sprintf("%s of %s: %s", cur.Action, worst.Order.Target, worst.Outcome.Note))
		return false
	case w.optional(cur):
		return true
	}
	w.fail(fmt.Sprintf("%s of %s ended %s: %s", cur.Action, worst.Order.Target, cur.Ending, worst.Outcome.Note))
	return false
}

// end writes into a step whose orders have all ended how it ended: as the worst of
// them, which is returned; nil when all of them are settled.
func (w *walk) end(cur *remedy.StepRecord) *remedy.OrderRecord {
	cur.Ended, cur.Ending = w.now, remedy.Done
	var worst *remedy.OrderRecord
	gone := len(cur.Orders) > 0
	for i := range cur.Orders {
		o := &cur.Orders[i]
		if o.Order.Role == remedy.RoleStop && !w.stopped(*o) {
			w.dropLoss(o.Order.Target.Job)
		}
		if worst == nil && o.Outcome.Note != "" {
			cur.Note = o.Outcome.Note
		}
		gone = gone && o.Outcome.Ending == remedy.Gone
		if bad(o.Outcome.Ending) > 0 && (worst == nil || bad(o.Outcome.Ending) > bad(worst.Outcome.Ending)) {
			worst = o
			cur.Ending, cur.Note = o.Outcome.Ending, o.Outcome.Note
		}
	}
	if gone {
		cur.Ending = remedy.Gone
	}
	return worst
}

// bad ranks endings; what may not be followed by the next step is above zero. One that
// this version does not know is as bad as one of which nobody knows.
func bad(e remedy.Ending) int {
	switch e {
	case remedy.Done, remedy.Gone:
		return 0
	case remedy.Conflict:
		return 1
	case remedy.Late:
		return 2
	case remedy.Rejected:
		return 3
	case remedy.Unclear:
		return 4
	case remedy.Yielded:
		return 5
	}
	return 4
}

func (w *walk) optional(cur *remedy.StepRecord) bool {
	return cur.Rung >= 0 && cur.Rung < len(w.in.Ladder) && w.in.Ladder[cur.Rung].Optional
}

// dropLoss takes back the newest loss of a job: nothing was taken from it after all.
func (w *walk) dropLoss(job fleet.JobRef) {
	for i := len(w.in.Losses) - 1; i >= 0; i-- {
		if w.in.Losses[i].Job == job {
			w.in.Losses = slices.Delete(w.in.Losses, i, i+1)
			return
		}
	}
}

func (w *walk) resolve(reason string) {
	w.in.Phase, w.in.Closed, w.in.Reason, w.in.Waiting = remedy.PhaseResolved, w.now, reason, nil
}

// fail leaves the ladder: the node stays held, and a person is needed.
func (w *walk) fail(reason string) {
	w.in.Phase, w.in.Reason, w.in.Waiting = remedy.PhaseHeld, "needs a person: "+reason, nil
}

// cancel leaves the ladder and starts to undo what is ours. The step that runs is
// left to itself: what it has begun is part of what is undone. One that gives back
// goes on, since undoing would ask for the same.
func (w *walk) cancel(reason string) {
	switch cur := w.in.Current(); {
	case cur == nil:
	case allEnded(cur):
		w.end(cur)
	case cur.Role != remedy.RoleStart && cur.Role != remedy.RoleRelease:
		cur.Ended, cur.Ending, cur.Note = w.now, remedy.Yielded, "abandoned: "+reason
	}
	w.in.Phase, w.in.Reason, w.in.Waiting = remedy.PhaseCancelling, "cancelled: "+reason, nil
}

// overruled says what a person has changed that is ours; empty when nothing.
func (w *walk) overruled() string {
	in := &w.in
	for i := range in.Steps {
		s := &in.Steps[i]
		if s.Role == remedy.RoleRelease && !s.Skipped && (s.Running() || s.Ending.Settled()) {
			return "" // given back by ourselves
		}
	}
	asked := reserved(*in, remedy.RoleRelease) != nil
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
				if asked && !n.Hold.Has(in.Name) {
					continue // as a release of ours has asked for, which was late
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
		jobs, none := w.jobs(step)
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
		if w.in.Subject.Node == "" {
			return nil, "the fault is not one of a node"
		}
		if !ok {
			return nil, "the node is gone"
		}
		if step.Role == remedy.RoleRenew && w.bootedSince() {
			return nil, "the node has been booted already"
		}
		to := remedy.Target{Node: n.Name, UID: n.UID}
		if step.Of != remedy.OfGPU {
			return []remedy.Order{w.order(step, to)}, ""
		}
		to.GPU = w.in.Subject.UUID
		o := w.order(step, to)
		o.Spare = w.spared()
		return []remedy.Order{o}, ""
	}
	return nil, fmt.Sprintf("scope %q is not known to this version", step.Scope)
}

// jobs returns the jobs that a step of the role is for, or why there are none.
func (w *walk) jobs(step remedy.Step) ([]fleet.JobRef, string) {
	switch step.Role {
	case remedy.RoleStart:
		return w.owed(), "no job was stopped"
	case remedy.RoleVerify:
		return w.restarted(), "no job was started"
	case remedy.RoleNone, remedy.RoleHold, remedy.RoleSave, remedy.RoleStop, remedy.RoleRenew, remedy.RoleRelease:
	}
	var out []fleet.JobRef
	switch w.in.Subject.Kind {
	case remedy.SubjectJob:
		j, there := w.subject()
		if !there || j.Phase.Ended() {
			return nil, "the job is gone or has ended"
		}
		return []fleet.JobRef{j.Ref}, ""
	case remedy.SubjectGPU, remedy.SubjectNode:
		var dead []fleet.JobRef
		for _, ref := range w.concerned(step.Of) {
			j, ok := w.fleet.Jobs[ref]
			switch {
			case !ok || j.Phase.Ended():
			case step.Role == remedy.RoleSave && w.dead(ref):
				dead = append(dead, ref)
			default:
				out = append(out, ref)
			}
		}
		if len(out) == 0 && len(dead) > 0 {
			return nil, names(dead) + " cannot save: on a GPU that is lost a program is dead or hangs"
		}
	case remedy.SubjectQueue, remedy.SubjectPool:
	}
	if len(out) == 0 && step.Of == remedy.OfGPU {
		return nil, "no job holds the GPU"
	}
	return out, "no job holds a GPU of the node"
}

// order makes one order. Its key is the incident and when it was opened, the place in
// its history, the action and the target: the same decision made again by another
// replica has the same key, and no other one ever has, also not of a later incident
// that gets the name once this one is forgotten.
func (w *walk) order(step remedy.Step, to remedy.Target) remedy.Order {
	key := fmt.Sprintf("%s%d-%s", keyPrefix(w.in), len(w.in.Steps), step.Action)
	if to.Job != (fleet.JobRef{}) {
		key += "/" + to.Job.Kind + "/" + to.Job.String()
	}
	return remedy.Order{
		Key: key, Incident: w.in.Name, Action: step.Action, Effect: step.Effect, Role: step.Role,
		Target: to, Node: w.in.Subject.Node, BootID: w.in.BootID, Params: step.Params,
		Cause: w.cause(), Actor: "stoker", Deadline: w.now.Add(time.Duration(step.Within)),
	}
}

// keyPrefix begins the keys of all orders of the incident, and of no other one.
func keyPrefix(in remedy.Incident) string {
	return in.Name + "/" + strconv.FormatInt(in.Opened.Unix(), 36) + "-"
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
