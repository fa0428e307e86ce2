//go:build cgo && linux

package dcgm_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"stoker.dev/stoker/collector"
	"stoker.dev/stoker/collector/dcgm"
	"stoker.dev/stoker/collector/kmsg"
	"stoker.dev/stoker/collector/push"
)

var xidLine = regexp.MustCompile(`(?m)^stoker_gpu_xid_errors_total\{node="n",gpu="([0-9]+)",.*xid="([0-9]+)"\} ([0-9]+)$`)

// totals returns the counters of a page by GPU and XID, those at 0 left out.
func totals(page string) (map[[2]int]int, int) {
	out, sum := map[[2]int]int{}, 0
	for _, m := range xidLine.FindAllStringSubmatch(page, -1) {
		g, _ := strconv.Atoi(m[1])
		x, _ := strconv.Atoi(m[2])
		n, _ := strconv.Atoi(m[3])
		if n > 0 {
			out[[2]int{g, x}] += n
			sum += n
		}
	}
	return out, sum
}

// TestTenThousandXIDs come at random times, up to 2 s late, while GPUs are lost and come
// back, the engine hangs, connections are cut and the collector is started anew. Each
// one is counted once.
func TestTenThousandXIDs(t *testing.T) {
	const events, lasts = 10_000, 8 * time.Second
	n := newNode(t, dcgm.Options{})
	n.do("policy 0") // polling has to find them all
	state := t.TempDir() + "/state"
	options := collector.Options{
		State: state, BootID: "b", StaleAfter: time.Hour,
		Interval: 250 * time.Millisecond, Events: 40 * time.Millisecond, Watchdog: 200 * time.Millisecond,
	}
	source := n.source
	var c *collector.Collector
	run := func() (stop func()) {
		c = newCollector(t, options, source)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		go func() { done <- c.Run(ctx) }()
		return func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("run: %v", err)
			}
		}
	}
	// The first look says since when XIDs count.
	if err := newCollector(t, options, source).Gather(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	stop := run()

	codes := []int{8, 13, 31, 32, 43, 45, 48, 61, 62, 63, 64, 68, 69, 74, 92, 94, 95, 109, 154, 999, 79, 119, 120}
	r := rand.New(rand.NewPCG(1, 2))
	want, last := map[[2]int]int{}, map[[2]int]time.Time{}
	start := time.Now()
	trouble := []string{"lose 1", "hang 450", "return 1", "cut", "lose 6", "restart", "forget", "return 6", "hang 300", "cut"}
	for i := range events {
		if wait := time.Until(start.Add(lasts * time.Duration(i) / events)); wait > time.Millisecond {
			time.Sleep(wait)
		}
		if i%(events/len(trouble)) == events/len(trouble)/2 {
			switch what := trouble[i/(events/len(trouble))]; what {
			case "restart":
				stop()
				source = n.open(dcgm.Options{})
				stop = run()
			default:
				n.do("%s", what)
			}
		}
		gpu, code := r.IntN(8), codes[r.IntN(len(codes))]
		if code == 79 || code == 119 || code == 120 {
			// Within 2 s the driver's and the kernel's are one.
			if k := [2]int{gpu, code}; time.Since(last[k]) < 2100*time.Millisecond {
				code = 31
			} else {
				last[k] = time.Now()
			}
		}
		want[[2]int{gpu, code}]++
		delay := 0
		if r.IntN(2) == 0 {
			delay = r.IntN(2_000_000)
		}
		n.do("xid %d %d 0 %d", gpu, code, delay)
	}
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if _, sum := totals(string(c.AppendPage(nil, time.Now()))); sum >= events {
			break
		}
	}
	time.Sleep(500 * time.Millisecond) // for one too many
	got, sum := totals(string(c.AppendPage(nil, time.Now())))
	stop()
	if sum != events {
		t.Errorf("%d counted, want exactly %d", sum, events)
	}
	for k, n := range want {
		if got[k] != n {
			t.Errorf("XID %d of GPU %d: %d counted, want %d", k[1], k[0], got[k], n)
		}
	}
}

