package neighbours

import (
	"syscall"
	"testing"
	"time"

	"stoker.dev/stoker/internal/e2e/cluster"
	"stoker.dev/stoker/internal/e2e/scene"
)

// TestNobodyLeads lets a fault happen while the leader is dead and the other replica does
// not lead yet: it refuses, and Alertmanager tells it again until it has taken over.
func TestNobodyLeads(t *testing.T) {
	f := scene.SetUp(t, "leaderless", scene.Needs{})
	ill := f.StartJob(t, 0)
	f.StartLodger(t, ill, 0)
	boot := f.BootID(t, ill)
	settings := scene.Settings{} // it hears of the fault by Alertmanager's webhook alone
	leader := f.Replica(t, settings, cluster.FreePort(t), f.Kubeconfig)
	leader.Start(t)
	leader.AwaitLeader(t)
	follower := f.Replica(t, settings, f.OtherPort, f.Kubeconfig)
	follower.Start(t)

	leader.Kill(t)
	post(t, f, f.GPULost(t, ill, time.Now()))
	follower.AwaitMetric(t, `stoker_rules_webhook_requests_total{code="200"}`, scene.Soon, func(v float64) bool { return v > 0 })
	if n := follower.Metric(t, `stoker_rules_passed_on_total{result="no_leader"}`) + follower.Metric(t, `stoker_rules_passed_on_total{result="failed"}`); n == 0 {
		t.Error("the replica that does not lead has refused nothing; the test proves nothing")
	}
	f.AwaitHealed(t, ill, scene.Long)
	f.CheckJob(t, ill)
	f.CheckRebooted(t, ill, boot)
	f.CheckUnmarked(t, ill)
	f.CheckEffects(t, scene.OnceEach)
	f.CheckOne(t, ill)
}

// TestTheLeaderFallsAtEveryStep lets the leader die, or fall asleep and wake when the other
// has taken over, at each step of the ladder, so that the two take turns. Nothing is done
// twice, and who wakes does no harm.
func TestTheLeaderFallsAtEveryStep(t *testing.T) {
	for _, tc := range []struct {
		id, how string
		fall    func(t *testing.T, s *scene.Service)
		rise    func(t *testing.T, s *scene.Service)
	}{
		{"dies", "kill -9", func(t *testing.T, s *scene.Service) { t.Helper(); s.Kill(t) }, func(t *testing.T, s *scene.Service) { t.Helper(); s.Start(t) }},
		{"sleeps", "SIGSTOP and SIGCONT", signal(syscall.SIGSTOP), signal(syscall.SIGCONT)},
	} {
		t.Run(tc.how, func(t *testing.T) {
			f := scene.SetUp(t, tc.id, scene.Needs{Rebooter: cluster.RebooterOptions{Delay: 6 * time.Second}})
			ill := f.StartJob(t, 2*time.Second)
			f.StartLodger(t, ill, 2*time.Second)
			boot := f.BootID(t, ill)
			w := f.NewWire(t)
			settings := scene.Settings{Alerting: asking(f, noWatchdog)}
			leads := f.Replica(t, settings, f.WebhookPort, w.Kubeconfig)
			leads.Start(t)
			leads.AwaitLeader(t)
			other := f.Replica(t, settings, f.OtherPort, w.Kubeconfig)
			other.Start(t)

			// The trap for a step lies before the one that will do it leads. Who fell at the
			// step before rises when the other has fallen, and has to take over.
			lay := func(action string) *scene.Trap {
				match := f.Effecting(scene.Effect(action))
				if action == "verify" { // it changes nothing: that it begins is all there is to be hit
					match = scene.Reserving(action)
				}
				falls := leads
				return w.Lay(t, scene.Heard, match, func() { tc.fall(t, falls) })
			}
			struck := lay(scene.Ladder[0])
			post(t, f, f.GPULost(t, ill, time.Now()))
			for i, action := range scene.Ladder {
				f.AwaitSprung(t, struck, ill, action)
				leads, other = other, leads
				if i+1 < len(scene.Ladder) {
					struck = lay(scene.Ladder[i+1])
				}
				if i > 0 {
					tc.rise(t, leads)
				}
			}
			tc.rise(t, other)

			f.AwaitHealed(t, ill, scene.Long)
			f.CheckJob(t, ill)
			f.CheckRebooted(t, ill, boot)
			f.CheckUnmarked(t, ill)
			f.CheckEffects(t, scene.OnceEach)
			f.CheckOne(t, ill)
		})
	}
}

func signal(sig syscall.Signal) func(*testing.T, *scene.Service) {
	return func(t *testing.T, s *scene.Service) {
		t.Helper()
		if err := s.Proc.Signal(sig); err != nil {
			t.Error(err)
		}
	}
}
