package rules

import (
	"fmt"
	"slices"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// A Note is evidence that changed no incident, and why.
type Note struct {
	Evidence remedy.Evidence
	Reason   string
}

// Correlate sorts evidence into incidents: it joins the open one of its subject and
// class, or opens the next occurrence, or is noted with a reason. It returns the
// incidents that are new (without a version) or have learned something, in the order
// in which they were touched. It is pure, and taking in the same evidence twice
// changes nothing.
func Correlate(now time.Time, f fleet.Snapshot, incidents []remedy.Incident, ev []remedy.Evidence, cfg Playbooks) ([]remedy.Incident, []Note) {
	c := correlation{now: now, fleet: f, cfg: cfg, all: slices.Clone(incidents), touched: map[string]int{}}
	for _, e := range ev {
		c.take(e)
	}
	changed := make([]remedy.Incident, 0, len(c.order))
	for _, name := range c.order {
		changed = append(changed, c.all[c.touched[name]])
	}
	return changed, c.notes
}

type correlation struct {
	now     time.Time
	fleet   fleet.Snapshot
	cfg     Playbooks
	all     []remedy.Incident
	touched map[string]int // name → place in all
	order   []string
	notes   []Note
}

func (c *correlation) note(e remedy.Evidence, format string, args ...any) {
	c.notes = append(c.notes, Note{Evidence: e, Reason: fmt.Sprintf(format, args...)})
}

func (c *correlation) touch(i int) {
	if name := c.all[i].Name; !slices.Contains(c.order, name) {
		c.order = append(c.order, name)
		c.touched[name] = i
	}
}

func (c *correlation) take(e remedy.Evidence) {
	if e.Class == remedy.ClassNone || e.Class == "" {
		c.note(e, "it changes no GPU's or node's state")
		return
	}
	info, known := remedy.Classes[e.Class]
	if !known {
		c.note(e, "class %q is not known to this version", e.Class)
		return
	}
	if e.Seen.IsZero() {
		e.Seen = c.now
	}
	if e.At.IsZero() || e.At.After(c.now) {
		e.At = c.now // a clock that runs ahead; what has not happened yet is not evidence
	}
	e.Subject = canonical(c.fleet, e.Subject)
	if e.Resolved && info.Event {
		c.note(e, "that its alert is over says nothing about the fault")
		return
	}

	last := 0 // newest occurrence of this subject and class
	for i := range c.all {
		in := &c.all[i]
		if in.Class != e.Class || !in.Subject.Same(e.Subject) {
			continue
		}
		if !in.Phase.Closed() {
			if in.AddEvidence(e) {
				c.touch(i)
			}
			return
		}
		if reason := settled(c.now, *in, e); reason != "" {
			c.note(e, "%s", reason)
			return
		}
		last = max(last, in.Occurrence)
	}

	if e.Resolved {
		c.note(e, "it is over and no incident was open for it")
		return
	}
	if age := c.now.Sub(e.At); age > c.cfg.MaxAge && info.Event {
		c.note(e, "it is %s old, and %s is the limit", age.Round(time.Second), c.cfg.MaxAge)
		return
	}
	n, there := c.fleet.Nodes[e.Subject.Node]
	if there && e.BootID != "" && n.BootID != "" && e.BootID != n.BootID {
		c.note(e, "it is from an earlier boot of the node")
		return
	}
	c.open(e, n, last+1)
}

// settled says why a closed incident already covers the evidence; empty when it does not.
func settled(now time.Time, in remedy.Incident, e remedy.Evidence) string {
	switch {
	case !e.At.After(in.Closed):
		return fmt.Sprintf("%s has dealt with it", in.Name)
	case now.Before(in.Quiet):
		return fmt.Sprintf("%s was %s by a person; quiet until %s", in.Name, in.Phase, in.Quiet.UTC().Format(time.RFC3339))
	}
	return ""
}

func (c *correlation) open(e remedy.Evidence, n fleet.Node, occurrence int) {
	in := remedy.Incident{
		Name:       remedy.IncidentName(e.Class, e.Subject, occurrence),
		Occurrence: occurrence,
		Subject:    e.Subject,
		Class:      e.Class,
		Phase:      remedy.PhaseOpen,
		BootID:     e.BootID,
		Opened:     c.now,
		Reason:     "opened: " + e.String(),
	}
	if in.BootID == "" {
		in.BootID = n.BootID
	}
	if b, ok := c.cfg.For(e); ok {
		in.Playbook, in.Mode, in.Ladder, in.OnFailure = b.Name, b.Mode, b.Steps, b.OnFailure
	}
	in.AddEvidence(e)
	c.all = append(c.all, in)
	c.touch(len(c.all) - 1)
}

// canonical gives a GPU the names that telemetry knows it by, so that an incident is
// called the same whichever source tells first.
func canonical(f fleet.Snapshot, s remedy.Subject) remedy.Subject {
	if s.Kind != remedy.SubjectGPU {
		return s
	}
	for _, g := range f.Nodes[s.Node].GPUs {
		known := gpuSubject(s.Node, g)
		if !known.Same(s) {
			continue
		}
		return known
	}
	return s
}
