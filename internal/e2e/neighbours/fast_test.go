package neighbours

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/internal/e2e/cluster"
	"stoker.dev/stoker/internal/e2e/scene"
)

const (
	collectors    = "collector" // their account
	fastNodes     = 25
	cordonAndLook = "      - cordon: {}\n      - verify: {for: 20m, within: 40m, boot: any}\n"
)

// TestCollectorsTellAtOnce lets collectors bring their XIDs themselves, each with a token
// that is bound to a pod on its node. Prometheus tells of the same events later, which join.
// It measures the time from the XID, as the collector reads it, to the cordon.
func TestCollectorsTellAtOnce(t *testing.T) {
	f := scene.SetUp(t, "fast", scene.Needs{Nodes: fastNodes})
	f.ServiceAccountKubeconfig(t, f.System, collectors)
	settings := scene.Settings{
		Steps: cordonAndLook, Budget: "100%", Collectors: f.System + "/" + collectors, Alerting: asking(f, "watchdog: {within: 30s}"),
	}
	s := f.Replica(t, settings, f.WebhookPort, f.Kubeconfig)
	s.Start(t)
	s.AwaitLeader(t)
	follower := f.Replica(t, settings, f.OtherPort, f.Kubeconfig)
	follower.Start(t)

	sample := oneGPU(scene.ExporterSample(t))
	tels := map[string]*scene.Telemetry{}
	var targets []string
	for i, node := range f.Nodes {
		to := s.Address()
		if i%2 == 1 {
			to = follower.Address() // which passes on
		}
		token := filepath.Join(f.Folder, node+".token")
		if err := os.WriteFile(token, []byte(f.PodToken(t, f.System, collectors, node, "stoker")), 0o600); err != nil {
			t.Fatal(err)
		}
		tels[node] = f.Collect(t, node, f.BootID(t, node), scene.WithoutXIDs(sample), "--interval", "200ms", "--push", to, "--push-token-file", token)
		targets = append(targets, tels[node].Target())
	}
	f.StartPrometheus(t, cluster.PrometheusOptions{Targets: targets, Alertmanagers: []string{host(f.AlertmanagerURL)}})
	s.AwaitMetric(t, "stoker_rules_watchdog_timestamp_seconds", scene.Soon, func(v float64) bool { return v > 0 })
	checkSpeakers(t, f, s)

	event := map[string]time.Time{}
	for _, node := range f.Nodes {
		tels[node].Show(t, sample)
		event[node] = tels[node].EventTime(t)
	}
	log := f.AwaitAudit(t, "every node to be cordoned", scene.Long, func(l cluster.AuditLog) cluster.AuditLog {
		return f.Effects(scene.Cordons)(l).AtLeast(fastNodes)
	})
	var took []time.Duration
	for _, e := range log {
		took = append(took, e.Time.Sub(event[e.Name]))
	}
	t.Logf("XID to cordon, half of them over a replica that passes on: %s", spans(took))

	// What Prometheus tells of the same events joins.
	for _, node := range f.Nodes {
		f.AwaitIncident(t, node, "to be told of by Alertmanager too", scene.Long, func(in scene.Incident) bool {
			return in.EvidenceCount == 1 && len(in.Evidence) == 1 && strings.Contains(in.Evidence[0].Source, "collector") && strings.Contains(in.Evidence[0].Source, "alertmanager")
		})
		f.CheckOne(t, node)
	}
	f.CheckEffects(t, map[scene.Effect]int{scene.Cordons: fastNodes})
}

// checkSpeakers checks who may tell of what.
func checkSpeakers(t *testing.T, f *scene.Fixture, s *scene.Service) {
	t.Helper()
	push := func(token, node string) (int, string) {
		t.Helper()
		fault := f.GPULost(t, f.Nodes[0], time.Now())
		fault.Labels["node"], fault.Labels["class"] = node, "none"
		body, err := json.Marshal([]cluster.Alert{{Labels: fault.Labels, Annotations: fault.Annotations, StartsAt: fault.StartsAt}})
		if err != nil {
			t.Fatal(err)
		}
		code, text, err := s.Ask(t.Context(), http.MethodPost, "/api/v2/alerts", token, body)
		if err != nil {
			t.Fatal(err)
		}
		return code, text
	}
	f.ServiceAccountKubeconfig(t, f.System, "stranger")
	own := f.PodToken(t, f.System, collectors, f.Nodes[0], "stoker")
	for what, tc := range map[string]struct {
		token, node string
		want        int
		text        string
	}{
		"of its own node":                {own, f.Nodes[0], http.StatusOK, ""},
		"of another node":                {own, f.Nodes[1], http.StatusForbidden, "may not speak for"},
		"with a token for somebody else": {f.PodToken(t, f.System, collectors, f.Nodes[0], "https://kubernetes.default.svc"), f.Nodes[0], http.StatusUnauthorized, "audience"},
		"of another account":             {f.PodToken(t, f.System, "stranger", f.Nodes[0], "stoker"), f.Nodes[0], http.StatusUnauthorized, "stranger"},
		"with a token that is made up":   {"a.b.c", f.Nodes[0], http.StatusUnauthorized, ""},
		"without a token":                {"", f.Nodes[0], http.StatusUnauthorized, ""},
	} {
		if code, text := push(tc.token, tc.node); code != tc.want || !strings.Contains(text, tc.text) {
			t.Errorf("a collector that tells %s is answered %d %s, want %d %s", what, code, text, tc.want, tc.text)
		}
	}
}

// oneGPU is a page with GPU 3 alone: so many collectors on one machine would otherwise
// measure how fast it reads pages.
func oneGPU(page string) string {
	var b strings.Builder
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "#") || strings.Contains(line, `gpu="3"`) {
			b.WriteString(line)
		}
	}
	return b.String()
}
