package rules

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	promrules "github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"

	"stoker.dev/stoker/internal/remedy"
)

// bench is an evaluator over series of a real TSDB.
type bench struct {
	t  *testing.T
	db *tsdb.DB
	ev *Evaluator
}

func newBench(t *testing.T, files fs.FS) *bench {
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
		Logger: slog.New(slog.DiscardHandler), MaxSamples: 1e6, Timeout: 30 * time.Second, LookbackDelta: 5 * time.Minute, Parser: parser.NewParser(parser.Options{}),
	})
	t.Cleanup(func() {
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
	})
	ev, err := NewEvaluator(slog.New(slog.DiscardHandler), prometheus.NewRegistry(), files, db, promrules.EngineQueryFunc(engine, db), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return &bench{t: t, db: db, ev: ev}
}

// put appends one sample.
func (b *bench) put(at time.Time, v float64, name string, pairs ...string) {
	b.t.Helper()
	app := b.db.AppenderV2(b.t.Context())
	ls := labels.FromStrings(append([]string{"__name__", name}, pairs...)...)
	if _, err := app.Append(0, ls, 0, at.UnixMilli(), v, nil, nil, storage.AOptions{}); err != nil {
		b.t.Fatal(err)
	}
	if err := app.Commit(); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) at(now time.Time) []string {
	b.t.Helper()
	ev, err := b.ev.Evidence(b.t.Context(), now)
	if err != nil {
		b.t.Fatal(err)
	}
	var out []string
	for _, e := range ev {
		line := fmt.Sprintf("%s at %s", e, e.At.Sub(t0))
		if e.Resolved {
			line += " is over"
		}
		out = append(out, line)
	}
	return out
}

func TestAlertRulesAreEvaluatedAtTheTimesThatAreGiven(t *testing.T) {
	b := newBench(t, os.DirFS("testdata/rules"))
	const unready = "gpu-a-02 is not ready at 1m0s"
	var fired, ended []time.Duration
	for s := 0; s <= 1260; s += 10 {
		now := t0.Add(time.Duration(s) * time.Second)
		ready := 1.0
		if s >= 60 && s < 180 {
			ready = 0
		}
		b.put(now, ready, "node_ready", "node", ill)
		b.put(now, 1, "node_ready", "node", well)
		for _, e := range b.at(now) {
			switch e {
			case unready:
				fired = append(fired, now.Sub(t0))
			case unready + " is over":
				ended = append(ended, now.Sub(t0))
			default:
				t.Errorf("at %v: %s", now.Sub(t0), e)
			}
		}
	}
	if len(fired) == 0 || fired[0] != 90*time.Second || fired[len(fired)-1] != 170*time.Second || len(fired) != 9 {
		t.Errorf("fired at %v, want from 1m30s, 30s after it began, to 2m50s", fired)
	}
	// Prometheus tells of an end for 15 minutes.
	if len(ended) == 0 || ended[0] != 180*time.Second || ended[len(ended)-1] != 18*time.Minute {
		t.Errorf("told to be over at %v, want from 3m on for 15 minutes", ended)
	}
}

func TestEvidenceOfARuleIsComplete(t *testing.T) {
	b := newBench(t, os.DirFS("testdata/rules"))
	b.put(t0, float64(t0.Unix())+0.25, "last_xid", "node", ill, "gpu", "3", "UUID", uuid, "xid", "79")
	b.put(t0, float64(t0.Unix())+0.125, "last_xid", "node", well, "gpu", "1", "UUID", "GPU-1-1", "xid", "79")
	now := t0.Add(7 * time.Second)
	got, err := b.ev.Evidence(t.Context(), now)
	if err != nil {
		t.Fatal(err)
	}
	one := func(node, gpu, uuid string, at time.Time) remedy.Evidence {
		return remedy.Evidence{
			Subject: remedy.Subject{Kind: remedy.SubjectGPU, Node: node, UUID: uuid, Index: gpu}, Class: remedy.ClassGPULost, At: at, Seen: now, Source: "rules",
			Labels: map[string]string{"alertname": "GPUXid", "class": "gpu-lost", "node": node, "gpu": gpu, "UUID": uuid, "xid": "79"},
		}
	}
	want := []remedy.Evidence{one(well, "1", "GPU-1-1", t0.Add(125*time.Millisecond)), one(ill, "3", uuid, t0.Add(250*time.Millisecond))}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("evidence differs (-want +got):\n%s", d)
	}
}

