package rules

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/prometheus/alertmanager/api/v2/models"
)

// DecodeAlerts reads a list of alerts as Alertmanager's API v2 has them, those that it
// lists as well as those that are posted to it, as a stream and within the bounds of
// [DecodeWebhook]. source is who tells. keep says which alerts count; nil: all of them.
// A list that is not JSON is an error, and no evidence of it is returned.
func DecodeAlerts(body io.Reader, source string, now time.Time, keep func(models.GettableAlert) bool) (Delivery, error) {
	var d Delivery
	limit := &boundedReader{r: body, left: MaxWebhookBytes}
	dec := json.NewDecoder(limit)
	err := d.list(dec, source, now, keep)
	switch {
	case errors.Is(limit.err, errTooLarge):
		d.Cut = -1
		return d, nil
	case err != nil:
		return Delivery{}, fmt.Errorf("list of alerts at byte %d: %w", dec.InputOffset(), err)
	}
	return d, nil
}

func (d *Delivery) list(dec *json.Decoder, source string, now time.Time, keep func(models.GettableAlert) bool) error {
	if err := delim(dec, '['); err != nil {
		return err
	}
	f := folding{source: source, seen: map[foldKey][]int{}}
	for dec.More() {
		var a models.GettableAlert
		if err := dec.Decode(&a); err != nil {
			return fmt.Errorf("alerts[%d]: %w", d.Alerts, cut(err))
		}
		d.Alerts++
		if keep != nil && !keep(a) {
			continue
		}
		d.fold(alertOf(a, now), &f, now)
	}
	if err := delim(dec, ']'); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more after its end")
	}
	return nil
}

// alertOf reads one alert of a list. It is over when its end has passed.
func alertOf(a models.GettableAlert, now time.Time) alert {
	out := alert{Labels: a.Labels, Annotations: a.Annotations}
	if a.StartsAt != nil {
		out.StartsAt = time.Time(*a.StartsAt)
	}
	if a.EndsAt != nil {
		end := time.Time(*a.EndsAt)
		out.Resolved = end.Unix() > 0 && !end.After(now)
	}
	return out
}
