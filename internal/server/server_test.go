package server

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/loop"
	"stoker.dev/stoker/internal/remedy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// walker is a loop that only remembers.
type walker struct {
	got       []remedy.Evidence
	err       error
	incidents []remedy.Incident
	fleet     fleet.Snapshot
}

func (w *walker) Ingest(_ context.Context, _ time.Time, ev []remedy.Evidence) error {
	w.got = append(w.got, ev...)
	return w.err
}
func (w *walker) Incidents() []remedy.Incident { return w.incidents }
func (w *walker) Fleet() fleet.Snapshot        { return w.fleet }
func (w *walker) Journal() []loop.Entry        { return nil }

const payload = `{"version":"4","groupKey":"{}","truncatedAlerts":0,"status":"firing","receiver":"stoker",
 "groupLabels":{},"commonLabels":{},"commonAnnotations":{},"externalURL":"",
 "alerts":[{"status":"firing","labels":{"alertname":"GPUXidGpuLost","class":"gpu-lost","node":"n1","gpu":"3","UUID":"GPU-3","xid":"79"},
 "annotations":{"summary":"GPU 3 fell off the bus"},"startsAt":"2026-03-01T11:59:00Z","endsAt":"0001-01-01T00:00:00Z","generatorURL":"","fingerprint":"a"}]}`

func handler(t *testing.T, w Walker, o Options) (http.Handler, *prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	return Handler(slog.New(slog.NewTextHandler(t.Output(), nil)), reg, w, func() time.Time { return t0 }, o), reg
}

func tokenFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestWebhookAnswers(t *testing.T) {
	for name, tc := range map[string]struct {
		token    string
		body     string
		loop     error
		leading  bool
		want     int
		wantText string
		taken    int
	}{
		"a group is taken in":                   {"s3cret", payload, nil, true, 200, "1 alerts taken in", 1},
		"no token is refused":                   {"", payload, nil, true, 401, "bearer token", 0},
		"a wrong token is refused":              {"s3cre", payload, nil, true, 401, "bearer token", 0},
		"what is not JSON is told so":           {"s3cret", "alerts: []", nil, true, 400, "webhook payload at byte", 0},
		"half a payload is told so":             {"s3cret", payload[:200], nil, true, 400, "unexpected", 0},
		"another version is told so":            {"s3cret", strings.Replace(payload, `"4"`, `"3"`, 1), nil, true, 400, `version "3" is not 4`, 0},
		"an alert without status is told so":    {"s3cret", strings.Replace(payload, `"status":"firing","labels"`, `"labels"`, 1), nil, true, 400, "alerts[0]: status", 0},
		"pressure asks to send again":           {"s3cret", payload, loop.ErrPressure, true, 503, "send it again", 1},
		"a store that is away asks to resend":   {"s3cret", payload, errors.New("no API server"), true, 503, "send it again", 1},
		"a follower asks to send elsewhere":     {"s3cret", payload, nil, false, 503, "does not lead", 0},
		"alerts that name nothing cost nothing": {"s3cret", strings.Replace(payload, `"node":"n1",`, "", 1), nil, true, 200, "1 alerts", 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := &walker{err: tc.loop}
			h, reg := handler(t, w, Options{TokenFile: tokenFile(t), Leading: func() bool { return tc.leading }})
			req := httptest.NewRequest(http.MethodPost, "/webhook/alertmanager", strings.NewReader(tc.body))
			if tc.token != "" {
				req.Header.Set("Authorization", "Bearer "+tc.token)
			}
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, req)
			if rec.Code != tc.want || !strings.Contains(rec.Body.String(), tc.wantText) {
				t.Errorf("answer %d %q, want %d with %q", rec.Code, rec.Body, tc.want, tc.wantText)
			}
			if len(w.got) != tc.taken {
				t.Errorf("%d pieces of evidence reached the loop, want %d", len(w.got), tc.taken)
			}
			if rec.Code == 503 && rec.Header().Get("Retry-After") == "" {
				t.Error("503 without Retry-After")
			}
			if lint, err := testutil.GatherAndLint(reg); err != nil || len(lint) > 0 {
				t.Errorf("metrics: %v %v", lint, err)
			}
		})
	}
}

func TestATokenThatCannotBeReadLetsNobodyIn(t *testing.T) {
	for name, content := range map[string]string{"missing": "", "empty": " \n"} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "token")
			if content != "" {
				if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			h, _ := handler(t, &walker{}, Options{TokenFile: path})
			req := httptest.NewRequest(http.MethodGet, "/api/v1/incidents", nil)
			req.Header.Set("Authorization", "Bearer ")
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, req)
			if rec.Code != http.StatusServiceUnavailable {
				t.Errorf("answer %d, want 503", rec.Code)
			}
		})
	}
}

