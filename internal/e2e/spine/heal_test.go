package spine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/internal/e2e/cluster"
	"stoker.dev/stoker/internal/e2e/programs"
)

// TestHealsALostGPU is the promise in one piece: a GPU of a node falls off the bus, the
// collector and Alertmanager both tell of it, and the job goes on elsewhere from its
// checkpoint while the node is booted, verified and given back.
func TestHealsALostGPU(t *testing.T) {
	f := setUp(t, "heal", needs{nodes: 8, rebooter: cluster.RebooterOptions{Down: 2 * time.Second}})
	ill := f.startJob(t, time.Second)
	f.startLodger(t, ill, time.Second)
	boot := f.bootID(t, ill)

	sample := exporterSample(t)
	tel := f.collect(t, ill, boot, withoutXIDs(sample))
	s := f.replica(t, settings{scrape: tel.url}, f.webhook, f.kubeconfig)
	s.start(t)
	s.awaitLeader(t)
	s.Await(t, "the service to be ready", soon, func(ctx context.Context) (bool, string, error) {
		code, text, err := s.ask(ctx, http.MethodGet, "/readyz", "", nil)
		return code == http.StatusOK, fmt.Sprintf("%d %s", code, text), err
	})

	// The fault: the next page shows a 79 on GPU 3. Prometheus would now tell
	// Alertmanager of it, by the same rule and with the same time of the event.
	tel.show(t, sample)
	fault := f.gpuLost(t, ill, tel.eventTime(t))
	f.PostAlerts(t, cluster.Alert{Labels: fault.labels, Annotations: fault.annotations, StartsAt: fault.startsAt})
	t.Cleanup(func() { f.resolveAlert(t, fault) })

	f.awaitStep(t, ill, "reboot")
	if text := s.explain(t, "node/"+ill); !strings.Contains(text, "cordoned by Stoker") || !strings.Contains(text, "XID 79 on GPU 3") {
		t.Errorf("explain does not say that Stoker has cordoned the node for an XID 79:\n%s", text)
	}
	tel.followReboot(t, boot, withoutXIDs(sample))
	in := f.awaitHealed(t, ill, long)

	f.checkJob(t, ill)
	if at := f.lodger(t); at == ill {
		t.Error("the lodger was not moved by the drain")
	}
	f.checkRebooted(t, ill, boot)
	f.checkUnmarked(t, ill)
	f.checkEffects(t, onceEach)
	f.checkOne(t, ill)

	// Both have told of one event, and the incident says so.
	told := ""
	for _, e := range in.Evidence {
		told += e.Source + " "
	}
	if in.EvidenceCount != 1 || !strings.Contains(told, "rules") || !strings.Contains(told, "alertmanager") {
		t.Errorf("%d events told by %q; want one, told by rules and by alertmanager", in.EvidenceCount, told)
	}
	if len(in.Losses) != 1 || in.Losses[0].Step != 18200 || in.Losses[0].GPUHours <= 0 {
		t.Errorf("losses %+v; want one, of the work since step 18200", in.Losses)
	}
	s.checkTold(t, in)
}

// checkTold checks that API, command line and metrics tell of the healed incident.
func (s *service) checkTold(t *testing.T, in incident) {
	t.Helper()
	healed := slices.DeleteFunc(s.incidents(t), func(o incident) bool { return o.Class != "gpu-lost" })
	if len(healed) != 1 || healed[0].Name != in.Name || healed[0].Phase != "resolved" {
		t.Errorf("the API lists %v, want %s as resolved", healed, in.Name)
	}
	if open := s.get(t, "/api/v1/incidents?state=open"); strings.Contains(open, in.Name) {
		t.Errorf("the API lists %s as open", in.Name)
	}
	if one := s.get(t, "/api/v1/incidents/"+in.Name); !strings.Contains(one, in.Name) {
		t.Errorf("the API does not know %s: %s", in.Name, one)
	}
	journal := s.get(t, "/api/v1/journal")
	for _, action := range ladder {
		if !strings.Contains(journal, strconv.Quote(action)) {
			t.Errorf("the journal does not tell of %s:\n%s", action, journal)
		}
	}
	if text := s.explain(t, "incident/"+in.Name); !strings.Contains(text, "resolved") {
		t.Errorf("explain does not say that the incident is resolved:\n%s", text)
	}
	list, complaint, code := s.stoker(t, "incidents", "--all", "--server", s.url(), "--token-file", s.tokenFile)
	if code != 0 || !strings.Contains(list, in.Name) {
		t.Errorf("stoker incidents ends with %d and lists %q %q, want %s in it", code, list, complaint, in.Name)
	}
	code, metrics, err := s.ask(t.Context(), http.MethodGet, "/metrics", "", nil)
	if want := `stoker_incidents_closed_total{class="gpu-lost",phase="resolved"} 1`; err != nil || code != http.StatusOK || !strings.Contains(metrics, want) {
		t.Errorf("/metrics answers %d (%v) without %s", code, err, want)
	}
}

func (s *service) url() string { return fmt.Sprintf("http://127.0.0.1:%d", s.port) }

