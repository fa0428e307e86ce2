package loop

import (
	"errors"
	"testing"
	"time"

	"stoker.dev/stoker/internal/remedy"
)

// TestWhatIsTriedAgainIsAdmittedAgain lets a person silence a node whose drain is refused
// and tried again: it is not pressed any further, and goes on when they allow it.
func TestWhatIsTriedAgainIsAdmittedAgain(t *testing.T) {
	w := newWard(t, 1)
	usual := w.every
	w.every = time.Second
	tries, silenced := 0, false
	w.site.before = func(o remedy.Order) error {
		if o.Action != "drain" {
			return nil
		}
		if tries++; tries <= 2 {
			return &remedy.Failure{Ending: remedy.Conflict, Err: errors.New("a disruption budget refuses")}
		}
		return nil
	}
	w.site.gate = func(remedy.Order) []remedy.GateResult {
		return []remedy.GateResult{{Gate: "silence", Pass: !silenced, Reason: "by ann"}}
	}
	w.ingest(lost(0, 3))
	for range 100 {
		if w.ticks(1); tries == 1 {
			break
		}
	}
	silenced = true
	w.ticks(60)
	in := w.loop.Incidents()[0]
	if tries != 1 || len(in.Waiting) != 1 || in.Waiting[0].Gate != "silence" {
		t.Fatalf("tried %d times, waits for %v; want 1 time, and that it waits for the silence", tries, in.Waiting)
	}
	silenced, w.every = false, usual
	w.settle()
	if in := w.stored()[0]; in.Phase != remedy.PhaseResolved || tries != 3 || len(in.Waiting) != 0 {
		t.Errorf("%s after %d tries, waiting for %v; want it healed after 3", in.Phase, tries, in.Waiting)
	}
}
