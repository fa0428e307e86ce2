//go:build cgo && linux

package app

import (
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/labels"

	"stoker.dev/stoker/collector"
	"stoker.dev/stoker/collector/dcgm"
	"stoker.dev/stoker/collector/dcgm/fake"
	"stoker.dev/stoker/internal/series"
)

// A panel is one query of a dashboard, or of one of its variables, with all that is chosen
// in these, and what it must answer: a value for each series, by its labels.
type panel struct {
	name  string
	query string
	want  map[string]float64
}

// instancePanels are what NVIDIA's dashboard 12239 asks in its first edition, which tells
// nodes apart by the address that was scraped.
var instancePanels = []panel{
	{"instance", `count by (instance) (DCGM_FI_DEV_GPU_TEMP)`, map[string]float64{`instance="a:9400"`: 2, `instance="b:9400"`: 2}},
	{"gpu", `count by (gpu) (DCGM_FI_DEV_GPU_TEMP)`, map[string]float64{`gpu="0"`: 2, `gpu="1"`: 2}},
	{"temperature", `avg by (instance, gpu) (DCGM_FI_DEV_GPU_TEMP{instance=~"a:9400|b:9400",gpu=~"0|1"})`, each(40, 41, 50, 51)},
	{"average temperature", `avg(DCGM_FI_DEV_GPU_TEMP{instance=~"a:9400|b:9400",gpu=~"0|1"})`, map[string]float64{``: 45.5}},
	{"average temperature of one GPU", `avg(DCGM_FI_DEV_GPU_TEMP{instance=~"b:9400",gpu=~"1"})`, map[string]float64{``: 51}},
	{"power", `avg by (instance, gpu) (DCGM_FI_DEV_POWER_USAGE{instance=~"a:9400|b:9400",gpu=~"0|1"})`, each(100, 101, 200, 201)},
	{"all power", `sum(DCGM_FI_DEV_POWER_USAGE{instance=~"a:9400|b:9400",gpu=~"0|1"})`, map[string]float64{``: 602}},
	{"clocks", `avg by (instance, gpu) (DCGM_FI_DEV_SM_CLOCK{instance=~"a:9400|b:9400",gpu=~"0|1"} * 1000000)`, each(1000e6, 1001e6, 1100e6, 1101e6)},
	{"utilization", `avg by (instance, gpu) (DCGM_FI_DEV_GPU_UTIL{instance=~"a:9400|b:9400",gpu=~"0|1"})`, each(60, 61, 70, 71)},
	{"memory", `avg by (instance, gpu) (DCGM_FI_DEV_FB_USED{instance=~"a:9400|b:9400",gpu=~"0|1"})`, each(1000, 1001, 2000, 600)},
	{"tensor cores", `avg by (instance, gpu) (DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{instance=~"a:9400|b:9400",gpu=~"0|1"})`, each(0.1, 0.11, 0.2, 0.06)},
}

// each is what a query answers that tells nodes and GPUs apart.
func each(v ...float64) map[string]float64 {
	out := map[string]float64{}
	for i, x := range v {
		out[fmt.Sprintf(`gpu="%d", instance="%c:9400"`, i%2, 'a'+i/2)] = x
	}
	return out
}

