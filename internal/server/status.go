package server

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// A State is what a page needs to say whether it can be believed.
type State struct {
	Mode     string   `json:"mode"`
	Identity string   `json:"identity"`         // this replica
	Leader   string   `json:"leader,omitempty"` // who leads; empty when nobody does
	Leading  bool     `json:"leading"`          // this replica does
	Watchdog Watchdog `json:"watchdog"`
}

// A Watchdog is the proof of the path that alerts take: an alert that always fires.
type Watchdog struct {
	Wanted bool      `json:"wanted"`        // somebody is to send it
	Seen   time.Time `json:"seen,omitzero"` // when it last came; zero: never
	Late   bool      `json:"late"`          // it should have come again by now
	Why    string    `json:"why,omitempty"` // it is late: one sentence
}

// modeDryRun is what the configuration calls the mode that does nothing.
const modeDryRun = "dry-run"

// lateAfter is how old the answer of a source may be before what it tells is no longer
// shown as the present.
const lateAfter = time.Minute

// A Status is whether Stoker can be believed, what waits and what is broken. It is what
// GET /api/v1/status answers.
type Status struct {
	At time.Time `json:"at"`
	// Healthy says that everything that is shown can be believed and that nothing waits
	// for a person. Incidents that are being healed are the service's work.
	Healthy bool `json:"healthy"`
	// Trouble says why what is shown cannot be believed; empty when it can.
	Trouble   []string             `json:"trouble"`
	State     State                `json:"state"`
	Observed  time.Time            `json:"observed,omitzero"` // the fleet, by this replica
	Sources   []SourceAge          `json:"sources"`
	Fleet     FleetCount           `json:"fleet"`
	Incidents map[remedy.Phase]int `json:"incidents"` // those that are kept, by phase
	GPUsHit   int                  `json:"gpusHit"`   // by open incidents, each GPU once
	// LostGPUHours is the work lost to incidents that were opened in the last 24 hours.
	LostGPUHours float64 `json:"lostGPUHours24h"`
	Waiting      []Wait  `json:"waiting"` // who needs a person first, then the oldest
}

// A SourceAge says when a source of facts last answered.
type SourceAge struct {
	Name       string    `json:"name"`
	At         time.Time `json:"at"`
	AgeSeconds float64   `json:"ageSeconds"`
	Late       bool      `json:"late"` // more than a minute ago
}

// A FleetCount counts nodes, as this replica has observed them.
type FleetCount struct {
	Nodes         int `json:"nodes"`
	Available     int `json:"available"` // take new work
	Held          int `json:"held"`      // marked by Stoker
	TelemetryLost int `json:"telemetryLost"`
	GPUs          int `json:"gpus"`
}

// A Waiter says what has to happen before a step is done.
type Waiter string

// What is waited for.
const (
	WaitPerson Waiter = "person"  // somebody must decide
	WaitGate   Waiter = "gate"    // it goes on by itself when the gate lets it
	WaitDryRun Waiter = "dry-run" // nothing will be done: it is told what would be
)

// A Wait is one incident that does not go on now.
type Wait struct {
	Incident string       `json:"incident"`
	Class    remedy.Class `json:"class"`
	Subject  string       `json:"subject"`
	For      Waiter       `json:"for"`
	Gate     string       `json:"gate,omitempty"` // names, with commas; empty when no gate is asked
	Step     string       `json:"step"`
	Reason   string       `json:"reason"`
	Since    time.Time    `json:"since"` // when the step before it ended
	GPUs     int          `json:"gpus"`
	Jobs     []string     `json:"jobs,omitempty"`
}

// An overview is the status with the lists that the first page shows beside it.
type overview struct {
	Status

	Open []problem // worst first
	Done []deed    // newest first
}

// A problem is one open incident and what it befell.
type problem struct {
	remedy.Incident

	GPUs int // of its node, and those that its jobs hold elsewhere, now
	Jobs []fleet.JobRef
	Wait *Wait // nil while it goes on
}

// Running is the step that runs; nil when none does.
func (p problem) Running() *remedy.StepRecord { return p.Current() }

// A deed is one order that was given.
type deed struct {
	remedy.Order

	At     time.Time // it ended, or was given where it still runs
	Ending remedy.Ending
	Note   string
}

