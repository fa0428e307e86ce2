package collector

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"stoker.dev/stoker/collector/exporter"
	"stoker.dev/stoker/internal/fleet"
)

// A sink takes an answer and keeps nothing.
type sink struct {
	header http.Header
	n      int
}

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) WriteHeader(int)             {}
func (s *sink) Write(p []byte) (int, error) { s.n = len(p); return len(p), nil }

func scrapes(accept string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	if accept != "" {
		r.Header.Set("Accept-Encoding", accept)
	}
	return r
}

// sampled returns a collector that has read dcgm-exporter's own page.
func sampled(tb testing.TB, o Options) *Collector {
	tb.Helper()
	log := slog.New(slog.DiscardHandler)
	c, err := New(log, "n", []Source{exporter.NewFile(log, sampleFile, exporter.FileOptions{})}, o)
	if err != nil {
		tb.Fatal(err)
	}
	if err := c.Gather(tb.Context(), t0); err != nil {
		tb.Fatal(err)
	}
	return c
}

func TestScrapeAllocatesNothing(t *testing.T) {
	c := sampled(t, Options{})
	page := c.AppendPage(nil, t0)
	if n := testing.AllocsPerRun(100, func() { page = c.AppendPage(page[:0], t0) }); n != 0 {
		t.Errorf("%v allocations for a page, want 0", n)
	}
	for _, accept := range []string{"", "gzip"} {
		for _, kind := range []string{"text/plain", ofPrometheus} {
			w, r := &sink{header: http.Header{}}, scrapes(accept)
			r.Header.Set("Accept", kind)
			c.serveMetrics(w, r)
			if n := testing.AllocsPerRun(100, func() { c.serveMetrics(w, r) }); n >= 1 {
				t.Errorf("%v allocations for a scrape that accepts %q and %q, want 0", n, accept, kind)
			}
			if w.n == 0 {
				t.Errorf("a scrape that accepts %q and %q got nothing", accept, kind)
			}
		}
	}
}

// TestAPageIsWrittenOnceForEachChange, however many scrape it, and what the program tells
// of itself is not older than a second.
func TestAPageIsWrittenOnceForEachChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		written := 0
		c := newCollector(t, Options{StaleAfter: time.Hour, Own: func(dst []byte) []byte {
			written++
			return fmt.Appendf(dst, "own %d\n", written)
		}}, &agent{"s", healthy})
		scrape := func() string {
			w := httptest.NewRecorder()
			c.Handler().ServeHTTP(w, scrapes(""))
			return w.Body.String()
		}
		first := scrape()
		for range 50 {
			if scrape() != first {
				t.Error("the page has changed by itself")
			}
		}
		if written != 1 {
			t.Errorf("written %d times for 51 scrapes, want once", written)
		}
		if err := c.Gather(t.Context(), time.Now()); err != nil {
			t.Fatal(err)
		}
		if got := scrape(); written != 2 || !strings.HasPrefix(got, "A{") {
			t.Errorf("after a reading it was written %d times, want twice:\n%s", written, got)
		}
		time.Sleep(pageFor)
		scrape()
		if written != 2 {
			t.Errorf("after %v it was written %d times, want twice", pageFor, written)
		}
		time.Sleep(time.Millisecond)
		if got := scrape(); written != 3 || !strings.Contains(got, "\nown 3\n") {
			t.Errorf("after more than %v it was written %d times, want 3 times:\n%s", pageFor, written, got)
		}
	})
}

