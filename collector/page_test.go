package collector

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"pgregory.net/rapid"

	"stoker.dev/stoker/collector/exporter"
	"stoker.dev/stoker/internal/fleet"
)

var update = flag.Bool("update", false, "write the golden files anew")

var t0 = time.Date(2026, 5, 4, 3, 2, 1, 250e6, time.UTC)

const sampleFile = "exporter/testdata/sample.prom"

func quiet(t testing.TB) *slog.Logger {
	t.Helper()
	return slog.New(slog.NewTextHandler(t.Output(), nil))
}

// TestGolden holds the whole page, over a node that loses a GPU.
func TestGolden(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gpu.prom")
	log := quiet(t)
	c, err := New(log, "node-7", []Source{exporter.NewFile(log, file, exporter.FileOptions{})}, Options{BootID: "6f1c"})
	if err != nil {
		t.Fatal(err)
	}
	for i, step := range []struct{ input, golden string }{
		{"testdata/node.prom", "testdata/node.golden"},
		{"testdata/node-lost.prom", "testdata/node-lost.golden"},
	} {
		text, err := os.ReadFile(step.input)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		now := t0.Add(time.Duration(i) * 5 * time.Second)
		if err := c.Gather(t.Context(), now); err != nil {
			t.Fatal(err)
		}
		got := c.AppendPage(nil, now)
		if *update {
			if err := os.WriteFile(step.golden, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(step.golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(got), "\n")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.golden, diff)
		}
		problems, err := promlint.New(bytes.NewReader(got)).Lint()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			if strings.HasPrefix(p.Metric, ours) {
				t.Errorf("%s: %s", p.Metric, p.Text)
			}
		}
	}
}

// A metric is a family as Prometheus reads it.
type metric struct {
	Type, Help string
	Series     map[string]float64
}

// readPage reads a page with Prometheus' own parser, which is not the one that the
// file source uses.
func readPage(t testing.TB, page []byte) map[string]*metric {
	t.Helper()
	return readWith(t, textparse.NewPromParser(page, labels.NewSymbolTable(), false))
}

func readWith(t testing.TB, p textparse.Parser) map[string]*metric {
	t.Helper()
	out := map[string]*metric{}
	get := func(name string) *metric {
		if out[name] == nil {
			out[name] = &metric{Series: map[string]float64{}}
		}
		return out[name]
	}
	for {
		entry, err := p.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatalf("page can't be read: %v", err)
		}
		switch entry {
		case textparse.EntryHelp:
			name, help := p.Help()
			get(string(name)).Help = string(help)
		case textparse.EntryType:
			name, typ := p.Type()
			get(string(name)).Type = string(typ)
		case textparse.EntrySeries:
			_, _, v := p.Series()
			var l labels.Labels
			p.Labels(&l)
			if name, twice := l.HasDuplicateLabelNames(); twice {
				t.Fatalf("%s has the label %s twice", l, name)
			}
			series, key := get(l.Get(model.MetricNameLabel)).Series, l.DropReserved(isMetricName).String()
			if _, twice := series[key]; twice {
				t.Fatalf("series %s is there twice", l)
			}
			series[key] = v
		}
	}
}

func isMetricName(label string) bool { return label == model.MetricNameLabel }

