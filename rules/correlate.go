package rules

import (
	"fmt"
	"slices"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// bootLag is how long after an event a snapshot may still show the node in the boot
// before: the kubelet tells of a boot later than the driver tells of a fault in it.
const bootLag = 2 * time.Minute

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
//
// The event time is kept as it was told, also where a clock runs ahead of ours: it is
// what makes the second telling of an event the same event.
func Correlate(now time.Time, f fleet.Snapshot, incidents []remedy.Incident, ev []remedy.Evidence, cfg Playbooks) ([]remedy.Incident, []Note) {
	c := correlation{
		now: now, fleet: f, cfg: cfg, all: slices.Clone(incidents), about: map[string][]int{}, named: map[string]bool{},
		firing: map[string][]remedy.Subject{}, touched: map[string]bool{},
	}
	for i, in := range c.all {
		key := aboutKey(in.Class, in.Subject)
		c.about[key] = append(c.about[key], i)
		c.named[in.Name] = true
	}
	ready := make([]remedy.Evidence, len(ev))
	for i, e := range ev {
		ready[i] = c.prepare(e)
		c.remember(ready[i])
	}
	for _, e := range ready {
		c.take(e)
	}
	c.noteEnded()
	changed := make([]remedy.Incident, 0, len(c.order))
	for _, i := range c.order {
		changed = append(changed, c.all[i])
	}
	return changed, c.notes
}

type correlation struct {
	now    time.Time
	fleet  fleet.Snapshot
	cfg    Playbooks
	all    []remedy.Incident
	about  map[string][]int            // aboutKey → places in all
	named  map[string]bool             // names that are taken
	firing map[string][]remedy.Subject // aboutKey → whose state lasts, as this call was told

	touched map[string]bool
	order   []int // places in all
	notes   []Note
	ended   map[fleet.JobRef]*aftermath
}

// aboutKey is one for all subjects that may be the same.
func aboutKey(class remedy.Class, s remedy.Subject) string {
	return string(class) + "|" + s.Node + "|" + s.Namespace + "/" + s.Name
}

func (c *correlation) note(e remedy.Evidence, format string, args ...any) {
	c.notes = append(c.notes, Note{Evidence: e, Reason: fmt.Sprintf(format, args...)})
}

func (c *correlation) touch(i int) {
	if name := c.all[i].Name; !c.touched[name] {
		c.touched[name] = true
		c.order = append(c.order, i)
	}
}

func (c *correlation) prepare(e remedy.Evidence) remedy.Evidence {
	if e.Seen.IsZero() {
		e.Seen = c.now
	}
	if e.At.IsZero() {
		e.At = c.now
	}
	e.Subject = canonical(c.fleet, e.Subject)
	return e
}

// remember notes whose state lasts. Of several alerts about one state, the end of one
// is not the end of the state while another still says that it lasts.
func (c *correlation) remember(e remedy.Evidence) {
	if info, known := remedy.Classes[e.Class]; !known || info.Event || e.Resolved {
		return
	}
	if key := aboutKey(e.Class, e.Subject); !c.lasts(e) {
		c.firing[key] = append(c.firing[key], e.Subject)
	}
}

func (c *correlation) lasts(e remedy.Evidence) bool {
	return slices.ContainsFunc(c.firing[aboutKey(e.Class, e.Subject)], e.Subject.Same)
}

func (c *correlation) take(e remedy.Evidence) {
	if c.endOfJob(e) {
		return
	}
	if e.Class == remedy.ClassNone || e.Class == "" {
		c.note(e, "it changes no GPU's or node's state")
		return
	}
	info, known := remedy.Classes[e.Class]
	switch {
	case !known:
		c.note(e, "class %q is not known to this version", e.Class)
		return
	case e.Resolved && info.Event:
		c.note(e, "that its alert is over says nothing about the fault")
		return
	case e.Resolved && c.lasts(e):
		c.note(e, "another alert says that it is not over")
		return
	}

	stale := c.stale(e, info)
	last := 0 // newest occurrence of this subject and class
	for _, i := range c.about[aboutKey(e.Class, e.Subject)] {
		in := &c.all[i]
		if !in.Subject.Same(e.Subject) {
			continue
		}
		switch {
		case in.Phase.Closed():
		case stale != "" && !slices.ContainsFunc(in.Evidence, func(old remedy.Evidence) bool {
			return old.SameEvent(e) && (e.BootID == "" || e.BootID == old.BootID)
		}):
			c.note(e, "%s", stale) // as it would be if it had been told before the incident was open
			return
		default:
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

	switch {
	case e.Resolved:
		c.note(e, "it is over and no incident was open for it")
	case stale != "":
		c.note(e, "%s", stale)
	case info.Telemetry && c.booting(e.Subject.Node) != "":
		c.note(e, "expected while %s boots the node", c.booting(e.Subject.Node))
	default:
		c.open(e, last+1)
	}
}

// stale says why evidence is not acted on, though it may be true; empty when it may be.
func (c *correlation) stale(e remedy.Evidence, info remedy.ClassInfo) string {
	age := c.now.Sub(e.At)
	n := c.fleet.Nodes[e.Subject.Node]
	switch {
	case info.Event && age > c.cfg.MaxAge:
		return fmt.Sprintf("it is %s old, and %s is the limit", age.Round(time.Second), c.cfg.MaxAge)
	case info.Event && -age > c.cfg.MaxAge:
		return fmt.Sprintf("it is said to happen in %s; somebody's clock is wrong", -age.Round(time.Second))
	case e.BootID != "" && n.BootID != "" && e.BootID != n.BootID && c.fleet.At.Sub(e.At) > bootLag:
		return "it is from an earlier boot of the node"
	}
	return ""
}

// settled says why a closed incident already covers the evidence; empty when it does not.
func settled(now time.Time, in remedy.Incident, e remedy.Evidence) string {
	switch {
	case covers(in, e):
		return fmt.Sprintf("%s has dealt with it", in.Name)
	case now.Before(in.Quiet):
		return fmt.Sprintf("%s was %s by a person; quiet until %s", in.Name, in.Phase, in.Quiet.UTC().Format(time.RFC3339))
	}
	return ""
}

// covers reports whether a closed incident has dealt with the evidence: it happened
// before the repair, or it was known before the repair.
func covers(in remedy.Incident, e remedy.Evidence) bool {
	until := dealtUntil(in, e.BootID)
	return !e.At.After(until) || slices.ContainsFunc(in.Evidence, func(old remedy.Evidence) bool {
		return old.SameEvent(e) && !old.Seen.After(until)
	})
}

// dealtUntil is the time up to which a closed incident has dealt with faults that
// happened in the boot, if that is known. What happened while a repair was verified,
// or in the boot that the repair has brought, is not dealt with by it.
func dealtUntil(in remedy.Incident, boot string) time.Time {
	if in.Phase != remedy.PhaseResolved {
		return in.Closed
	}
	if boot != "" && in.BootID != "" && boot != in.BootID {
		return bootEnded(in)
	}
	if s := in.Ended(remedy.RoleVerify); s != nil {
		return s.Reserved
	}
	return in.Closed
}

// bootEnded is the earliest time at which the boot with the fault may have ended:
// when we asked for another one, else when the fault was last seen.
func bootEnded(in remedy.Incident) time.Time {
	if s := reserved(in, remedy.RoleRenew); s != nil {
		return s.Reserved
	}
	return lastIn(in)
}

// lastIn is when the incident's fault was last seen in its own boot, and a little
// later: as far apart as two sources may put one event, one of which may have named
// the boot in which it was read.
func lastIn(in remedy.Incident) time.Time {
	var last time.Time
	for _, e := range in.Evidence {
		if (e.BootID == "" || e.BootID == in.BootID) && e.At.After(last) {
			last = e.At
		}
	}
	return last.Add(2 * time.Second)
}

// Leftover returns evidence that a closed incident took in and has not dealt with:
// that of a fault which came back while the node was being given back. It has to be
// correlated again.
func Leftover(in remedy.Incident) []remedy.Evidence {
	if in.Phase != remedy.PhaseResolved {
		return nil
	}
	var out []remedy.Evidence
	for _, e := range in.Evidence {
		until := dealtUntil(in, e.BootID)
		if !e.Resolved && e.At.After(until) && e.Seen.After(until) {
			out = append(out, e)
		}
	}
	return out
}

// begun reports whether anything was ordered for the incident.
func begun(in remedy.Incident) bool {
	return slices.ContainsFunc(in.Steps, func(s remedy.StepRecord) bool { return len(s.Orders) > 0 })
}

// reserved returns the newest step of the role that has orders, or nil.
func reserved(in remedy.Incident, role remedy.Role) *remedy.StepRecord {
	for i := len(in.Steps) - 1; i >= 0; i-- {
		if s := &in.Steps[i]; s.Role == role && len(s.Orders) > 0 {
			return s
		}
	}
	return nil
}

func (c *correlation) open(e remedy.Evidence, occurrence int) {
	in := remedy.Incident{
		Name:       c.free(remedy.IncidentName(e.Class, e.Subject, occurrence)),
		Occurrence: occurrence,
		Subject:    e.Subject,
		Class:      e.Class,
		Phase:      remedy.PhaseOpen,
		BootID:     e.BootID,
		Opened:     c.now,
		Reason:     "opened: " + e.String(),
	}
	in.NodeUID = c.fleet.Nodes[e.Subject.Node].UID
	if in.BootID == "" {
		in.BootID = c.fleet.Nodes[e.Subject.Node].BootID
	}
	if b, ok := c.cfg.For(e); ok {
		in.Playbook, in.Mode, in.Ladder, in.OnFailure = b.Name, b.Mode, b.Steps, b.OnFailure
	}
	if e.Subject.Kind == remedy.SubjectJob {
		in.Restarts = restarts(c.all, e.Subject)
	}
	in.AddEvidence(e)
	c.all = append(c.all, in)
	i := len(c.all) - 1
	key := aboutKey(in.Class, in.Subject)
	c.about[key] = append(c.about[key], i)
	c.touch(i)
}

// free takes the name, or where another fault's sum came to the same one, the next to it.
// Incidents are found by what they are about, so a name only has to be nobody else's.
func (c *correlation) free(name string) string {
	for c.named[name] {
		name += "b"
	}
	c.named[name] = true
	return name
}

// canonical gives a GPU the names that telemetry knows it by, so that an incident is
// called the same whichever source tells first.
func canonical(f fleet.Snapshot, s remedy.Subject) remedy.Subject {
	if s.Kind != remedy.SubjectGPU {
		return s
	}
	s.PCI = normalPCI(s.PCI)
	for _, g := range f.Nodes[s.Node].GPUs {
		if known := gpuSubject(s.Node, g); known.Same(s) {
			return known
		}
	}
	return s
}
