package push

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"stoker.dev/stoker/collector"
	"stoker.dev/stoker/internal/fleet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var at = time.Date(2026, 3, 1, 12, 0, 0, 250e6, time.UTC)

func TestWhatIsTold(t *testing.T) {
	on := collector.Sighting{Node: "a", BootID: "b1", GPU: 3, UUID: "GPU-3", PCI: "0000:1a:00", At: at}
	with := func(f func(*collector.Sighting)) collector.Sighting {
		s := on
		f(&s)
		return s
	}
	for name, tc := range map[string]struct {
		seen collector.Sighting
		want map[string]string // nil: nothing is told
		text string
	}{
		"an XID of a class": {
			with(func(s *collector.Sighting) { s.XID = 79 }),
			map[string]string{"alertname": "GPUXidGpuLost", "class": "gpu-lost", "xid": "79", "severity": "critical", "ladder": "REBOOT,HOLD"},
			"XID 79 on GPU 3 of a",
		},
		"an XID of a MIG instance is the alert of its GPU": {
			with(func(s *collector.Sighting) { s.XID, s.Instance = 79, "7" }),
			map[string]string{"alertname": "GPUXidGpuLost", "class": "gpu-lost", "xid": "79", "severity": "critical", "ladder": "REBOOT,HOLD"},
			"XID 79 on MIG instance 7 of GPU 3 of a",
		},
		"an XID without a row":                       {with(func(s *collector.Sighting) { s.XID = 999 }), map[string]string{"alertname": "GPUXidUnknown", "class": "none", "xid": "999", "severity": "warning", "ladder": "ALERT"}, "XID 999 on GPU 3 of a"},
		"the aftermath of a job is only counted":     {with(func(s *collector.Sighting) { s.XID = 45 }), nil, ""},
		"a code that waits for what the driver asks": {with(func(s *collector.Sighting) { s.XID = 145 }), nil, ""},
		"a link that failed":                         {with(func(s *collector.Sighting) { s.NVLink = fleet.NVLinkFatal }), map[string]string{"alertname": "GPUNVLinkError", "class": "gpu-nvlink", "severity": "critical", "error": "fatal"}, "NVLink error (fatal) on GPU 3 of a"},
		"a link that recovers only tells":            {with(func(s *collector.Sighting) { s.NVLink = fleet.NVLinkRecovery }), map[string]string{"alertname": "GPUNVLinkError", "class": "none", "severity": "warning", "error": "recovery"}, "NVLink error (recovery) on GPU 3 of a"},
		"a lost GPU":                                 {with(func(s *collector.Sighting) { s.Lost = true }), map[string]string{"alertname": "GPULost", "class": "gpu-lost", "severity": "critical"}, "GPU 3 of a is lost"},
		"a check of memory":                          {with(func(s *collector.Sighting) { s.Watch, s.ErrorCode = "MEM", "DCGM_FR_X" }), map[string]string{"alertname": "GPUHealthFailed", "class": "gpu-ecc", "severity": "critical", "health_watch": "MEM"}, "Health check MEM fails on GPU 3 of a: DCGM_FR_X"},
		"a check that has no class only tells":       {with(func(s *collector.Sighting) { s.Watch = "PMU" }), map[string]string{"alertname": "GPUHealthFailed", "class": "none", "severity": "critical", "health_watch": "PMU"}, "Health check PMU fails on GPU 3 of a: "},
	} {
		t.Run(name, func(t *testing.T) {
			a, ok := alertOf(tc.seen)
			if ok != (tc.want != nil) {
				t.Fatalf("told: %v", ok)
			}
			if !ok {
				return
			}
			for k, v := range map[string]string{"node": "a", "gpu": "3", "UUID": "GPU-3", "pci_bus_id": "0000:1a:00", "boot_id": "b1"} {
				tc.want[k] = v
			}
			if diff := cmp.Diff(a.Labels, tc.want); diff != "" {
				t.Errorf("labels (-got +want):\n%s", diff)
			}
			if want := map[string]string{"summary": tc.text, "event_time": "1772366400.250"}; !cmp.Equal(a.Annotations, want) || !a.StartsAt.Equal(at) {
				t.Errorf("%v from %v, want %v", a.Annotations, a.StartsAt, want)
			}
		})
	}
}

