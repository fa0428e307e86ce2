package loop

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
// durable, but for repetitions by which nothing is decided; those soon are. With an error the sender must send all of it again; what was stored by
// then is not stored twice. What can be stored is, also when other incidents cannot.
func (l *Loop) Ingest(ctx context.Context, now time.Time, ev []remedy.Evidence) error {
	if err := l.begin(ctx); err != nil {
		return err
	}
	defer l.end()
	if err := l.load(ctx); err != nil {
		return err
	}
	if l.fleet.At.IsZero() {
		// Without a fleet nobody could tell an earlier boot, or two names of one GPU.
		f, err := l.world.Snapshot(ctx, now)
		if err != nil {
			return fmt.Errorf("observe the fleet: %w", err)
		}
		l.fleet = f
	}
	l.news = false
	err := l.ingest(ctx, now, l.fleet, ev)
	l.publish(nil)
	if !l.news {
		return err
	}
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
	var errs []error
	refused := 0
	for _, in := range changed {
		created := in.Version == ""
		// Those that closed a short while ago are kept against the limit on closed ones,
		// so the limit of all together is kept here.
		if created && (open >= l.opts.MaxOpen || len(l.incidents) >= l.opts.MaxOpen+l.opts.MaxClosed) {
			refused++
			continue
		}
		was := l.incidents[in.Name]
		if !created && rules.Repeats(was, in) {
			l.hear(now, was, in)
			continue
		}
		stored, err := l.save(ctx, in)
		if err != nil {
			l.loaded = false // somebody else may have written it: read again
			errs = append(errs, err)
			if _, stated := errors.AsType[*remedy.Failure](err); !stated {
				break // the store does not answer, for the others neither
			}
			continue
		}
		l.incidents[stored.Name], l.news = stored, true
		l.written(now, stored)
		entry := Entry{Kind: EntryOpened, Incident: stored.Name, Subject: stored.Subject.String()}
		if created {
			open++
			l.metrics.opened.WithLabelValues(string(stored.Class)).Inc()
			entry.Class, entry.Text = stored.Class, stored.Evidence[0].String()
		} else {
			entry.Kind, entry.Text = EntryEvidence, learned(was, stored)
		}
		l.tell(now, entry)
	}
	if refused > 0 {
		l.metrics.refused.Add(float64(refused))
		errs = append(errs, fmt.Errorf("%w: %d, and %d is the limit; %d with those that closed lately, and %d is the limit; %d more were asked for",
			ErrPressure, open, l.opts.MaxOpen, len(l.incidents), l.opts.MaxOpen+l.opts.MaxClosed, refused))
	}
	for _, n := range notes {
		l.note(now, n)
	}
	return errors.Join(errs...)
}

// learned says what an incident was told, for people: the newest of it.
func learned(was, next remedy.Incident) string {
	text := "told again"
	for _, e := range next.Evidence {
		same := func(o remedy.Evidence) bool {
			return o.SameEvent(e) && o.Source == e.Source && o.Resolved == e.Resolved
		}
		if slices.ContainsFunc(was.Evidence, same) {
			continue
		}
		text = "told by " + e.Source + ": " + e.String()
		if e.Resolved {
			text += " is over"
		}
	}
	return text
}

// leftover is evidence that incidents which closed lately have taken in and not dealt
// with. Their store holds it, so it is not lost with the process.
func (l *Loop) leftover(now time.Time) []remedy.Evidence {
	var out []remedy.Evidence
	for _, in := range l.list() {
		if in.Phase.Closed() && now.Sub(in.Closed) <= l.cfg.Playbooks.MaxAge {
			out = append(out, rules.Leftover(in)...)
		}
	}
	return out
}

// note tells once of evidence that changed nothing.
func (l *Loop) note(now time.Time, n rules.Note) {
	if n.Evidence.Resolved {
		l.metrics.noted.WithLabelValues(string(classLabel(n.Evidence.Class))).Inc()
		return // that something is over which nobody acted on is counted, and no news
	}
	// What is about no node's state may be about somebody on it: each is told.
	key := n.Evidence.Subject.String() + "|" + string(n.Evidence.Class)
	for _, name := range []string{"alertname", "xid", "namespace", "pod", "job_name"} {
		key += "|" + n.Evidence.Labels[name]
	}
	if !l.told(now, key) {
		return
	}
	l.metrics.noted.WithLabelValues(string(classLabel(n.Evidence.Class))).Inc()
	l.tell(now, Entry{Kind: EntryNoted, Subject: n.Evidence.Subject.String(), Text: n.Evidence.String() + ": " + n.Reason})
}

// told reports whether something is to be told now, since it was not within the last hour,
// and remembers that it is.
func (l *Loop) told(now time.Time, key string) bool {
	if t, ok := l.noted[key]; ok && now.Sub(t) < notedFor {
		l.noted[key] = now
		return false
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
	return true
}

// classLabel keeps what senders make up out of our metrics' labels.
func classLabel(c remedy.Class) remedy.Class {
	if c == remedy.ClassNone || c.Known() {
		return c
	}
	return "unknown"
}
