package neighbours

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"stoker.dev/stoker/internal/e2e/cluster"
	"stoker.dev/stoker/internal/e2e/scene"
)

// StormEnv names the environment variable that says how long the storm lasts; half a
// minute when it is empty. The number of alerts is the same.
const StormEnv = "STOKER_STORM"

const (
	stormNodes  = 50
	stormAlerts = 50_000
	stormRounds = 100 // each with ten alerts of every node
)

// TestStorm sends 50,000 alerts about 50 nodes, among them one fault of each, told again and
// again and happening again. Every node is acted on, once, and the service's memory and
// goroutines stay as they are.
func TestStorm(t *testing.T) {
	lasts, err := time.ParseDuration(cmp.Or(os.Getenv(StormEnv), "30s"))
	if err != nil {
		t.Fatalf("%s: %v", StormEnv, err)
	}
	f := scene.SetUp(t, "storm", scene.Needs{Nodes: stormNodes})
	s := f.Replica(t, scene.Settings{Steps: cordonAndLook, Budget: "100%"}, cluster.FreePort(t), f.Kubeconfig)
	s.Start(t)
	s.AwaitLeader(t)
	t.Logf("webhook to durable, one new incident each: %s", spans(opening(t, f, s)))

	begin := time.Now()
	first := map[string]scene.Alert{}
	for _, node := range f.Nodes {
		first[node] = f.GPULost(t, node, begin)
	}

	var answers []time.Duration
	var memory, goroutines []float64
	sent := 0
	for round := range stormRounds {
		var alerts []scene.Alert
		for _, node := range f.Nodes {
			again := first[node]
			again.Annotations = map[string]string{"summary": again.Annotations["summary"], "event_time": fmt.Sprintf("%.3f", float64(time.Now().UnixMilli())/1000)}
			alerts = append(alerts, first[node], again)
			for gpu := range stormAlerts/stormRounds/stormNodes - 2 {
				alerts = append(alerts, scene.Alert{
					Labels:      map[string]string{"alertname": "GPUXidSeen", "class": "none", "xid": "45", "node": node, "gpu": fmt.Sprint(gpu)},
					Annotations: map[string]string{"summary": "XID 45"}, StartsAt: time.Now(),
				})
			}
		}
		body := scene.WebhookBody(t, alerts...)
		asked := time.Now()
		s.Tell(t, body)
		answers = append(answers, time.Since(asked))
		sent += len(alerts)
		if round == 0 {
			log := f.AwaitAudit(t, "every node to be cordoned", scene.Soon, func(l cluster.AuditLog) cluster.AuditLog {
				return f.Effects(scene.Cordons)(l).AtLeast(stormNodes)
			})
			t.Logf("all %d incidents act %.1f s after the first alert was sent", len(log), log[len(log)-1].Time.Sub(asked).Seconds())
		}
		memory = append(memory, s.Metric(t, "process_resident_memory_bytes")/1e6)
		goroutines = append(goroutines, s.Metric(t, "go_goroutines"))
		time.Sleep(time.Until(begin.Add(lasts * time.Duration(round+1) / stormRounds)))
	}
	t.Logf("%d alerts in %.0f s; webhook to durable, %d alerts each that tell all %d incidents something new: %s",
		sent, time.Since(begin).Seconds(), sent/stormRounds, stormNodes, spans(answers))
	for what, all := range map[string][]float64{"MB of memory": memory, "goroutines": goroutines} {
		early, late := median(all[stormRounds/5:2*stormRounds/5]), median(all[4*stormRounds/5:])
		t.Logf("%s: %.0f early in the storm, %.0f late", what, early, late)
		if late > 1.3*early {
			t.Errorf("%s grow with the storm: %.0f early, %.0f late", what, early, late)
		}
	}
	f.CheckEffects(t, map[scene.Effect]int{scene.Cordons: stormNodes})
	for _, node := range f.Nodes {
		f.CheckOne(t, node)
	}
}

func median(v []float64) float64 {
	v = slices.Clone(v)
	slices.Sort(v)
	return v[len(v)/2]
}

// opening opens one incident on each node, one after the other, and returns how long each
// took from the webhook's request to its answer, which is when it is durable.
func opening(t *testing.T, f *scene.Fixture, s *scene.Service) (took []time.Duration) {
	t.Helper()
	for _, node := range f.Nodes {
		body := scene.WebhookBody(t, f.MemoryErrors(t, node, time.Now()))
		asked := time.Now()
		s.Tell(t, body)
		took = append(took, time.Since(asked))
	}
	return took
}

// spans says how long most took, and the longest.
func spans(took []time.Duration) string {
	slices.Sort(took)
	at := func(share float64) time.Duration {
		return took[int(share*float64(len(took)-1))].Round(time.Millisecond)
	}
	return fmt.Sprintf("p50 %v, p99 %v of %d", at(0.5), at(0.99), len(took))
}
