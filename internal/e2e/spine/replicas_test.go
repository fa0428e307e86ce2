package spine

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"

	"stoker.dev/stoker/internal/e2e/scene"

	"stoker.dev/stoker/internal/e2e/cluster"
)

// TestTheOtherReplicaTakesOver runs two replicas, kills the one that leads in the middle of the
// ladder, and lets the other finish.
func TestTheOtherReplicaTakesOver(t *testing.T) {
	f := scene.SetUp(t, "replicas", scene.Needs{})
	ill := f.StartJob(t, 2*time.Second)
	f.StartLodger(t, ill, time.Second)
	boot := f.BootID(t, ill)
	leader := f.Serve(t, scene.Settings{})
	leader.AwaitLeader(t)
	follower := f.Replica(t, scene.Settings{}, cluster.FreePort(t), f.Kubeconfig)
	follower.Start(t)

	body := scene.WebhookBody(t, f.GPULost(t, ill, time.Now()))
	if code, text, err := follower.Ask(t.Context(), http.MethodPost, "/webhook/alertmanager", "", body); err != nil || code != http.StatusUnauthorized {
		t.Errorf("the replica that does not lead answers %d %s, %v without a token; want 401", code, text, err)
	}
	follower.TakenInBy(t, leader, body) // it passes on
	f.AwaitStep(t, ill, "stop")
	leader.Kill(t)
	killed := time.Now()
	follower.AwaitLeader(t)
	t.Logf("the other replica leads %.1f s after the death of the first", time.Since(killed).Seconds())
	follower.Tell(t, body)

	in := f.AwaitHealed(t, ill, scene.Long)
	f.CheckJob(t, ill)
	f.CheckRebooted(t, ill, boot)
	f.CheckUnmarked(t, ill)
	f.CheckEffects(t, scene.OnceEach)
	f.CheckOne(t, ill)

	// The first comes back and follows.
	leader.Start(t)
	leader.Await(t, "the first replica to know of the incident", scene.Soon, func(context.Context) (bool, string, error) {
		code, text, err := leader.Ask(t.Context(), http.MethodGet, "/api/v1/incidents/"+in.Name, leader.Token, nil)
		return code == http.StatusOK, fmt.Sprintf("%d %s", code, text), err
	})
	leader.TakenInBy(t, follower, body)
}

// TestTheLateWriteOfAnOldLeader lets the leader fall asleep with its order to stop the job
// already on its way. The other replica takes over and heals; when all is over the order
// arrives and the old leader wakes. Neither may do any more harm.
func TestTheLateWriteOfAnOldLeader(t *testing.T) {
	f := scene.SetUp(t, "late", scene.Needs{})
	ill := f.StartJob(t, 0)
	f.StartLodger(t, ill, 0)
	boot := f.BootID(t, ill)
	w := f.NewWire(t)
	old := f.ServeOver(t, w, scene.Settings{})
	old.AwaitLeader(t)
	other := f.Replica(t, scene.Settings{}, cluster.FreePort(t), f.Kubeconfig)
	other.Start(t)

	arrive := make(chan struct{})
	asleep := w.Lay(t, scene.Delayed, f.Effecting(scene.Stops), func() {
		if err := old.Proc.Signal(syscall.SIGSTOP); err != nil {
			t.Error(err)
		}
		<-arrive
	})
	letGo := sync.OnceFunc(func() { close(arrive) })
	defer letGo()
	old.Tell(t, scene.WebhookBody(t, f.GPULost(t, ill, time.Now())))
	f.AwaitHealed(t, ill, scene.Long)

	letGo()
	f.Await(t, "the late order to arrive", scene.Soon, func(context.Context) (bool, string, error) {
		return asleep.Sprung(), "on its way", nil
	})
	late := f.AwaitAudit(t, "the late order", scene.Soon, func(l cluster.AuditLog) cluster.AuditLog {
		return l.By(f.User).Of("jobs").Where(func(e cluster.AuditEvent) bool {
			return scene.EffectOf(scene.WriteOf(e), f.System) == scene.Stops && e.Code == http.StatusConflict
		})
	})
	t.Logf("the order that was late: %s", late)
	if err := old.Proc.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	old.TakenInBy(t, other, scene.WebhookBody(t)) // it sees that it leads no more
	f.CheckJob(t, ill)
	f.CheckRebooted(t, ill, boot)
	f.CheckUnmarked(t, ill)
	f.CheckEffects(t, scene.OnceEach)
	f.CheckOne(t, ill)
}
