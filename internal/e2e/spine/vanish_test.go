package spine

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.dev/stoker/internal/e2e/cluster"
)

// mostWrites is how many writes of incidents a ladder may take: one for each step that
// begins and ends, and some for evidence.
const mostWrites = 30

// TestTheNodeVanishes deletes the node between the decision to boot it and the act. There is
// nothing left to boot, to verify or to give back; the incident says so and ends.
func TestTheNodeVanishes(t *testing.T) {
	f := setUp(t, "vanish-node", needs{})
	ill := f.startJob(t, 0)
	f.startLodger(t, ill, 0)
	w := f.newWire(t)
	s := f.serveOver(t, w, settings{})
	s.awaitLeader(t)

	vanished := w.lay(t, answered, reserving("reboot"), func() {
		if err := f.Client.CoreV1().Nodes().Delete(t.Context(), ill, metav1.DeleteOptions{}); err != nil {
			t.Errorf("delete node %s: %v", ill, err)
		}
	})
	s.tell(t, webhookBody(t, f.gpuLost(t, ill, time.Now())))
	f.awaitSprung(t, vanished, ill, "reboot")

	in := f.await(t, ill, "to be over", long, incident.closed)
	t.Log(in)
	if !contains(in.Reason, "gone") {
		t.Errorf("the incident is %s: %q; want that the node is gone", in.Phase, in.Reason)
	}
	for _, action := range []string{"reboot", "verify", "release"} {
		if st := in.step(action); st.Ending != "gone" && !st.Skipped || !contains(st.Note, "gone") && !contains(st.Note, "not found") {
			t.Errorf("step %s ended %q (skipped: %v): %q; want that the node is gone", action, st.Ending, st.Skipped, st.Note)
		}
	}
	f.checkJob(t, ill)
	f.checkEffects(t, map[effect]int{cordons: 1, asks: 1, stops: 1, starts: 1, evicts: 1})
	f.checkOne(t, ill)
	f.checkQuiet(t)
}

// TestTheJobVanishes deletes the job between the decision to start it again and the act. The
// incident says so; the node is healed all the same.
func TestTheJobVanishes(t *testing.T) {
	f := setUp(t, "vanish-job", needs{})
	ill := f.startJob(t, 0)
	f.startLodger(t, ill, 0)
	boot := f.bootID(t, ill)
	w := f.newWire(t)
	s := f.serveOver(t, w, settings{})
	s.awaitLeader(t)

	vanished := w.lay(t, answered, reserving("start"), func() {
		now := metav1.DeletePropagationBackground
		if err := f.Client.BatchV1().Jobs(f.train).Delete(t.Context(), jobName, metav1.DeleteOptions{PropagationPolicy: &now}); err != nil {
			t.Errorf("delete the job: %v", err)
		}
	})
	s.tell(t, webhookBody(t, f.gpuLost(t, ill, time.Now())))
	f.awaitSprung(t, vanished, ill, "start")

	in := f.await(t, ill, "to be over", long, incident.closed)
	t.Log(in)
	if st := in.step("start"); st.Ending != "gone" || st.Note == "" {
		t.Errorf("step start ended %q: %q; want that the job is gone", st.Ending, st.Note)
	}
	if in.Phase != "resolved" {
		t.Errorf("the incident is %s: %s; want resolved", in.Phase, in.Reason)
	}
	f.checkRebooted(t, ill, boot)
	f.checkUnmarked(t, ill)
	f.checkEffects(t, map[effect]int{cordons: 1, asks: 1, stops: 1, evicts: 1, reboots: 1, releases: 1})
	f.checkOne(t, ill)
	f.checkQuiet(t)
}

// checkQuiet checks that the service has not gone round in circles, and has stopped.
func (f *fixture) checkQuiet(t *testing.T) {
	t.Helper()
	writes := func() cluster.AuditLog {
		return f.Audit(t).By(f.user).Writes().Where(func(e cluster.AuditEvent) bool { return e.Resource != "leases" })
	}
	before := writes()
	if n := len(before.Of("incidents")); n > mostWrites {
		t.Errorf("%d writes of incidents, want at most %d", n, mostWrites)
	}
	time.Sleep(settle)
	if after := writes(); len(after) != len(before) {
		t.Errorf("the service still writes when all is over:\n%s", fmt.Sprint(after[len(before):]))
	}
}