// hostPanels are what it asks in its second edition, which knows names of nodes and MIG
// instances: of a GPU in parts the parts are shown where they have a field.
var hostPanels = []panel{
	{"Hostname", `count by (Hostname) (group by (Hostname, gpu) (DCGM_FI_DEV_FB_FREE))`, map[string]float64{`Hostname="node-a"`: 2, `Hostname="node-b"`: 2}},
	{"gpu", `count by (gpu) (group by (Hostname, gpu) (DCGM_FI_DEV_FB_FREE{Hostname=~"node-a|node-b"}))`, map[string]float64{`gpu="0"`: 2, `gpu="1"`: 2}},
	{"temperature", `max by (Hostname, gpu, uuid) (DCGM_FI_DEV_GPU_TEMP{Hostname=~"node-a|node-b",gpu=~"0|1"})`, host(40, 41, 50, 51)},
	{"average temperature", `avg(DCGM_FI_DEV_GPU_TEMP{Hostname=~"node-a",gpu=~"0|1"})`, map[string]float64{``: 40.5}},
	{"power", `max by (Hostname, gpu, uuid) (DCGM_FI_DEV_POWER_USAGE{Hostname=~"node-a|node-b",gpu=~"0|1"})`, host(100, 101, 200, 201)},
	{"all power", `sum(max by (gpu) (DCGM_FI_DEV_POWER_USAGE{Hostname=~"node-a|node-b",gpu=~"0|1"}))`, map[string]float64{``: 401}},
	{"clocks", `max by (Hostname, UUID, gpu) (DCGM_FI_DEV_SM_CLOCK{Hostname=~"node-b",gpu=~"0|1"} * 1000000)`, map[string]float64{
		`Hostname="node-b", UUID="GPU-00000000-1111-2222-3333-444444440000", gpu="0"`: 1100e6,
		`Hostname="node-b", UUID="GPU-00000001-1111-2222-3333-444444440001", gpu="1"`: 1101e6,
	}},
	{"utilization", `max by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE) (DCGM_FI_PROF_GR_ENGINE_ACTIVE{Hostname=~"node-a|node-b",gpu=~"0|1"})`, parts(host(0.5, 0.51, 0.6), 0.3, 0.9)},
	{"tensor cores", `max by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE) (DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{Hostname=~"node-a|node-b",gpu=~"0|1"})`, parts(host(0.1, 0.11, 0.2), 0.03, 0.09)},
	{"memory", `max by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE) (DCGM_FI_DEV_FB_USED{Hostname=~"node-a|node-b",gpu=~"0|1"})`, parts(host(1000, 1001, 2000), 300, 900)},
}

func host(v ...float64) map[string]float64 {
	out := map[string]float64{}
	for i, x := range v {
		out[fmt.Sprintf(`Hostname="node-%c", gpu="%d"`, 'a'+i/2, i%2)] = x
	}
	return out
}

// parts adds the two MIG instances of the second node's second GPU.
func parts(all map[string]float64, first, second float64) map[string]float64 {
	all[`GPU_I_ID="7", GPU_I_PROFILE="3g.30gb", Hostname="node-b", gpu="1"`] = first
	all[`GPU_I_ID="8", GPU_I_PROFILE="4g.40gb", Hostname="node-b", gpu="1"`] = second
	return all
}

// dashboardPages are the pages of two nodes with two GPUs each, one of them in two parts.
func dashboardPages(t *testing.T, spell collector.Spelling) (pages []string, at time.Time) {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	at = time.Now()
	for n, node := range []string{"node-a", "node-b"} {
		lib := fake.New(t)
		lib.Do(t, "reset 2")
		if n == 1 {
			lib.Do(t, "mig 1 70 7 3")
			lib.Do(t, "mig 1 80 8 4")
		}
		for _, f := range []struct {
			id          int
			kind        string
			first, step float64 // of the first node's first GPU, and from node to node
			next        float64 // from GPU to GPU
			parts       [2]float64
		}{
			{150, "i", 40, 10, 1, [2]float64{}},
			{155, "d", 100, 100, 1, [2]float64{}},
			{100, "i", 1000, 100, 1, [2]float64{}},
			{203, "i", 60, 10, 1, [2]float64{}},
			{252, "i", 1000, 1000, 1, [2]float64{300, 900}},
			{1001, "d", 0.5, 0.1, 0.01, [2]float64{0.3, 0.9}},
			{1004, "d", 0.1, 0.1, 0.01, [2]float64{0.03, 0.09}},
		} {
			for gpu := range 2 {
				lib.Do(t, "set 1 %d %d %s %.4g", gpu, f.id, f.kind, f.first+float64(n)*f.step+float64(gpu)*f.next)
			}
			for i, v := range f.parts {
				lib.Do(t, "set 4 %d %d %s %.4g", 70+10*i, f.id, f.kind, v)
			}
		}
		source := dcgm.New(log, dcgm.Options{Libraries: []string{lib.Path}, Addresses: []string{"localhost:5555"}})
		c, err := collector.New(log, node, []collector.Source{source}, collector.Options{Spelling: spell})
		if err != nil {
			t.Fatal(err)
		}
		err = c.Gather(t.Context(), at)
		if closed := source.Close(t.Context()); err != nil || closed != nil {
			t.Fatal(err, closed)
		}
		pages = append(pages, string(c.AppendPage(nil, at)))
	}
	return pages, at
}

