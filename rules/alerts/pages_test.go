package alerts

import (
	"bytes"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
)

// TestRecordedNamesOverRealPages takes pages as they are: that of a dcgm-exporter of 8
// GPUs, and that of our collector over an older exporter, of which one GPU has two MIG
// instances. What is wanted is how many series of each name there are, on which node.
func TestRecordedNamesOverRealPages(t *testing.T) {
	for name, tc := range map[string]struct {
		page string
		node string
		want map[string]int
	}{
		"a dcgm-exporter": {"../../collector/exporter/testdata/sample.prom", "127.0.0.1", map[string]int{
			"stoker:gpu_activity:ratio": 8, "stoker:gpu_power:watts": 8, "stoker:gpu_temperature:celsius": 8,
			"stoker:gpu_memory_used:bytes": 8, "stoker:gpu_xid:last": 2,
			"stoker:node_gpu_activity:avg": 1, "stoker:node_gpus_reporting:count": 1,
		}},
		"our collector": {"../../collector/testdata/node.golden", "node-7", map[string]int{
			"stoker:gpu_power:watts": 2, "stoker:gpu_temperature:celsius": 2, "stoker:gpu_xid:last": 2,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(tc.page)
			if err != nil {
				t.Fatal(err)
			}
			parser := expfmt.NewTextParser(model.LegacyValidation)
			families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
			if err != nil {
				t.Fatal(err)
			}
			p := newProcess(t, Files(), testCase{}, time.Minute)
			for _, f := range families {
				for _, m := range f.GetMetric() {
					b := labels.NewBuilder(labels.FromStrings(model.MetricNameLabel, f.GetName(), "job", "gpu", "instance", "10.0.0.7:9400"))
					for _, l := range m.GetLabel() {
						b.Set(l.GetName(), l.GetValue())
					}
					p.inputs = append(p.inputs, input{0, b.Labels(), m.GetGauge().GetValue() + m.GetCounter().GetValue() + m.GetUntyped().GetValue()})
				}
			}
			p.feed(t, 0)
			if _, err := p.ev.Evidence(t.Context(), at(0)); err != nil {
				t.Fatal(err)
			}
			v, err := p.query(t.Context(), `{__name__=~"stoker:(gpu|node)_.+"}`, at(0))
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]int{}
			for _, s := range v {
				if node := s.Metric.Get("node"); node != tc.node {
					t.Errorf("%v is of node %q, want %s", s.Metric, node, tc.node)
				}
				got[s.Metric.Get(model.MetricNameLabel)]++
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("recorded series by name (-want +got):\n%s", diff)
			}
		})
	}
}
