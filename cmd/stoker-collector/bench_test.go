//go:build cgo && linux

package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/collector/dcgm"
	"stoker.dev/stoker/collector/dcgm/fake"
)

// more are fields beside those of the default list.
const more = `SLOWDOWN_TEMP SHUTDOWN_TEMP POWER_MGMT_LIMIT POWER_MGMT_LIMIT_MIN POWER_MGMT_LIMIT_MAX POWER_MGMT_LIMIT_DEF
ENFORCED_POWER_LIMIT PSTATE FAN_SPEED VIDEO_CLOCK CLOCKS_EVENT_REASONS PCIE_MAX_LINK_GEN PCIE_MAX_LINK_WIDTH PCIE_LINK_GEN
PCIE_LINK_WIDTH POWER_VIOLATION THERMAL_VIOLATION SYNC_BOOST_VIOLATION BOARD_LIMIT_VIOLATION LOW_UTIL_VIOLATION
RELIABILITY_VIOLATION FB_TOTAL ECC_CURRENT ECC_SBE_VOL_TOTAL ECC_DBE_VOL_TOTAL ECC_SBE_AGG_TOTAL ECC_DBE_AGG_TOTAL
RETIRED_SBE RETIRED_DBE RETIRED_PENDING ROW_REMAP_PENDING NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL NVLINK_REPLAY_ERROR_COUNT_TOTAL
NVLINK_RECOVERY_ERROR_COUNT_TOTAL`

// A scraper reads the page over one connection, as Prometheus does, and keeps how long
// each reading took.
type scraper struct {
	client http.Client
	url    string
	room   []byte
	size   int
	took   []time.Duration
}

func newScraper(tb testing.TB, p *process) *scraper {
	tb.Helper()
	s := &scraper{url: "http://" + p.address + "/metrics", room: make([]byte, 64<<10)}
	s.client.Transport = &http.Transport{DisableCompression: true} // what comes is left as it is
	tb.Cleanup(s.client.CloseIdleConnections)
	return s
}

// scrape reads the page once, compressed where accept says so.
func (s *scraper) scrape(tb testing.TB, accept string) {
	tb.Helper()
	r, err := http.NewRequestWithContext(tb.Context(), http.MethodGet, s.url, nil)
	if err != nil {
		tb.Fatal(err)
	}
	r.Header.Set("Accept-Encoding", accept)
	begin := time.Now()
	got, err := s.client.Do(r)
	if err != nil {
		tb.Fatal(err)
	}
	s.size = 0
	for err == nil {
		var n int
		n, err = got.Body.Read(s.room)
		s.size += n
	}
	_ = got.Body.Close()
	if !errors.Is(err, io.EOF) {
		tb.Fatal(err)
	}
	s.took = append(s.took, time.Since(begin))
}

// round scrapes n times and returns the median and the p99.
func (s *scraper) round(tb testing.TB, n int, accept string) (p50, p99 time.Duration) {
	tb.Helper()
	s.took = s.took[:0]
	for range n {
		s.scrape(tb, accept)
		time.Sleep(200 * time.Microsecond) // the program has other things to do
	}
	slices.Sort(s.took)
	return s.took[n/2], s.took[n*99/100]
}

// A faked is the program over a fake library in its process, and what that is told.
type faked struct {
	*process
	do func(format string, args ...any)
}

// overFake starts a program over 8 GPUs with a list of fields, which it reads every second.
func overFake(tb testing.TB, program, fields string, args ...string) faked {
	tb.Helper()
	list := filepath.Join(tb.TempDir(), "fields.csv")
	writePage(tb, list, fields)
	lib := fake.New(tb)
	pipe, do := lib.Pipe(tb)
	cmd := exec.Command(program, append([]string{"--source", "dcgm", "--dcgm-library", lib.Path, "-f", list, "--interval", "1s", "--node", "n"}, args...)...)
	cmd.Env = append(os.Environ(), "STOKER_COLLECTOR_MAIN=1", "FAKE_DCGM_CONTROL="+pipe)
	p := faked{launch(tb, cmd), do}
	p.await(tb, "DCGM_FI_DEV_GPU_TEMP{")
	return p
}

// built returns the program itself, without a race detector or a test in it.
func built(tb testing.TB) string {
	tb.Helper()
	program := filepath.Join(tb.TempDir(), "stoker-collector")
	if out, err := exec.CommandContext(tb.Context(), "go", "build", "-trimpath", "-o", program, ".").CombinedOutput(); err != nil {
		tb.Fatalf("build: %v\n%s", err, out)
	}
	return program
}