// survey says from what is known at now what a person has to know. It is pure.
func survey(now time.Time, st State, f fleet.Snapshot, incidents []remedy.Incident) overview {
	o := overview{Status: Status{
		At: now, State: st, Observed: f.At, Trouble: []string{}, Sources: []SourceAge{},
		Incidents: map[remedy.Phase]int{}, Waiting: []Wait{},
	}}
	o.count(now, f)
	held := holdings(f)
	hit := map[place]int{}
	for _, in := range incidents {
		o.Incidents[in.Phase]++
		if now.Sub(in.Opened) <= 24*time.Hour {
			o.LostGPUHours += in.Lost()
		}
		if in.Phase.Closed() {
			continue
		}
		p := problem{Incident: in}
		p.GPUs, p.Jobs = held.concerns(f, in, hit)
		if w, waits := waiting(st, in); waits {
			w.GPUs = p.GPUs
			for _, j := range p.Jobs {
				w.Jobs = append(w.Jobs, j.String())
			}
			p.Wait = &w
			o.Waiting = append(o.Waiting, w)
		}
		o.Open = append(o.Open, p)
	}
	for at, n := range hit {
		if _, whole := hit[place{node: at.node}]; whole && at.job != (fleet.JobRef{}) {
			continue
		}
		o.GPUsHit += n
	}
	slices.SortStableFunc(o.Waiting, func(a, b Wait) int { return cmp.Or(cmp.Compare(a.For.rank(), b.For.rank()), a.Since.Compare(b.Since)) })
	slices.SortStableFunc(o.Open, func(a, b problem) int {
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(b.weight(now), a.weight(now)), remedy.CompareIncidents(a.Incident, b.Incident))
	})
	o.Done = deeds(incidents, maxDeeds)
	o.judge(now)
	return o
}

// count takes in the fleet and the age of what is known of it.
func (o *overview) count(now time.Time, f fleet.Snapshot) {
	for _, name := range slices.Sorted(maps.Keys(f.Sources)) {
		at := f.Sources[name]
		o.Sources = append(o.Sources, SourceAge{Name: name, At: at, AgeSeconds: now.Sub(at).Seconds(), Late: now.Sub(at) > lateAfter})
	}
	for _, n := range f.Nodes {
		o.Fleet.Nodes++
		o.Fleet.GPUs += n.Capacity.GPUs
		if n.Available() {
			o.Fleet.Available++
		}
		if n.Hold.Any() {
			o.Fleet.Held++
		}
		if n.Telemetry.Status == fleet.False {
			o.Fleet.TelemetryLost++
		}
	}
}

// judge says what speaks against believing the rest. Its sentences hold no ages, so that
// they are the same for as long as they are true.
func (o *overview) judge(now time.Time) {
	add := func(format string, args ...any) { o.Trouble = append(o.Trouble, fmt.Sprintf(format, args...)) }
	switch {
	case o.Observed.IsZero():
		add("the fleet has not been observed yet")
	case now.Sub(o.Observed) > lateAfter:
		add("the fleet was last observed more than %s ago", words(lateAfter))
	}
	if o.State.Leader == "" {
		add("no replica leads: nothing is acted on")
	}
	if w := o.State.Watchdog; w.Wanted && w.Late {
		add("the Watchdog alert is late: %s", cmp.Or(w.Why, "alerts may not arrive"))
	}
	for _, s := range o.Sources {
		if s.Late {
			add("%s last answered more than %s ago", s.Name, words(lateAfter))
		}
	}
	// A node that is silent is an incident, or is being booted; of a fleet that is, the page knows little.
	if n := o.Fleet.TelemetryLost; n > 0 && 2*n >= o.Fleet.Nodes {
		add("the telemetry of %d of %s is lost", n, plural(o.Fleet.Nodes, "node"))
	}
	o.Healthy = len(o.Trouble) == 0 && !slices.ContainsFunc(o.Waiting, func(w Wait) bool { return w.For == WaitPerson })
}

// waiting says for what an open incident waits, if it does.
func waiting(st State, in remedy.Incident) (Wait, bool) {
	w := Wait{Incident: in.Name, Class: in.Class, Subject: in.Subject.String(), Step: in.StepName(), Since: in.Opened, For: WaitGate}
	for _, s := range in.Steps {
		if s.Ended.After(w.Since) {
			w.Since = s.Ended
		}
	}
	if in.Phase == remedy.PhaseHeld {
		w.For, w.Reason = WaitPerson, in.Reason
		return w, in.Current() == nil // what it recovers it does by itself
	}
	var gates, reasons []string
	for _, g := range in.Waiting {
		gates, reasons = append(gates, g.Gate), append(reasons, g.Reason)
		if g.Gate != "mode" {
			continue
		}
		w.For = WaitPerson
		if st.Mode == modeDryRun || in.Mode == modeDryRun {
			w.For = WaitDryRun
		}
	}
	w.Gate, w.Reason = strings.Join(gates, ", "), strings.Join(reasons, "; ")
	return w, len(gates) > 0
}

func (w Waiter) rank() int {
	switch w {
	case WaitPerson:
		return 0
	case WaitGate:
		return 1
	case WaitDryRun:
		return 2
	}
	return 0
}

// rank puts first what goes on only with a person.
func (p problem) rank() int {
	if p.Wait != nil && p.Wait.For == WaitPerson {
		return 0
	}
	return 1
}

// weight is how bad an incident is: the GPU-seconds for which it has lasted.
func (p problem) weight(now time.Time) float64 {
	return float64(p.GPUs) * now.Sub(p.Opened).Seconds()
}

