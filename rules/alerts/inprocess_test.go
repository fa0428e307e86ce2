package alerts

import (
	"bytes"
	order "cmp"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	promrules "github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"go.yaml.in/yaml/v3"

	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/rules"
)

// A testFile is what promtool reads, as far as the tests beside the rules use it.
type testFile struct {
	RuleFiles          []string       `yaml:"rule_files"`
	EvaluationInterval model.Duration `yaml:"evaluation_interval"`
	GroupEvalOrder     []string       `yaml:"group_eval_order"`
	Tests              []testCase     `yaml:"tests"`
}

type testCase struct {
	Name        string         `yaml:"name"`
	Interval    model.Duration `yaml:"interval"`
	InputSeries []struct {
		Series string `yaml:"series"`
		Values string `yaml:"values"`
	} `yaml:"input_series"`
	Alerts []struct {
		EvalTime  model.Duration `yaml:"eval_time"`
		Alertname string         `yaml:"alertname"`
		ExpAlerts []struct {
			Labels      map[string]string `yaml:"exp_labels"`
			Annotations map[string]string `yaml:"exp_annotations"`
		} `yaml:"exp_alerts"`
	} `yaml:"alert_rule_test"`
	Queries []struct {
		Expr       string         `yaml:"expr"`
		EvalTime   model.Duration `yaml:"eval_time"`
		ExpSamples []struct {
			Labels string  `yaml:"labels"`
			Value  float64 `yaml:"value"`
		} `yaml:"exp_samples"`
	} `yaml:"promql_expr_test"`
}

func readTests(t *testing.T, name string) testFile {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var out testFile
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	if err := dec.Decode(&out); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return out
}

// A process is the evaluation over the input of one test.
type process struct {
	db     *tsdb.DB
	query  promrules.QueryFunc
	ev     *rules.Evaluator
	every  time.Duration
	inputs []input // by time
}

type input struct {
	at     time.Duration
	series labels.Labels
	value  float64
}

func newProcess(t testing.TB, files fs.FS, tc testCase, every time.Duration) *process {
	t.Helper()
	db, err := tsdb.Open(t.TempDir(), slog.New(slog.DiscardHandler), nil, tsdb.DefaultOptions(), nil)
	if err != nil {
		t.Fatal(err)
	}
	db.DisableCompactions()
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	engine := promql.NewEngine(promql.EngineOpts{
		Logger: slog.New(slog.DiscardHandler), MaxSamples: 2e7, Timeout: 30 * time.Second, LookbackDelta: 5 * time.Minute, Parser: parser.NewParser(parser.Options{}),
	})
	t.Cleanup(func() {
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
	})
	p := &process{db: db, every: every, query: promrules.EngineQueryFunc(engine, db)}
	if p.ev, err = rules.NewEvaluator(slog.New(slog.DiscardHandler), prometheus.NewRegistry(), files, db, p.query, every); err != nil {
		t.Fatal(err)
	}
	for _, in := range tc.InputSeries {
		series, values, err := parser.NewParser(parser.Options{}).ParseSeriesDesc(in.Series + " " + in.Values)
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range values {
			if !v.Omitted {
				p.inputs = append(p.inputs, input{time.Duration(i) * time.Duration(tc.Interval), series, v.Value})
			}
		}
	}
	slices.SortStableFunc(p.inputs, func(a, b input) int { return order.Compare(a.at, b.at) })
	return p
}

// at is the time of an offset in promtool's tests, which begin in 1970.
func at(d time.Duration) time.Time { return time.Unix(0, 0).UTC().Add(d) }

// feed appends all input up to then.
func (p *process) feed(t testing.TB, then time.Duration) {
	t.Helper()
	app := p.db.AppenderV2(t.Context())
	n := 0
	for n < len(p.inputs) && p.inputs[n].at <= then {
		in := p.inputs[n]
		if _, err := app.Append(0, in.series, 0, at(in.at).UnixMilli(), in.value, nil, nil, storage.AOptions{}); err != nil {
			t.Fatal(err)
		}
		n++
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
	p.inputs = p.inputs[n:]
}

// run evaluates as often as promtool does and compares what it compares.
func (p *process) run(t *testing.T, tc testCase) {
	t.Helper()
	end := time.Duration(0)
	for _, a := range tc.Alerts {
		end = max(end, time.Duration(a.EvalTime))
	}
	for _, q := range tc.Queries {
		end = max(end, time.Duration(q.EvalTime))
	}
	firing := map[string]labels.Labels{}
	for now := time.Duration(0); now <= end; now += p.every {
		p.feed(t, now)
		ev, err := p.ev.Evidence(t.Context(), at(now))
		if err != nil {
			t.Fatalf("%v: %v", now, err)
		}
		got := map[string][]string{}
		for _, e := range ev {
			if !e.Resolved {
				name := e.Labels[labels.AlertName]
				got[name] = append(got[name], fmt.Sprintf("%v: %s", e.Labels, e.Summary))
			}
		}
		for _, a := range tc.Alerts {
			if d := time.Duration(a.EvalTime); d < now || d >= now+p.every {
				continue
			}
			var want []string
			for _, e := range a.ExpAlerts {
				all := map[string]string{labels.AlertName: a.Alertname}
				maps.Copy(all, e.Labels)
				want = append(want, fmt.Sprintf("%v: %s", all, e.Annotations["summary"]))
			}
			if a.Alertname == "Watchdog" {
				want = nil // proves the way of alerts, and is evidence of nothing
			}
			have := got[a.Alertname]
			slices.Sort(have)
			slices.Sort(want)
			if diff := cmp.Diff(want, have); diff != "" {
				t.Errorf("%s at %v (-want +got):\n%s", a.Alertname, a.EvalTime, diff)
			}
		}
		firing = p.store(t, now, firing, ev)
	}
	p.feed(t, end)
	for _, q := range tc.Queries {
		v, err := p.query(t.Context(), q.Expr, at(time.Duration(q.EvalTime)))
		if err != nil {
			t.Errorf("%s: %v", q.Expr, err)
			continue
		}
		got := map[string]float64{}
		for _, s := range v {
			got[s.Metric.String()] = s.F
		}
		want := map[string]float64{}
		for _, s := range q.ExpSamples {
			m, err := parser.NewParser(parser.Options{}).ParseMetric(s.Labels)
			if err != nil {
				t.Fatal(err)
			}
			want[m.String()] = s.Value
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s at %v (-want +got):\n%s", q.Expr, q.EvalTime, diff)
		}
	}
}

// store writes what fires as the series ALERTS, for queries: the evaluation in the
// process hands alerts on as evidence and stores none. It returns what it has written.
func (p *process) store(t *testing.T, now time.Duration, before map[string]labels.Labels, ev []remedy.Evidence) map[string]labels.Labels {
	t.Helper()
	firing := map[string]labels.Labels{}
	for _, e := range ev {
		if !e.Resolved {
			b := labels.NewBuilder(labels.FromMap(e.Labels))
			series := b.Set(model.MetricNameLabel, "ALERTS").Set("alertstate", "firing").Labels()
			firing[series.String()] = series
			p.inputs = slices.Insert(p.inputs, 0, input{now, series, 1})
		}
	}
	for name, series := range before {
		if _, still := firing[name]; !still {
			p.inputs = slices.Insert(p.inputs, 0, input{now, series, math.Float64frombits(value.StaleNaN)})
		}
	}
	p.feed(t, now)
	return firing
}