func TestACompressedPage(t *testing.T) {
	c := sampled(t, Options{})
	want := string(c.AppendPage(nil, time.Now()))
	for accept, zipped := range map[string]bool{
		"": false, "identity": false, "gzip": true, "GZIP": true, "deflate, gzip;q=1.0, *;q=0.5": true, "br,gzip": true,
		"gzip;q=0": false, "gzip; q=0.000": false, "gzip;q=0.5": true, "xgzip": false,
	} {
		for range 2 { // the second is of the one before
			w := httptest.NewRecorder()
			c.Handler().ServeHTTP(w, scrapes(accept))
			body := w.Body.Bytes()
			if got := w.Header().Get("Content-Length"); got != fmt.Sprint(len(body)) {
				t.Errorf("%q: length %s of %d", accept, got, len(body))
			}
			if w.Header().Get("Vary") != "Accept, Accept-Encoding" || (w.Header().Get("Content-Encoding") == "gzip") != zipped {
				t.Errorf("%q: headers %v, want compressed: %v", accept, w.Header(), zipped)
			}
			if zipped {
				z, err := gzip.NewReader(bytes.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				if len(body) > len(want)/8 {
					t.Errorf("%d bytes of %d", len(body), len(want))
				}
				if body, err = io.ReadAll(z); err != nil {
					t.Fatal(err)
				}
			}
			if string(body) != want {
				t.Errorf("%q: another page", accept)
			}
		}
	}
}

// TestNobodyReadsAPageThatIsWritten: many scrape, at every speed and in both forms, while
// the page changes; each gets one whole page.
func TestNobodyReadsAPageThatIsWritten(t *testing.T) {
	n := 0
	c := newCollector(t, Options{StaleAfter: time.Hour}, &agent{"s", func(_ context.Context, into *fleet.Samples) error {
		n++
		into.GPUs = []fleet.SampledGPU{gpuA}
		for i := range 200 {
			into.Values = append(into.Values, fleet.Sample{Field: fmt.Sprintf("A%d", i), Value: float64(n)})
		}
		return nil
	}})
	if err := c.Gather(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for i := range 6 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				page, form := c.take(time.Now(), i%3 == 0, i%2 == 0)
				text, read := bytes.Clone(form.text.bytes), &form.text
				if i%2 == 0 {
					read = &form.compressed
				}
				was := bytes.Clone(read.bytes)
				time.Sleep(time.Duration(i) * 100 * time.Microsecond)
				if !bytes.Equal(was, read.bytes) {
					t.Error("a page was changed while it was read")
				}
				c.giveBack(page)
				var values []string
				for line := range strings.Lines(string(text)) {
					if strings.HasPrefix(line, "A") {
						_, v, _ := strings.Cut(line, "} ")
						values = append(values, v)
					}
				}
				if slices.Sort(values); len(values) != 200 || values[0] != values[199] {
					t.Errorf("%d values, from %q to %q", len(values), values[0], values[len(values)-1])
				}
			}
		})
	}
	for range 300 {
		if err := c.Gather(t.Context(), time.Now()); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	wg.Wait()
	if len(c.pages.spare) > maxSpare {
		t.Errorf("%d pages are kept", len(c.pages.spare))
	}
}

func BenchmarkScrape(b *testing.B) {
	c := sampled(b, Options{})
	b.Run("written", func(b *testing.B) { // what a change costs
		var page []byte
		b.ReportAllocs()
		for b.Loop() {
			page = c.AppendPage(page[:0], t0)
		}
		b.ReportMetric(float64(len(page)), "bytes/page")
	})
	b.Run("compressed", func(b *testing.B) {
		r, f := c.take(t0, false, true)
		defer c.giveBack(r)
		b.ReportAllocs()
		for b.Loop() {
			f.compressed.empty()
			c.pages.compress(f)
		}
		b.ReportMetric(float64(len(f.compressed.bytes)), "bytes/page")
	})
	for name, accept := range map[string]string{"served": "", "served-gzip": "gzip"} {
		b.Run(name, func(b *testing.B) {
			w, r := &sink{header: http.Header{}}, scrapes(accept)
			b.ReportAllocs()
			for b.Loop() {
				c.serveMetrics(w, r)
			}
			b.ReportMetric(float64(w.n), "bytes/page")
		})
	}
}
