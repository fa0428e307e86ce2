package remedy

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"stoker.dev/stoker/internal/fleet"
)

// A Phase says where an incident is.
//
//	       ┌──────────── gate says wait ─────────────┐
//	       ▼                                          │
//	open ──┴─ gates pass, step reserved ──► acting ───┤ step ended, next rung
//	 │                                       │  │     ▼
//	 │ no ladder, and the state is over      │  │   (open again)
//	 │                                       │  └─ step failed ──► held ── a person resolves ──► resolved
//	 ▼                                       │ last rung ended          (jobs that we stopped are
//	resolved ◄───────────────────────────────┘                          still started again)
//
//	open, acting, held ── a person changed the node, or cancelled ──► cancelling ── recovery ended ──► cancelled
//
// Open, acting, held and cancelling are open phases: their incident still owns what it
// marked. Resolved and cancelled are closed; nothing leaves them, and a new fault of
// the same subject and class is the next occurrence, with a name of its own.
type Phase string

// The phases of an incident.
const (
	PhaseOpen       Phase = "open"
	PhaseActing     Phase = "acting"
	PhaseHeld       Phase = "held"
	PhaseCancelling Phase = "cancelling"
	PhaseResolved   Phase = "resolved"
	PhaseCancelled  Phase = "cancelled"
)

// Closed reports whether the incident is over. A phase that this version does not
// know is not.
func (p Phase) Closed() bool {
	switch p {
	case PhaseResolved, PhaseCancelled:
		return true
	case PhaseOpen, PhaseActing, PhaseHeld, PhaseCancelling:
		return false
	}
	return false
}

// Limits of what one incident keeps.
const (
	MaxEvidence = 8   // the first one and the newest ones
	MaxSteps    = 64  // records; the oldest of a longer history is folded away
	MaxOrders   = 256 // of one step: jobs on one node
	MaxRestarts = 16  // of the job by earlier incidents, the newest
)

// An Incident is one open problem and its history. It is the only durable state of
// healing; what is in the cluster besides it are marks that carry its name.
type Incident struct {
	Name       string  `json:"name"`
	Occurrence int     `json:"occurrence"` // 1 for the first of this subject and class
	Subject    Subject `json:"subject"`
	Class      Class   `json:"class"`
	Phase      Phase   `json:"phase"`

	Playbook  string   `json:"playbook,omitempty"`
	Mode      string   `json:"mode,omitempty"` // of the playbook, when it has its own
	Ladder    []Step   `json:"ladder,omitempty"`
	OnFailure []string `json:"onFailure,omitempty"`
	// Rung is the place in Ladder of the step that is current or next; len(Ladder) after the last.
	Rung  int          `json:"rung"`
	Steps []StepRecord `json:"steps,omitempty"`

	Evidence      []Evidence   `json:"evidence,omitempty"`
	EvidenceCount int          `json:"evidenceCount"` // also those that are not kept
	Waiting       []GateResult `json:"waiting,omitempty"`

	BootID string `json:"bootID,omitempty"` // of the node when the fault was seen
	// NodeUID is the node's when the fault was seen. Another node may come under its name.
	NodeUID string    `json:"nodeUID,omitempty"`
	Opened  time.Time `json:"opened"`
	Closed  time.Time `json:"closed,omitzero"`
	// Quiet is until when the same subject and class open no new incident.
	Quiet  time.Time `json:"quiet,omitzero"`
	Reason string    `json:"reason,omitempty"` // why it is in its phase: one sentence
	Losses []Loss    `json:"losses,omitempty"`
	// Restarts are what earlier incidents about the same job have done, the newest last:
	// how often the job may be restarted for its own sake is bounded by them.
	Restarts []Restart `json:"restarts,omitempty"`

	Version string `json:"-"` // the store's; empty before the first write
}

// A Restart is one start of a job by an earlier incident about it.
type Restart struct {
	Incident string    `json:"incident"`
	At       time.Time `json:"at"`
}

// A Loss is work that was lost on behalf of an incident.
type Loss struct {
	Job      fleet.JobRef `json:"job"`
	GPUHours float64      `json:"gpuHours"`
	Cause    string       `json:"cause"`          // "unsaved work", …
	Step     int64        `json:"step,omitempty"` // of the checkpoint that the job goes on from
}

// A StepRecord is what became of one rung.
type StepRecord struct {
	Rung     int           `json:"rung"`
	Action   string        `json:"action"`
	Role     Role          `json:"role,omitempty"`
	Reserved time.Time     `json:"reserved"`
	Deadline time.Time     `json:"deadline,omitzero"`
	Ended    time.Time     `json:"ended,omitzero"`
	Ending   Ending        `json:"ending,omitempty"` // of the step as a whole; empty while it runs
	Skipped  bool          `json:"skipped,omitempty"`
	Note     string        `json:"note,omitempty"`
	Orders   []OrderRecord `json:"orders,omitempty"`
	Gates    []GateResult  `json:"gates,omitempty"` // that let it pass
}

