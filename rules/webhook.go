package rules

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/prometheus/alertmanager/template"

	"stoker.dev/stoker/internal/remedy"
)

// Bounds of one webhook request. What is over them is counted as cut and never
// refused for its size: Alertmanager drops a request for good when it is answered 4xx.
const (
	MaxWebhookBytes    = 64 << 20
	MaxWebhookEvidence = 10_000

	maxNoClass = MaxWebhookEvidence / 10 // evidence of no fault, which leaves room for faults
	maxAlike   = 256                     // evidence of one node, class and time that an alert is compared with
)

// A Delivery is what one webhook request brought.
type Delivery struct {
	Evidence  []remedy.Evidence // each event once
	Alerts    int               // alerts read
	Folded    int               // that told of an event told already
	Unread    []error           // alerts that name nothing; at most ten are kept
	Ignored   int               // alerts that name nothing
	Cut       int               // alerts left out for the bounds; -1: the request was cut off and nobody knows
	Truncated uint64            // alerts that Alertmanager itself left out
	Watchdog  bool              // the alert was among them that always fires
}

// errTooLarge marks the place where a request went over MaxWebhookBytes.
var errTooLarge = errors.New("request over the bound")

// DecodeWebhook reads Alertmanager's webhook payload, version 4, as a stream: an alert
// is folded into the evidence as soon as it is read, so memory does not grow with the
// body. A payload that is not JSON or of another version is an error, and no evidence
// of it is returned.
func DecodeWebhook(body io.Reader, now time.Time) (Delivery, error) {
	var d Delivery
	limit := &boundedReader{r: body, left: MaxWebhookBytes}
	dec := json.NewDecoder(limit)
	err := d.decode(dec, now)
	switch {
	case errors.Is(limit.err, errTooLarge):
		d.Cut = -1 // what was read before it counts
		return d, nil
	case err != nil:
		return Delivery{}, fmt.Errorf("webhook payload at byte %d: %w", dec.InputOffset(), err)
	}
	return d, nil
}

func (d *Delivery) decode(dec *json.Decoder, now time.Time) error {
	if err := delim(dec, '{'); err != nil {
		return err
	}
	version := ""
	f := folding{source: FromAlertmanager, seen: map[foldKey][]int{}}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return err
		}
		switch key {
		case "version":
			if err := dec.Decode(&version); err != nil {
				return fmt.Errorf("version: %w", err)
			}
		case "truncatedAlerts":
			if err := dec.Decode(&d.Truncated); err != nil {
				return fmt.Errorf("truncatedAlerts: %w", err)
			}
		case "alerts":
			if err := d.alerts(dec, &f, now); err != nil {
				return err
			}
		default:
			if err := skip(dec); err != nil {
				return fmt.Errorf("%v: %w", key, err)
			}
		}
	}
	if err := delim(dec, '}'); err != nil {
		return err
	}
	if version != "4" {
		return fmt.Errorf("version %q is not 4, the one that is understood", version)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more after its end")
	}
	return nil
}

func (d *Delivery) alerts(dec *json.Decoder, f *folding, now time.Time) error {
	t, err := dec.Token()
	switch {
	case err != nil:
		return fmt.Errorf("alerts: %w", cut(err))
	case t == nil:
		return nil // null is how Go writes a list that was never filled
	case t != json.Delim('['):
		return fmt.Errorf("alerts: found %v where a list is due", t)
	}
	for dec.More() {
		var a template.Alert
		if err := dec.Decode(&a); err != nil {
			return fmt.Errorf("alerts[%d]: %w", d.Alerts, cut(err))
		}
		if a.Status != "firing" && a.Status != "resolved" {
			return fmt.Errorf("alerts[%d]: status %q is neither firing nor resolved", d.Alerts, bounded(a.Status, maxValue))
		}
		d.Alerts++
		d.fold(alert{Labels: a.Labels, Annotations: a.Annotations, StartsAt: a.StartsAt, Resolved: a.Status == "resolved"}, f, now)
	}
	if err := delim(dec, ']'); err != nil {
		return fmt.Errorf("alerts: %w", err)
	}
	return nil
}

// skip reads one value, piece by piece, and keeps nothing of it.
func skip(dec *json.Decoder) error {
	for depth := 0; ; {
		t, err := dec.Token()
		if err != nil {
			return cut(err)
		}
		switch t {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
		if depth == 0 {
			return nil
		}
	}
}

// A folding remembers what was read, so that the second telling of an event is found
// without looking at all of them.
type folding struct {
	source  string            // who tells
	seen    map[foldKey][]int // places in Evidence
	noClass int
}

type foldKey struct {
	class remedy.Class
	node  string
	span  int64 // of the event time
}

// keyOf puts events that may be the same into the same span or the one beside it.
func keyOf(e remedy.Evidence) foldKey {
	return foldKey{e.Class, e.Subject.Node, e.At.Unix() / 4}
}

func (d *Delivery) told(e remedy.Evidence, f *folding) bool {
	for _, beside := range []int64{0, -1, 1} {
		key := keyOf(e)
		key.span += beside
		for _, i := range f.seen[key] {
			if d.Evidence[i].SameEvent(e) && d.Evidence[i].Resolved == e.Resolved {
				return true
			}
		}
	}
	return false
}

func (d *Delivery) fold(a alert, f *folding, now time.Time) {
	if a.Labels["alertname"] == Watchdog {
		d.Watchdog = d.Watchdog || !a.Resolved
		return
	}
	e, err := a.evidence(f.source, now)
	if err != nil {
		d.Ignored++
		if len(d.Unread) < 10 {
			d.Unread = append(d.Unread, err)
		}
		return
	}
	if d.told(e, f) {
		d.Folded++
		return
	}
	none := e.Class == remedy.ClassNone
	if len(d.Evidence) >= MaxWebhookEvidence || none && f.noClass >= maxNoClass {
		d.Cut++
		return
	}
	if none {
		f.noClass++
	}
	if key := keyOf(e); len(f.seen[key]) < maxAlike {
		f.seen[key] = append(f.seen[key], len(d.Evidence))
	}
	d.Evidence = append(d.Evidence, e)
}

func delim(dec *json.Decoder, want json.Delim) error {
	t, err := dec.Token()
	if err != nil {
		return cut(err)
	}
	if t != want {
		return fmt.Errorf("found %v where %v is due", t, want)
	}
	return nil
}

// cut says of an end that comes too early that it is too early.
func cut(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// A boundedReader ends with errTooLarge, and remembers it, after left bytes.
type boundedReader struct {
	r    io.Reader
	left int
	err  error
}

func (b *boundedReader) Read(p []byte) (int, error) {
	if b.left <= 0 {
		var one [1]byte
		if n, err := b.r.Read(one[:]); n == 0 && err != nil {
			return 0, err // it was just as long as it may be
		}
		b.err = errTooLarge
		return 0, errTooLarge
	}
	n, err := b.r.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}
