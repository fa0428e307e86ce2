package alerts

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

// foreign are the series that rules read and that no page of ours is known to show, and
// who shows them. Where they are missing, rules over them say nothing.
var foreign = map[string]string{
	"DCGM_FI_DEV_SLOWDOWN_TEMP":         "DCGM field 158; not in the default counters of dcgm-exporter",
	"container_cpu_usage_seconds_total": "kubelet, /metrics/cadvisor",
	"kube_job_status_active":            "kube-state-metrics 2",
	"kube_pod_owner":                    "kube-state-metrics 2",
	"stoker_job_step":                   "the training program: docs/alerts/README.md",
}

// exposed are the families that the collector shows: its own, and those of DCGM that it
// passes on under the names that dcgm-exporter has for them.
func exposed(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, pattern := range []string{"../../collector/testdata/*.golden", "../../collector/exporter/testdata/sample.prom"} {
		pages := glob(t, pattern)
		if len(pages) == 0 {
			t.Fatalf("no page matches %s", pattern)
		}
		for _, page := range pages {
			text, err := os.ReadFile(filepath.FromSlash(page))
			if err != nil {
				t.Fatal(err)
			}
			for line := range bytes.Lines(text) {
				if rest, ok := strings.CutPrefix(string(line), "# TYPE "); ok {
					name, _, _ := strings.Cut(rest, " ")
					names[name] = true
				}
			}
		}
	}
	return names
}

func eachRule(t *testing.T, do func(file string, r rulefmt.Rule)) {
	t.Helper()
	for file, groups := range parsed(t) {
		for _, g := range groups.Groups {
			for _, r := range g.Rules {
				do(file, r)
			}
		}
	}
}

// TestEverySeriesThatIsReadExists holds for all rules, also those not written yet: a name
// that nobody shows makes a rule that is silent for ever.
func TestEverySeriesThatIsReadExists(t *testing.T) {
	shown := exposed(t)
	recorded := map[string]bool{}
	eachRule(t, func(_ string, r rulefmt.Rule) { recorded[r.Record] = true })
	read := map[string]bool{}
	eachRule(t, func(file string, r rulefmt.Rule) {
		e, err := parser.NewParser(parser.Options{}).ParseExpr(r.Expr)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range parser.ExtractSelectors(e) {
			for _, m := range s {
				if m.Name != model.MetricNameLabel {
					continue
				}
				read[m.Value] = true
				if !shown[m.Value] && !recorded[m.Value] && foreign[m.Value] == "" {
					t.Errorf("%s: %s%s reads %s, which no page of the collector and no rule has, and which is not in the list of foreign names",
						file, r.Alert, r.Record, m.Value)
				}
			}
		}
	})
	for name := range foreign {
		if !read[name] {
			t.Errorf("%s is in the list of foreign names, and no rule reads it", name)
		}
	}
}
