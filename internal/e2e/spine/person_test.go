package spine

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestAPersonUncordonsInTheMiddle lets a person give the node back while the job is being
// stopped. Theirs wins: the job is started again, nothing else is done, our marks go, and
// for a while the same fault opens nothing.
func TestAPersonUncordonsInTheMiddle(t *testing.T) {
	f := setUp(t, "person", needs{})
	ill := f.startJob(t, 4*time.Second)
	f.startLodger(t, ill, 0)
	boot := f.bootID(t, ill)
	s := f.serve(t, settings{})
	s.awaitLeader(t)

	fault := f.gpuLost(t, ill, time.Now())
	s.tell(t, webhookBody(t, fault))
	f.awaitStep(t, ill, "stop")
	f.AwaitAudit(t, "the stop of the job", soon, f.effects(stops))
	f.uncordon(t, ill)

	in := f.await(t, ill, "to be over", long, incident.closed)
	t.Log(in)
	if in.Phase != "cancelled" || !contains(in.Reason, "person", "uncordoned", ill) {
		t.Errorf("the incident is %s: %s; want cancelled, since a person has uncordoned %s", in.Phase, in.Reason, ill)
	}
	if !in.Quiet.After(time.Now().Add(50 * time.Minute)) {
		t.Errorf("the incident is quiet until %s, want an hour", in.Quiet)
	}
	f.checkJob(t)
	f.checkUnmarked(t, ill)
	if now := f.bootID(t, ill); now != boot {
		t.Error("the node was booted though a person had taken it over")
	}

	// The same alert again, and a newer event of the same kind.
	s.tell(t, webhookBody(t, fault))
	s.tell(t, webhookBody(t, f.gpuLost(t, ill, time.Now())))
	f.checkEffects(t, map[effect]int{cordons: 1, asks: 1, stops: 1, starts: 1, releases: 1})
	f.checkOne(t, ill)
	if at := f.lodger(t); at != ill {
		t.Error("the lodger was moved though a person had taken the node over")
	}
}

// uncordon does what `kubectl uncordon` does, as the admin.
func (f *fixture) uncordon(t *testing.T, node string) {
	t.Helper()
	patch := []byte(`{"spec":{"unschedulable":null}}`)
	if _, err := f.Client.CoreV1().Nodes().Patch(t.Context(), node, types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}
