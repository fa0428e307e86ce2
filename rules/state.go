package rules

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// What holds for states, which may end by themselves, and for incidents about a job,
// which may be restarted by others than us.

// stateOver is why a step of a ladder is left out whose state has ended.
const stateOver = "the state is over by itself"

// begin looks, before anything is ordered, whether anything may be. False: the
// incident has left the ladder, or waits.
func (w *walk) begin() bool {
	if w.over() {
		w.resolve("over by itself; nothing was done")
		return false
	}
	dry := w.cfg.DryRun || w.in.Mode == "dry-run"
	if dry && remedy.Classes[w.in.Class].Event && w.now.Sub(w.newest()) > w.cfg.MaxAge {
		// Nobody will do anything, so nothing would ever end it: dry runs last for weeks.
		w.resolve("a dry run: nothing was done, and nothing was told of it for " + w.cfg.MaxAge.String())
		return false
	}
	if w.in.Subject.Kind != remedy.SubjectJob {
		return true
	}
	j, there := w.subject()
	switch {
	case !there:
		return true // its steps say so
	case j.Phase == fleet.JobFailed:
		w.resolve(fmt.Sprintf("%s has failed for good: the API lets no job run again that has ended; create it anew to go on from %s", j.Ref, saved(j.Checkpoint)))
		return false
	case w.startedAnew():
		return false
	}
	return w.mayRestart(j)
}

// startedAnew ends an incident about a job that somebody else has started anew since it
// failed, be it for the sake of a node.
func (w *walk) startedAnew() bool {
	if w.in.Subject.Kind != remedy.SubjectJob || reserved(w.in, remedy.RoleStop) != nil {
		return false
	}
	j, there := w.subject()
	if !there || !j.Started.After(w.newest()) {
		return false
	}
	w.resolve(j.Ref.String() + " has been started anew since; it was not stopped")
	return true
}

// saved says for people which checkpoint there is.
func saved(c fleet.Checkpoint) string {
	switch {
	case !c.Known():
		return "its newest checkpoint"
	case c.URI != "":
		return fmt.Sprintf("step %d (%s)", c.Step, c.URI)
	}
	return fmt.Sprintf("step %d", c.Step)
}

// newest is the time of the newest evidence.
func (w *walk) newest() time.Time {
	var at time.Time
	for _, e := range w.in.Evidence {
		if e.At.After(at) {
			at = e.At
		}
	}
	return at
}

// subject is the job that the incident is about: of several kinds with one name, the
// one that sorts first of those that have not ended.
func (w *walk) subject() (fleet.Job, bool) {
	var found []fleet.Job
	for ref, j := range w.fleet.Jobs {
		if ref.Namespace == w.in.Subject.Namespace && ref.Name == w.in.Subject.Name {
			found = append(found, j)
		}
	}
	if len(found) == 0 {
		return fleet.Job{}, false
	}
	return slices.MinFunc(found, func(a, b fleet.Job) int {
		if a.Phase.Ended() != b.Phase.Ended() {
			return map[bool]int{true: 1, false: -1}[a.Phase.Ended()]
		}
		return a.Ref.Compare(b.Ref)
	}), true
}

// Limits of restarts of a job for its own sake, where the ladder names none.
const (
	defaultRestarts = 1
	defaultPer      = 24 * time.Hour
	// restartPause is what has to pass between the first restart and the second; it
	// doubles with each further one.
	restartPause = 5 * time.Minute
)

// restartLimit is what the ladder's start says of how often a job may be restarted.
func (w *walk) restartLimit() (most int, per time.Duration) {
	var p struct {
		Attempts int             `json:"attempts"`
		Per      remedy.Duration `json:"per"`
	}
	for _, s := range w.in.Ladder {
		if s.Role == remedy.RoleStart && json.Unmarshal(s.Params, &p) == nil {
			break
		}
	}
	if p.Attempts <= 0 {
		p.Attempts = defaultRestarts
	}
	if p.Per <= 0 {
		p.Per = remedy.Duration(defaultPer)
	}
	return p.Attempts, time.Duration(p.Per)
}

