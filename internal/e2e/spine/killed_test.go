package spine

import (
	"testing"
	"time"

	"stoker.dev/stoker/internal/e2e/scene"

	"stoker.dev/stoker/internal/e2e/cluster"
)

// TestKilledAtEveryStep kills the service with kill -9 at each step of the ladder and starts
// it again, at each of three points: before the step's effect, after the effect but before
// the service hears of it, and while the step runs. Each time all ends as it does
// undisturbed, and each effect is there once.
func TestKilledAtEveryStep(t *testing.T) {
	for _, tc := range []struct {
		id   string
		when scene.Moment
		// identity is the replica's in the election. A restarted one that has kept its name, as
		// a container in its pod does, leads again at once; one with another waits for the lease.
		identity string
	}{
		{"killed-before", scene.BeforeIt, ""},
		{"killed-unheard", scene.Unheard, "stoker-0"},
		{"killed-running", scene.Heard, "stoker-0"},
	} {
		t.Run(string(tc.when), func(t *testing.T) {
			// The repair takes longer than a restart, so that it is found while it runs.
			f := scene.SetUp(t, tc.id, scene.Needs{Rebooter: cluster.RebooterOptions{Delay: 4 * time.Second}})
			ill := f.StartJob(t, 2*time.Second)
			f.StartLodger(t, ill, 2*time.Second)
			boot := f.BootID(t, ill)
			w := f.NewWire(t)
			s := f.Replica(t, scene.Settings{}, cluster.FreePort(t), w.Kubeconfig)
			s.Identity = tc.identity
			s.Start(t)
			s.AwaitLeader(t)

			body := scene.WebhookBody(t, f.GPULost(t, ill, time.Now()))
			for i, action := range scene.Ladder {
				when, match := tc.when, f.Effecting(scene.Effect(action))
				if action == "verify" { // it changes nothing: that it begins is all there is to be hit
					match = scene.Reserving(action)
					if when == scene.BeforeIt {
						when = scene.Unheard // what was not reserved was never begun
					}
				}
				killed := w.Lay(t, when, match, func() { s.Kill(t) })
				if i == 0 {
					s.Tell(t, body)
				} else {
					s.Start(t)
				}
				f.AwaitSprung(t, killed, ill, action)
			}
			s.Start(t)

			f.AwaitHealed(t, ill, scene.Long)
			f.CheckJob(t, ill)
			f.CheckRebooted(t, ill, boot)
			f.CheckUnmarked(t, ill)
			f.CheckEffects(t, scene.OnceEach)
			f.CheckOne(t, ill)
		})
	}
}

// TestKilledWhileItOpens kills the service when the incident has been stored and the webhook
// has no answer yet. Alertmanager would send again; that makes no second incident.
func TestKilledWhileItOpens(t *testing.T) {
	f := scene.SetUp(t, "killed-opening", scene.Needs{})
	ill := f.StartJob(t, 0)
	f.StartLodger(t, ill, 0)
	boot := f.BootID(t, ill)
	w := f.NewWire(t)
	s := f.ServeOver(t, w, scene.Settings{})
	s.AwaitLeader(t)

	body := scene.WebhookBody(t, f.GPULost(t, ill, time.Now()))
	killed := w.Lay(t, scene.Unheard, func(w scene.Write) bool { return w.Resource == "incidents" && w.Verb == "create" }, func() { s.Kill(t) })
	if code, text, err := s.Post(t.Context(), body); err == nil {
		t.Errorf("the webhook is answered %d %s by a service that was killed before it was durable", code, text)
	}
	f.AwaitSprung(t, killed, ill, "its creation")
	s.Start(t)
	s.Tell(t, body)

	f.AwaitHealed(t, ill, scene.Long)
	f.CheckJob(t, ill)
	f.CheckRebooted(t, ill, boot)
	f.CheckUnmarked(t, ill)
	f.CheckEffects(t, scene.OnceEach)
	f.CheckOne(t, ill)
}
