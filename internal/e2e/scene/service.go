package scene

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
	"strconv"
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/internal/e2e/cluster"
)

// Settings say how a test's configuration differs from the usual one.
type Settings struct {
	Mode       string        // auto when empty
	checkpoint time.Duration // for how long an answer is waited for; a minute when zero
	Scrape     string        // address of a collector; none when empty
	Steps      string        // of the playbook for gpu-lost; those of [Ladder] when empty
	Playbooks  string        // more of them, as YAML that is indented by two; none when empty
	Budget     string        // of nodes that may be out; 20% when empty
	Verify     time.Duration // for which a node has to be whole; 3s when zero
	Collectors string        // namespace/name of the account of collectors; none when empty
	Alerting   string        // the section alertmanager, as YAML in one line; none when empty
}

// steps are the ladder, to be filled in with the times for checkpoint and verify.
const steps = `      - cordon: {}
      - checkpoint: {within: %s}
      - stop: {within: 3m}
      - start: {from: latest-complete, avoid: node, attempts: 3}
      - drain: {within: 3m}
      - reboot: {within: 3m}
      - verify: {for: %s, within: 3m}
      - release: {}
`

// YAML is the configuration file: the ladder as it is shipped, with times for a test.
// A restart of the service may take long here, so no step that could fail for it is short.
func (c Settings) YAML(tokenFile string) string {
	if c.Mode == "" {
		c.Mode = "auto"
	}
	if c.checkpoint == 0 {
		c.checkpoint = time.Minute
	}
	if c.Budget == "" {
		c.Budget = "20%"
	}
	if c.Verify == 0 {
		c.Verify = 3 * time.Second
	}
	if c.Alerting == "" {
		c.Alerting = "{}"
	}
	if c.Steps == "" {
		c.Steps = fmt.Sprintf(steps, c.checkpoint, c.Verify)
	}
	scrape := "[]"
	if c.Scrape != "" {
		scrape = "[{url: " + c.Scrape + "}]"
	}
	return fmt.Sprintf(`mode: %s
every: 500ms
playbooks:
  - name: gpu-lost
    class: gpu-lost
    steps:
%s    onFailure: [hold, notify]
%sgates:
  budgets:
    - {name: fleet, maxUnavailable: %s, atLeast: 1}
server:
  tokenFile: %s
  collectors: {serviceAccount: "%s"}
alertmanager: %s
telemetry:
  every: 1s
  scrape: %s
leaderElection: {lease: 3s, renew: 2s, retry: 500ms}
`, c.Mode, c.Steps, c.Playbooks, c.Budget, tokenFile, c.Collectors, c.Alerting, scrape)
}

// A Service is one replica of the service, which may be killed and started again.
type Service struct {
	*Fixture

	Port       int
	configFile string
	kubeconfig string
	Identity   string // in the election; made up by the service when empty
	Proc       *cluster.Process
}

// Serve starts a replica on a port of its own and waits until it answers.
func (f *Fixture) Serve(t *testing.T, c Settings) *Service {
	t.Helper()
	s := f.Replica(t, c, cluster.FreePort(t), f.Kubeconfig)
	s.Start(t)
	return s
}

// Replica writes the configuration of a replica and does not start it.
func (f *Fixture) Replica(t *testing.T, c Settings, port int, kubeconfig string) *Service {
	t.Helper()
	s := &Service{Fixture: f, Port: port, kubeconfig: kubeconfig, configFile: filepath.Join(f.Folder, fmt.Sprintf("%s-%d.yaml", f.ID, port))}
	s.Configure(t, c.YAML(f.TokenFile))
	t.Cleanup(func() {
		if t.Failed() && s.Proc != nil {
			t.Logf("the last lines of %s:\n%s", s.Proc.LogPath, lastLines(s.Proc.LogPath, 25))
		}
	})
	return s
}

// Configure replaces the configuration file at once, as a mounted ConfigMap is replaced.
func (s *Service) Configure(t *testing.T, text string) {
	t.Helper()
	next := s.configFile + ".next"
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, s.configFile); err != nil {
		t.Fatal(err)
	}
}

