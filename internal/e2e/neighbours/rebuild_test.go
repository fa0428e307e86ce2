package neighbours

import (
	"context"
	"fmt"
	"html"
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/internal/e2e/cluster"
	"stoker.dev/stoker/internal/e2e/scene"
)

// TestTheStoreIsLost loses every incident while nobody runs, and starts a service that
// Alertmanager cannot reach. It asks, and knows again what fires and what is silenced.
func TestTheStoreIsLost(t *testing.T) {
	f := scene.SetUp(t, "lost", scene.Needs{})
	ill := f.StartJob(t, 0)
	f.StartLodger(t, ill, 0)
	boot := f.BootID(t, ill)
	spare := spareNode(t, f, ill)
	known := f.MemoryErrors(t, spare, time.Now()) // nothing is done about it
	first := f.Replica(t, scene.Settings{Mode: "approve", Alerting: asking(f, noWatchdog)}, f.WebhookPort, f.Kubeconfig)
	first.Start(t)
	first.AwaitLeader(t)
	post(t, f, known)
	post(t, f, f.GPULost(t, ill, time.Now()))
	f.AwaitIncident(t, ill, "to wait for a person", scene.Soon, func(in scene.Incident) bool { return len(in.Waiting) > 0 })
	f.Await(t, "the other to be stored", scene.Soon, func(ctx context.Context) (bool, string, error) {
		all, err := f.Stored(ctx, "gpu-ecc", spare)
		return len(all) == 1, fmt.Sprint(all), err
	})
	first.Kill(t)
	f.LoseIncidents(t)

	second := f.Replica(t, scene.Settings{Alerting: asking(f, noWatchdog)}, cluster.FreePort(t), f.Kubeconfig)
	begin := time.Now()
	second.Start(t)
	second.AwaitLeader(t)
	leads := time.Now()
	f.Await(t, "the incidents to be back", scene.Soon, func(ctx context.Context) (bool, string, error) {
		lost, err := f.Stored(ctx, "gpu-lost", ill)
		if err != nil {
			return false, "", err
		}
		ecc, err := f.Stored(ctx, "gpu-ecc", spare)
		return len(lost) == 1 && len(ecc) == 1, fmt.Sprintf("%d and %d", len(lost), len(ecc)), err
	})
	t.Logf("leads after %.1f s, and has all incidents again %.1f s later", leads.Sub(begin).Seconds(), time.Since(leads).Seconds())
	f.AwaitHealed(t, ill, scene.Long)
	f.CheckJob(t, ill)
	f.CheckRebooted(t, ill, boot)
	f.CheckUnmarked(t, ill)
	f.CheckEffects(t, scene.OnceEach)
	f.CheckOne(t, ill)
}

// spareNode is a node on which the job does not run.
func spareNode(t *testing.T, f *scene.Fixture, ill string) string {
	t.Helper()
	busy := map[string]bool{ill: true}
	for _, p := range f.JobPods(t, f.Train, scene.JobName) {
		busy[p.Spec.NodeName] = true
	}
	for _, n := range f.Nodes {
		if !busy[n] {
			return n
		}
	}
	t.Fatal("the job runs on every node")
	return ""
}

// TestTheWatchdogIsLate takes Prometheus away. From then on silence means nothing, so a
// fault that is told nevertheless waits, everywhere it is said why, and when Prometheus is
// back the ladder is climbed.
func TestTheWatchdogIsLate(t *testing.T) {
	f := scene.SetUp(t, "watchdog", scene.Needs{})
	ill := f.StartJob(t, 0)
	f.StartLodger(t, ill, 0)
	boot := f.BootID(t, ill)
	watching := cluster.PrometheusOptions{Alertmanagers: []string{host(f.AlertmanagerURL)}}
	prometheus := f.StartPrometheus(t, watching)
	s := f.Replica(t, scene.Settings{Alerting: asking(f, "watchdog: {within: 8s}")}, f.WebhookPort, f.Kubeconfig)
	s.Start(t)
	s.AwaitLeader(t)
	const series = "stoker_rules_watchdog_timestamp_seconds"
	s.AwaitMetric(t, series, scene.Soon, func(v float64) bool { return v > 0 })

	if err := prometheus.Kill(); err != nil {
		t.Fatal(err)
	}
	s.AwaitMetric(t, series, scene.Soon, func(v float64) bool { return float64(time.Now().Unix())-v > 10 })
	s.Tell(t, scene.WebhookBody(t, f.GPULost(t, ill, time.Now())))
	in := f.AwaitIncident(t, ill, "to wait", scene.Soon, func(in scene.Incident) bool { return len(in.Waiting) > 0 })
	if w := in.Waiting[0]; w.Gate != "watchdog" || !strings.Contains(w.Reason, "telemetry is unknown") {
		t.Errorf("it waits for %s: %s; want the watchdog", w.Gate, w.Reason)
	}
	for what, text := range map[string]string{
		"explain":     s.Explain(t, "node/"+ill),
		"the API":     s.Get(t, "/api/v1/incidents/"+in.Name),
		"the journal": s.Get(t, "/api/v1/journal"),
		"the console": html.UnescapeString(s.Get(t, "/")),
	} {
		if !strings.Contains(text, "the Watchdog alert has not arrived since") {
			t.Errorf("%s does not say it:\n%s", what, text)
		}
	}
	for _, path := range []string{"/", "/api/v1/status"} {
		if text := s.Get(t, path); !strings.Contains(text, "the Watchdog alert is late") {
			t.Errorf("%s does not say that it cannot be relied on:\n%s", path, text)
		}
	}
	f.CheckEffects(t, map[scene.Effect]int{})

	f.StartPrometheus(t, watching)
	f.AwaitHealed(t, ill, scene.Long)
	f.CheckJob(t, ill)
	f.CheckRebooted(t, ill, boot)
	f.CheckEffects(t, scene.OnceEach)
}

// TestAStateEndsUnheard lets an alert about a state end while the service cannot be told:
// it finds out by asking, since the alert is not among those that fire any more.
func TestAStateEndsUnheard(t *testing.T) {
	f := scene.SetUp(t, "unheard", scene.Needs{Nodes: 2})
	f.StartPrometheus(t, cluster.PrometheusOptions{Alertmanagers: []string{host(f.AlertmanagerURL)}}) // its Watchdog proves the path
	s := f.Replica(t, scene.Settings{Alerting: asking(f, "watchdog: {within: 30s}")}, cluster.FreePort(t), f.Kubeconfig)
	s.Start(t)
	s.AwaitLeader(t)
	a := scene.Alert{
		Labels:      map[string]string{"alertname": "NodeUnready", "class": "node-unready", "node": f.Nodes[0]},
		Annotations: map[string]string{"summary": f.Nodes[0] + " is not ready"}, StartsAt: time.Now(),
	}
	post(t, f, a)
	at := func(want func(scene.Incident) bool) {
		t.Helper()
		f.Await(t, "the incident", scene.Soon, func(ctx context.Context) (bool, string, error) {
			all, err := f.Stored(ctx, "node-unready", f.Nodes[0])
			return len(all) == 1 && want(all[0]), fmt.Sprint(all), err
		})
	}
	at(func(in scene.Incident) bool { return !in.Over() })
	f.ResolveAlert(t, a)
	at(scene.Incident.Over)
}
