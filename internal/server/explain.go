package server

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// ErrNotFound says that there is nothing of that name to explain.
var ErrNotFound = errors.New("not found")

// Explain says for an incident, a node or a job: evidence, rule, gates, what was done,
// what runs, what comes then. The text is the same for the API and the command line.
func Explain(now time.Time, f fleet.Snapshot, incidents []remedy.Incident, kind, name, mode string) (string, error) {
	var b strings.Builder
	switch kind {
	case "incident":
		for _, in := range incidents {
			if in.Name == name {
				explainIncident(&b, now, f, in, mode)
				return b.String(), nil
			}
		}
		return "", fmt.Errorf("incident %q: %w", name, ErrNotFound)
	case "node":
		n, known := f.Nodes[name]
		about := slices.DeleteFunc(slices.Clone(incidents), func(in remedy.Incident) bool { return in.Subject.Node != name })
		if !known && len(about) == 0 {
			return "", fmt.Errorf("node %q: %w", name, ErrNotFound)
		}
		explainNode(&b, now, n, known, name)
		for _, mark := range slices.Sorted(maps.Keys(n.Hold.Incidents)) {
			open := slices.ContainsFunc(incidents, func(in remedy.Incident) bool { return in.Name == mark && !in.Phase.Closed() })
			if !open {
				fmt.Fprintf(&b, "  ⚠ it bears our mark for %s, which is not open: nobody gives it back but a person who uncordons it\n", mark)
			}
		}
		explainAll(&b, now, f, about, mode)
		return b.String(), nil
	case "job":
		about := slices.DeleteFunc(slices.Clone(incidents), func(in remedy.Incident) bool { return !touches(in, name) })
		var job *fleet.Job
		for ref, j := range f.Jobs {
			if ref.String() == name {
				job = &j
			}
		}
		if job == nil && len(about) == 0 {
			return "", fmt.Errorf("job %q: %w (a job is named namespace/name)", name, ErrNotFound)
		}
		if job != nil {
			explainJob(&b, now, *job)
		}
		explainAll(&b, now, f, about, mode)
		return b.String(), nil
	}
	return "", fmt.Errorf("cannot explain a %q; incident/NAME, node/NAME and job/NAMESPACE/NAME can be explained", kind)
}

func touches(in remedy.Incident, job string) bool {
	for _, s := range in.Steps {
		for _, o := range s.Orders {
			if o.Order.Target.Job != (fleet.JobRef{}) && o.Order.Target.Job.String() == job {
				return true
			}
		}
	}
	return false
}

// explainAll explains open incidents in full and names the newest closed ones.
func explainAll(b *strings.Builder, now time.Time, f fleet.Snapshot, about []remedy.Incident, mode string) {
	var closed []remedy.Incident
	for _, in := range about {
		if in.Phase.Closed() {
			closed = append(closed, in)
			continue
		}
		b.WriteByte('\n')
		explainIncident(b, now, f, in, mode)
	}
	slices.Reverse(closed)
	for i, in := range closed {
		if i == 0 {
			b.WriteString("\nclosed incidents, newest first:\n")
		}
		if i == 5 {
			fmt.Fprintf(b, "  and %d more\n", len(closed)-5)
			break
		}
		fmt.Fprintf(b, "  %s  %s %s %s ago: %s\n", in.Name, in.Class, in.Phase, age(now, in.Closed), in.Reason)
	}
	if len(about) == 0 {
		b.WriteString("no incident is or was about it\n")
	}
}

func explainNode(b *strings.Builder, now time.Time, n fleet.Node, known bool, name string) {
	if !known {
		fmt.Fprintf(b, "%s is not a node of the cluster as it is seen now.\n", name)
		return
	}
	switch {
	case n.Hold.Any() && n.Unschedulable:
		var since time.Time
		for _, t := range n.Hold.Incidents {
			if since.IsZero() || t.Before(since) {
				since = t
			}
		}
		fmt.Fprintf(b, "%s is cordoned by Stoker since %s (%s): %s\n", n.Name, clock(since), age(now, since), n.Hold.Why)
		if !n.Hold.Cordoned {
			b.WriteString("  it was cordoned by somebody else before and stays so when Stoker lets go\n")
		}
	case n.Unschedulable:
		fmt.Fprintf(b, "%s is cordoned, not by Stoker.\n", n.Name)
	default:
		fmt.Fprintf(b, "%s is schedulable.\n", n.Name)
	}
	fmt.Fprintf(b, "  ready      %s since %s\n", word(n.Ready.Status), clock(n.Ready.Since))
	fmt.Fprintf(b, "  GPUs       %d allocatable of %d\n", n.Allocatable.GPUs, n.Capacity.GPUs)
	fmt.Fprintf(b, "  telemetry  %s\n", telemetry(now, n))
	if n.OptOut != "" {
		fmt.Fprintf(b, "  opted out  %s\n", n.OptOut)
	}
}

func telemetry(now time.Time, n fleet.Node) string {
	switch n.Telemetry.Status {
	case fleet.True:
		lost := 0
		for _, g := range n.GPUs {
			if g.Up == fleet.False {
				lost++
			}
		}
		if lost > 0 {
			return fmt.Sprintf("arrives; %d of %d GPUs are lost", lost, len(n.GPUs))
		}
		return fmt.Sprintf("arrives; %d GPUs tell of themselves", len(n.GPUs))
	case fleet.False:
		return "lost for " + age(now, n.Telemetry.Since) + "; nothing is known of the GPUs"
	case fleet.Unknown:
	}
	return "never seen"
}

