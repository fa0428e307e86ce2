package spine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/internal/e2e/cluster"
)

// settings say how a test's configuration differs from the usual one.
type settings struct {
	mode       string        // auto when empty
	checkpoint time.Duration // for how long an answer is waited for; a minute when zero
	scrape     string        // address of a collector; none when empty
}

// yaml is the configuration file: the ladder as it is shipped, with times for a test.
// A restart of the service may take long here, so no step that could fail for it is short.
func (c settings) yaml(tokenFile string) string {
	if c.mode == "" {
		c.mode = "auto"
	}
	if c.checkpoint == 0 {
		c.checkpoint = time.Minute
	}
	scrape := "[]"
	if c.scrape != "" {
		scrape = "[{url: " + c.scrape + "}]"
	}
	return fmt.Sprintf(`mode: %s
every: 500ms
playbooks:
  - name: gpu-lost
    class: gpu-lost
    steps:
      - cordon: {}
      - checkpoint: {within: %s}
      - stop: {within: 3m}
      - start: {from: latest-complete, avoid: node, attempts: 3}
      - drain: {within: 3m}
      - reboot: {within: 3m}
      - verify: {for: 3s, within: 3m}
      - release: {}
    onFailure: [hold, notify]
gates:
  budgets:
    - {name: fleet, maxUnavailable: 20%%, atLeast: 1}
server:
  tokenFile: %s
telemetry:
  every: 1s
  scrape: %s
leaderElection: {lease: 3s, renew: 2s, retry: 500ms}
`, c.mode, c.checkpoint, tokenFile, scrape)
}

// A service is one replica of the service, which may be killed and started again.
type service struct {
	*fixture

	port       int
	configFile string
	kubeconfig string
	identity   string // in the election; made up by the service when empty
	proc       *cluster.Process
}

// serve starts a replica on a port of its own and waits until it answers.
func (f *fixture) serve(t *testing.T, c settings) *service {
	t.Helper()
	s := f.replica(t, c, cluster.FreePort(t), f.kubeconfig)
	s.start(t)
	return s
}

// replica writes the configuration of a replica and does not start it.
func (f *fixture) replica(t *testing.T, c settings, port int, kubeconfig string) *service {
	t.Helper()
	s := &service{fixture: f, port: port, kubeconfig: kubeconfig, configFile: filepath.Join(f.dir, fmt.Sprintf("%s-%d.yaml", f.id, port))}
	s.configure(t, c.yaml(f.tokenFile))
	t.Cleanup(func() {
		if t.Failed() && s.proc != nil {
			t.Logf("the last lines of %s:\n%s", s.proc.LogPath, lastLines(s.proc.LogPath, 25))
		}
	})
	return s
}

// configure replaces the configuration file at once, as a mounted ConfigMap is replaced.
func (s *service) configure(t *testing.T, text string) {
	t.Helper()
	next := s.configFile + ".next"
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, s.configFile); err != nil {
		t.Fatal(err)
	}
}

// start starts the replica and waits until it is alive, which does not mean that it leads.
func (s *service) start(t *testing.T) {
	t.Helper()
	s.proc = s.StartProgram(t, "stoker-"+s.id, s.stokerBin, []string{
		"controller", "--config", s.configFile, "--kubeconfig", s.kubeconfig, "--namespace", s.system,
		"--listen", fmt.Sprintf("127.0.0.1:%d", s.port), "--log-level", "debug", "--identity", s.identity,
	}, nil)
	proc := s.proc
	s.Await(t, "the service to answer", soon, func(ctx context.Context) (bool, string, error) {
		if !proc.Running() {
			t.Fatalf("the service ended with %d; its last lines:\n%s", proc.ExitCode(), lastLines(proc.LogPath, 20))
		}
		code, text, err := s.ask(ctx, http.MethodGet, "/healthz", "", nil)
		return code == http.StatusOK, fmt.Sprintf("%d %s", code, text), err
	})
}

// kill is kill -9. Any goroutine may call it.
func (s *service) kill(t *testing.T) {
	t.Helper()
	if err := s.proc.Kill(); err != nil {
		t.Error(err)
	}
}

