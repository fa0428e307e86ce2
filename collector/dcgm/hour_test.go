//go:build cgo && linux

package dcgm_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"stoker.dev/stoker/collector"
	"stoker.dev/stoker/collector/dcgm"
	"stoker.dev/stoker/collector/dcgm/fake"
)

// held is what a process has at one time.
type held struct {
	heap, native, resident int // bytes
	goroutines, files      int
}

var residentPages = regexp.MustCompile(`^[0-9]+ ([0-9]+) `)

func holds(t *testing.T) held {
	t.Helper()
	runtime.GC()
	runtime.GC() // what the first one has found to be finalized
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	pages := residentPages.FindSubmatch(statm)
	if pages == nil {
		t.Fatalf("/proc/self/statm: %q", statm)
	}
	n, _ := strconv.Atoi(string(pages[1])) // it is digits
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return held{int(m.HeapAlloc), fake.Allocated(), n * os.Getpagesize(), runtime.NumGoroutine(), len(files)}
}

func (h held) String() string {
	return fmt.Sprintf("heap %d KiB, native %d KiB, resident %.1f MiB, %d goroutines, %d files",
		h.heap>>10, h.native>>10, float64(h.resident)/(1<<20), h.goroutines, h.files)
}

// A nobody takes an answer and keeps nothing.
type nobody struct{ header http.Header }

func (n *nobody) Header() http.Header         { return n.header }
func (n *nobody) WriteHeader(int)             {}
func (n *nobody) Write(p []byte) (int, error) { return len(p), nil }

// TestAnHourOfPolls reads every second of an hour, on clocks that are set forward, and each
// is scraped. In each minute a GPU is lost and comes back, MIG instances come and go, the
// list of fields changes, connections are cut, the engine forgets, dies, hangs and lets the
// driver go, and there are XIDs. After a sixth of it nothing grows any more.
func TestAnHourOfPolls(t *testing.T) {
	list := filepath.Join(t.TempDir(), "fields.csv")
	write := func(fields string, at time.Time) {
		if err := os.WriteFile(list, []byte(fields), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(list, at, at); err != nil { // the list is looked at by its time
			t.Fatal(err)
		}
	}
	const few = "DCGM_FI_DEV_GPU_TEMP, gauge, x\nDCGM_FI_DRIVER_VERSION, label, x\nDCGM_EXP_GPU_HEALTH_STATUS, gauge, x\nDCGM_EXP_XID_ERRORS_COUNT, gauge, x\n"
	many := few
	for _, f := range dcgm.DefaultFields()[:20] {
		if f.Name != "DCGM_FI_DEV_GPU_TEMP" {
			many += f.Name + ", gauge, x\n"
		}
	}
	now := time.Now()
	write(many, now)
	n := newNode(t, dcgm.Options{FieldsFile: list})
	c := newCollector(t, collector.Options{State: filepath.Join(t.TempDir(), "state"), BootID: "b"}, n.source)
	handler, w := c.Handler(), &nobody{http.Header{}}
	scrape := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	scrape.Header.Set("Accept-Encoding", "gzip")

	codes := []int{31, 43, 45, 48, 63, 74, 94, 119 /* of the driver alone */, 999}
	failed := 0
	poll := func(i int) {
		minute, s := i/60, i%60
		limit := 10 * time.Second
		switch s {
		case 3:
			n.do("lose %d", minute%8)
		case 8:
			n.do("return %d", minute%8)
		case 12:
			for k := range 7 {
				n.do("mig 2 %d %d 1", 100+k, k)
			}
			n.do("xid-of 4 103 31 0 0")
		case 18:
			n.do("mig-none")
		case 22:
			n.do("cut")
		case 26:
			write(few, now)
		case 30:
			n.do("forget")
			write(many, now)
		case 34:
			n.do("kernel %d 79 0", minute%8)
			n.do("die")
		case 38:
			n.do("start")
		case 42:
			n.do("hang 3")
			limit = time.Millisecond
		case 46:
			n.do("detach")
		case 48:
			n.do("attach")
		case 52:
			n.do("health %d 16 20 101", minute%8)
		case 56:
			n.do("health-none")
		}
		if s%7 == 1 {
			n.do("xid %d %d %d 0", i%8, codes[i%len(codes)], 1000*(i%900))
		}
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		dead := s >= 34 && s < 38
		var second sync.WaitGroup
		second.Go(func() {
			if dead { // the library looks for an engine for the whole second
				time.Sleep(2 * time.Millisecond)
				n.do("forward 1000")
			}
		})
		if c.Gather(ctx, now) != nil {
			failed++
		}
		second.Wait()
		handler.ServeHTTP(w, scrape)
		if !dead {
			n.do("forward 1000")
		}
		now = now.Add(time.Second)
	}
	var first, last held
	for i := range hour {
		poll(i)
		if part := hour / 6; (i+1)%part == 0 {
			last = holds(t)
			t.Logf("after %d polls: %v", i+1, last)
			if i+1 == part {
				first = last
			}
		}
	}
	for _, x := range []struct {
		what            string
		was, is, growth int
	}{
		{"bytes of Go's heap", first.heap, last.heap, 512 << 10},
		{"bytes of C's", first.native, last.native, 256 << 10},
		{"resident bytes", first.resident, last.resident, 16 << 20},
		{"goroutines", first.goroutines, last.goroutines, 0},
		{"open files", first.files, last.files, 0},
	} {
		if x.is > x.was+x.growth {
			t.Errorf("%d %s at the end, %d after a sixth of it", x.is, x.what, x.was)
		}
	}
	if failed < hour/60 || failed > hour/4 {
		t.Errorf("%d polls failed: that is not the trouble that was made", failed)
	}
	got := page(t, c)
	wantIn(t, got, `stoker_collector_source_up{node="n",source="dcgm"} 1`, `DCGM_FI_DEV_GPU_TEMP{gpu="7"`)
}
