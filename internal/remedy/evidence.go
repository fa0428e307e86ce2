package remedy

import (
	"fmt"
	"time"
)

// MaxLabels bounds the labels kept of one evidence; what is over it is left out.
const MaxLabels = 32

// sameEvent is how far apart two sources may put one event: the kernel's clock and
// the driver's reader differ by up to two seconds.
const sameEvent = 2 * time.Second

// Evidence is what speaks for a fault, from any source. Its identity is subject,
// class, boot and event time, not its labels: two sources that tell of one event
// bring the same evidence.
type Evidence struct {
	Subject  Subject           `json:"subject"`
	Class    Class             `json:"class"`
	BootID   string            `json:"bootID,omitempty"` // in which boot it happened; empty where not known
	At       time.Time         `json:"at"`               // when it happened
	Seen     time.Time         `json:"seen"`             // when we were told first
	Source   string            `json:"source"`           // who told: "alertmanager", "rules", "collector", …
	Summary  string            `json:"summary,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`
	Resolved bool              `json:"resolved,omitempty"` // the source says that it is over
}

// SameEvent reports whether both tell of one event.
func (e Evidence) SameEvent(o Evidence) bool {
	if e.Class != o.Class || !e.Subject.Same(o.Subject) {
		return false
	}
	if e.BootID != "" && o.BootID != "" && e.BootID != o.BootID {
		return false
	}
	return e.At.Sub(o.At).Abs() <= sameEvent
}

// String is one line for people.
func (e Evidence) String() string {
	if e.Summary != "" {
		return e.Summary
	}
	return fmt.Sprintf("%s on %s", e.Class, e.Subject)
}

// Bounded returns the evidence with no more than [MaxLabels] labels, those that
// sort first, and whether any were left out.
func (e Evidence) Bounded() (Evidence, bool) {
	if len(e.Labels) <= MaxLabels {
		return e, false
	}
	kept := make(map[string]string, MaxLabels)
	for _, k := range sortedKeys(e.Labels)[:MaxLabels] {
		kept[k] = e.Labels[k]
	}
	e.Labels = kept
	return e, true
}