// wrong returns of each panel that is not as it should be what is wrong with it.
func wrong(t *testing.T, pages []string, at time.Time, panels []panel) map[string]string {
	t.Helper()
	db, err := series.Open(t.TempDir(), series.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	for i, page := range pages {
		target, err := db.Target(labels.Label{Name: "job", Value: "gpu"}, labels.Label{Name: "instance", Value: fmt.Sprintf("%c:9400", 'a'+i)})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := target.Append(t.Context(), at, []byte(page)); err != nil {
			t.Fatal(err)
		}
	}
	out := map[string]string{}
	for _, p := range panels {
		answer, err := db.Query(t.Context(), p.query, at)
		if err != nil {
			t.Fatalf("%s: %v", p.name, err)
		}
		got := map[string]float64{}
		for _, s := range answer {
			got[strings.Trim(s.Metric.String(), "{}")] = s.F
		}
		if d := cmp.Diff(p.want, got, cmp.Comparer(func(x, y float64) bool { return x-y < 1e-9 && y-x < 1e-9 })); d != "" {
			out[p.name] = d
		}
	}
	return out
}

// TestNVIDIAsDashboard: every query of both editions answers with the series and values that
// it should, over pages of the collector. Without any of the families or labels that they use
// this test would fail.
func TestNVIDIAsDashboard(t *testing.T) {
	for name, tc := range map[string]struct {
		spell  collector.Spelling
		panels []panel
		labels []string
	}{
		"by address":      {collector.Spelling{}, instancePanels, []string{"gpu"}},
		"by host and MIG": {collector.Spelling{Host: "Hostname"}, hostPanels, []string{"gpu", "Hostname", "UUID", "GPU_I_ID", "GPU_I_PROFILE"}},
	} {
		t.Run(name, func(t *testing.T) {
			pages, at := dashboardPages(t, tc.spell)
			for panel, d := range wrong(t, pages, at, tc.panels) {
				t.Errorf("%s (-want +got):\n%s", panel, d)
			}
			without := func(what string, cut func(page string) string) {
				var less []string
				for _, page := range pages {
					less = append(less, cut(page))
				}
				if slices.Equal(less, pages) {
					t.Errorf("no page has %s", what)
				}
				if len(wrong(t, less, at, tc.panels)) == 0 {
					t.Errorf("without %s all queries answer as before", what)
				}
			}
			var families []string
			for _, p := range tc.panels {
				families = append(families, regexp.MustCompile(`DCGM_[A-Z_]+`).FindAllString(p.query, -1)...)
			}
			slices.Sort(families)
			for _, f := range slices.Compact(families) {
				line := regexp.MustCompile(`(?m)^` + f + `\{.*\n`)
				without(f, func(page string) string { return line.ReplaceAllString(page, "") })
			}
			for _, l := range tc.labels {
				label := regexp.MustCompile(`([{,])` + l + `="`)
				without(l, func(page string) string { return label.ReplaceAllString(page, `${1}x`+l+`="`) })
			}
		})
	}
}
