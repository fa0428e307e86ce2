package spine

import (
	"context"
	"fmt"
	"net/http"
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
