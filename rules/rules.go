// Package rules turns evidence into incidents and incidents into the next step of
// their ladder. It also reads what brings evidence: Alertmanager's webhook and alert
// rules that are evaluated in the process.
//
// It is the head that reacts. [Correlate] and [Advance] are pure: time, fleet and
// incident in, incident and orders out; neither reads a clock, waits or changes
// anything. What an order does is the actuator's business; rules knows an action only
// by its [remedy.ActionInfo], which the program hands in.
package rules

import (
	"time"

	"stoker.dev/stoker/internal/remedy"
)

// Playbooks is the configuration of this stage in force: which ladder for which fault.
type Playbooks struct {
	List []Playbook
	// MaxAge is how old an event may be when we are told of it. Older evidence is
	// noted and not acted on.
	MaxAge time.Duration
	// Quiet is for how long after a person's veto the same subject and class open nothing.
	Quiet time.Duration
	// DryRun says that nothing will be done, whatever the playbooks' own modes.
	DryRun bool
}

// Defaults of [Playbooks], used where the configuration names none.
const (
	DefaultMaxAge = time.Hour
	DefaultQuiet  = time.Hour
)

// A Playbook is the ladder for faults of one class, within a scope.
type Playbook struct {
	Name      string
	Class     remedy.Class
	Match     Matchers // over the evidence's labels; all must match
	Mode      string   // dry-run, approve or auto; empty: that of the service
	Steps     []remedy.Step
	OnFailure []string // hold, notify
}

// For returns the first playbook for the evidence; false when there is none, which
// means that the fault is told and nothing is done.
func (p Playbooks) For(e remedy.Evidence) (Playbook, bool) {
	for _, b := range p.List {
		if b.Class == e.Class && b.Match.Matches(e.Labels) {
			return b, true
		}
	}
	return Playbook{}, false
}