// Start starts the replica and waits until it is alive, which does not mean that it leads.
func (s *Service) Start(t *testing.T) {
	t.Helper()
	s.Proc = s.StartProgram(t, "stoker-"+s.ID, s.stokerBin, []string{
		"controller", "--config", s.configFile, "--kubeconfig", s.kubeconfig, "--namespace", s.System,
		"--listen", fmt.Sprintf("127.0.0.1:%d", s.Port), "--log-level", "debug", "--identity", s.Identity,
	}, nil)
	proc := s.Proc
	s.Await(t, "the service to answer", Soon, func(ctx context.Context) (bool, string, error) {
		if !proc.Running() {
			t.Fatalf("the service ended with %d; its last lines:\n%s", proc.ExitCode(), lastLines(proc.LogPath, 20))
		}
		code, text, err := s.Ask(ctx, http.MethodGet, "/healthz", "", nil)
		return code == http.StatusOK, fmt.Sprintf("%d %s", code, text), err
	})
}

// Kill is kill -9. Any goroutine may call it.
func (s *Service) Kill(t *testing.T) {
	t.Helper()
	if err := s.Proc.Kill(); err != nil {
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

// Ask makes one request. An error means that no answer came.
func (s *Service) Ask(ctx context.Context, method, path, token string, body []byte) (code int, text string, err error) {
	code, text, _, err = s.askBy(ctx, method, path, token, body)
	return code, text, err
}

// askBy also returns which replica has answered.
func (s *Service) askBy(ctx context.Context, method, path, token string, body []byte) (code int, text, by string, err error) {
	req, err := http.NewRequestWithContext(ctx, method, fmt.Sprintf("http://127.0.0.1:%d%s", s.Port, path), bytes.NewReader(body))
	if err != nil {
		return 0, "", "", err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	req.Close = true // no connection outlives the test
	client := &http.Client{Timeout: time.Minute}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", "", err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	return resp.StatusCode, strings.TrimSpace(string(answer)), resp.Header.Get("Stoker-Replica"), err
}

// TakenInBy tells a webhook request to s until the replica leader has taken it in,
// whoever passes it on.
func (s *Service) TakenInBy(t *testing.T, leader *Service, body []byte) {
	t.Helper()
	s.Await(t, fmt.Sprintf("the webhook to port %d to be taken in at port %d", s.Port, leader.Port), Soon, func(ctx context.Context) (bool, string, error) {
		code, text, by, err := s.askBy(ctx, http.MethodPost, "/webhook/alertmanager", s.Token, body)
		if err == nil && code != http.StatusOK && code < 500 {
			t.Fatalf("the webhook answers %d: %s", code, text)
		}
		return code == http.StatusOK && strings.HasSuffix(by, fmt.Sprintf("@127.0.0.1:%d", leader.Port)), fmt.Sprintf("%d %s by %s", code, text, by), err
	})
}

// Get returns what the API answers with 200, and fails the test on anything else.
func (s *Service) Get(t *testing.T, path string) string {
	t.Helper()
	code, text, err := s.Ask(t.Context(), http.MethodGet, path, s.Token, nil)
	if err != nil || code != http.StatusOK {
		t.Fatalf("GET %s: %d %s, %v", path, code, text, err)
	}
	return text
}

// Post sends a webhook request once.
func (s *Service) Post(ctx context.Context, body []byte) (code int, text string, err error) {
	return s.Ask(ctx, http.MethodPost, "/webhook/alertmanager", s.Token, body)
}

// Tell sends a webhook request as Alertmanager does: again while it is answered 5xx
// or not at all. Any answer but these and 200 fails the test.
func (s *Service) Tell(t *testing.T, body []byte) {
	t.Helper()
	s.Await(t, "the webhook to be taken in", Soon, func(ctx context.Context) (bool, string, error) {
		code, text, err := s.Post(ctx, body)
		if err == nil && code != http.StatusOK && code < 500 {
			t.Fatalf("the webhook answers %d: %s", code, text)
		}
		return code == http.StatusOK, fmt.Sprintf("%d %s", code, text), err
	})
}

// AwaitLeader waits until the replica takes webhooks in.
func (s *Service) AwaitLeader(t *testing.T) {
	t.Helper()
	s.TakenInBy(t, s, WebhookBody(t))
}

// Incidents returns what the API lists about the test's nodes.
func (s *Service) Incidents(t *testing.T) []Incident {
	t.Helper()
	text := s.Get(t, "/api/v1/incidents")
	var all, ours []Incident
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		t.Fatalf("decode %.500s: %v", text, err)
	}
	for _, in := range all {
		if strings.HasPrefix(in.Subject.Node, s.ID+"-") {
			ours = append(ours, in)
		}
	}
	return ours
}

// An Alert is one alert as rules make them, told by whatever way.
type Alert struct {
	Labels      map[string]string
	Annotations map[string]string
	StartsAt    time.Time
}

// GPULost is an XID 79 on GPU 3 of a node, in the boot that the node is in now.
func (f *Fixture) GPULost(t *testing.T, node string, at time.Time) Alert {
	t.Helper()
	return Alert{
		Labels: map[string]string{
			"alertname": "GPUXidGpuLost", "class": "gpu-lost", "severity": "critical", "xid": "79",
			"node": node, "gpu": "3", "UUID": "GPU-00000003-1111-2222-3333-444444440003", "pci_bus_id": "00000000:4A:00.0",
			"boot_id": f.BootID(t, node),
		},
		Annotations: map[string]string{
			"summary":    "XID 79 on GPU 3 of " + node,
			"event_time": fmt.Sprintf("%.3f", float64(at.UnixMilli())/1000),
		},
		StartsAt: at,
	}
}

// MemoryErrors is a fault for which the tests' configuration has no playbook: it is
// written down and nothing is done.
func (f *Fixture) MemoryErrors(t *testing.T, node string, at time.Time) Alert {
	t.Helper()
	a := f.GPULost(t, node, at)
	a.Labels["alertname"], a.Labels["class"], a.Labels["xid"] = "GPUXidGpuECC", "gpu-ecc", "48"
	a.Annotations["summary"] = "XID 48 on GPU 3 of " + node
	return a
}

// WebhookBody is a request of Alertmanager, version 4 of its format.
func WebhookBody(t *testing.T, alerts ...Alert) []byte {
	t.Helper()
	list := []any{}
	for i, a := range alerts {
		list = append(list, map[string]any{
			"status": "firing", "labels": a.Labels, "annotations": a.Annotations,
			"startsAt": a.StartsAt.UTC().Format(time.RFC3339Nano), "endsAt": "0001-01-01T00:00:00Z",
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

// Contains reports whether all words are in the text.
func Contains(text string, words ...string) bool {
	return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) })
}

// Address is the URL of the replica.
func (s *Service) Address() string { return fmt.Sprintf("http://127.0.0.1:%d", s.Port) }

// Explain runs `stoker explain`.
func (s *Service) Explain(t *testing.T, what string) string {
	t.Helper()
	text, complaint, code := s.Stoker(t, "explain", what, "--server", s.Address(), "--token-file", s.TokenFile)
	if code != 0 {
		t.Fatalf("stoker explain %s ends with %d: %s", what, code, complaint)
	}
	return text
}

// Metric returns the value of a series of /metrics, written as there; 0 when it is not there.
func (s *Service) Metric(t *testing.T, series string) float64 {
	t.Helper()
	v, err := s.metric(t.Context(), series)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func (s *Service) metric(ctx context.Context, series string) (float64, error) {
	_, text, err := s.Ask(ctx, http.MethodGet, "/metrics", "", nil)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(rest), 64)
		}
	}
	return 0, nil
}

// AwaitMetric waits until a series is as wanted, and returns it.
func (s *Service) AwaitMetric(t *testing.T, series string, within time.Duration, want func(float64) bool) (v float64) {
	t.Helper()
	s.Await(t, "the series "+series, within, func(ctx context.Context) (bool, string, error) {
		var err error
		v, err = s.metric(ctx, series)
		return err == nil && want(v), fmt.Sprint(v), err
	})
	return v
}
