package neighbours

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/internal/e2e/cluster"
	"stoker.dev/stoker/internal/e2e/scene"
)

// TestSilences lets a person silence a node before a fault of it is told in another way.
// Nothing is done until the silence is lifted. Then Stoker silences the node itself while
// it heals it, and lifts that when it is done.
func TestSilences(t *testing.T) {
	f := scene.SetUp(t, "silence", scene.Needs{})
	ill := f.StartJob(t, time.Second)
	f.StartLodger(t, ill, time.Second)
	boot := f.BootID(t, ill)
	s := f.Replica(t, scene.Settings{Alerting: asking(f, noWatchdog+", silence: true")}, cluster.FreePort(t), f.Kubeconfig)
	s.Start(t)
	s.AwaitLeader(t)
	id := f.SilenceAlerts(t, time.Hour, cluster.Matcher{Name: "node", Value: ill + "|nowhere", IsRegex: true, IsEqual: true})
	const asked = `stoker_rules_alertmanager_requests_total{result="ok"}`
	before := s.Metric(t, asked) // the next round may have begun before the silence
	s.AwaitMetric(t, asked, scene.Soon, func(v float64) bool { return v >= before+2 })

	s.Tell(t, scene.WebhookBody(t, f.GPULost(t, ill, time.Now())))
	in := f.AwaitIncident(t, ill, "to wait", scene.Soon, func(in scene.Incident) bool { return len(in.Waiting) > 0 })
	if w := in.Waiting[0]; w.Gate != "silence" || !strings.Contains(w.Reason, "by the test") {
		t.Errorf("it waits for %s: %s; want the silence, and whose it is", w.Gate, w.Reason)
	}
	f.CheckEffects(t, map[scene.Effect]int{})

	f.LiftSilence(t, id)
	own := func() []cluster.Silence {
		var out []cluster.Silence
		for _, s := range f.Silences(t) {
			if s.CreatedBy == "stoker" && strings.Contains(s.Comment, in.Name) {
				out = append(out, s)
			}
		}
		return out
	}
	f.Await(t, "Stoker's own silence", scene.Soon, func(context.Context) (bool, string, error) {
		have := own()
		return len(have) == 1 && strings.Contains(fmt.Sprint(have[0].Matchers), ill), fmt.Sprint(have), nil
	})
	f.AwaitHealed(t, ill, scene.Long)
	f.Await(t, "Stoker's own silence to be lifted", scene.Soon, func(context.Context) (bool, string, error) {
		have := own()
		return len(have) == 0, fmt.Sprint(have), nil
	})
	f.CheckJob(t, ill)
	f.CheckRebooted(t, ill, boot)
	f.CheckEffects(t, scene.OnceEach)
}

// TestMaintenance tells of a fault that Alertmanager would not tell of now, since the route
// to Stoker is muted for a time: nothing is done, and it is said why.
func TestMaintenance(t *testing.T) {
	f := scene.SetUp(t, "mute", scene.Needs{})
	s := f.Replica(t, scene.Settings{Alerting: asking(f, noWatchdog)}, cluster.FreePort(t), f.Kubeconfig)
	s.Start(t)
	s.AwaitLeader(t)
	fault := f.GPULost(t, f.Nodes[0], time.Now())
	fault.Labels["maintenance"] = "yes"
	s.Tell(t, scene.WebhookBody(t, fault))
	in := f.AwaitIncident(t, f.Nodes[0], "to wait", scene.Soon, func(in scene.Incident) bool { return len(in.Waiting) > 0 })
	if w := in.Waiting[0]; w.Gate != "silence" || !strings.Contains(w.Reason, `muted: it is within "always"`) {
		t.Errorf("it waits for %s: %s; want the mute", w.Gate, w.Reason)
	}
	f.CheckEffects(t, map[scene.Effect]int{})
}
