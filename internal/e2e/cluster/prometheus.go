package cluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"stoker.dev/stoker/internal/e2e/programs"
)

// PrometheusOptions say what a Prometheus watches.
type PrometheusOptions struct {
	// Targets are host:port of what is scraped every second.
	Targets []string
	// Alertmanagers are host:port of who is sent what fires.
	Alertmanagers []string
}

// StartPrometheus runs a real Prometheus for the length of the test, with the rule files
// of this checkout, and returns when it is ready. It scrapes and evaluates every second
// and sends again after a second, as one would who tests; the rules are as shipped.
func (c *Cluster) StartPrometheus(t testing.TB, o PrometheusOptions) *Process {
	t.Helper()
	bin, err := programs.Build(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	root, err := programs.Root()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var b bytes.Buffer
	fmt.Fprintf(&b, "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\n")
	fmt.Fprintf(&b, "rule_files: [%q]\n", filepath.Join(root, "rules", "alerts", "*.rules.yaml"))
	fmt.Fprintf(&b, "alerting: {alertmanagers: [{static_configs: [{targets: [%s]}]}]}\n", quoted(o.Alertmanagers))
	fmt.Fprintf(&b, "scrape_configs: [{job_name: stoker-collector, honor_labels: true, static_configs: [{targets: [%s]}]}]\n", quoted(o.Targets))
	config := filepath.Join(dir, "prometheus.yaml")
	if err := os.WriteFile(config, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	port := FreePort(t)
	p := c.StartProgram(t, "prometheus", bin.Prometheus, []string{
		"--config.file=" + config,
		"--storage.tsdb.path=" + filepath.Join(dir, "data"),
		fmt.Sprintf("--web.listen-address=%s:%d", loopback, port),
		"--rules.alert.resend-delay=1s",
	}, nil)
	ready := probe(httpURL(port)+"/-/ready", "")
	c.Await(t, "Prometheus to be ready", readyWithin, func(ctx context.Context) (bool, string, error) {
		if !p.Running() {
			t.Fatalf("Prometheus ended with %d: %s", p.ExitCode(), tail(p.LogPath, 15))
		}
		err := ready(ctx)
		return err == nil, "ready", err
	})
	return p
}

// quoted joins addresses as a list in YAML.
func quoted(list []string) string {
	var b bytes.Buffer
	for i, s := range list {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%q", s)
	}
	return b.String()
}
