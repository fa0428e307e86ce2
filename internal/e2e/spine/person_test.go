package spine

import (
	"testing"
	"time"

	"stoker.dev/stoker/internal/e2e/scene"
)

// TestAPersonUncordonsInTheMiddle lets a person give the node back while the job is being
// stopped. Theirs wins: the job is started again, nothing else is done, our marks go, and
// for a while the same fault opens nothing.
func TestAPersonUncordonsInTheMiddle(t *testing.T) {
	f := scene.SetUp(t, "person", scene.Needs{})
	ill := f.StartJob(t, 4*time.Second)
	f.StartLodger(t, ill, 0)
	boot := f.BootID(t, ill)
	s := f.Serve(t, scene.Settings{})
	s.AwaitLeader(t)

	fault := f.GPULost(t, ill, time.Now())
	s.Tell(t, scene.WebhookBody(t, fault))
	f.AwaitStep(t, ill, "stop")
	f.AwaitAudit(t, "the stop of the job", scene.Soon, f.Effects(scene.Stops))
	f.Uncordon(t, ill)

	in := f.AwaitIncident(t, ill, "to be over", scene.Long, scene.Incident.Over)
	t.Log(in)
	if in.Phase != "cancelled" || !scene.Contains(in.Reason, "person", "uncordoned", ill) {
		t.Errorf("the incident is %s: %s; want cancelled, since a person has uncordoned %s", in.Phase, in.Reason, ill)
	}
	if !in.Quiet.After(time.Now().Add(50 * time.Minute)) {
		t.Errorf("the incident is quiet until %s, want an hour", in.Quiet)
	}
	f.CheckJob(t)
	f.CheckUnmarked(t, ill)
	if now := f.BootID(t, ill); now != boot {
		t.Error("the node was booted though a person had taken it over")
	}

	// The same alert again, and a newer event of the same kind.
	s.Tell(t, scene.WebhookBody(t, fault))
	s.Tell(t, scene.WebhookBody(t, f.GPULost(t, ill, time.Now())))
	f.CheckEffects(t, map[scene.Effect]int{scene.Cordons: 1, scene.Asks: 1, scene.Stops: 1, scene.Starts: 1, scene.Releases: 1})
	f.CheckOne(t, ill)
	if at := f.Lodger(t); at != ill {
		t.Error("the lodger was moved though a person had taken the node over")
	}
}
