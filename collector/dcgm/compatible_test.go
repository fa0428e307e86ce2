//go:build cgo && linux

package dcgm_test

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"stoker.dev/stoker/collector"
	"stoker.dev/stoker/collector/dcgm"
)

func families(t *testing.T, text string) map[string]*dto.MetricFamily {
	t.Helper()
	p := expfmt.NewTextParser(model.LegacyValidation)
	f, err := p.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func rows(f *dto.MetricFamily) []string {
	var out []string
	for _, m := range f.GetMetric() {
		var labels []string
		for _, l := range m.GetLabel() {
			labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
		}
		slices.Sort(labels)
		value := m.GetGauge().GetValue() + m.GetCounter().GetValue()
		out = append(out, fmt.Sprintf("%s %v", strings.Join(labels, ","), value))
	}
	slices.Sort(out)
	return out
}

// TestThePageOfDcgmExporter: with what its engine had when our sample of dcgm-exporter's
// page was taken, the page has the same families.
func TestThePageOfDcgmExporter(t *testing.T) {
	text, err := os.ReadFile("../exporter/testdata/sample.prom")
	if err != nil {
		t.Fatal(err)
	}
	want := families(t, string(text))
	delete(want, "DCGM_EXP_CLOCK_EVENTS_COUNT") // documented as not made

	fields := append(dcgm.DefaultFields(), dcgm.Field{Name: "DCGM_EXP_XID_ERRORS_COUNT", Type: "gauge", Help: "Count of XID errors within the window"})
	ids := map[string]dcgm.Field{}
	for _, f := range fields {
		ids[f.Name] = f
	}
	n := newNode(t, dcgm.Options{Fields: fields, Compatible: true})
	for name, f := range want {
		for _, m := range f.GetMetric() {
			gpu := ""
			for _, l := range m.GetLabel() {
				if l.GetName() == "gpu" {
					gpu = l.GetValue()
				}
			}
			id := ids[name].ID
			if id == 0 || id == 230 {
				continue
			}
			value := m.GetGauge().GetValue() + m.GetCounter().GetValue()
			kind, digits := "i", strconv.FormatFloat(value, 'f', 0, 64)
			if id == 155 || id == 1001 || id == 1004 || id == 1005 {
				kind, digits = "d", strconv.FormatFloat(value, 'f', -1, 64)
			}
			n.do("set 1 %s %d %s %s", gpu, id, kind, digits)
		}
	}
	for gpu := range 8 { // what that engine could not read
		for _, id := range []int{449, 526} {
			n.do("set 1 %d %d b", gpu, id)
		}
	}
	n.do("health 0 16 10 101")
	n.do("health 3 4294967295 20 12345")
	c, err := collector.New(quiet(t), "127.0.0.1", []collector.Source{n.source}, collector.Options{})
	if err != nil {
		t.Fatal(err)
	}
	page(t, c)
	for _, x := range [][2]int{{0, 31}, {0, 31}, {0, 43}, {3, 79}} {
		n.do("xid %d %d 0 0", x[0], x[1])
		time.Sleep(time.Millisecond)
	}
	got := families(t, page(t, c))
	for name, w := range want {
		g := got[name]
		if g == nil {
			t.Errorf("%s is not there", name)
			continue
		}
		if g.GetHelp() != w.GetHelp() || g.GetType() != w.GetType() {
			t.Errorf("%s: %v %q, want %v %q", name, g.GetType(), g.GetHelp(), w.GetType(), w.GetHelp())
		}
		rw, rg := rows(w), rows(g)
		for i := range rw {
			// The number of this code is not in the headers that we have.
			rw[i] = strings.ReplaceAll(rw[i], "DCGM_FR_FALLEN_OFF_BUS", "DCGM_FR_12345")
		}
		if d := cmp.Diff(rw, rg); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
	for name := range got {
		if strings.HasPrefix(name, "DCGM_") && want[name] == nil {
			t.Errorf("%s is there and not in the sample", name)
		}
	}
}

func TestAListOfFieldsThatChanges(t *testing.T) {
	path := t.TempDir() + "/fields.csv"
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("DCGM_FI_DEV_GPU_TEMP, gauge, a\n")
	n := newNode(t, dcgm.Options{FieldsFile: path})
	has := func(temp, util bool) {
		t.Helper()
		got := n.collect()
		_, a := value(got, 0, "", "DCGM_FI_DEV_GPU_TEMP")
		_, b := value(got, 0, "", "DCGM_FI_DEV_GPU_UTIL")
		if a != temp || b != util {
			t.Errorf("temperature %v, utilisation %v; want %v and %v", a, b, temp, util)
		}
	}
	has(true, false)
	time.Sleep(20 * time.Millisecond)
	write("DCGM_FI_DEV_GPU_TEMP, gauge, a\nDCGM_FI_DEV_GPU_UTIL, gauge, b\n")
	has(true, true)
	time.Sleep(20 * time.Millisecond)
	write("DCGM_FI_DEV_GPU_TEMPER, gauge, a\n")
	has(true, true) // what can't be used changes nothing
	time.Sleep(20 * time.Millisecond)
	write("DCGM_FI_DEV_GPU_UTIL, gauge, b\n")
	has(false, true)
	n.close(n.source)
	if held := n.do("held"); held != 0 {
		t.Errorf("the engine still holds %d things", held)
	}
}
