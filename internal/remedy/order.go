package remedy

import (
	"encoding/json"
	"log/slog"
	"strings"
	"time"

	"stoker.dev/stoker/internal/fleet"
)

// A Duration is a time.Duration that is written as people write it: 10m, 1h30m, 90s as 1m30s.
type Duration time.Duration

// MarshalText writes the duration as String does.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what time.ParseDuration reads.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	*d = Duration(v)
	return err
}

// String is the duration as time.Duration writes it, without the zeros at its end.
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// A Scope says what each order of an action is aimed at.
type Scope string

// The scopes of actions.
const (
	ScopeNode Scope = "node" // one order, for the incident's node
	ScopeJobs Scope = "jobs" // one order for each job that the incident concerns
)

// An Effect says what an action does to work that runs.
type Effect string

// The effects of actions. Gates stop harm and never recovery.
const (
	EffectHarm     Effect = "harm"     // takes capacity or work away
	EffectAsk      Effect = "ask"      // asks or looks; nothing is taken
	EffectRecovery Effect = "recovery" // gives back
)

// An ActionInfo is what deciding has to know of an action.
type ActionInfo struct {
	Name   string
	Doc    string // one sentence
	Scope  Scope
	Effect Effect
	// Role says what the ladder means by the action; the walker needs to tell these apart.
	Role Role
	// Within is the deadline of a step that names none.
	Within time.Duration
	// Optional says that the ladder goes on when the step fails.
	Optional bool
	// Of is what a step is about that does not say; empty: the whole node.
	Of Extent
}

// An Extent says how much of a node a step is about when the incident is one of a GPU.
type Extent string

// The extents.
const (
	OfNode Extent = "node" // whatever is on the node
	OfGPU  Extent = "gpu"  // what holds the incident's GPU, or may; the rest stays where it is
)

// A Role is the meaning of an action for whoever walks the ladder.
type Role string

// The roles. An action without one is just done.
const (
	RoleNone    Role = ""
	RoleHold    Role = "hold"    // marks the node as ours
	RoleSave    Role = "save"    // asks the job to save its work
	RoleStop    Role = "stop"    // takes the job off its nodes
	RoleStart   Role = "start"   // lets a stopped job run again
	RoleRenew   Role = "renew"   // gives the node a new boot
	RoleVerify  Role = "verify"  // shows that the fault is gone
	RoleRelease Role = "release" // removes our mark
)

// A Step is one rung of a ladder, as data: what was decided when the playbook was
// read, so that an incident carries its ladder through a change of configuration.
type Step struct {
	Action   string   `json:"action"`
	Scope    Scope    `json:"scope"`
	Effect   Effect   `json:"effect"`
	Role     Role     `json:"role,omitempty"`
	Within   Duration `json:"within"`
	Optional bool     `json:"optional,omitempty"`
	Of       Extent   `json:"of,omitempty"`
	// Unless names an action: the step is skipped when an earlier step of it is done.
	Unless string          `json:"unless,omitempty"`
	Params json.RawMessage `json:"params,omitempty"` // of the action, checked when the playbook was read
}

// A Target is what an order changes: a node, or a job.
type Target struct {
	Node string       `json:"node,omitempty"`
	GPU  string       `json:"gpu,omitempty"` // uuid of one GPU of the node, of an order that is about it alone
	Job  fleet.JobRef `json:"job,omitzero"`
	UID  string       `json:"uid,omitempty"` // of the object; another object of that name is not the target
}

// String names the target.
func (t Target) String() string {
	if t.Job != (fleet.JobRef{}) {
		return t.Job.String()
	}
	return t.Node
}