func explainJob(b *strings.Builder, now time.Time, j fleet.Job) {
	fmt.Fprintf(b, "%s is %s: %d x %d GPUs", j.Ref, word(fleet.Truth(j.Phase)), j.Workers, j.Each.GPUs)
	if j.Attempt > 0 {
		fmt.Fprintf(b, ", started anew by Stoker %d times", j.Attempt)
	}
	b.WriteString(".\n")
	if j.Checkpoint.Known() {
		fmt.Fprintf(b, "  checkpoint step %d of %s (%s ago) %s\n", j.Checkpoint.Step, clock(j.Checkpoint.At), age(now, j.Checkpoint.At), j.Checkpoint.URI)
	} else {
		b.WriteString("  checkpoint none is known\n")
	}
	if j.Resume != "" {
		fmt.Fprintf(b, "  resumes    from %s\n", j.Resume)
	}
	if len(j.Avoid) > 0 {
		fmt.Fprintf(b, "  avoids     %s\n", strings.Join(j.Avoid, ", "))
	}
}

func explainIncident(b *strings.Builder, now time.Time, f fleet.Snapshot, in remedy.Incident, mode string) {
	fmt.Fprintf(b, "%s: %s on %s, %s since %s (%s).\n", in.Name, in.Class, in.Subject, in.Phase, clock(in.Opened), age(now, in.Opened))
	if in.Reason != "" {
		fmt.Fprintf(b, "  state      %s\n", in.Reason)
	}
	for i, e := range in.Evidence {
		title := ""
		if i == 0 {
			title = "evidence"
		}
		fmt.Fprintf(b, "  %-10s %s  %s (told by %s)\n", title, clock(e.At), e, e.Source)
	}
	if more := in.EvidenceCount - len(in.Evidence); more > 0 {
		fmt.Fprintf(b, "  %-10s and %d more\n", "", more)
	}
	if in.Playbook == "" {
		b.WriteString("  rule       no playbook is for it: it is told and nothing is done\n")
	} else {
		m := mode
		if in.Mode != "" {
			m = in.Mode + " (the playbook's own)"
		}
		fmt.Fprintf(b, "  rule       playbook %s, mode %s\n", in.Playbook, m)
	}
	for _, s := range in.Steps {
		explainStep(b, now, s)
	}
	for _, g := range in.Waiting {
		fmt.Fprintf(b, "  waits      %s for gate %s: %s\n", in.StepName(), g.Gate, g.Reason)
	}
	if next := comes(in); next != "" {
		fmt.Fprintf(b, "  then       %s\n", next)
	}
	for _, l := range in.Losses {
		fmt.Fprintf(b, "  lost       %.2f GPU-hours of %s: %s, goes on from step %d\n", l.GPUHours, l.Job, l.Cause, l.Step)
	}
	if !in.Quiet.IsZero() && now.Before(in.Quiet) {
		fmt.Fprintf(b, "  quiet      the same evidence opens nothing until %s\n", clock(in.Quiet))
	}
	if _, ok := f.Nodes[in.Subject.Node]; !ok && in.Subject.Node != "" && !in.Phase.Closed() {
		fmt.Fprintf(b, "  node       %s is not in the cluster as it is seen now\n", in.Subject.Node)
	}
}

func explainStep(b *strings.Builder, now time.Time, s remedy.StepRecord) {
	var to []string
	for _, o := range s.Orders {
		to = append(to, o.Order.Target.String())
	}
	what := strings.TrimSpace(s.Action + " " + strings.Join(to, ", "))
	switch {
	case s.Skipped:
		fmt.Fprintf(b, "  skipped    %s  %s: %s\n", clock(s.Reserved), s.Action, s.Note)
	case s.Running():
		fmt.Fprintf(b, "  runs       %s  %s for %s, at most until %s\n", clock(s.Reserved), what, age(now, s.Reserved), clock(s.Deadline))
		for _, o := range s.Orders {
			if o.Receipt != nil && o.Receipt.Note != "" {
				fmt.Fprintf(b, "  %-10s %s: %s\n", "", o.Order.Target, o.Receipt.Note)
			}
		}
	default:
		fmt.Fprintf(b, "  %-10s %s  %s (%s)", ending(s.Ending), clock(s.Reserved), what, s.Ended.Sub(s.Reserved).Round(time.Millisecond))
		if s.Note != "" {
			b.WriteString(": " + s.Note)
		}
		b.WriteByte('\n')
	}
	var gates []string
	for _, g := range s.Gates {
		gates = append(gates, g.Gate+" pass ("+g.Reason+")")
	}
	if len(gates) > 0 {
		fmt.Fprintf(b, "  %-10s gates %s\n", "", strings.Join(gates, " · "))
	}
}

func ending(e remedy.Ending) string {
	if e == remedy.Done {
		return "done"
	}
	return string(e)
}

// comes names the rungs that are still to come.
func comes(in remedy.Incident) string {
	if in.Phase.Closed() || in.Phase == remedy.PhaseHeld || in.Phase == remedy.PhaseCancelling {
		return ""
	}
	from := in.Rung
	if in.Current() != nil {
		from++
	}
	var out []string
	for i := from; i < len(in.Ladder); i++ {
		s := in.Ladder[i]
		out = append(out, fmt.Sprintf("%s ≤%s", s.Action, s.Within))
	}
	return strings.Join(out, " → ")
}

func word(t fleet.Truth) string {
	if t == fleet.Unknown {
		return "not known"
	}
	return string(t)
}

func clock(t time.Time) string {
	if t.IsZero() {
		return "(time not known)"
	}
	return t.UTC().Format(time.TimeOnly)
}

func age(now, t time.Time) string {
	if t.IsZero() {
		return "?"
	}
	return remedy.Duration(now.Sub(t).Round(time.Second)).String()
}
