package collector

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"

	"stoker.dev/stoker/internal/fleet"
)

// ofPrometheus is what Prometheus 3 accepts.
const ofPrometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5," +
	"text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"

// TestOpenMetrics: whoever asks for it gets the same series with the same values, as
// Prometheus reads them; a counter is one where its name says so.
func TestOpenMetrics(t *testing.T) {
	s := &script{"s", tell(fleet.Samples{
		GPUs:   []fleet.SampledGPU{gpuA, gpuB},
		Events: []fleet.XIDEvent{{GPU: 1, XID: 79, At: t0}},
		Fields: []fleet.Field{
			{Name: "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", Type: "counter", Help: `with "quotes", a \ and` + "\nlines"},
			{Name: "DCGM_FI_DEV_GPU_TEMP", Type: "gauge", Help: "x"},
			{Name: "made_total", Type: "counter"},
			{Name: "odd_total", Help: "of no type"},
			{Name: "plain", Type: "untyped", Help: "x"},
		},
		Values: []fleet.Sample{
			{Field: "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", GPU: 0, Value: 7},
			{Field: "DCGM_FI_DEV_GPU_TEMP", GPU: 1, Value: 41.5, Labels: []fleet.Label{{Name: "l", Value: "a\\b\"c\nd"}}},
			{Field: "made_total", GPU: 1, Value: 3},
			{Field: "odd_total", GPU: 1, Value: 3},
			{Field: "plain", GPU: 1, Value: 3},
		},
	})}
	c := newCollector(t, Options{StaleAfter: time.Hour}, s)
	if err := c.Gather(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]*Collector{"our own": c, "of dcgm-exporter": sampled(t, Options{})} {
		get := func(accept string) (kind, body string) {
			r := scrapes("")
			r.Header.Set("Accept", accept)
			w := httptest.NewRecorder()
			c.Handler().ServeHTTP(w, r)
			return w.Header().Get("Content-Type"), w.Body.String()
		}
		kind, open := get(ofPrometheus)
		_, text := get("text/plain")
		if kind != openMetricsType || !strings.HasSuffix(open, "\n# EOF\n") || strings.Contains(text, "# EOF") {
			t.Fatalf("%s: %s ends with %q", name, kind, open[max(0, len(open)-20):])
		}
		p, err := textparse.New([]byte(open), kind, labels.NewSymbolTable(), textparse.ParserOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got, want := readWith(t, p), readPage(t, []byte(text))
		for family, w := range want {
			if g := got[family]; len(w.Series) > 0 && (g == nil || cmp.Diff(w.Series, g.Series) != "") {
				t.Errorf("%s: series of %s differ: %v, want %v", name, family, g, w.Series)
			}
			of, isTotal := strings.CutSuffix(family, "_total")
			switch w.Type {
			case "counter":
				if isTotal && (got[of] == nil || got[of].Type != "counter" || got[of].Help != w.Help) {
					t.Errorf("%s: %s is %+v, want a counter with the help %q", name, of, got[of], w.Help)
				}
				if !isTotal && got[family].Type != "unknown" {
					t.Errorf("%s: %s is a %s, want unknown", name, family, got[family].Type)
				}
			case "gauge":
				if got[family].Type != "gauge" || got[family].Help != w.Help {
					t.Errorf("%s: %s is %+v, want a gauge with the help %q", name, family, got[family], w.Help)
				}
			}
		}
		count := func(all map[string]*metric) (n int) {
			for _, m := range all {
				n += len(m.Series)
			}
			return n
		}
		if count(got) != count(want) {
			t.Errorf("%s: %d series, want %d", name, count(got), count(want))
		}
	}
}

func TestWhoGetsOpenMetrics(t *testing.T) {
	for accept, want := range map[string]bool{
		"": false, "*/*": false, "text/plain": false, ofPrometheus: true,
		"application/openmetrics-text":                                          true,
		"text/html, Application/OpenMetrics-Text; version=\"1.0.0\"; charset=x": true,
		"application/openmetrics-text;version=0.0.1":                            false,
		"application/openmetrics-text;version=2.0.0":                            false,
		"application/openmetrics-text;q=0":                                      false,
		"application/openmetrics-text;q=0.000":                                  false,
		"application/openmetrics-text;q=0.2,text/plain;q=0.3":                   false,
		"text/plain;version=0.0.4;q=0.3,application/openmetrics-text;q=0.5":     true,
	} {
		if got := takesOpenMetrics([]string{accept}); got != want {
			t.Errorf("%q: %v, want %v", accept, got, want)
		}
	}
	c := sampled(t, Options{TextOnly: true})
	r, w := scrapes(""), httptest.NewRecorder()
	r.Header.Set("Accept", ofPrometheus)
	if c.Handler().ServeHTTP(w, r); w.Header().Get("Content-Type") != contentType {
		t.Errorf("in compatibility the answer is %s", w.Header().Get("Content-Type"))
	}
}

// FuzzOpenMetrics: whatever a page's text is, it is taken over whole and ended.
func FuzzOpenMetrics(f *testing.F) {
	for _, text := range []string{"", "# HELP a b\n# TYPE a counter\na 1\n", "# HELP a\n# HELP b x\nb 1", "# TYPE a_total counter\n", "# TYPE\n# HELP\n"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got := string(appendOpenMetrics(nil, []byte(text)))
		if !strings.HasSuffix(got, "# EOF\n") {
			t.Errorf("%q ends with %q", text, got)
		}
		for line := range strings.Lines(text) {
			if !strings.HasPrefix(line, "#") && !strings.Contains(got, line) {
				t.Errorf("%q is not in %q", line, got)
			}
		}
	})
}