// TestFamiliesOfTheExporterArePassedOn compares what goes in with what comes out:
// names, types, help, labels and values, and the order of families and series.
func TestFamiliesOfTheExporterArePassedOn(t *testing.T) {
	text, err := os.ReadFile(sampleFile)
	if err != nil {
		t.Fatal(err)
	}
	log := quiet(t)
	c, err := New(log, "127.0.0.1", []Source{exporter.NewFile(log, sampleFile, exporter.FileOptions{})}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Gather(t.Context(), t0); err != nil {
		t.Fatal(err)
	}
	page := c.AppendPage(nil, t0)
	got := readPage(t, page)
	maps.DeleteFunc(got, func(name string, _ *metric) bool { return strings.HasPrefix(name, "stoker_") })
	if diff := cmp.Diff(readPage(t, text), got); diff != "" {
		t.Errorf("families (-exporter's +ours):\n%s", diff)
	}

	// Beside the digits of values even the bytes are the same.
	bytesOf := func(page string) (out []string) {
		for line := range strings.Lines(page) {
			if strings.Contains(line, "stoker_") {
				break
			}
			if i := strings.LastIndexByte(line, '}'); i >= 0 {
				line = line[:i+1]
			}
			out = append(out, line)
		}
		return out
	}
	if diff := cmp.Diff(bytesOf(string(text)), bytesOf(string(page))); diff != "" {
		t.Errorf("lines (-exporter's +ours):\n%s", diff)
	}
}

func TestSampleCountsItsXIDs(t *testing.T) {
	log := quiet(t)
	c, err := New(log, "n", []Source{exporter.NewFile(log, sampleFile, exporter.FileOptions{})}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if err := c.Gather(t.Context(), t0.Add(time.Duration(i)*time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	now := t0.Add(2 * time.Minute)
	got := readPage(t, c.AppendPage(nil, now))
	var counted, last []string
	for series, v := range got["stoker_gpu_xid_errors_total"].Series {
		if v > 0 {
			counted = append(counted, fmt.Sprint(series, " ", v))
		}
	}
	for series, v := range got["stoker_gpu_xid_last_event_timestamp_seconds"].Series {
		last = append(last, series)
		if want := float64(t0.UnixMilli()) / 1000; v != want {
			t.Errorf("%s is %v, want the first reading %v", series, v, want)
		}
	}
	total := func(gpu, bus, xid string) string {
		return `{UUID="GPU-0000000` + gpu + `-1111-2222-3333-44444444000` + gpu + `", gpu="` + gpu +
			`", node="n", pci_bus_id="00000000:` + bus + `:00.0", xid="` + xid + `"}`
	}
	slices.Sort(counted)
	want := []string{total("0", "1A", "31") + " 2", total("0", "1A", "43") + " 1", total("3", "4A", "79") + " 1"}
	if diff := cmp.Diff(want, counted); diff != "" {
		t.Errorf("counters over 0 (-want +got):\n%s", diff)
	}
	if len(last) != 3 {
		t.Errorf("%d series of last events, want 3: %v", len(last), last)
	}
	if up := got["stoker_gpu_up"].Series; len(up) != 8 {
		t.Errorf("%d series of stoker_gpu_up, want 8", len(up))
	}
}

// A script is a source that tells what it is given.
type script struct {
	name string
	tell func(into *fleet.Samples) error
}

func (s *script) Name() string { return s.name }

func (s *script) Collect(_ context.Context, into *fleet.Samples) error { return s.tell(into) }

var (
	gpuA = fleet.SampledGPU{Index: 0, UUID: "GPU-a", PCI: "0:1", Device: "nvidia0", Model: "H100", Up: fleet.True}
	gpuB = fleet.SampledGPU{Index: 1, UUID: "GPU-b", PCI: "0:2", Device: "nvidia1", Model: "H100", Up: fleet.True}
)

func tell(s fleet.Samples) func(*fleet.Samples) error {
	return func(into *fleet.Samples) error {
		s.At = into.At
		*into = s
		return nil
	}
}

func newCollector(t testing.TB, o Options, sources ...Source) *Collector {
	t.Helper()
	c, err := New(quiet(t), "n", sources, o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// families returns the page without our own families.
func families(page []byte) string {
	out := ""
	for line := range strings.Lines(string(page)) {
		if !strings.Contains(line, "stoker_") {
			out += line
		}
	}
	return out
}

func TestWhatIsNotFitForAPageIsLeftOut(t *testing.T) {
	v := func(field string, gpu int, x float64, labels ...fleet.Label) fleet.Sample {
		return fleet.Sample{Field: field, GPU: gpu, Value: x, Labels: labels}
	}
	l := func(name, value string) fleet.Label { return fleet.Label{Name: name, Value: value} }
	a := `gpu="0",UUID="GPU-a",pci_bus_id="0:1",device="nvidia0",modelName="H100",hostname="n"`
	for name, tc := range map[string]struct {
		fields  []fleet.Field
		values  []fleet.Sample
		want    string
		dropped int
	}{
		"fields that nobody has declared follow by name": {
			[]fleet.Field{{Name: "Z", Type: "counter", Help: "h"}},
			[]fleet.Sample{v("B", 0, 1), v("A", 0, 2), v("Z", 0, 3)},
			"# HELP Z h\n# TYPE Z counter\nZ{" + a + "} 3\nA{" + a + "} 2\nB{" + a + "} 1\n", 0,
		},
		"a field without samples has no head": {
			[]fleet.Field{{Name: "Z", Type: "counter", Help: "h"}}, []fleet.Sample{v("A", 0, 2)}, "A{" + a + "} 2\n", 0,
		},
		"a type that is none is left out": {
			[]fleet.Field{{Name: "A", Type: "gauge\nB 7"}}, []fleet.Sample{v("A", 0, 2)}, "A{" + a + "} 2\n", 0,
		},
		"values and help are escaped": {
			[]fleet.Field{{Name: "A", Help: "a\\b\nc\"\xff"}},
			[]fleet.Sample{v("A", 0, 1, l("pod", "a\\b\nc\"\xff"))},
			"# HELP A a\\\\b\\nc\"\uFFFD\nA{" + a + `,pod="a\\b\nc\"` + "\uFFFD" + `"} 1` + "\n", 0,
		},
		"the host's label is the node, under the name that it has": {
			nil,
			[]fleet.Sample{v("A", 0, 1, l("x", "1"), l("Hostname", "else"), l("hostname", "there"))},
			"A{" + strings.Replace(a, "hostname", "Hostname", 1) + `,x="1"} 1` + "\n", 0,
		},
		"what belongs to no GPU keeps its labels": {
			nil,
			[]fleet.Sample{v("A", fleet.NoGPU, 1, l("nvswitch", "0"), l("Hostname", "else"), l("x", "")), v("B", fleet.NoGPU, 2), v("C", fleet.NoGPU, 3, l("cpu", "1"))},
			`A{nvswitch="0",Hostname="n",x=""} 1` + "\n" + `B{hostname="n"} 2` + "\n" + `C{cpu="1",hostname="n"} 3` + "\n", 0,
		},
		"of two series with the same labels the first is shown": {
			nil,
			[]fleet.Sample{v("A", 0, 1, l("x", "1"), l("y", "2")), v("A", 0, 2, l("y", "2"), l("x", "1")), v("A", 0, 3, l("y", "1"), l("x", "2"), l("hostname", "else"))},
			"A{" + a + `,x="1",y="2"} 1` + "\nA{" + a + `,y="1",x="2"} 3` + "\n", 1,
		},
		"names that can't be names": {
			nil,
			[]fleet.Sample{v("", 0, 1), v("A b", 0, 2), v("1A", 0, 3), v("Ä", 0, 4), v("A", 0, 5, l("x y", "")), v("A", 0, 6, l("__x", "")), v("A", 0, 7, l("x", "1"), l("x", "2")), v("A:b", 0, 8)},
			"A:b{" + a + "} 8\n", 7,
		},
		"families of our own": {
			[]fleet.Field{{Name: "stoker_gpu_up", Type: "gauge"}}, []fleet.Sample{v("stoker_gpu_up", 0, 1), v("A", 0, 2)}, "A{" + a + "} 2\n", 1,
		},
		"labels of the GPU's own": {
			nil, []fleet.Sample{v("A", 0, 1, l("gpu", "7")), v("A", 0, 2)}, "A{" + a + "} 2\n", 1,
		},
		"GPUs that are not there": {
			nil, []fleet.Sample{v("A", 1, 1), v("A", -2, 2), v("A", 0, 3)}, "A{" + a + "} 3\n", 2,
		},
		"numbers of every size": {
			nil,
			[]fleet.Sample{v("A", 0, math.NaN()), v("B", 0, math.Inf(1)), v("C", 0, math.Inf(-1)), v("D", 0, 5000000007), v("E", 0, 300.007), v("F", 0, 1e-300), v("G", 0, -1e21), v("H", 0, 0)},
			"A{" + a + "} NaN\nB{" + a + "} +Inf\nC{" + a + "} -Inf\nD{" + a + "} 5000000007\nE{" + a + "} 300.007\nF{" + a + "} 1e-300\nG{" + a + "} -1e+21\nH{" + a + "} 0\n", 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCollector(t, Options{}, &script{"s", tell(fleet.Samples{GPUs: []fleet.SampledGPU{gpuA}, Fields: tc.fields, Values: tc.values})})
			if err := c.Gather(t.Context(), t0); err != nil {
				t.Fatal(err)
			}
			page := c.AppendPage(nil, t0)
			if diff := cmp.Diff(tc.want, families(page)); diff != "" {
				t.Errorf("page (-want +got):\n%s", diff)
			}
			dropped := readPage(t, page)["stoker_collector_samples_dropped_total"].Series
			if diff := cmp.Diff([]float64{float64(tc.dropped)}, slices.Collect(maps.Values(dropped))); diff != "" {
				t.Errorf("dropped (-want +got):\n%s", diff)
			}
		})
	}
}

// TestEveryPageCanBeRead holds for whatever a source tells.
func TestEveryPageCanBeRead(t *testing.T) {
	text := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"", "A", "gpu", "hostname", "x", "stoker_x", "a\"b", "\xff\n\\"}))
	rapid.Check(t, func(rt *rapid.T) {
		var s fleet.Samples
		for range rapid.IntRange(0, 4).Draw(rt, "gpus") {
			s.GPUs = append(s.GPUs, fleet.SampledGPU{
				Index: rapid.IntRange(-1, 3).Draw(rt, "index"), UUID: text.Draw(rt, "uuid"), PCI: text.Draw(rt, "pci"),
				Model: text.Draw(rt, "model"), Instance: text.Draw(rt, "instance"),
				Up: rapid.SampledFrom([]fleet.Truth{fleet.Unknown, fleet.True, fleet.False}).Draw(rt, "up"),
			})
		}
		for range rapid.IntRange(0, 3).Draw(rt, "fields") {
			s.Fields = append(s.Fields, fleet.Field{Name: text.Draw(rt, "name"), Type: text.Draw(rt, "type"), Help: text.Draw(rt, "help")})
		}
		for range rapid.IntRange(0, 12).Draw(rt, "values") {
			v := fleet.Sample{Field: text.Draw(rt, "field"), GPU: rapid.IntRange(-2, 4).Draw(rt, "gpu"), Value: rapid.Float64().Draw(rt, "value")}
			for range rapid.IntRange(0, 3).Draw(rt, "labels") {
				v.Labels = append(v.Labels, fleet.Label{Name: text.Draw(rt, "label"), Value: text.Draw(rt, "of label")})
			}
			s.Values = append(s.Values, v)
		}
		for range rapid.IntRange(0, 5).Draw(rt, "events") {
			s.Events = append(s.Events, fleet.XIDEvent{GPU: rapid.IntRange(-1, 4).Draw(rt, "of"), XID: rapid.IntRange(-1, 200).Draw(rt, "xid"), At: t0})
		}
		c, err := New(slog.New(slog.DiscardHandler), text.Draw(rt, "node")+"n", []Source{&script{"s", tell(s)}}, Options{BootID: text.Draw(rt, "boot")})
		if err != nil {
			rt.Fatal(err)
		}
		if err := c.Gather(t.Context(), t0); err != nil {
			rt.Fatal(err)
		}
		readPage(t, c.AppendPage(nil, t0))
	})
}

func TestTwoSourcesShowAGPUOnce(t *testing.T) {
	v := func(field string, gpu int, x float64, by string) fleet.Sample {
		return fleet.Sample{Field: field, GPU: gpu, Value: x, Labels: []fleet.Label{{Name: "by", Value: by}}}
	}
	first := &script{"first", tell(fleet.Samples{
		GPUs: []fleet.SampledGPU{gpuA}, Fields: []fleet.Field{{Name: "A", Type: "gauge"}},
		Values: []fleet.Sample{v("A", 0, 1, "first"), v("A", 0, 2, "first again"), v("A", fleet.NoGPU, 3, "first")},
	})}
	second := &script{"second", tell(fleet.Samples{
		GPUs:   []fleet.SampledGPU{gpuB, gpuA},
		Values: []fleet.Sample{v("B", 1, 4, "second"), v("A", 0, 5, "second"), v("A", 1, 6, "second"), v("A", fleet.NoGPU, 7, "second")},
	})}
	c := newCollector(t, Options{StaleAfter: time.Minute}, first, second)
	if err := c.Gather(t.Context(), t0); err != nil {
		t.Fatal(err)
	}
	a := `gpu="0",UUID="GPU-a",pci_bus_id="0:1",device="nvidia0",modelName="H100",hostname="n"`
	b := `gpu="1",UUID="GPU-b",pci_bus_id="0:2",device="nvidia1",modelName="H100",hostname="n"`
	want := "# TYPE A gauge\nA{" + a + `,by="first"} 1` + "\nA{" + a + `,by="first again"} 2` + "\n" + `A{by="first",hostname="n"} 3` + "\n" +
		"A{" + b + `,by="second"} 5` + "\nB{" + a + `,by="second"} 4` + "\n"
	if diff := cmp.Diff(want, families(c.AppendPage(nil, t0))); diff != "" {
		t.Errorf("both sources (-want +got):\n%s", diff)
	}

	// Once the first is too old, the second is shown whole.
	first.tell = func(*fleet.Samples) error { return errors.New("gone") }
	now := t0.Add(61 * time.Second)
	if err := c.Gather(t.Context(), now); err == nil || err.Error() != "source first: gone" {
		t.Errorf("err = %v, want that of the first source", err)
	}
	want = "A{" + b + `,by="second"} 5` + "\nA{" + a + `,by="second"} 6` + "\n" + `A{by="second",hostname="n"} 7` + "\n" + "B{" + a + `,by="second"} 4` + "\n"
	if diff := cmp.Diff(want, families(c.AppendPage(nil, now))); diff != "" {
		t.Errorf("the second source alone (-want +got):\n%s", diff)
	}
	up := readPage(t, c.AppendPage(nil, now))["stoker_collector_source_up"].Series
	wantUp := map[string]float64{
		`{node="n", source="first"}`:  0,
		`{node="n", source="second"}`: 1,
	}
	if diff := cmp.Diff(wantUp, up, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("source up (-want +got):\n%s", diff)
	}
}

// TestAValueThatIsTooOldIsUnknown: a source that has stopped makes its GPUs neither
// well nor lost, and the counters stay.
func TestAValueThatIsTooOldIsUnknown(t *testing.T) {
	s := &script{"s", tell(fleet.Samples{
		GPUs:   []fleet.SampledGPU{gpuA, {Index: 1, UUID: "GPU-b", PCI: "0:2", Up: fleet.False}, {Index: 2, UUID: "GPU-c"}},
		Values: []fleet.Sample{{Field: "A", Value: 1}}, Events: []fleet.XIDEvent{{GPU: 1, XID: 79, At: t0}},
	})}
	c := newCollector(t, Options{StaleAfter: time.Minute}, s)
	if err := c.Gather(t.Context(), t0); err != nil {
		t.Fatal(err)
	}
	s.tell = func(*fleet.Samples) error { return errors.New("gone") }
	for _, tc := range []struct {
		after time.Duration
		up    int // series of stoker_gpu_up
		shown bool
	}{{0, 2, true}, {time.Minute, 2, true}, {time.Minute + 1, 0, false}} {
		now := t0.Add(tc.after)
		if tc.after > 0 {
			if err := c.Gather(t.Context(), now); err == nil {
				t.Fatal("want the source's error")
			}
		}
		page := readPage(t, c.AppendPage(nil, now))
		up := page["stoker_gpu_up"]
		if up == nil {
			up = &metric{}
		}
		if len(up.Series) != tc.up || (page["A"] != nil) != tc.shown {
			t.Errorf("after %v: up %v, A %v; want %d series, A shown: %v", tc.after, up.Series, page["A"], tc.up, tc.shown)
		}
		if n := page["stoker_gpu_xid_errors_total"].Series[`{UUID="GPU-b", gpu="1", node="n", pci_bus_id="0:2", xid="79"}`]; n != 1 {
			t.Errorf("after %v: 79 was counted %v times, want 1", tc.after, n)
		}
	}
}

func BenchmarkCollectFile(b *testing.B) {
	c, err := New(slog.New(slog.DiscardHandler), "n", []Source{exporter.NewFile(slog.New(slog.DiscardHandler), sampleFile, exporter.FileOptions{})}, Options{})
	if err != nil {
		b.Fatal(err)
	}
	now := t0
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Second)
		if err := c.Gather(b.Context(), now); err != nil {
			b.Fatal(err)
		}
	}
}
