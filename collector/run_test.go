package collector

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"stoker.dev/stoker/collector/exporter"
	"stoker.dev/stoker/internal/fleet"
)

// An agent is a source that is asked with its context.
type agent struct {
	name    string
	collect func(ctx context.Context, into *fleet.Samples) error
}

func (a *agent) Name() string { return a.name }

func (a *agent) Collect(ctx context.Context, into *fleet.Samples) error { return a.collect(ctx, into) }

func healthy(ctx context.Context, into *fleet.Samples) error {
	into.GPUs, into.Values = []fleet.SampledGPU{gpuA}, []fleet.Sample{{Field: "A", Value: 1}}
	return nil
}

func TestRunAsksAtEachInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var asked []time.Duration
		start := time.Now()
		c := newCollector(t, Options{Interval: 7 * time.Second}, &agent{"s", func(ctx context.Context, into *fleet.Samples) error {
			if !into.At.Equal(time.Now()) {
				t.Errorf("told that it is %v, it is %v", into.At, time.Now())
			}
			asked = append(asked, time.Since(start))
			return healthy(ctx, into)
		}})
		done := make(chan error)
		go func() { done <- c.Run(ctx) }()
		time.Sleep(22 * time.Second)
		stop()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		if len(asked) != 4 || asked[0] != 0 || asked[3] != 21*time.Second {
			t.Errorf("asked at %v, want 0s, 7s, 14s, 21s", asked)
		}
	})
}

// TestAHungSourceHarmsNobody: the watchdog calls it down after exactly its deadline,
// the other source goes on, the page is there, and what the hung one tells when it
// wakes up is not lost.
func TestAHungSourceHarmsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var calls atomic.Int32
		hung := &agent{"hung", func(_ context.Context, into *fleet.Samples) error {
			calls.Add(1)
			time.Sleep(time.Minute) // deaf to its context, as a driver call is
			into.GPUs, into.Events = []fleet.SampledGPU{gpuB}, []fleet.XIDEvent{{XID: 119, At: into.At}}
			return nil
		}}
		c := newCollector(t, Options{Interval: time.Second, Watchdog: 5 * time.Second}, hung, &agent{"well", healthy})
		done := make(chan error)
		go func() { done <- c.Run(ctx) }()
		up := func(source string) (float64, bool) {
			family := readPage(t, c.AppendPage(nil, time.Now()))["stoker_collector_source_up"]
			if family == nil {
				return 0, false
			}
			v, ok := family.Series[`{node="n", source="`+source+`"}`]
			return v, ok
		}
		time.Sleep(5*time.Second - 1)
		synctest.Wait()
		if v, ok := up("hung"); ok {
			t.Errorf("before the deadline the hung source is %v, want unknown", v)
		}
		time.Sleep(2 * time.Nanosecond)
		synctest.Wait()
		if v, ok := up("hung"); !ok || v != 0 {
			t.Errorf("after the deadline the hung source is %v, %v; want down", v, ok)
		}
		if v, _ := up("well"); v != 1 {
			t.Errorf("the other source is %v, want up", v)
		}
		if err := c.view.Load().sources[0].err; !errors.Is(err, errWatchdog) {
			t.Errorf("err = %v, want the watchdog's", err)
		}
		time.Sleep(54 * time.Second)
		synctest.Wait()
		if n := calls.Load(); n != 1 {
			t.Errorf("the hung source was asked %d times, want once", n)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if v, _ := up("hung"); v != 1 {
			t.Errorf("after it woke up the hung source is %v, want up", v)
		}
		if n := totals(t, c, time.Now())[key(gpuB, "119")]; n != 1 {
			t.Errorf("its event was counted %v times, want 1", n)
		}

		// It hangs again: Run does not wait for it for longer than its grace.
		start := time.Now()
		stop()
		if err := <-done; err == nil || !strings.Contains(err.Error(), "source hung: still collecting") {
			t.Errorf("Run: %v, want an error that names the hung source", err)
		}
		if d := time.Since(start); d != stopGrace {
			t.Errorf("Run ended after %v, want %v", d, stopGrace)
		}
		time.Sleep(2 * time.Minute) // so that its goroutine ends with the test
	})
}

func TestASourceThatListensToItsContextEndsWithRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		c := newCollector(t, Options{Watchdog: time.Minute}, &agent{"s", func(ctx context.Context, _ *fleet.Samples) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}})
		done := make(chan error)
		go func() { done <- c.Run(ctx) }()
		time.Sleep(time.Minute + 1)
		synctest.Wait()
		if err := c.view.Load().sources[0].err; !errors.Is(err, errWatchdog) {
			t.Errorf("err = %v, want the watchdog's", err)
		}
		time.Sleep(10 * time.Second)
		start := time.Now()
		stop()
		if err := <-done; err != nil || time.Since(start) != 0 {
			t.Errorf("Run ended after %v with %v, want at once", time.Since(start), err)
		}
	})
}

// TestScrapesDuringCollection is for the race detector, and holds that no page is
// torn: both GPUs show the same value.
func TestScrapesDuringCollection(t *testing.T) {
	n := 0.0
	s := &script{"s", func(into *fleet.Samples) error {
		n++
		into.GPUs = []fleet.SampledGPU{gpuA, gpuB}
		into.Values = []fleet.Sample{{Field: "A", GPU: 0, Value: n}, {Field: "A", GPU: 1, Value: n}}
		into.Events = []fleet.XIDEvent{{XID: 31, At: into.At}}
		return nil
	}}
	c := newCollector(t, Options{State: filepath.Join(t.TempDir(), "state")}, s, exporter.NewFile(quiet(t), sampleFile, exporter.FileOptions{}))
	server := c.Handler()
	stopped := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			last := 0.0
			for {
				select {
				case <-stopped:
					return
				default:
				}
				w := httptest.NewRecorder()
				server.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
				server.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/healthz", nil))
				page := readPage(t, w.Body.Bytes())
				if page["A"] == nil {
					continue
				}
				var values []float64
				for _, v := range page["A"].Series {
					values = append(values, v)
				}
				if len(values) != 2 || values[0] != values[1] || values[0] < last {
					t.Errorf("values %v after %v", values, last)
					return
				}
				last = values[0]
				runtime.Gosched()
			}
		})
	}
	for i := range 20 {
		if err := c.Gather(t.Context(), time.Now().Add(time.Duration(i)*time.Nanosecond)); err != nil {
			t.Error(err)
		}
	}
	close(stopped)
	wg.Wait()
}

func TestHTTP(t *testing.T) {
	failing := errors.New("no driver\nat all")
	var err error
	s := &agent{"s", func(ctx context.Context, into *fleet.Samples) error {
		if err != nil {
			return err
		}
		return healthy(ctx, into)
	}}
	c := newCollector(t, Options{StaleAfter: time.Hour}, s)
	server := httptest.NewServer(c.Handler())
	defer server.Close()
	get := func(path string) (int, string, http.Header) {
		t.Helper()
		r, err := server.Client().Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return r.StatusCode, string(body), r.Header
	}
	gather := func(now time.Time) { _ = c.Gather(t.Context(), now) }
	for _, step := range []struct {
		do     func()
		status int
		body   string
	}{
		{func() {}, 503, "s: not read yet\nGPUs: 0 up, 0 lost, 0 not known\n"},
		{func() { gather(time.Now()) }, 200, "s: up\nGPUs: 1 up, 0 lost, 0 not known\n"},
		{func() { err = failing; gather(time.Now()) }, 503, "s: down: no driver; at all\nGPUs: 1 up, 0 lost, 0 not known\n"},
		{func() { err = nil; gather(t0) }, 503, "s: down: last read at 2026-05-04T03:02:01Z\nGPUs: 0 up, 0 lost, 1 not known\n"},
	} {
		step.do()
		if status, body, _ := get("/healthz"); status != step.status || body != step.body {
			t.Errorf("/healthz: %d %q, want %d %q", status, body, step.status, step.body)
		}
	}
	gather(time.Now())
	status, body, header := get("/metrics")
	if status != 200 || header.Get("Content-Type") != "text/plain; version=0.0.4; charset=utf-8" {
		t.Errorf("/metrics: %d, %v", status, header)
	}
	if readPage(t, []byte(body))["A"] == nil {
		t.Errorf("the page lacks A:\n%s", body)
	}
	for path, want := range map[string]struct {
		status int
		body   string
	}{
		"/": {200, `<a href="metrics">`}, "/health": {200, "OK"}, "/debug/pprof": {404, ""},
	} {
		if status, body, _ := get(path); status != want.status || !strings.Contains(body, want.body) {
			t.Errorf("%s: %d %q, want %d and %q", path, status, body, want.status, want.body)
		}
	}
	r, postErr := server.Client().Post(server.URL+"/metrics", "text/plain", nil)
	if postErr != nil {
		t.Fatal(postErr)
	}
	r.Body.Close()
	if r.StatusCode != 405 {
		t.Errorf("POST /metrics: %d, want 405", r.StatusCode)
	}
}

