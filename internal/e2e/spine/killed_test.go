package spine

import (
	"testing"
	"time"

	"stoker.dev/stoker/internal/e2e/cluster"
)

// TestKilledAtEveryStep kills the service with kill -9 at each step of the ladder and starts
// it again, at each of three points: before the step's effect, after the effect but before
// the service hears of it, and while the step runs. Each time all ends as it does
// undisturbed, and each effect is there once.
func TestKilledAtEveryStep(t *testing.T) {
	for _, tc := range []struct {
		id   string
		when moment
		// identity is the replica's in the election. A restarted one that has kept its name, as
		// a container in its pod does, leads again at once; one with another waits for the lease.
		identity string
	}{
		{"killed-before", beforeIt, ""},
		{"killed-unheard", unheard, "stoker-0"},
		{"killed-running", heard, "stoker-0"},
	} {
		t.Run(string(tc.when), func(t *testing.T) {
			// The repair takes longer than a restart, so that it is found while it runs.
			f := setUp(t, tc.id, needs{rebooter: cluster.RebooterOptions{Delay: 4 * time.Second}})
			ill := f.startJob(t, 2*time.Second)
			f.startLodger(t, ill, 2*time.Second)
			boot := f.bootID(t, ill)
			w := f.newWire(t)
			s := f.replica(t, settings{}, cluster.FreePort(t), w.kubeconfig)
			s.identity = tc.identity
			s.start(t)
			s.awaitLeader(t)

			body := webhookBody(t, f.gpuLost(t, ill, time.Now()))
			for i, action := range ladder {
				when, match := tc.when, f.effecting(effect(action))
				if action == "verify" { // it changes nothing: that it begins is all there is to be hit
					match = reserving(action)
					if when == beforeIt {
						when = unheard // what was not reserved was never begun
					}
				}
				killed := w.lay(t, when, match, func() { s.kill(t) })
				if i == 0 {
					s.tell(t, body)
				} else {
					s.start(t)
				}
				f.awaitSprung(t, killed, ill, action)
			}
			s.start(t)

			f.awaitHealed(t, ill, long)
			f.checkJob(t, ill)
			f.checkRebooted(t, ill, boot)
			f.checkUnmarked(t, ill)
			f.checkEffects(t, onceEach)
			f.checkOne(t, ill)
		})
	}
}

// TestKilledWhileItOpens kills the service when the incident has been stored and the webhook
// has no answer yet. Alertmanager would send again; that makes no second incident.
func TestKilledWhileItOpens(t *testing.T) {
	f := setUp(t, "killed-opening", needs{})
	ill := f.startJob(t, 0)
	f.startLodger(t, ill, 0)
	boot := f.bootID(t, ill)
	w := f.newWire(t)
	s := f.serveOver(t, w, settings{})
	s.awaitLeader(t)

	body := webhookBody(t, f.gpuLost(t, ill, time.Now()))
	killed := w.lay(t, unheard, func(w write) bool { return w.resource == "incidents" && w.verb == "create" }, func() { s.kill(t) })
	if code, text, err := s.post(t.Context(), body); err == nil {
		t.Errorf("the webhook is answered %d %s by a service that was killed before it was durable", code, text)
	}
	f.awaitSprung(t, killed, ill, "its creation")
	s.start(t)
	s.tell(t, body)

	f.awaitHealed(t, ill, long)
	f.checkJob(t, ill)
	f.checkRebooted(t, ill, boot)
	f.checkUnmarked(t, ill)
	f.checkEffects(t, onceEach)
	f.checkOne(t, ill)
}
