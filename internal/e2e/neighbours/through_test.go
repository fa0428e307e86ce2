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

// TestThroughPrometheus lets a fault go the whole way: from the collector over Prometheus
// and its rule files to Alertmanager, which tells both replicas of the service and repeats.
// It ends as when it is told once, and each repetition and the late end change nothing.
func TestThroughPrometheus(t *testing.T) {
	f := scene.SetUp(t, "through", scene.Needs{Nodes: 8})
	ill := f.StartJob(t, time.Second)
	f.StartLodger(t, ill, time.Second)
	boot := f.BootID(t, ill)
	sample := scene.ExporterSample(t)
	tel := f.Collect(t, ill, boot, scene.WithoutXIDs(sample))
	prometheus := f.StartPrometheus(t, cluster.PrometheusOptions{Targets: []string{tel.Target()}, Alertmanagers: []string{host(f.AlertmanagerURL)}})
	settings := scene.Settings{Alerting: asking(f, "watchdog: {within: 30s}")}
	leader := f.Replica(t, settings, f.WebhookPort, f.Kubeconfig)
	leader.Start(t)
	leader.AwaitLeader(t)
	follower := f.Replica(t, settings, f.OtherPort, f.Kubeconfig)
	follower.Start(t)
	for _, s := range []*scene.Service{leader, follower} {
		s.AwaitMetric(t, "stoker_rules_watchdog_timestamp_seconds", scene.Soon, func(v float64) bool { return v > 0 })
	}

	tel.Show(t, sample)
	fault := f.GPULost(t, ill, tel.EventTime(t))
	f.AwaitStep(t, ill, "reboot")
	tel.FollowReboot(t, boot, scene.WithoutXIDs(sample))
	in := f.AwaitHealed(t, ill, scene.Long)

	f.CheckJob(t, ill)
	f.CheckRebooted(t, ill, boot)
	f.CheckUnmarked(t, ill)
	f.CheckEffects(t, scene.OnceEach)
	if in.EvidenceCount != 1 || !strings.Contains(fmt.Sprint(in.Evidence), "alertmanager") {
		t.Errorf("%d events told by %v; want one, told by alertmanager", in.EvidenceCount, in.Evidence)
	}

	// Both replicas go on being told of the fault that is healed, by an Alertmanager that
	// repeats itself and never hears that it is over.
	requests := `stoker_rules_webhook_requests_total{code="200"}`
	passed := `stoker_rules_passed_on_total{result="passed"}`
	had, hadPassed := leader.Metric(t, requests), follower.Metric(t, passed)
	if err := prometheus.Kill(); err != nil {
		t.Fatal(err)
	}
	post(t, f, fault)
	f.Await(t, "Alertmanager to have repeated itself to both", scene.Soon, func(context.Context) (bool, string, error) {
		now, nowPassed := leader.Metric(t, requests), follower.Metric(t, passed)
		return now >= had+6 && nowPassed >= hadPassed+3, fmt.Sprintf("%v then %v, passed on %v then %v", had, now, hadPassed, nowPassed), nil
	})
	f.CheckEffects(t, scene.OnceEach)
	f.CheckOne(t, ill)
}