func TestNewNamesAllMistakes(t *testing.T) {
	s := &agent{"s", healthy}
	_, err := New(quiet(t), "", []Source{s, s}, Options{Interval: -1, Watchdog: -1, StaleAfter: -1})
	want := "the node has no name\nsource s is there twice\ninterval: -1ns is negative\nwatchdog: -1ns is negative\nstale after: -1ns is negative"
	if err == nil || err.Error() != want {
		t.Errorf("err = %v, want\n%s", err, want)
	}
	if _, err := New(quiet(t), "n", nil, Options{}); err == nil || err.Error() != "there is no source" {
		t.Errorf("err = %v, want that there is no source", err)
	}
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestACollectionIsToldToEnd at the watchdog's deadline, and why: a source that listens can
// then say what it was waiting for.
func TestACollectionIsToldToEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &agent{"s", func(ctx context.Context, _ *fleet.Samples) error {
			<-ctx.Done()
			return fmt.Errorf("the engine is reading values: %w", context.Cause(ctx))
		}}
		c := newCollector(t, Options{Watchdog: 3 * time.Second, Interval: time.Minute}, s)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		time.Sleep(4 * time.Second)
		w := httptest.NewRecorder()
		c.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", http.NoBody))
		const want = "s: down: the engine is reading values: no answer before the watchdog's deadline of 3s\nGPUs: 0 up, 0 lost, 0 not known\n"
		if w.Body.String() != want {
			t.Errorf("health says %q, want %q", w.Body, want)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestHealthTellsTheTruth: the kernel's log alone knows of no GPU whether it works, so that
// it makes nobody healthy whose other source is down.
func TestHealthTellsTheTruth(t *testing.T) {
	var err error
	up := fleet.True
	driver := &agent{"driver", func(_ context.Context, into *fleet.Samples) error {
		into.GPUs = []fleet.SampledGPU{{UUID: "GPU-a", Up: up}}
		return err
	}}
	kernel := &agent{"kernel", func(_ context.Context, into *fleet.Samples) error {
		into.GPUs = []fleet.SampledGPU{{UUID: "GPU-a"}}
		return nil
	}}
	c := newCollector(t, Options{StaleAfter: time.Minute}, driver, kernel)
	check := func(now time.Time, status int, body string) {
		t.Helper()
		_ = c.Gather(t.Context(), now)
		w := httptest.NewRecorder()
		c.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", http.NoBody))
		if w.Code != status || w.Body.String() != body {
			t.Errorf("%d %q, want %d %q", w.Code, w.Body, status, body)
		}
	}
	now := time.Now()
	check(now.Add(-2*time.Hour), 503, "driver: down: last read at "+now.Add(-2*time.Hour).UTC().Format(time.RFC3339)+
		"\nkernel: down: last read at "+now.Add(-2*time.Hour).UTC().Format(time.RFC3339)+"\nGPUs: 0 up, 0 lost, 1 not known\n")
	err = errors.New("no engine")
	check(now, 503, "driver: down: no engine\nkernel: up\nGPUs: 0 up, 0 lost, 1 not known\n")
	err, up = nil, fleet.False
	check(now, 200, "driver: up\nkernel: up\nGPUs: 0 up, 1 lost, 0 not known\n")
	up = fleet.Unknown
	check(now, 200, "driver: up\nkernel: up\nGPUs: 0 up, 0 lost, 1 not known\n")
}