func TestExplainTellsTheWholeStory(t *testing.T) {
	at := func(m int) time.Time { return t0.Add(time.Duration(m) * time.Minute) }
	job := fleet.JobRef{Kind: "Job.batch", Namespace: "train", Name: "llm-2"}
	in := remedy.Incident{
		Name: "gpu-lost-n1-gpu-3-abc123", Class: remedy.ClassGPULost, Phase: remedy.PhaseActing, Playbook: "gpu-lost",
		Subject:  remedy.Subject{Kind: remedy.SubjectGPU, Node: "n1", UUID: "GPU-3", Index: "3"},
		Evidence: []remedy.Evidence{{At: at(0), Summary: "GPU 3 fell off the bus (XID 79)", Source: "rules, alertmanager"}}, EvidenceCount: 1,
		Opened: at(0), Reason: "opened: GPU 3 fell off the bus (XID 79)", Rung: 2,
		Ladder: []remedy.Step{
			{Action: "cordon", Role: remedy.RoleHold, Within: remedy.Duration(time.Minute)},
			{Action: "checkpoint", Role: remedy.RoleSave, Within: remedy.Duration(2 * time.Minute)},
			{Action: "stop", Role: remedy.RoleStop, Within: remedy.Duration(5 * time.Minute)},
			{Action: "start", Role: remedy.RoleStart, Within: remedy.Duration(90 * time.Minute)},
		},
		Steps: []remedy.StepRecord{
			{
				Action: "cordon", Role: remedy.RoleHold, Reserved: at(0), Ended: at(0).Add(400 * time.Millisecond), Ending: remedy.Done,
				Orders: []remedy.OrderRecord{{Order: remedy.Order{Target: remedy.Target{Node: "n1"}}}},
				Gates:  []remedy.GateResult{{Gate: "budget", Pass: true, Reason: "0 of 8 nodes are out, 1 may be"}},
			},
			{
				Action: "checkpoint", Role: remedy.RoleSave, Reserved: at(0), Ended: at(1), Ending: remedy.Done, Note: "step 18200",
				Orders: []remedy.OrderRecord{{Order: remedy.Order{Target: remedy.Target{Job: job}}}},
			},
			{
				Action: "stop", Role: remedy.RoleStop, Reserved: at(1), Deadline: at(6),
				Orders: []remedy.OrderRecord{{Order: remedy.Order{Target: remedy.Target{Job: job}}, Receipt: &remedy.Receipt{Note: "4 pods are to go"}}},
			},
		},
		Losses: []remedy.Loss{{Job: job, GPUHours: 0.25, Cause: "unsaved work", Step: 18200}},
	}
	f := fleet.Snapshot{
		Nodes: map[string]fleet.Node{"n1": {
			Name: "n1", Unschedulable: true, Hold: fleet.Hold{Incidents: map[string]time.Time{in.Name: at(0)}, Cordoned: true, Why: "GPU 3 fell off the bus (XID 79)"},
			Ready: fleet.Condition{Status: fleet.True, Since: at(-60)}, Capacity: fleet.Resources{GPUs: 8}, Allocatable: fleet.Resources{GPUs: 7},
			Telemetry: fleet.Condition{Status: fleet.True}, GPUs: []fleet.GPU{{Up: fleet.False}, {Up: fleet.True}},
		}},
		Jobs: map[fleet.JobRef]fleet.Job{job: {Ref: job, Phase: fleet.JobSuspended, Workers: 4, Each: fleet.Resources{GPUs: 8}, Checkpoint: fleet.Checkpoint{Step: 18200, URI: "/ckpt/18200", At: at(1)}}},
	}
	want := `n1 is cordoned by Stoker since 12:00:00 (3m): GPU 3 fell off the bus (XID 79)
  ready      true since 11:00:00
  GPUs       7 allocatable of 8
  telemetry  arrives; 1 of 2 GPUs are lost

gpu-lost-n1-gpu-3-abc123: gpu-lost on n1/gpu-3, acting since 12:00:00 (3m).
  state      opened: GPU 3 fell off the bus (XID 79)
  evidence   12:00:00  GPU 3 fell off the bus (XID 79) (told by rules, alertmanager)
  rule       playbook gpu-lost, mode auto
  done       12:00:00  cordon n1 (400ms)
             gates budget pass (0 of 8 nodes are out, 1 may be)
  done       12:00:00  checkpoint train/llm-2 (1m0s): step 18200
  runs       12:01:00  stop train/llm-2 for 2m, at most until 12:06:00
             train/llm-2: 4 pods are to go
  then       start ≤1h30m
  lost       0.25 GPU-hours of train/llm-2: unsaved work, goes on from step 18200
`
	for _, what := range []struct{ kind, name, wantPart string }{
		{"node", "n1", want},
		{"incident", in.Name, want[strings.Index(want, "\n\n")+2:]},
		{"job", "train/llm-2", "train/llm-2 is suspended: 4 x 8 GPUs.\n  checkpoint step 18200 of 12:01:00 (2m ago) /ckpt/18200\n"},
	} {
		got, err := Explain(at(3), f, []remedy.Incident{in}, what.kind, what.name, "auto")
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(got, what.wantPart) {
			t.Errorf("explain %s/%s:\n%s\nwant in it:\n%s", what.kind, what.name, got, what.wantPart)
		}
	}
	for _, what := range [][2]string{{"node", "n9"}, {"incident", "nope"}, {"job", "train/nope"}} {
		if _, err := Explain(t0, f, nil, what[0], what[1], "auto"); !errors.Is(err, ErrNotFound) {
			t.Errorf("explain %s/%s: %v, want not found", what[0], what[1], err)
		}
	}
	if _, err := Explain(t0, f, nil, "pod", "x", "auto"); err == nil || errors.Is(err, ErrNotFound) {
		t.Errorf("explain of a kind that cannot be: %v", err)
	}
}
