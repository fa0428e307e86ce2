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

// flood is a group of alerts that mean nothing, beside which a fault has to be found.
func flood(id, node, how string, n, size int) []cluster.Alert {
	out := make([]cluster.Alert, n)
	for i := range out {
		out[i] = cluster.Alert{
			Labels: map[string]string{
				"alertname": "GPUXidSeen", "class": "none", "xid": "45", "node": node, "gpu": fmt.Sprint(i % 8), "n": fmt.Sprint(i), "flood": how, "test": id,
			},
			Annotations: map[string]string{"summary": strings.Repeat("x", size)},
			StartsAt:    time.Now(), EndsAt: time.Now().Add(time.Minute),
		}
	}
	return out
}

// TestAGroupOverFourMegabytes lets Alertmanager send a group of some 6 MB in one request, a
// fault among it. It is read as a stream, and the fault is found.
func TestAGroupOverFourMegabytes(t *testing.T) {
	f := scene.SetUp(t, "large", scene.Needs{Nodes: 4})
	s := f.Replica(t, scene.Settings{Mode: "dry-run"}, f.WebhookPort, f.Kubeconfig)
	s.Start(t)
	s.AwaitLeader(t)
	fault := f.GPULost(t, f.Nodes[0], time.Now())
	fault.Labels["flood"] = "whole"
	alerts := append(flood(f.ID, f.Nodes[1], "whole", 4000, 1200), cluster.Alert{
		Labels: fault.Labels, Annotations: fault.Annotations, StartsAt: fault.StartsAt, EndsAt: time.Now().Add(time.Minute),
	})
	f.PostAlerts(t, alerts...)
	s.AwaitMetric(t, `stoker_rules_webhook_alerts_total{what="read"}`, scene.Soon, func(v float64) bool { return v >= 4001 })
	s.Await(t, "the fault to be found in it", scene.Soon, func(context.Context) (bool, string, error) {
		all := s.Incidents(t)
		return len(all) == 1 && all[0].Subject.Node == f.Nodes[0], fmt.Sprint(all), nil
	})
	if cut := s.Metric(t, `stoker_rules_webhook_alerts_total{what="cut"}`); cut > 0 {
		t.Logf("%v alerts were over the bounds and are counted", cut)
	}
}

// TestAlertsThatAlertmanagerLeavesOut lets Alertmanager cut a group at a hundred alerts. That
// it did is counted, and what was left out is found by asking.
func TestAlertsThatAlertmanagerLeavesOut(t *testing.T) {
	f := scene.SetUp(t, "left-out", scene.Needs{Nodes: 4})
	s := f.Replica(t, scene.Settings{Mode: "dry-run", Alerting: strings.Replace(asking(f, noWatchdog), "receiver: stoker, ", "", 1)}, f.WebhookPort, f.Kubeconfig)
	s.Start(t)
	s.AwaitLeader(t)
	alerts := flood(f.ID, f.Nodes[1], "cut", 300, 10)
	for i, node := range f.Nodes {
		fault := f.GPULost(t, node, time.Now())
		fault.Labels["flood"] = "cut"
		alerts[i*70] = cluster.Alert{Labels: fault.Labels, Annotations: fault.Annotations, StartsAt: fault.StartsAt, EndsAt: time.Now().Add(time.Minute)}
	}
	f.PostAlerts(t, alerts...)
	s.AwaitMetric(t, `stoker_rules_webhook_alerts_total{what="truncated"}`, scene.Soon, func(v float64) bool { return v >= 200 })
	s.Await(t, "all faults to be known", scene.Soon, func(context.Context) (bool, string, error) {
		all := s.Incidents(t)
		return len(all) == len(f.Nodes), fmt.Sprintf("%d of %d", len(all), len(f.Nodes)), nil
	})
}