// Running reports whether the step has not ended.
func (s StepRecord) Running() bool { return s.Ending == "" && !s.Skipped }

// An OrderRecord is one order of a step and what is known of it.
type OrderRecord struct {
	Order   Order     `json:"order"`
	Receipt *Receipt  `json:"receipt,omitempty"` // nil: not started, or the answer was lost
	Outcome *Outcome  `json:"outcome,omitempty"` // nil: it runs
	Tries   int       `json:"tries,omitempty"`
	NotTill time.Time `json:"notTill,omitzero"` // of the next try
	Why     string    `json:"why,omitempty"`    // the last try did not do it
	Look    bool      `json:"-"`                // it was started, and is to be looked at by starting it again
}

// IncidentName is the name of the n-th incident of a subject and class: the same for
// every replica that decides on it, short enough for Kubernetes, and readable.
func IncidentName(class Class, s Subject, n int) string {
	sum := sha256.Sum256([]byte(string(class) + "|" + s.id()))
	readable := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-':
			return r
		case r >= 'A' && r <= 'Z':
			return r + ('a' - 'A')
		}
		return '-'
	}, s.String())
	readable = strings.Trim(readable[:min(len(readable), 40)], "-")
	name := fmt.Sprintf("%s-%s-%s", class, readable, hex.EncodeToString(sum[:3]))
	if n > 1 {
		name = fmt.Sprintf("%s-%d", name, n)
	}
	return name
}

// Clone returns a copy that shares nothing that may change.
func (in Incident) Clone() Incident {
	in.Ladder = slices.Clone(in.Ladder)
	in.OnFailure = slices.Clone(in.OnFailure)
	in.Evidence = slices.Clone(in.Evidence)
	in.Waiting = slices.Clone(in.Waiting)
	in.Losses = slices.Clone(in.Losses)
	in.Restarts = slices.Clone(in.Restarts)
	in.Steps = slices.Clone(in.Steps)
	for i := range in.Steps {
		in.Steps[i].Orders = slices.Clone(in.Steps[i].Orders)
		in.Steps[i].Gates = slices.Clone(in.Steps[i].Gates)
	}
	return in
}

// Current returns the step that runs, or nil. It points into the incident.
func (in *Incident) Current() *StepRecord {
	if n := len(in.Steps); n > 0 && in.Steps[n-1].Running() {
		return &in.Steps[n-1]
	}
	return nil
}

// Ended returns the newest step with the role that ended as done, or nil.
func (in *Incident) Ended(role Role) *StepRecord {
	for i := len(in.Steps) - 1; i >= 0; i-- {
		if s := &in.Steps[i]; s.Role == role && !s.Skipped && s.Ending.Settled() {
			return s
		}
	}
	return nil
}

// StepName is the step that the incident is at, for people: "drain 5/8".
func (in Incident) StepName() string {
	if len(in.Ladder) == 0 {
		return "-"
	}
	if in.Rung >= len(in.Ladder) {
		return fmt.Sprintf("%d/%d", len(in.Ladder), len(in.Ladder))
	}
	return fmt.Sprintf("%s %d/%d", in.Ladder[in.Rung].Action, in.Rung+1, len(in.Ladder))
}

// AddEvidence takes in evidence about the incident and reports whether it told
// anything new. Of many it keeps the first and the newest; what is older than those
// may have been told before and been forgotten since, so it tells nothing.
func (in *Incident) AddEvidence(e Evidence) bool {
	e, _ = e.Bounded()
	for i, old := range in.Evidence {
		if !old.SameEvent(e) {
			continue
		}
		named := slices.Contains(strings.Split(old.Source, ", "), e.Source)
		if named && old.Resolved == e.Resolved && (old.BootID != "" || e.BootID == "") {
			return false
		}
		// The same event from another source, or its end: named, not counted again.
		in.Evidence = slices.Clone(in.Evidence)
		if !named {
			old.Source += ", " + e.Source
		}
		if old.BootID == "" {
			old.BootID = e.BootID
		}
		old.Resolved = e.Resolved
		in.Evidence[i] = old
		return true
	}
	kept := slices.Clone(in.Evidence)
	if len(kept) >= MaxEvidence {
		oldest := 1
		for i := range kept[1:] {
			if kept[i+1].At.Before(kept[oldest].At) {
				oldest = i + 1
			}
		}
		if !e.At.After(kept[oldest].At) {
			return false
		}
		kept = slices.Delete(kept, oldest, oldest+1)
	}
	in.EvidenceCount++
	in.Evidence = append(kept, e)
	return true
}

// Lost is the sum of the incident's losses in GPU-hours.
func (in Incident) Lost() float64 {
	var sum float64
	for _, l := range in.Losses {
		sum += l.GPUHours
	}
	return sum
}

// CompareIncidents orders by age, then name: who came first is served first.
func CompareIncidents(a, b Incident) int {
	return cmp.Or(a.Opened.Compare(b.Opened), cmp.Compare(a.Name, b.Name))
}

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }
