package loop

import (
	"context"
	"fmt"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/rules"
)

// notedFor is for how long evidence that changed nothing is not told again.
const notedFor = time.Hour

// maxNoted bounds what is remembered of such evidence.
const maxNoted = 10_000

// Ingest takes evidence in. When it returns nil, all that the evidence changes is
// durable. With an error the sender must send all of it again; what was stored by
// then is not stored twice.
func (l *Loop) Ingest(ctx context.Context, now time.Time, ev []remedy.Evidence) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.load(ctx); err != nil {
		return err
	}
	err := l.ingest(ctx, now, l.Fleet(), ev)
	l.publish(nil)
	select {
	case l.wake <- struct{}{}:
	default: // it is awake already
	}
	return err
}

func (l *Loop) ingest(ctx context.Context, now time.Time, f fleet.Snapshot, ev []remedy.Evidence) error {
	if len(ev) == 0 {
		return nil
	}
	changed, notes := rules.Correlate(now, f, l.list(), ev, l.cfg.Playbooks)
	open := 0
	for _, in := range l.incidents {
		if !in.Phase.Closed() {
			open++
		}
	}
	for _, in := range changed {
		created := in.Version == ""
		if created && open >= l.opts.MaxOpen {
			l.metrics.refused.Inc()
			return fmt.Errorf("%w: %d, and %d is the limit", ErrPressure, open, l.opts.MaxOpen)
		}
		stored, err := l.save(ctx, in)
		if err != nil {
			l.loaded = false // somebody else may have written it: read again
			return err
		}
		l.incidents[stored.Name] = stored
		if created {
			open++
			l.metrics.opened.WithLabelValues(string(stored.Class)).Inc()
			l.tell(now, Entry{Kind: EntryOpened, Incident: stored.Name, Subject: stored.Subject.String(), Text: stored.Evidence[0].String()})
			continue
		}
		last := stored.Evidence[len(stored.Evidence)-1]
		l.tell(now, Entry{Kind: EntryEvidence, Incident: stored.Name, Subject: stored.Subject.String(), Text: "told by " + last.Source + ": " + last.String()})
	}
	for _, n := range notes {
		l.note(now, n)
	}
	return nil
}

// note tells once of evidence that changed nothing.
func (l *Loop) note(now time.Time, n rules.Note) {
	key := n.Evidence.Subject.String() + "|" + string(n.Evidence.Class) + "|" + n.Evidence.Labels["alertname"] + "|" + n.Evidence.Labels["xid"]
	if t, ok := l.noted[key]; ok && now.Sub(t) < notedFor {
		l.noted[key] = now
		return
	}
	if len(l.noted) >= maxNoted {
		for k, t := range l.noted {
			if now.Sub(t) >= notedFor {
				delete(l.noted, k)
			}
		}
		if len(l.noted) >= maxNoted {
			clear(l.noted) // a storm of new names: telling twice is better than growing
		}
	}
	l.noted[key] = now
	l.metrics.noted.WithLabelValues(string(classLabel(n.Evidence.Class))).Inc()
	l.tell(now, Entry{Kind: EntryNoted, Subject: n.Evidence.Subject.String(), Text: n.Evidence.String() + ": " + n.Reason})
}

// classLabel keeps what senders make up out of our metrics' labels.
func classLabel(c remedy.Class) remedy.Class {
	if c == remedy.ClassNone || c.Known() {
		return c
	}
	return "unknown"
}
