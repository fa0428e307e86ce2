package loop

import (
	"slices"
	"sync"
	"time"

	"stoker.dev/stoker/internal/remedy"
)

// An EntryKind says what an entry of the journal tells.
type EntryKind string

// The kinds of entries.
const (
	EntryOpened   EntryKind = "opened"   // an incident was opened
	EntryEvidence EntryKind = "evidence" // an incident learned something
	EntryNoted    EntryKind = "noted"    // evidence changed nothing
	EntryWaiting  EntryKind = "waiting"  // gates keep a step
	EntryStarted  EntryKind = "started"  // a step was reserved and its orders started
	EntryEnded    EntryKind = "ended"    // a step ended
	EntrySkipped  EntryKind = "skipped"  // a step had nothing to do
	EntryRetry    EntryKind = "retry"    // an order will be tried again
	EntryClosed   EntryKind = "closed"   // an incident was resolved or cancelled
	EntryHeld     EntryKind = "held"     // an incident needs a person
	EntryUndoing  EntryKind = "undoing"  // an incident was overruled; what it took is given back
	EntryPlanned  EntryKind = "planned"  // the planner has changed a job, or could not
	EntryTrouble  EntryKind = "trouble"  // Stoker could not do its work
)

// An Entry is one line of what the loop did.
type Entry struct {
	At       time.Time    `json:"at"`
	Kind     EntryKind    `json:"kind"`
	Incident string       `json:"incident,omitempty"`
	Class    remedy.Class `json:"class,omitempty"` // of an incident that was opened
	Subject  string       `json:"subject,omitempty"`
	Step     string       `json:"step,omitempty"`
	Target   string       `json:"target,omitempty"`
	Text     string       `json:"text"`
}

// A journal keeps the newest entries.
type journal struct {
	most int
	tell func(Entry)

	mu   sync.Mutex
	ring []Entry
	next int // place of the oldest entry once the ring is full
}

// add keeps an entry and tells of it, one after the other: whoever is told sees the
// same order as whoever reads.
func (j *journal) add(e Entry) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.ring) < j.most {
		j.ring = append(j.ring, e)
	} else {
		j.ring[j.next] = e
		j.next = (j.next + 1) % j.most
	}
	if j.tell != nil {
		j.tell(e)
	}
}

func (j *journal) entries() []Entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append(slices.Clone(j.ring[j.next:]), j.ring[:j.next]...)
}