// A place is a node, whole or as far as one job holds it.
type place struct {
	node string
	job  fleet.JobRef // zero: the whole node
}

// holding is who holds GPUs where.
type holding struct {
	jobs map[string]map[fleet.JobRef]bool // by node
	gpus map[fleet.JobRef]map[string]int  // by job and node
}

func holdings(f fleet.Snapshot) holding {
	h := holding{jobs: map[string]map[fleet.JobRef]bool{}, gpus: map[fleet.JobRef]map[string]int{}}
	for _, p := range f.Pods {
		if p.GPUs == 0 || p.Job == (fleet.JobRef{}) {
			continue
		}
		if h.jobs[p.Node] == nil {
			h.jobs[p.Node] = map[fleet.JobRef]bool{}
		}
		if h.gpus[p.Job] == nil {
			h.gpus[p.Job] = map[string]int{}
		}
		h.jobs[p.Node][p.Job] = true
		h.gpus[p.Job][p.Node] += p.GPUs
	}
	return h
}

// concerns returns the GPUs and the jobs that an incident hits now, and adds the GPUs
// to hit by their places, so that those of several incidents count once.
func (h holding) concerns(f fleet.Snapshot, in remedy.Incident, hit map[place]int) (int, []fleet.JobRef) {
	jobs := map[fleet.JobRef]bool{}
	sum, node := 0, in.Subject.Node
	if node != "" {
		maps.Copy(jobs, h.jobs[node])
		sum = f.Nodes[node].Capacity.GPUs
		hit[place{node: node}] = sum
	}
	if in.Subject.Kind == remedy.SubjectJob {
		for ref := range f.Jobs {
			if ref.Namespace == in.Subject.Namespace && ref.Name == in.Subject.Name {
				jobs[ref] = true
			}
		}
	}
	for _, s := range in.Steps {
		for _, o := range s.Orders {
			switch s.Role {
			case remedy.RoleStop:
				jobs[o.Order.Target.Job] = true
			case remedy.RoleStart:
				if o.Outcome != nil && o.Outcome.Ending.Settled() && !h.jobs[node][o.Order.Target.Job] {
					delete(jobs, o.Order.Target.Job)
				}
			case remedy.RoleNone, remedy.RoleHold, remedy.RoleSave, remedy.RoleRenew, remedy.RoleVerify, remedy.RoleRelease:
			}
		}
	}
	delete(jobs, fleet.JobRef{})
	for ref := range jobs {
		for at, n := range h.gpus[ref] {
			if at == node {
				continue
			}
			sum += n
			hit[place{at, ref}] = n
		}
	}
	return sum, slices.SortedFunc(maps.Keys(jobs), fleet.JobRef.Compare)
}

// maxDeeds bounds the orders that are shown.
const maxDeeds = 12

// deeds returns the newest orders of all incidents, newest first.
func deeds(incidents []remedy.Incident, most int) []deed {
	var all []deed
	for _, in := range incidents {
		for _, s := range in.Steps {
			for _, o := range s.Orders {
				d := deed{Order: o.Order, At: s.Reserved}
				if !s.Ended.IsZero() {
					d.At = s.Ended
				}
				switch {
				case o.Outcome != nil:
					d.Ending, d.Note = o.Outcome.Ending, o.Outcome.Note
				case o.Why != "":
					d.Note = fmt.Sprintf("tried %d times: %s", o.Tries, o.Why)
				case o.Receipt != nil:
					d.Note = o.Receipt.Note
				}
				all = append(all, d)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b deed) int { return cmp.Or(b.At.Compare(a.At), cmp.Compare(b.Key, a.Key)) })
	return all[:min(most, len(all))]
}

// state asks what is known of the service now.
func (s *server) state(now time.Time) State {
	if s.opts.State == nil {
		return State{}
	}
	return s.opts.State(now)
}

func (s *server) survey(now time.Time) overview {
	return survey(now, s.state(now), s.loop.Fleet(), s.loop.Incidents())
}

func (s *server) status(w http.ResponseWriter, _ *http.Request) { reply(w, s.survey(s.now()).Status) }

// plural is a number with its unit.
func plural(n int, unit string) string {
	if n == 1 {
		return "1 " + unit
	}
	return fmt.Sprintf("%d %ss", n, unit)
}

// words is a duration as people say it, to two units at most.
func words(d time.Duration) string {
	s := int64(max(0, d) / time.Second)
	two := func(a int64, unit string, b int64, smaller string) string {
		if b == 0 {
			return fmt.Sprintf("%d %s", a, unit)
		}
		return fmt.Sprintf("%d %s %d %s", a, unit, b, smaller)
	}
	switch {
	case s < 60:
		return fmt.Sprintf("%d s", s)
	case s < 3600:
		return fmt.Sprintf("%d min", s/60)
	case s < 86400:
		return two(s/3600, "h", s%3600/60, "min")
	}
	return two(s/86400, "d", s%86400/3600, "h")
}