// TestXIDsOverAnEngineKill: those that the kernel's log has survive, those that only the
// engine knew and that nobody has read are lost, and that they may be is counted.
func TestXIDsOverAnEngineKill(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	c := newCollector(t, collector.Options{State: t.TempDir() + "/state", BootID: "b"}, n.source)
	gap := func(page string) float64 {
		m := regexp.MustCompile(`(?m)^stoker_dcgm_event_gap_seconds_total (.+)$`).FindStringSubmatch(page)
		if m == nil {
			t.Fatal("the gap is not shown")
		}
		x, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	show := func() string { return page(t, c) + string(n.source.AppendPage(nil)) }
	if g := gap(show()); g != 0 {
		t.Errorf("before anything has happened there is a gap of %v s", g)
	}
	want := 0
	was := 0.0
	for round := range 8 {
		for range 50 {
			n.do("xid %d 43 0 0", round)
		}
		want += 50
		last := time.Now()
		show()
		time.Sleep(20 * time.Millisecond)
		n.do("xid %d 31 0 0", round)  // nobody reads it
		n.do("kernel %d 79 0", round) // this one is in the kernel's ring
		n.do("die")
		n.do("kernel %d 120 0", round) // while nobody looks
		want += 2
		n.do("start")
		_, sum := totals(show())
		if sum != want {
			t.Errorf("after kill %d %d are counted, want %d", round+1, sum, want)
		}
		g := gap(show())
		if d := time.Since(last).Seconds(); g-was < 0.02 || g-was > d {
			t.Errorf("kill %d: a gap of %v s, want from 0.02 to %v", round+1, g-was, d)
		}
		was = g
	}
	got, _ := totals(show())
	for round := range 8 {
		if got[[2]int{round, 79}] != 1 || got[[2]int{round, 120}] != 1 || got[[2]int{round, 31}] != 0 {
			t.Errorf("GPU %d: %v", round, got)
		}
	}
}

// ways are those by which a fault comes to the service, and what the delay may be: the
// benchmark measures it and holds the p99 to the limit, the test only holds that it is not
// of another order.
var ways = map[string]struct {
	policy, events int
	kernel         bool
	limit, order   time.Duration
}{
	"wakened": {1, 100, false, 200 * time.Millisecond, 2 * time.Second},
	"polling": {0, 60, false, 1200 * time.Millisecond, 5 * time.Second},
	"kernel":  {0, 100, true, 200 * time.Millisecond, 2 * time.Second},
}

func TestFromTheLibraryToTheService(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			took := delays(t, way.policy, way.events/4, way.kernel)
			t.Logf("median %v, p99 %v", took[len(took)/2], took[len(took)*99/100])
			if took[len(took)/2] > way.order {
				t.Errorf("half of the alerts took over %v", took[len(took)/2])
			}
		})
	}
}

// BenchmarkFromTheLibraryToTheService measures how long an alert takes that somebody has
// to act on: by the kernel's log, with the engine's wake-up, and by looking every second.
func BenchmarkFromTheLibraryToTheService(b *testing.B) {
	for name, way := range ways {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				took := delays(b, way.policy, way.events, way.kernel)
				b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
				p99 := took[len(took)*99/100]
				b.ReportMetric(float64(p99.Microseconds())/1000, "p99-ms")
				if p99 > way.limit {
					b.Errorf("p99 %v, the limit is %v", p99, way.limit)
				}
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// delays lets XIDs happen at random times and returns, in order, how long each took until
// the service was told of it.
func delays(tb testing.TB, policy, events int, kernel bool) []time.Duration {
	tb.Helper()
	n := newNode(tb, dcgm.Options{})
	n.do("policy %d", policy)
	var mu sync.Mutex
	came := map[string]time.Time{}
	service := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var alerts []struct{ Labels map[string]string }
		if err != nil || json.Unmarshal(body, &alerts) != nil {
			tb.Errorf("alerts that can't be read: %s", body)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, a := range alerts {
			if k := a.Labels["gpu"] + " " + a.Labels["xid"]; came[k].IsZero() {
				came[k] = time.Now()
			}
		}
	}))
	defer service.Close()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	pusher := push.New(quiet(tb), client, []push.Target{{Name: "service", URL: service.URL}})
	tell := func(_, gpu, xid int) { n.do("xid %d %d 0 0", gpu, xid) }
	sources := []collector.Source{n.source}
	if kernel { // and the engine never tells of it
		r := newRing(tb)
		tell = r.say
		sources = append(sources, kmsg.New(quiet(tb), kmsg.Options{Path: r.path, Devices: tb.TempDir()}))
	}
	c, err := collector.New(quiet(tb), "n", sources, collector.Options{See: pusher.See})
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { pusher.Run(ctx) })
	running.Go(func() {
		if err := c.Run(ctx); err != nil {
			tb.Errorf("run: %v", err)
		}
	})
	defer running.Wait()
	defer cancel()
	wantSoon(tb, func() bool { return n.do("watches") > 0 }, "watches")
	time.Sleep(200 * time.Millisecond)

	went := map[string]time.Time{}
	r := rand.New(rand.NewPCG(3, 4))
	// Codes outside the catalogue are told of, too, and there are many.
	for i := range events {
		k := fmt.Sprintf("%d %d", i%8, 500+i)
		went[k] = time.Now()
		tell(i, i%8, 500+i)
		time.Sleep(time.Duration(r.IntN(100)) * time.Millisecond)
	}
	wantSoon(tb, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(came) >= events
	}, "alerts")
	mu.Lock()
	defer mu.Unlock()
	var took []time.Duration
	for k, at := range went {
		if !came[k].IsZero() {
			took = append(took, came[k].Sub(at))
		}
	}
	if len(took) == 0 {
		tb.Fatal("nothing was told")
	}
	slices.Sort(took)
	return took
}

func wantSoon(t testing.TB, what func() bool, name string) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if what() {
			return
		}
	}
	t.Fatalf("no %s after 20s", name)
}
