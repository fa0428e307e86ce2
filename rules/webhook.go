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
		d.Cut = -1
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
	seen := map[string][]int{} // class and node → places in Evidence
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
			if err := delim(dec, '['); err != nil {
				return fmt.Errorf("alerts: %w", err)
			}
			for dec.More() {
				var a template.Alert
				if err := dec.Decode(&a); err != nil {
					return fmt.Errorf("alerts[%d]: %w", d.Alerts, err)
				}
				if a.Status != "firing" && a.Status != "resolved" {
					return fmt.Errorf("alerts[%d]: status %q is neither firing nor resolved", d.Alerts, a.Status)
				}
				d.Alerts++
				d.fold(a, seen, now)
			}
			if err := delim(dec, ']'); err != nil {
				return fmt.Errorf("alerts: %w", err)
			}
		default:
			var skip json.RawMessage
			if err := dec.Decode(&skip); err != nil {
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
	return nil
}

func (d *Delivery) fold(a template.Alert, seen map[string][]int, now time.Time) {
	e, err := alert{Labels: a.Labels, Annotations: a.Annotations, StartsAt: a.StartsAt, Resolved: a.Status == "resolved"}.evidence("alertmanager", now)
	if err != nil {
		d.Ignored++
		if len(d.Unread) < 10 {
			d.Unread = append(d.Unread, err)
		}
		return
	}
	key := string(e.Class) + "|" + e.Subject.Node
	for _, i := range seen[key] {
		if d.Evidence[i].SameEvent(e) && d.Evidence[i].Resolved == e.Resolved {
			d.Folded++
			return
		}
	}
	if len(d.Evidence) >= MaxWebhookEvidence {
		d.Cut++
		return
	}
	seen[key] = append(seen[key], len(d.Evidence))
	d.Evidence = append(d.Evidence, e)
}

func delim(dec *json.Decoder, want json.Delim) error {
	t, err := dec.Token()
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	if err != nil {
		return err
	}
	if t != want {
		return fmt.Errorf("found %v where %v is due", t, want)
	}
	return nil
}

// A boundedReader ends with errTooLarge, and remembers it, after left bytes.
type boundedReader struct {
	r    io.Reader
	left int
	err  error
}

func (b *boundedReader) Read(p []byte) (int, error) {
	if b.left <= 0 {
		b.err = errTooLarge
		return 0, errTooLarge
	}
	n, err := b.r.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}
