package actuator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// What the actions have in common: how they read their target, and how they answer.

// failf is a failure whose ending is known.
func failf(e remedy.Ending, format string, args ...any) error {
	return &remedy.Failure{Ending: e, Err: fmt.Errorf(format, args...)}
}

// endingOf sorts an error; one that does not say what became of the change is unclear.
func endingOf(err error) remedy.Ending {
	if f, ok := errors.AsType[*remedy.Failure](err); ok {
		return f.Ending
	}
	return remedy.Unclear
}

// liveNode reads the node that the order is for. Another node of that name is not it.
func liveNode(ctx context.Context, nodes Nodes, o remedy.Order) (fleet.Node, error) {
	n, err := nodes.Node(ctx, o.Target.Node)
	if err != nil {
		return n, fmt.Errorf("read node %s: %w", o.Target.Node, err)
	}
	if o.Target.UID != "" && n.UID != o.Target.UID {
		return n, failf(remedy.Gone, "node %s is another one than the order is for", n.Name)
	}
	return n, nil
}

// liveJob reads the job that the order is for. Another job of that name is not it.
func liveJob(ctx context.Context, jobs Jobs, o remedy.Order) (fleet.Job, error) {
	j, err := jobs.Job(ctx, o.Target.Job)
	if err != nil {
		return j, fmt.Errorf("read job %s: %w", o.Target.Job, err)
	}
	if o.Target.UID != "" && j.UID != o.Target.UID {
		return j, failf(remedy.Gone, "job %s is another one than the order is for", o.Target.Job)
	}
	return j, nil
}

// knownNode finds the order's node in a snapshot; false when it is gone for good.
func knownNode(f fleet.Snapshot, o remedy.Order) (fleet.Node, bool) {
	n, ok := f.Nodes[o.Target.Node]
	return n, ok && (o.Target.UID == "" || n.UID == o.Target.UID)
}

// knownJob finds the order's job in a snapshot; false when it is gone for good.
func knownJob(f fleet.Snapshot, o remedy.Order) (fleet.Job, bool) {
	j, ok := f.Jobs[o.Target.Job]
	return j, ok && (o.Target.UID == "" || j.UID == o.Target.UID)
}

// stale reports whether the snapshot may be older than the receipt.
func stale(f fleet.Snapshot, r remedy.Receipt) bool { return !f.At.After(r.At) }

// ended is the answer of a Check.
func ended(e remedy.Ending, format string, args ...any) (remedy.Outcome, bool) {
	return remedy.Outcome{Ending: e, Note: fmt.Sprintf(format, args...)}, true
}

// unfinished is the answer of a Check that finds the effect incomplete: not ended
// before the deadline, late after it, with what is missing.
func unfinished(now time.Time, o remedy.Order, format string, args ...any) (remedy.Outcome, bool) {
	if !late(now, o) {
		return remedy.Outcome{}, false
	}
	note := fmt.Sprintf(format, args...)
	if !o.Reserved.IsZero() {
		note = fmt.Sprintf("not within %s: %s", span(o.Deadline.Sub(o.Reserved)), note)
	}
	return remedy.Outcome{Ending: remedy.Late, Note: note}, true
}

func late(now time.Time, o remedy.Order) bool {
	return !o.Deadline.IsZero() && !now.Before(o.Deadline)
}

// takenOver says what a person has changed about a node that the order's incident
// holds; empty when nothing. What goes on there is then theirs.
func takenOver(n fleet.Node, o remedy.Order) string {
	switch {
	case !n.Hold.Has(o.Incident):
		return fmt.Sprintf("%s is not held by %s any more", n.Name, o.Incident)
	case !n.Unschedulable:
		return n.Name + " was uncordoned by a person"
	}
	return ""
}

// by reports whether a key that was found on an object is of the incident's orders.
// Keys are the incident's name, a slash, and what the loop makes of the rest.
func by(key, incident string) bool {
	return incident != "" && strings.HasPrefix(key, incident+"/")
}

// listed bounds how many names a note lists.
const listed = 5

// list joins names for people, the first few and the number of the others.
func list(names []string) string {
	if more := len(names) - listed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:listed], ", "), more)
	}
	return strings.Join(names, ", ")
}

// count is a number of things: "1 pod", "3 pods".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// span writes a duration to the second.
func span(d time.Duration) string { return remedy.Duration(d.Round(time.Second)).String() }

// pod is how a note calls a pod.
func pod(p fleet.PodRef) string { return p.Namespace + "/" + p.Name }

// lingers says of each pod where it is and why it may be there still.
func lingers(f fleet.Snapshot, pods []fleet.PodRef) string {
	names := make([]string, len(pods))
	for i, p := range pods {
		n, known := f.Nodes[p.Node]
		why := "has not been asked to go"
		switch {
		case !known || n.Ready.Status != fleet.True:
			why = "whose node does not answer"
		case f.Pods[p.UID].Terminating:
			why = "is stopping"
		}
		names[i] = fmt.Sprintf("%s on %s (%s)", pod(p), p.Node, why)
	}
	return list(names)
}