func lastLines(name string, n int) string {
	b, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// ask makes one request. An error means that no answer came.
func (s *service) ask(ctx context.Context, method, path, token string, body []byte) (code int, text string, err error) {
	req, err := http.NewRequestWithContext(ctx, method, fmt.Sprintf("http://127.0.0.1:%d%s", s.port, path), bytes.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	req.Close = true // no connection outlives the test
	client := &http.Client{Timeout: 20 * time.Second}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	return resp.StatusCode, strings.TrimSpace(string(answer)), err
}

// get returns what the API answers with 200, and fails the test on anything else.
func (s *service) get(t *testing.T, path string) string {
	t.Helper()
	code, text, err := s.ask(t.Context(), http.MethodGet, path, s.token, nil)
	if err != nil || code != http.StatusOK {
		t.Fatalf("GET %s: %d %s, %v", path, code, text, err)
	}
	return text
}

// post sends a webhook request once.
func (s *service) post(ctx context.Context, body []byte) (code int, text string, err error) {
	return s.ask(ctx, http.MethodPost, "/webhook/alertmanager", s.token, body)
}

// tell sends a webhook request as Alertmanager does: again while it is answered 5xx
// or not at all. Any answer but these and 200 fails the test.
func (s *service) tell(t *testing.T, body []byte) {
	t.Helper()
	s.Await(t, "the webhook to be taken in", soon, func(ctx context.Context) (bool, string, error) {
		code, text, err := s.post(ctx, body)
		if err == nil && code != http.StatusOK && code < 500 {
			t.Fatalf("the webhook answers %d: %s", code, text)
		}
		return code == http.StatusOK, fmt.Sprintf("%d %s", code, text), err
	})
}

// awaitLeader waits until the replica takes webhooks in.
func (s *service) awaitLeader(t *testing.T) {
	t.Helper()
	s.tell(t, webhookBody(t))
}

// incidents returns what the API lists about the test's nodes.
func (s *service) incidents(t *testing.T) []incident {
	t.Helper()
	text := s.get(t, "/api/v1/incidents")
	var all, ours []incident
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		t.Fatalf("decode %.500s: %v", text, err)
	}
	for _, in := range all {
		if strings.HasPrefix(in.Subject.Node, s.id+"-") {
			ours = append(ours, in)
		}
	}
	return ours
}

// An alert is one alert as rules make them, told by whatever way.
type alert struct {
	labels      map[string]string
	annotations map[string]string
	startsAt    time.Time
}

// gpuLost is an XID 79 on GPU 3 of a node, in the boot that the node is in now.
func (f *fixture) gpuLost(t *testing.T, node string, at time.Time) alert {
	t.Helper()
	return alert{
		labels: map[string]string{
			"alertname": "GPUXidGpuLost", "class": "gpu-lost", "severity": "critical", "xid": "79",
			"node": node, "gpu": "3", "UUID": "GPU-00000003-1111-2222-3333-444444440003", "pci_bus_id": "00000000:4A:00.0",
			"boot_id": f.bootID(t, node),
		},
		annotations: map[string]string{
			"summary":    "XID 79 on GPU 3 of " + node,
			"event_time": fmt.Sprintf("%.3f", float64(at.UnixMilli())/1000),
		},
		startsAt: at,
	}
}

// memoryErrors is a fault for which the tests' configuration has no playbook: it is
// written down and nothing is done.
func (f *fixture) memoryErrors(t *testing.T, node string, at time.Time) alert {
	t.Helper()
	a := f.gpuLost(t, node, at)
	a.labels["alertname"], a.labels["class"], a.labels["xid"] = "GPUXidGpuECC", "gpu-ecc", "48"
	a.annotations["summary"] = "XID 48 on GPU 3 of " + node
	return a
}

// webhookBody is a request of Alertmanager, version 4 of its format.
func webhookBody(t *testing.T, alerts ...alert) []byte {
	t.Helper()
	list := []any{}
	for i, a := range alerts {
		list = append(list, map[string]any{
			"status": "firing", "labels": a.labels, "annotations": a.annotations,
			"startsAt": a.startsAt.UTC().Format(time.RFC3339Nano), "endsAt": "0001-01-01T00:00:00Z",
			"generatorURL": "http://prometheus.example/graph", "fingerprint": fmt.Sprintf("%016x", i+1),
		})
	}
	body, err := json.Marshal(map[string]any{
		"version": "4", "groupKey": "{}:{}", "truncatedAlerts": 0, "status": "firing", "receiver": "stoker",
		"groupLabels": map[string]string{}, "commonLabels": map[string]string{}, "commonAnnotations": map[string]string{},
		"externalURL": "http://alertmanager.example", "alerts": list,
	})
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// contains reports whether all words are in the text.
func contains(text string, words ...string) bool {
	return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) })
}
