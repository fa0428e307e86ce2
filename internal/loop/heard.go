package loop

import (
	"fmt"
	"time"

	"stoker.dev/stoker/internal/remedy"
)

// heardFor is how long repetitions that an incident was told of wait for a write of
// their own. They are stored sooner with whatever else becomes of it.
const heardFor = 30 * time.Second

// A heard is what an incident has learned and the store has not: repetitions, by which
// nothing is decided. They are lost with the process.
type heard struct {
	since time.Time
	more  int // events beyond the one that was told of
}

// hear takes in repetitions without a write. Of many the first is told.
func (l *Loop) hear(now time.Time, was, in remedy.Incident) {
	l.incidents[in.Name] = in
	h, since := l.heard[in.Name]
	n := in.EvidenceCount - was.EvidenceCount
	if !since {
		h.since = now
		n--
		l.tell(now, Entry{Kind: EntryEvidence, Incident: in.Name, Subject: in.Subject.String(), Text: learned(was, in)})
	}
	h.more += max(0, n)
	l.heard[in.Name] = h
}

// due reports whether what the incident has heard has waited for long enough.
func (l *Loop) due(now time.Time, name string) bool {
	h, is := l.heard[name]
	return is && now.Sub(h.since) >= heardFor
}

// written notes that all of the incident is stored, and tells how much of it was heard.
func (l *Loop) written(now time.Time, in remedy.Incident) {
	h := l.heard[in.Name]
	delete(l.heard, in.Name)
	if h.more > 0 {
		l.tell(now, Entry{Kind: EntryEvidence, Incident: in.Name, Subject: in.Subject.String(), Text: fmt.Sprintf("told %d times more within %s", h.more, remedy.Duration(now.Sub(h.since).Round(time.Second)))})
	}
}
