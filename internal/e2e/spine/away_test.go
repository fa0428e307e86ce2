package spine

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"stoker.dev/stoker/internal/e2e/scene"

	"stoker.dev/stoker/internal/e2e/cluster"
)

// away is for how long the API server is gone: longer than a lease.
const away = 20 * time.Second

// TestTheAPIServerGoesAway kills the API server while the job is being stopped and starts it
// again. Webhooks are refused meanwhile, so that they are sent again; then all goes on where
// it was.
func TestTheAPIServerGoesAway(t *testing.T) {
	f := scene.SetUp(t, "away", scene.Needs{})
	ill := f.StartJob(t, 4*time.Second)
	f.StartLodger(t, ill, time.Second)
	boot := f.BootID(t, ill)
	s := f.Serve(t, scene.Settings{})
	s.AwaitLeader(t)
	other := scene.WebhookBody(t, f.MemoryErrors(t, ill, time.Now())) // while the node can be asked for its boot

	s.Tell(t, scene.WebhookBody(t, f.GPULost(t, ill, time.Now())))
	f.AwaitStep(t, ill, "stop")
	f.AwaitAudit(t, "the stop of the job", scene.Soon, f.Effects(scene.Stops))
	f.APIServer.Kill(t)
	back := time.Now().Add(away)

	refused := 0
	for time.Now().Before(back) {
		code, text, err := s.Post(t.Context(), other)
		switch {
		case err != nil:
			t.Errorf("the webhook is not answered: %v", err)
		case code == http.StatusServiceUnavailable:
			refused++
		default:
			t.Errorf("the webhook answers %d %s while nothing can be made durable, want 503", code, text)
		}
		time.Sleep(time.Second)
	}
	if code, text, err := s.Ask(t.Context(), http.MethodGet, "/healthz", "", nil); err != nil || code != http.StatusOK {
		t.Errorf("/healthz answers %d %s, %v; a restart would not help", code, text, err)
	}
	f.APIServer.Start(t)
	f.AwaitRights(t)
	f.Pardoned = time.Now()
	for _, other := range []*cluster.Server{f.ControllerManager, f.Scheduler, f.Kwok} {
		other.Kill(t) // by themselves they would look for the server again in up to a minute
		other.Start(t)
	}
	t.Logf("the API server was away for %.0f s; %d webhooks were refused", time.Since(back.Add(-away)).Seconds(), refused)

	s.Tell(t, other)
	f.AwaitHealed(t, ill, scene.Long)
	f.CheckJob(t, ill)
	f.CheckRebooted(t, ill, boot)
	f.CheckUnmarked(t, ill)
	f.CheckEffects(t, scene.OnceEach)
	f.CheckOne(t, ill)
	f.Await(t, "the other fault to be written down", scene.Soon, func(ctx context.Context) (bool, string, error) {
		all, err := f.Stored(ctx, "gpu-ecc", ill)
		return len(all) == 1 && len(all[0].Steps) == 0, fmt.Sprint(all), err
	})
}
