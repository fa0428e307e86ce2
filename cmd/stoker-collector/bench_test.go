//go:build cgo && linux

package main

import (
	"fmt"
	"io"
	"net/http"
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

// BenchmarkProgram runs the whole program over 8 GPUs of the fake library, which reads and
// is scraped every second, and says what that costs. The library's own engine is in it.
func BenchmarkProgram(b *testing.B) {
	list := ""
	for _, f := range dcgm.DefaultFields()[:26] {
		list += fmt.Sprintf("%s, %s, %q\n", f.Name, f.Type, f.Help)
	}
	all := list
	for _, name := range strings.Fields(more) {
		all += "DCGM_FI_DEV_" + name + ", gauge, x\n"
	}
	for _, fields := range []string{list, all} {
		b.Run(fmt.Sprintf("fields=%d", strings.Count(fields, "\n")), func(b *testing.B) {
			lib := fake.New(b)
			path := filepath.Join(b.TempDir(), "fields.csv")
			writePage(b, path, fields)
			p := start(b, "--source", "dcgm", "--dcgm-library", lib.Path, "-f", path, "--interval", "1s", "--node", "n")
			p.await(b, "DCGM_FI_DEV_GPU_TEMP{")
			client := &http.Client{}
			defer client.CloseIdleConnections()
			var took []time.Duration
			size := 0
			scrape := func() string {
				begin := time.Now()
				r, err := client.Get("http://" + p.address + "/metrics")
				if err != nil {
					b.Fatal(err)
				}
				body, err := io.ReadAll(r.Body)
				_ = r.Body.Close()
				if err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(begin))
				size = len(body)
				return string(body)
			}
			const seconds = 15
			time.Sleep(time.Second)
			begin, before := time.Now(), number(b, scrape(), "process_cpu_seconds_total")
			for range seconds {
				time.Sleep(time.Second)
				scrape()
			}
			last := scrape()
			b.ReportMetric((number(b, last, "process_cpu_seconds_total")-before)/time.Since(begin).Seconds()*1000, "cpu-ms/s")
			b.ReportMetric(number(b, last, "process_resident_memory_bytes")/(1<<20), "rss-MiB")
			b.ReportMetric(float64(size), "page-bytes")
			for range 2000 {
				scrape()
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
			if rss := number(b, last, "process_resident_memory_bytes") / (1 << 20); rss > 35 {
				b.Errorf("%.1f MiB resident, the limit is 35", rss)
			}
		})
	}
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
