package scene

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/internal/e2e/cluster"
	"stoker.dev/stoker/internal/e2e/programs"
)

// ExporterSample is the page of a real dcgm-exporter that shows a 79 on GPU 3, beside
// what a job left behind on GPU 0.
func ExporterSample(t *testing.T) string {
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

// WithoutXIDs is the same page before any XID.
func WithoutXIDs(page string) string {
	var b strings.Builder
	for line := range strings.Lines(page) {
		if strings.Contains(line, `err_code="`) && !strings.Contains(line, `err_code="0"`) || strings.Contains(line, `,xid="`) {
			continue
		}
		b.WriteString(line)
	}
	return b.String()
}

// A Telemetry is a collector with the page that it reads.
type Telemetry struct {
	*Fixture

	node    string
	port    int
	page    string // file
	Address string
	more    []string // arguments
	proc    *cluster.Process
}

// Collect runs the collector of a node on a page that a test replaces, with more
// arguments than the usual ones.
func (f *Fixture) Collect(t *testing.T, node, boot, page string, more ...string) *Telemetry {
	t.Helper()
	c := &Telemetry{Fixture: f, node: node, more: more, port: cluster.FreePort(t), page: filepath.Join(f.Folder, node+".prom")}
	c.Address = fmt.Sprintf("http://127.0.0.1:%d/metrics", c.port)
	c.Show(t, page)
	c.start(t, boot)
	return c
}

func (c *Telemetry) start(t *testing.T, boot string) {
	t.Helper()
	c.proc = c.StartCollector(t, append([]string{
		"--source", "file", "--file", c.page, "--node", c.node, "--boot-id", boot,
		"--interval", "500ms", "--listen", c.Target(),
	}, c.more...), nil)
	c.Await(t, "the collector to show GPUs", Soon, func(ctx context.Context) (bool, string, error) {
		if !c.proc.Running() {
			t.Fatalf("the collector ended with %d: %s", c.proc.ExitCode(), lastLines(c.proc.LogPath, 20))
		}
		text, err := c.read(ctx)
		return strings.Contains(text, boot) && strings.Contains(text, "GPU-00000003"), fmt.Sprintf("%d bytes", len(text)), err
	})
}

// Target is host:port of the collector.
func (c *Telemetry) Target() string { return fmt.Sprintf("127.0.0.1:%d", c.port) }

func (c *Telemetry) read(ctx context.Context) (string, error) {
	s := Service{Port: c.port}
	_, text, err := s.Ask(ctx, http.MethodGet, "/metrics", "", nil)
	return text, err
}

// Show replaces the page at once.
func (c *Telemetry) Show(t *testing.T, page string) {
	t.Helper()
	if err := os.WriteFile(c.page+".next", []byte(page), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(c.page+".next", c.page); err != nil {
		t.Fatal(err)
	}
}

var lastEvent = regexp.MustCompile(`(?m)^stoker_gpu_xid_last_event_timestamp_seconds\{[^}]*xid="79"[^}]*\} ([0-9.e+]+)$`)

// EventTime waits until the collector tells of the 79, and returns when it happened.
func (c *Telemetry) EventTime(t *testing.T) (at time.Time) {
	t.Helper()
	c.Await(t, "the collector to tell of the 79", Soon, func(ctx context.Context) (bool, string, error) {
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

// FollowReboot waits until the node is in another boot, in which a new collector begins
// with a page that shows no XID.
func (c *Telemetry) FollowReboot(t *testing.T, before, page string) {
	t.Helper()
	boot := before
	c.Await(t, "the node to be booted", Soon, func(ctx context.Context) (bool, string, error) {
		boot = c.BootID(t, c.node)
		return boot != before, boot, nil
	})
	if err := c.proc.Kill(); err != nil {
		t.Fatal(err)
	}
	c.Show(t, page)
	c.start(t, boot)
}

// ResolveAlert tells Alertmanager that an alert is over, so that it does not tell the
// service of another test that it fires. It may be called when the test has ended.
func (f *Fixture) ResolveAlert(t *testing.T, a Alert) {
	ctx, cancel := context.WithTimeout(context.Background(), Soon)
	defer cancel()
	body, err := json.Marshal([]cluster.Alert{{Labels: a.Labels, EndsAt: time.Now().Add(-time.Second)}})
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