// mayRestart holds the incident for a person, before the job is stopped, where it was
// restarted for its own sake as often as it may be, and lets it wait where the last
// time was a short while ago. Restarts for the sake of a node do not count.
func (w *walk) mayRestart(j fleet.Job) bool {
	if !slices.ContainsFunc(w.in.Ladder, func(s remedy.Step) bool { return s.Role == remedy.RoleStop }) {
		return true
	}
	most, per := w.restartLimit()
	var last time.Time
	n := 0
	for _, r := range w.earlier(j) {
		if w.now.Sub(r.At) < per {
			n++
			last = r.At
		}
	}
	ago := remedy.Duration(w.now.Sub(last).Round(time.Second))
	switch pause := restartPause << min(max(n-1, 0), 8); {
	case n >= most:
		w.fail(fmt.Sprintf("%s was restarted %s within %s, the last time %s ago, and %d is the limit", j.Ref, times(n), remedy.Duration(per), ago, most))
		return false
	case n > 0 && w.now.Sub(last) < pause:
		w.in.Waiting = []remedy.GateResult{{Gate: "restarts", Reason: fmt.Sprintf("%s was restarted %s within %s, the last time %s ago; %s have to pass", j.Ref, times(n), remedy.Duration(per), ago, remedy.Duration(pause))}}
		return false
	}
	return true
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// earlier are the restarts of the job by earlier incidents about it. One that no stored
// incident tells of any more is told by the job's own mark.
func (w *walk) earlier(j fleet.Job) []remedy.Restart {
	out := slices.Clone(w.in.Restarts)
	by, _, _ := strings.Cut(j.StartedBy, "/")
	if by == "" || strings.HasPrefix(j.StartedBy, keyPrefix(w.in)) || j.Started.IsZero() || slices.ContainsFunc(out, func(r remedy.Restart) bool { return r.Incident == by }) {
		return out
	}
	for class, info := range remedy.Classes {
		name := remedy.IncidentName(class, w.in.Subject, 1)
		if info.Subject == remedy.SubjectJob && (by == name || strings.HasPrefix(by, name+"-")) {
			return append(out, remedy.Restart{Incident: by, At: j.Started})
		}
	}
	return out
}

// restarts are what the incidents about the job have started, in order of time.
func restarts(all []remedy.Incident, job remedy.Subject) []remedy.Restart {
	var out []remedy.Restart
	for _, in := range all {
		if !in.Subject.Same(job) {
			continue
		}
		if s := in.Ended(remedy.RoleStart); s != nil && slices.ContainsFunc(s.Orders, func(o remedy.OrderRecord) bool { return o.Outcome.Ending == remedy.Done }) {
			out = append(out, remedy.Restart{Incident: in.Name, At: s.Ended})
		}
	}
	slices.SortFunc(out, func(a, b remedy.Restart) int { return a.At.Compare(b.At) })
	return out[max(0, len(out)-remedy.MaxRestarts):]
}

// restarted are the jobs that this incident has started and that have not ended since
// as done.
func (w *walk) restarted() []fleet.JobRef {
	var out []fleet.JobRef
	for _, s := range w.in.Steps {
		if s.Role != remedy.RoleStart {
			continue
		}
		for _, o := range s.Orders {
			if o.Outcome != nil && o.Outcome.Ending == remedy.Done && !slices.Contains(out, o.Order.Target.Job) {
				out = append(out, o.Order.Target.Job)
			}
		}
	}
	slices.SortFunc(out, fleet.JobRef.Compare)
	return out
}

// dead reports whether the job's program certainly ran on the incident's GPU and is dead
// by the class of the fault: telemetry says that one of its pods holds that GPU, or it
// holds every GPU of the node.
func (w *walk) dead(job fleet.JobRef) bool {
	if !remedy.Classes[w.in.Class].Dead {
		return false
	}
	n := w.fleet.Nodes[w.in.Subject.Node]
	g, _ := n.GPU(w.in.Subject.UUID)
	gpus := 0
	for _, p := range w.fleet.PodsOf(job) {
		if p.Node != n.Name {
			continue
		}
		if slices.Contains(g.Pods, fleet.PodName{Namespace: p.Namespace, Name: p.Name}) {
			return true
		}
		gpus += p.GPUs
	}
	return gpus > 0 && gpus >= n.Capacity.GPUs
}

// calm reports whether a step is left out since the state has ended in the middle of
// the ladder: nothing more is taken. What was taken is still given back, and only once
// the end has been verified.
func (w *walk) calm(role remedy.Role, effect remedy.Effect) bool {
	return begun(w.in) && w.over() && (effect == remedy.EffectHarm || role == remedy.RoleSave)
}

// needless reports whether a step that runs is given up since the state has ended: one
// that only asks pods to go, or waits for work to be saved. What has to be seen to its
// end, such as a stop or a boot, is.
func (w *walk) needless(cur *remedy.StepRecord) bool {
	if allEnded(cur) || cur.Role != remedy.RoleNone && cur.Role != remedy.RoleSave {
		return false
	}
	return w.calm(cur.Role, cur.Orders[0].Order.Effect)
}

// lasts reports whether a verification cannot begin since the state is still there. It
// is waited for as long as the step may take, and then a person is.
func (w *walk) lasts(step remedy.Step) bool {
	if remedy.Classes[w.in.Class].Event || w.over() {
		return false
	}
	since := w.in.Opened
	if n := len(w.in.Steps); n > 0 {
		since = w.in.Steps[n-1].Ended
	}
	within := time.Duration(step.Within)
	if w.now.Sub(since) >= within {
		w.fail(fmt.Sprintf("%s cannot be done: not over within %s: %s", step.Action, step.Within, w.in.Evidence[0]))
		return true
	}
	w.in.Waiting = []remedy.GateResult{{Gate: "state", Reason: fmt.Sprintf("nobody has said that it is over; it is waited for until %s UTC", since.Add(within).UTC().Format(time.TimeOnly))}}
	return true
}

// skippedAll reports whether the ladder has steps of the role and none of them was done.
func (w *walk) skippedAll(role remedy.Role) bool {
	return reserved(w.in, role) == nil && slices.ContainsFunc(w.in.Ladder, func(s remedy.Step) bool { return s.Role == role })
}