// An Order is one change asked of the actuator.
type Order struct {
	// Key names the order for ever: the same order asked again has the same key, and
	// its mark in the cluster tells that it has been carried out.
	Key      string `json:"key"`
	Incident string `json:"incident,omitempty"`
	Action   string `json:"action"`
	Effect   Effect `json:"effect"`
	Role     Role   `json:"role,omitempty"`
	Target   Target `json:"target"`
	// Node is the ill node that the incident is about; a job's order has it beside its target.
	Node   string `json:"node,omitempty"`
	BootID string `json:"bootID,omitempty"` // of the node when the fault was seen
	// Spare are pods on the node that stay, as they hold other GPUs than the target.
	Spare    []fleet.PodRef  `json:"spare,omitempty"`
	Params   json.RawMessage `json:"params,omitempty"`
	Cause    string          `json:"cause"` // one sentence: the evidence and the rule
	Actor    string          `json:"actor"` // who decided: "stoker", or a person
	Reserved time.Time       `json:"reserved,omitzero"`
	Deadline time.Time       `json:"deadline,omitzero"`
	// Look says that the order was started, and that its answer was seen: it is only to be
	// found. Where it is not found, somebody has taken away what it made.
	Look bool `json:"-"`
}

// LogValue is what a log line shows of the order.
func (o Order) LogValue() slog.Value {
	return slog.GroupValue(slog.String("key", o.Key), slog.String("action", o.Action),
		slog.String("target", o.Target.String()), slog.String("incident", o.Incident), slog.String("cause", o.Cause))
}

// A Receipt is what the cluster answered when the order was started. An order that
// is started again after a restart, because its receipt was lost, gets one that is
// as good: Start looks before it acts.
type Receipt struct {
	At      time.Time      `json:"at"`
	Version fleet.Version  `json:"version,omitempty"` // of the target after the change
	Pods    []fleet.PodRef `json:"pods,omitempty"`    // that are to go
	BootID  string         `json:"bootID,omitempty"`  // of the node before the change
	Note    string         `json:"note,omitempty"`
	Found   bool           `json:"found,omitempty"` // the change was there already; nothing was written
	Ended   bool           `json:"ended,omitempty"` // what was started has come to its end, and well
}

// An Ending says how an order ended.
type Ending string

// The endings. One that this version does not know is treated as Unclear.
const (
	Done     Ending = "done"     // the effect is there
	Conflict Ending = "conflict" // the effect is not there, and it may be tried again
	Rejected Ending = "rejected" // the effect is not there, and trying again is useless
	Unclear  Ending = "unclear"  // nobody knows: look before anything else
	Gone     Ending = "gone"     // the target does not exist any more
	Late     Ending = "late"     // the deadline passed with the effect incomplete
	Yielded  Ending = "yielded"  // a person has changed the target; theirs wins
)

// Retry reports whether an order with this ending may be started again.
func (e Ending) Retry() bool {
	switch e {
	case Conflict, Unclear: // Start looks first, so unclear is looked up and not repeated blindly
		return true
	case Done, Rejected, Gone, Late, Yielded:
		return false
	}
	return false
}

// Settled reports whether the ladder may go on as if the order were done.
func (e Ending) Settled() bool {
	switch e {
	case Done, Gone:
		return true
	case Conflict, Rejected, Unclear, Late, Yielded:
		return false
	}
	return false
}

// An Outcome is how an order ended, with one sentence for people.
type Outcome struct {
	Ending Ending `json:"ending"`
	Note   string `json:"note,omitempty"`
	// Look says that nothing has ended: what was started can only be seen by starting the
	// order again, which finds it. That counts as no further try, and nobody is told.
	Look bool `json:"-"`
}

// A Failure is an error of the cluster, sorted. An error that carries none is Unclear.
type Failure struct {
	Ending Ending
	Err    error
}

// Error is the text of the error within.
func (f *Failure) Error() string { return f.Err.Error() }

// Unwrap returns the error within.
func (f *Failure) Unwrap() error { return f.Err }

// A GateResult is the answer of one gate to one order.
type GateResult struct {
	Gate   string `json:"gate"`
	Pass   bool   `json:"pass"`
	Reason string `json:"reason"` // with numbers: "3 of 8 nodes are out, 1 may be"
}
