package app

import (
	"slices"
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/internal/remedy"
)

// mending is a ward whose incident has come to the action, which runs a repair.
func mending(t *testing.T, action, ladder string) (*ward, string) {
	t.Helper()
	w := newWard(t)
	node := w.cluster.Nodes()[0]
	w.told(remedy.Evidence{
		Subject: remedy.Subject{Kind: remedy.SubjectGPU, Node: node, Index: "0", UUID: w.cluster.GPU(node)}, Class: remedy.ClassGPUECC,
		At: w.cluster.Now(), Source: "rules", Labels: map[string]string{"alertname": "GPUXid", "xid": "95", "ladder": ladder},
	})
	w.run("the repair", func() bool { return len(w.cluster.Repairs()) > 0 })
	name := w.cluster.Repairs()[0]
	if !strings.HasPrefix(name, action+"-") {
		t.Fatalf("the repair is %s", name)
	}
	return w, name
}

// TestARepairThatIsLookedAtMakesNoNoise: how far a reset is shows nowhere but in its
// repair, which is looked at every few seconds, for minutes.
func TestARepairThatIsLookedAtMakesNoNoise(t *testing.T) {
	w, name := mending(t, "reset", "RESET")
	w.tick() // the step has begun, and is stored
	writes := w.kept.writes
	for range 60 {
		w.tick()
	}
	if n := w.kept.writes - writes; n != 0 {
		t.Errorf("%d writes of the incident while nothing happens", n)
	}
	w.cluster.EndRepair(t, name)
	w.phase(1, remedy.PhaseResolved)
	for what, want := range map[string]int{`msg="order started" order.id=`: 1, `msg="order ended" order.id=`: 1} {
		n := 0
		for line := range strings.Lines(w.logged.String()) {
			if strings.Contains(line, strings.TrimSuffix(what, " order.id=")) && strings.Contains(line, "order.action=reset") {
				n++
			}
		}
		if n != want {
			t.Errorf("%s is logged %d times, want %d\n%s", what, n, want, w.logged)
		}
	}
	var of []string
	for _, s := range w.said {
		if strings.HasPrefix(s, "reset ") {
			of = append(of, s)
		}
	}
	if want := []string{"reset started", "reset ended done"}; !slices.Equal(of, want) {
		t.Errorf("said on the node: %v, want %v", of, want)
	}
}

// TestARepairThatAPersonHasDeletedIsNotMadeAnew: who deletes it does not want it.
func TestARepairThatAPersonHasDeletedIsNotMadeAnew(t *testing.T) {
	for action, ladder := range map[string]string{"reset": "RESET", "reboot": "REBOOT"} {
		t.Run(action, func(t *testing.T) {
			w, name := mending(t, action, ladder)
			w.tick()
			w.cluster.DropRepair(name)
			for range int(7 * time.Minute / time.Second) {
				w.tick()
			}
			if left := w.cluster.Repairs(); len(left) > 0 {
				t.Errorf("repairs %v were created after %s had been deleted", left, name)
			}
			in, _ := w.newest(1)
			if in.Phase != remedy.PhaseCancelled || !strings.Contains(in.Reason, name) {
				t.Errorf("%s: %s; want it cancelled, with the repair's name", in.Phase, in.Reason)
			}
		})
	}
}