// explain runs `stoker explain`.
func (s *service) explain(t *testing.T, what string) string {
	t.Helper()
	text, complaint, code := s.stoker(t, "explain", what, "--server", s.url(), "--token-file", s.tokenFile)
	if code != 0 {
		t.Fatalf("stoker explain %s ends with %d: %s", what, code, complaint)
	}
	return text
}

// resolveAlert tells Alertmanager that an alert is over, so that it does not tell the
// service of another test that it fires. It may be called when the test has ended.
func (f *fixture) resolveAlert(t *testing.T, a alert) {
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	body, err := json.Marshal([]cluster.Alert{{Labels: a.labels, EndsAt: time.Now().Add(-time.Second)}})
	if err != nil {
		t.Error(err)
		return
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.AlertmanagerURL+"/api/v2/alerts", bytes.NewReader(body))
	if err != nil {
		t.Error(err)
		return
	}
	req.Header.Set("Content-Type", "application/json")
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Errorf("resolve the alert: %v", err)
		return
	}
	if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("resolve the alert: %s, %v", resp.Status, err)
	}
}

// exporterSample is the page of a real dcgm-exporter that shows a 79 on GPU 3, beside
// what a job left behind on GPU 0.
func exporterSample(t *testing.T) string {
	t.Helper()
	root, err := programs.Root()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(root, "collector", "exporter", "testdata", "sample.prom"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(b), `xid="79"`) {
		t.Fatal("the sample shows no XID 79 any more")
	}
	return string(b)
}

// withoutXIDs is the same page before any XID.
func withoutXIDs(page string) string {
	var b strings.Builder
	for line := range strings.Lines(page) {
		if strings.Contains(line, `err_code="`) && !strings.Contains(line, `err_code="0"`) || strings.Contains(line, `,xid="`) {
			continue
		}
		b.WriteString(line)
	}
	return b.String()
}

// A telemetry is a collector with the page that it reads.
type telemetry struct {
	*fixture

	node string
	port int
	page string // file
	url  string
	proc *cluster.Process
}

// collect runs the collector of a node on a page that a test replaces.
func (f *fixture) collect(t *testing.T, node, boot, page string) *telemetry {
	t.Helper()
	c := &telemetry{fixture: f, node: node, port: cluster.FreePort(t), page: filepath.Join(f.dir, node+".prom")}
	c.url = fmt.Sprintf("http://127.0.0.1:%d/metrics", c.port)
	c.show(t, page)
	c.start(t, boot)
	return c
}

func (c *telemetry) start(t *testing.T, boot string) {
	t.Helper()
	c.proc = c.StartCollector(t, []string{
		"--source", "file", "--file", c.page, "--node", c.node, "--boot-id", boot,
		"--interval", "500ms", "--listen", fmt.Sprintf("127.0.0.1:%d", c.port),
	}, nil)
	c.Await(t, "the collector to show GPUs", soon, func(ctx context.Context) (bool, string, error) {
		if !c.proc.Running() {
			t.Fatalf("the collector ended with %d: %s", c.proc.ExitCode(), lastLines(c.proc.LogPath, 20))
		}
		text, err := c.read(ctx)
		return strings.Contains(text, boot) && strings.Contains(text, "GPU-00000003"), fmt.Sprintf("%d bytes", len(text)), err
	})
}

func (c *telemetry) read(ctx context.Context) (string, error) {
	s := service{port: c.port}
	_, text, err := s.ask(ctx, http.MethodGet, "/metrics", "", nil)
	return text, err
}

// show replaces the page at once.
func (c *telemetry) show(t *testing.T, page string) {
	t.Helper()
	if err := os.WriteFile(c.page+".next", []byte(page), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(c.page+".next", c.page); err != nil {
		t.Fatal(err)
	}
}

var lastEvent = regexp.MustCompile(`(?m)^stoker_gpu_xid_last_event_timestamp_seconds\{[^}]*xid="79"[^}]*\} ([0-9.e+]+)$`)

// eventTime waits until the collector tells of the 79, and returns when it happened.
func (c *telemetry) eventTime(t *testing.T) (at time.Time) {
	t.Helper()
	c.Await(t, "the collector to tell of the 79", soon, func(ctx context.Context) (bool, string, error) {
		text, err := c.read(ctx)
		if err != nil {
			return false, "", err
		}
		for _, m := range lastEvent.FindAllStringSubmatch(text, -1) {
			v, err := strconv.ParseFloat(m[1], 64)
			if err != nil {
				return false, "", err
			}
			if v > 0 {
				at = time.UnixMilli(int64(v * 1000))
			}
		}
		return !at.IsZero(), "no event yet", nil
	})
	return at
}

// followReboot waits until the node is in another boot, in which a new collector begins
// with a page that shows no XID.
func (c *telemetry) followReboot(t *testing.T, before, page string) {
	t.Helper()
	boot := before
	c.Await(t, "the node to be booted", soon, func(ctx context.Context) (bool, string, error) {
		boot = c.bootID(t, c.node)
		return boot != before, boot, nil
	})
	if err := c.proc.Kill(); err != nil {
		t.Fatal(err)
	}
	c.show(t, page)
	c.start(t, boot)
}
