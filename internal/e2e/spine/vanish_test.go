package spine

import (
	"fmt"
	"testing"
	"time"

	"stoker.dev/stoker/internal/e2e/scene"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.dev/stoker/internal/e2e/cluster"
)

// mostWrites is how many writes of incidents a ladder may take: one for each step that
// begins and ends, and some for evidence.
const mostWrites = 30

// TestTheNodeVanishes deletes the node between the decision to boot it and the act. There is
// nothing left to boot, to verify or to give back; the incident says so and ends.
func TestTheNodeVanishes(t *testing.T) {
	f := scene.SetUp(t, "vanish-node", scene.Needs{})
	ill := f.StartJob(t, 0)
	f.StartLodger(t, ill, 0)
	w := f.NewWire(t)
	s := f.ServeOver(t, w, scene.Settings{})
	s.AwaitLeader(t)

	vanished := w.Lay(t, scene.Answered, scene.Reserving("reboot"), func() {
		if err := f.Client.CoreV1().Nodes().Delete(t.Context(), ill, metav1.DeleteOptions{}); err != nil {
			t.Errorf("delete node %s: %v", ill, err)
		}
	})
	s.Tell(t, scene.WebhookBody(t, f.GPULost(t, ill, time.Now())))
	f.AwaitSprung(t, vanished, ill, "reboot")

	in := f.AwaitIncident(t, ill, "to be over", scene.Long, scene.Incident.Over)
	t.Log(in)
	if !scene.Contains(in.Reason, "gone") {
		t.Errorf("the incident is %s: %q; want that the node is gone", in.Phase, in.Reason)
	}
	for _, action := range []string{"reboot", "verify", "release"} {
		if st := in.Rung(action); st.Ending != "gone" && !st.Skipped || !scene.Contains(st.Note, "gone") && !scene.Contains(st.Note, "not found") {
			t.Errorf("step %s ended %q (skipped: %v): %q; want that the node is gone", action, st.Ending, st.Skipped, st.Note)
		}
	}
	f.CheckJob(t, ill)
	f.CheckEffects(t, map[scene.Effect]int{scene.Cordons: 1, scene.Asks: 1, scene.Stops: 1, scene.Starts: 1, scene.Evicts: 1})
	f.CheckOne(t, ill)
	checkQuiet(t, f)
}

// TestTheJobVanishes deletes the job between the decision to start it again and the act. The
// incident says so; the node is healed all the same.
func TestTheJobVanishes(t *testing.T) {
	f := scene.SetUp(t, "vanish-job", scene.Needs{})
	ill := f.StartJob(t, 0)
	f.StartLodger(t, ill, 0)
	boot := f.BootID(t, ill)
	w := f.NewWire(t)
	s := f.ServeOver(t, w, scene.Settings{})
	s.AwaitLeader(t)

	vanished := w.Lay(t, scene.Answered, scene.Reserving("start"), func() {
		now := metav1.DeletePropagationBackground
		if err := f.Client.BatchV1().Jobs(f.Train).Delete(t.Context(), scene.JobName, metav1.DeleteOptions{PropagationPolicy: &now}); err != nil {
			t.Errorf("delete the job: %v", err)
		}
	})
	s.Tell(t, scene.WebhookBody(t, f.GPULost(t, ill, time.Now())))
	f.AwaitSprung(t, vanished, ill, "start")

	in := f.AwaitIncident(t, ill, "to be over", scene.Long, scene.Incident.Over)
	t.Log(in)
	if st := in.Rung("start"); st.Ending != "gone" || st.Note == "" {
		t.Errorf("step start ended %q: %q; want that the job is gone", st.Ending, st.Note)
	}
	if in.Phase != "resolved" {
		t.Errorf("the incident is %s: %s; want resolved", in.Phase, in.Reason)
	}
	f.CheckRebooted(t, ill, boot)
	f.CheckUnmarked(t, ill)
	f.CheckEffects(t, map[scene.Effect]int{scene.Cordons: 1, scene.Asks: 1, scene.Stops: 1, scene.Evicts: 1, scene.Reboots: 1, scene.Releases: 1})
	f.CheckOne(t, ill)
	checkQuiet(t, f)
}

// checkQuiet checks that the service has not gone round in circles, and has stopped.
func checkQuiet(t *testing.T, f *scene.Fixture) {
	t.Helper()
	writes := func() cluster.AuditLog {
		return f.Audit(t).By(f.User).Writes().Where(func(e cluster.AuditEvent) bool { return e.Resource != "leases" })
	}
	before := writes()
	if n := len(before.Of("incidents")); n > mostWrites {
		t.Errorf("%d writes of incidents, want at most %d", n, mostWrites)
	}
	time.Sleep(scene.Settle)
	if after := writes(); len(after) != len(before) {
		t.Errorf("the service still writes when all is over:\n%s", fmt.Sprint(after[len(before):]))
	}
}
