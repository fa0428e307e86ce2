package spine

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"

	"stoker.dev/stoker/internal/e2e/cluster"
)

// TestTheOtherReplicaTakesOver runs two replicas, kills the one that leads in the middle of the
// ladder, and lets the other finish.
func TestTheOtherReplicaTakesOver(t *testing.T) {
	f := setUp(t, "replicas", needs{})
	ill := f.startJob(t, 2*time.Second)
	f.startLodger(t, ill, time.Second)
	boot := f.bootID(t, ill)
	leader := f.serve(t, settings{})
	leader.awaitLeader(t)
	follower := f.replica(t, settings{}, cluster.FreePort(t), f.kubeconfig)
	follower.start(t)

	body := webhookBody(t, f.gpuLost(t, ill, time.Now()))
	for range 5 {
		if code, text, err := follower.post(t.Context(), body); err != nil || code != http.StatusServiceUnavailable {
			t.Errorf("the replica that does not lead answers %d %s, %v; want 503", code, text, err)
		}
	}
	if code, text, err := follower.ask(t.Context(), http.MethodPost, "/webhook/alertmanager", "", body); err != nil || code != http.StatusUnauthorized {
		t.Errorf("the replica that does not lead answers %d %s, %v without a token; want 401", code, text, err)
	}
	leader.tell(t, body)
	f.awaitStep(t, ill, "stop")
	leader.kill(t)
	killed := time.Now()
	follower.awaitLeader(t)
	t.Logf("the other replica leads %.1f s after the death of the first", time.Since(killed).Seconds())
	follower.tell(t, body)

	in := f.awaitHealed(t, ill, long)
	f.checkJob(t, ill)
	f.checkRebooted(t, ill, boot)
	f.checkUnmarked(t, ill)
	f.checkEffects(t, onceEach)
	f.checkOne(t, ill)

	// The first comes back and follows.
	leader.start(t)
	leader.Await(t, "the first replica to know of the incident", soon, func(context.Context) (bool, string, error) {
		code, text, err := leader.ask(t.Context(), http.MethodGet, "/api/v1/incidents/"+in.Name, leader.token, nil)
		return code == http.StatusOK, fmt.Sprintf("%d %s", code, text), err
	})
	if code, text, err := leader.post(t.Context(), body); err != nil || code != http.StatusServiceUnavailable {
		t.Errorf("the replica that came back answers %d %s, %v; want 503", code, text, err)
	}
}

// TestTheLateWriteOfAnOldLeader lets the leader fall asleep with its order to stop the job
// already on its way. The other replica takes over and heals; when all is over the order
// arrives and the old leader wakes. Neither may do any more harm.
func TestTheLateWriteOfAnOldLeader(t *testing.T) {
	f := setUp(t, "late", needs{})
	ill := f.startJob(t, 0)
	f.startLodger(t, ill, 0)
	boot := f.bootID(t, ill)
	w := f.newWire(t)
	old := f.serveOver(t, w, settings{})
	old.awaitLeader(t)
	other := f.replica(t, settings{}, cluster.FreePort(t), f.kubeconfig)
	other.start(t)

	arrive := make(chan struct{})
	asleep := w.lay(t, delayed, f.effecting(stops), func() {
		if err := old.proc.Signal(syscall.SIGSTOP); err != nil {
			t.Error(err)
		}
		<-arrive
	})
	letGo := sync.OnceFunc(func() { close(arrive) })
	defer letGo()
	old.tell(t, webhookBody(t, f.gpuLost(t, ill, time.Now())))
	f.awaitHealed(t, ill, long)

	letGo()
	f.Await(t, "the late order to arrive", soon, func(context.Context) (bool, string, error) {
		return asleep.sprung(), "on its way", nil
	})
	late := f.AwaitAudit(t, "the late order", soon, func(l cluster.AuditLog) cluster.AuditLog {
		return l.By(f.user).Of("jobs").Where(func(e cluster.AuditEvent) bool {
			return effectOf(writeOf(e), f.system) == stops && e.Code == http.StatusConflict
		})
	})
	t.Logf("the order that was late: %s", late)
	if err := old.proc.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	old.Await(t, "the old leader to see that it leads no more", soon, func(ctx context.Context) (bool, string, error) {
		code, text, err := old.post(ctx, webhookBody(t))
		return code == http.StatusServiceUnavailable, fmt.Sprintf("%d %s", code, text), err
	})
	f.checkJob(t, ill)
	f.checkRebooted(t, ill, boot)
	f.checkUnmarked(t, ill)
	f.checkEffects(t, onceEach)
	f.checkOne(t, ill)
}