// list returns the first 26 of the default fields, and up to 34 more.
func list(extra int) string {
	out := ""
	for _, f := range dcgm.DefaultFields()[:26] {
		out += fmt.Sprintf("%s, %s, %q\n", f.Name, f.Type, f.Help)
	}
	for _, name := range strings.Fields(more)[:extra] {
		out += "DCGM_FI_DEV_" + name + ", gauge, x\n"
	}
	return out
}

// resident returns what the program holds in memory, and how much of that it has
// allocated itself, in MiB. The rest is the program's text and that of libraries.
func (p *process) resident(tb testing.TB) (all, anonymous float64) {
	tb.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Process.Pid))
	if err != nil {
		tb.Fatal(err)
	}
	find := func(name string) float64 {
		m := regexp.MustCompile(`(?m)^` + name + `:\s+([0-9]+) kB$`).FindSubmatch(text)
		if m == nil {
			tb.Fatalf("no %s in\n%s", name, text)
		}
		kb, _ := strconv.Atoi(string(m[1])) // it is digits
		return float64(kb) / 1024
	}
	return find("VmRSS"), find("RssAnon")
}

// maxResident is how much memory the program may take, with the fake library's.
const maxResident = 35 // MiB

// maxHung is how long a scrape may take while the engine hangs, at the 99th percentile.
const maxHung = 5 * time.Millisecond

// BenchmarkProgram runs the program over 8 GPUs of the fake library, which it reads every
// second, and says what that costs, also while the engine hangs. The library's own
// engine is in it.
func BenchmarkProgram(b *testing.B) {
	program := built(b)
	for _, extra := range []int{0, 34} {
		b.Run(fmt.Sprintf("fields=%d", 26+extra), func(b *testing.B) {
			p := overFake(b, program, list(extra))
			s := newScraper(b, p.process)
			const seconds = 15
			time.Sleep(time.Second)
			begin, before := time.Now(), number(b, get(b, s.url), "process_cpu_seconds_total")
			for range seconds {
				time.Sleep(time.Second)
				s.scrape(b, "gzip")
			}
			b.ReportMetric(float64(s.size), "gzip-bytes")
			last := get(b, s.url)
			b.ReportMetric((number(b, last, "process_cpu_seconds_total")-before)/time.Since(begin).Seconds()*1000, "cpu-ms/s")
			b.ReportMetric(float64(len(last)), "page-bytes")
			measure := func(state string, limit time.Duration) {
				for name, accept := range map[string]string{"plain": "identity", "gzip": "gzip"} {
					p50, p99 := s.round(b, 2000, accept)
					if p99 > limit {
						b.Errorf("%s, %s: p99 of a scrape %v, the limit is %v", state, name, p99, limit)
					}
					b.ReportMetric(float64(p50.Microseconds()), state+"-"+name+"-p50-us")
					b.ReportMetric(float64(p99.Microseconds()), state+"-"+name+"-p99-us")
				}
			}
			measure("idle", time.Second)
			all, anonymous := p.resident(b)
			b.ReportMetric(all, "rss-MiB")
			b.ReportMetric(anonymous, "anon-MiB")
			if all > maxResident {
				b.Errorf("%.1f MiB resident, the limit is %d", all, maxResident)
			}
			p.do("hang 600000")
			time.Sleep(2 * time.Second)
			measure("hung", maxHung)
			b.ReportMetric(0, "ns/op")
		})
	}
}

// TestAScrapeOverTheNetworkWhileTheEngineHangs holds that none waits for the engine; how
// long one takes is the benchmark's to say.
func TestAScrapeOverTheNetworkWhileTheEngineHangs(t *testing.T) {
	p := overFake(t, os.Args[0], list(34), "--watchdog", "500ms", "--stale-after", "1h")
	s := newScraper(t, p.process)
	p.do("hang 600000")
	p.await(t, `stoker_collector_source_up{node="n",source="dcgm"} 0`)
	for _, accept := range []string{"gzip", "identity"} {
		p50, p99 := s.round(t, 200, accept)
		t.Logf("%s: %d bytes, median %v, p99 %v", accept, s.size, p50, p99)
		if p50 > 250*time.Millisecond {
			t.Errorf("%s: half of the scrapes took over %v", accept, p50)
		}
	}
	p.do("wake")
	p.await(t, `stoker_collector_source_up{node="n",source="dcgm"} 1`)
}

func number(b *testing.B, page, name string) float64 {
	b.Helper()
	m := regexp.MustCompile(`(?m)^` + name + ` (.+)$`).FindStringSubmatch(page)
	if m == nil {
		b.Fatalf("the page has no %s", name)
	}
	x, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		b.Fatal(err)
	}
	return x
}