// A taker answers what it is told to, and keeps what it was sent.
type taker struct {
	mu     sync.Mutex
	codes  []int // of the next answers; then 200
	taken  []alert
	tries  int
	tokens []string
}

func (k *taker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tries++
	k.tokens = append(k.tokens, r.Header.Get("Authorization"))
	if len(k.codes) > 0 {
		code := k.codes[0]
		k.codes = k.codes[1:]
		http.Error(w, "no", code)
		return
	}
	var got []alert
	if err := json.Unmarshal(body, &got); err != nil || r.URL.Path != "/api/v2/alerts" {
		http.Error(w, "what is this", http.StatusBadRequest)
		return
	}
	k.taken = append(k.taken, got...)
}

func (k *taker) has(n int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.taken) == n
}

// running runs a pusher to the takers until the test ends.
func running(t *testing.T, tokenFile string, takers ...*taker) *Pusher {
	t.Helper()
	tr := &http.Transport{}
	var targets []Target
	for _, k := range takers {
		srv := httptest.NewServer(k)
		t.Cleanup(srv.Close)
		targets = append(targets, Target{Name: "service", URL: srv.URL + "/", TokenFile: tokenFile})
	}
	t.Cleanup(tr.CloseIdleConnections)
	p := New(slog.New(slog.NewTextHandler(t.Output(), nil)), &http.Client{Transport: tr}, targets)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); p.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return p
}

func await(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no %s", what)
		}
	}
}

func TestItIsToldUntilItIsTaken(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("one\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	busy, well := &taker{codes: []int{503, 401}}, &taker{}
	p := running(t, token, busy, well)
	p.See([]collector.Sighting{{Node: "a", XID: 79, At: time.Now()}, {Node: "a", XID: 45, At: time.Now()}})
	await(t, "alert at the one that is well", func() bool { return well.has(1) })
	await(t, "alert at the one that was busy", func() bool { return busy.has(1) })
	if busy.tries != 3 || well.tries != 1 || busy.tokens[0] != "Bearer one" {
		t.Errorf("%d and %d tries with %v, want 3 and 1", busy.tries, well.tries, busy.tokens)
	}
	await(t, "count", func() bool {
		return strings.Count(string(p.AppendPage(nil)), `result="sent"} 1`) == 2
	})
}

func TestWhatCannotBeTakenIsDropped(t *testing.T) {
	k := &taker{codes: []int{400}}
	p := running(t, "", k)
	p.See([]collector.Sighting{{Node: "a", XID: 79, At: time.Now()}})
	await(t, "drop", func() bool { return strings.Contains(string(p.AppendPage(nil)), `result="dropped"} 1`) })
	// What is seen late, as after a hang of the engine, is news all the same.
	p.See([]collector.Sighting{{Node: "a", XID: 79, At: time.Now().Add(-time.Hour)}, {Node: "a", XID: 119, At: time.Now()}})
	await(t, "alerts", func() bool { return k.has(2) })
}

// TestWhatWaitsForLongIsDropped: by then Prometheus has told of it.
func TestWhatWaitsForLongIsDropped(t *testing.T) {
	p := New(slog.New(slog.DiscardHandler), http.DefaultClient, []Target{{Name: "service"}})
	p.See([]collector.Sighting{{Node: "a", XID: 79, At: time.Now()}})
	q := p.queues[0]
	if n := len(q.batch(time.Now().Add(maxAge - time.Second))); n != 1 || q.dropped != 0 {
		t.Errorf("before that %d wait and %d were dropped, want 1 and 0", n, q.dropped)
	}
	if n := len(q.batch(time.Now().Add(maxAge + time.Second))); n != 0 || q.dropped != 1 {
		t.Errorf("after it %d wait and %d were dropped, want 0 and 1", n, q.dropped)
	}
}

func TestAQueueIsBounded(t *testing.T) {
	p := New(slog.New(slog.DiscardHandler), http.DefaultClient, []Target{{Name: "service"}})
	for range 50 {
		p.See(make([]collector.Sighting, 0))
		var storm []collector.Sighting
		for range 100 {
			storm = append(storm, collector.Sighting{Node: "a", XID: 79, At: time.Now()})
		}
		p.See(storm)
	}
	if q := p.queues[0]; len(q.alerts) != maxQueue || q.dropped != 4000 {
		t.Errorf("%d wait and %d were dropped, want %d and 4000", len(q.alerts), q.dropped, maxQueue)
	}
}
