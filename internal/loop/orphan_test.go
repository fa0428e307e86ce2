package loop

import (
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/internal/store"
)

// TestCase_H3_AMarkWithoutAnIncident loses an incident behind Stoker's back while it holds
// a node. The node is left as it is, and that nobody gives it back is told once.
func TestCase_H3_AMarkWithoutAnIncident(t *testing.T) {
	w := newWard(t, 1)
	w.every = 10 * time.Second
	w.ingest(lost(0, 3))
	w.ticks(1)
	in := w.stored()[0]
	w.kept = &store.Memory{} // the store is lost
	w.begin(0, false)
	w.ticks(60)
	var told []string
	for _, e := range w.told {
		if e.Kind == EntryTrouble {
			told = append(told, e.Text)
		}
	}
	if len(told) != 1 || !strings.Contains(told[0], "gpu-00 bears our mark for "+in.Name) {
		t.Errorf("told %q, want once that the node bears a mark of %s", told, in.Name)
	}
	if n := len(w.stored()); n != 0 {
		t.Errorf("%d incidents are stored, want none", n)
	}
}