func TestRulesAreEvaluatedOnceAnInterval(t *testing.T) {
	b := newBench(t, os.DirFS("testdata/rules"))
	b.put(t0, 1, "last_xid", "node", ill, "gpu", "3", "xid", "79")
	first := b.at(t0)
	b.put(t0.Add(time.Second), 1, "last_xid", "node", well, "gpu", "1", "xid", "79")
	if d := cmp.Diff(first, b.at(t0.Add(9*time.Second))); len(first) != 1 || d != "" {
		t.Errorf("within the interval it was evaluated again (-first +second):\n%s", d)
	}
	if got := b.at(t0.Add(10 * time.Second)); len(got) != 2 {
		t.Errorf("after the interval it tells %v, want both", got)
	}
	b.put(t0.Add(10*time.Second), 0, "last_xid", "node", well, "gpu", "1", "xid", "79")
	b.ev.last = t0.Add(24 * time.Hour) // as before a clock was set back
	if got := b.at(t0.Add(15 * time.Second)); len(got) != 2 || !strings.HasSuffix(got[0]+got[1], "is over") {
		t.Errorf("after the clock was set back it tells %v, want that one is over", got)
	}
}

func TestABrokenRuleIsToldBesideTheOthers(t *testing.T) {
	b := newBench(t, os.DirFS("testdata/rules"))
	b.put(t0, 1, "node_ready", "node", ill, "rack", "7")
	b.put(t0, 1, "rack_power", "rack", "7", "feed", "a")
	b.put(t0, 1, "rack_power", "rack", "7", "feed", "b")
	b.put(t0, 1, "last_xid", "node", ill, "gpu", "3", "xid", "79")
	b.put(t0, 1, "last_xid", "gpu", "3", "xid", "48") // names no node
	ev, err := b.ev.Evidence(t.Context(), t0)
	if err == nil || !strings.Contains(err.Error(), "rule Broken: ") || !strings.Contains(err.Error(), `alert "GPUXid": its labels name no node`) {
		t.Errorf("error %v, want that of rule Broken and of the alert that names nothing", err)
	}
	if len(ev) != 1 || ev[0].Subject.Node != ill {
		t.Errorf("evidence %v, want that of the rule that works", ev)
	}
}

func TestRulesOfACancelledEvaluationAreErrors(t *testing.T) {
	b := newBench(t, os.DirFS("testdata/rules"))
	b.put(t0, 1, "last_xid", "node", ill, "gpu", "3", "xid", "79")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if ev, err := b.ev.Evidence(ctx, t0); err == nil && len(ev) == 0 {
		t.Error("an evaluation that was cut off says that nothing is wrong")
	}
}

func TestRuleFilesWithMistakesAreRefusedTogether(t *testing.T) {
	_, err := NewEvaluator(slog.New(slog.DiscardHandler), prometheus.NewRegistry(), os.DirFS("testdata/broken"), nil, nil, time.Second)
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"alert rules: one.rules.yaml:5:15: ", "could not parse expression", "\nalert rules: two.rules.yaml:", "field fore not found"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not say %q", err, want)
		}
	}
}

func TestNoRuleFilesAreNoRules(t *testing.T) {
	if ev := newBench(t, os.DirFS(t.TempDir())).at(t0); len(ev) > 0 {
		t.Errorf("evidence %v of no rules", ev)
	}
}
