package series

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var t0 = time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)

func open(t testing.TB, o Options) *DB {
	t.Helper()
	db, err := Open("", o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func target(t testing.TB, db *DB, extra ...string) *Target {
	t.Helper()
	var ls []labels.Label
	for i := 0; i < len(extra); i += 2 {
		ls = append(ls, labels.Label{Name: extra[i], Value: extra[i+1]})
	}
	tg, err := db.Target(ls...)
	if err != nil {
		t.Fatal(err)
	}
	return tg
}

// values shows a vector as text: labels and value.
func values(v promql.Vector) []string {
	out := []string{}
	for _, s := range v {
		out = append(out, fmt.Sprintf("%s %g", s.Metric, s.F))
	}
	return out
}

func query(t testing.TB, db *DB, expr string, at time.Time) []string {
	t.Helper()
	v, err := db.Query(t.Context(), expr, at)
	if err != nil {
		t.Fatal(err)
	}
	return values(v)
}

func mustAppend(t testing.TB, tg *Target, at time.Time, exposition string) {
	t.Helper()
	if _, err := tg.Append(t.Context(), at, []byte(exposition)); err != nil {
		t.Fatal(err)
	}
}

func TestAppendGivesAnExpositionTheTargetsLabels(t *testing.T) {
	db := open(t, Options{})
	tg := target(t, db, "job", "collector", "node", "gpu-a-01")
	added, err := tg.Append(t.Context(), t0, []byte(`# HELP temp Degrees.
# TYPE temp gauge
temp{gpu="1"} 40
temp{gpu="0",node="its-own"} 38 1234567
text{quoted="a\"b\\c\nd"} NaN
`))
	if err != nil {
		t.Fatal(err)
	}
	if added != 3 {
		t.Errorf("added %d series, want 3", added)
	}
	got := query(t, db, `{__name__=~"temp|up"} or text == 1`, t0)
	want := []string{
		`{__name__="temp", gpu="0", job="collector", node="its-own"} 38`,
		`{__name__="temp", gpu="1", job="collector", node="gpu-a-01"} 40`,
		`{__name__="up", job="collector", node="gpu-a-01"} 1`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
	if added, err := tg.Append(t.Context(), t0.Add(time.Second), []byte("temp{gpu=\"1\"} 41\n")); err != nil || added != 0 {
		t.Errorf("the same series again: added %d, %v; want 0 and no error", added, err)
	}
}

func TestWhatVanishesIsStaleAtOnce(t *testing.T) {
	db := open(t, Options{})
	tg := target(t, db, "node", "n1")
	mustAppend(t, tg, t0, "a 1\nb 2\nc 3\n")
	mustAppend(t, tg, t0.Add(10*time.Second), "c 4\na 5\n") // b has gone; the order is another
	if got, want := query(t, db, `{node="n1",__name__!="up"}`, t0.Add(10*time.Second)), []string{
		`{__name__="a", node="n1"} 5`, `{__name__="c", node="n1"} 4`,
	}; !cmp.Equal(got, want) {
		t.Errorf("after b vanished: %v, want %v", got, want)
	}
	if got, want := query(t, db, `b`, t0.Add(9*time.Second)), []string{`{__name__="b", node="n1"} 2`}; !cmp.Equal(got, want) {
		t.Errorf("before b vanished: %v, want %v", got, want)
	}
	mustAppend(t, tg, t0.Add(20*time.Second), "b 9\n") // and back
	if got, want := query(t, db, `{node="n1",__name__!="up"}`, t0.Add(20*time.Second)), []string{`{__name__="b", node="n1"} 9`}; !cmp.Equal(got, want) {
		t.Errorf("after b came back: %v, want %v", got, want)
	}
	if err := tg.Down(t.Context(), t0.Add(30*time.Second)); err != nil {
		t.Fatal(err)
	}
	if got, want := query(t, db, `{node="n1"}`, t0.Add(30*time.Second)), []string{`{__name__="up", node="n1"} 0`}; !cmp.Equal(got, want) {
		t.Errorf("after the target went down: %v, want %v", got, want)
	}
	if err := tg.Down(t.Context(), t0.Add(40*time.Second)); err != nil {
		t.Errorf("a target may stay down: %v", err)
	}
	mustAppend(t, tg, t0.Add(50*time.Second), "a 7\n")
	if got, want := query(t, db, `{node="n1"}`, t0.Add(50*time.Second)), []string{`{__name__="a", node="n1"} 7`, `{__name__="up", node="n1"} 1`}; !cmp.Equal(got, want) {
		t.Errorf("after the target came back: %v, want %v", got, want)
	}
}

func TestARefusedExpositionChangesNothingButUp(t *testing.T) {
	for name, tc := range map[string]struct {
		opts Options
		text string
		want string // part of the error
	}{
		"what is not the text format":             {Options{}, "a 1\nb{ 2\n", "expected"},
		"a value that is not a number":            {Options{}, "a x\n", "x"},
		"a series that is there twice":            {Options{}, "a{x=\"1\"} 1\na{x=\"1\"} 2\n", "twice"},
		"a label that is there twice":             {Options{}, "a{x=\"1\",x=\"2\"} 1\n", "twice"},
		"two spellings of one series":             {Options{}, "a{x=\"1\",y=\"2\"} 1\na{y=\"2\",x=\"1\"} 2\n", "also as"},
		"more series than a target may have":      {Options{MaxTargetSeries: 3}, "a 1\nb 1\nc 1\nd 1\n", "limit of one target"},
		"more series than there may be in all":    {Options{MaxSeries: 4}, "a 1\nb 1\nc 1\nd 1\n", "in all"},
		"an exposition that is cut in the middle": {Options{}, "a 1\nb{x=\"", "b{x"},
	} {
		t.Run(name, func(t *testing.T) {
			db := open(t, tc.opts)
			tg := target(t, db, "node", "n1")
			mustAppend(t, tg, t0, "a 5\nold 6\n")
			at := t0.Add(10 * time.Second)
			added, err := tg.Append(t.Context(), at, []byte(tc.text))
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "n1") {
				t.Fatalf("err = %v, want one that names the target and says %q", err, tc.want)
			}
			if added != 0 {
				t.Errorf("added %d, want 0", added)
			}
			if got, want := query(t, db, `{node="n1"}`, at), []string{`{__name__="up", node="n1"} 0`}; !cmp.Equal(got, want) {
				t.Errorf("after the refusal: %v, want %v", got, want)
			}
			mustAppend(t, tg, at.Add(10*time.Second), "a 6\n")
			if got, want := query(t, db, `a`, at.Add(10*time.Second)), []string{`{__name__="a", node="n1"} 6`}; !cmp.Equal(got, want) {
				t.Errorf("after the next good one: %v, want %v", got, want)
			}
		})
	}
}

func TestASeriesWrittenInAnotherWayGoesOn(t *testing.T) {
	db := open(t, Options{})
	tg := target(t, db, "node", "n1")
	mustAppend(t, tg, t0, "a{x=\"1\",y=\"2\"} 1\n")
	mustAppend(t, tg, t0.Add(10*time.Second), "a{y=\"2\",x=\"1\"} 2\n")
	if got, want := query(t, db, `a`, t0.Add(10*time.Second)), []string{`{__name__="a", node="n1", x="1", y="2"} 2`}; !cmp.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestTimeThatDoesNotMoveIsRefused(t *testing.T) {
	db := open(t, Options{})
	tg := target(t, db, "node", "n1")
	mustAppend(t, tg, t0, "a 1\n")
	if _, err := tg.Append(t.Context(), t0.Add(-time.Second), []byte("a 2\n")); err == nil {
		t.Error("an exposition from before the newest one was taken in")
	}
}

func TestQueryAnswersAtTheTimeThatIsAsked(t *testing.T) {
	db := open(t, Options{})
	tg := target(t, db, "node", "n1")
	for i := range 30 {
		mustAppend(t, tg, t0.Add(time.Duration(i)*10*time.Second), fmt.Sprintf("errors_total{gpu=\"0\"} %d\nerrors_total{gpu=\"1\"} 0\n", i))
	}
	for name, tc := range map[string]struct {
		expr string
		at   time.Duration
		want []string
	}{
		"in the middle of the past":    {`errors_total{gpu="0"}`, 105 * time.Second, []string{`{__name__="errors_total", gpu="0", node="n1"} 10`}},
		"an increase over one minute":  {`increase(errors_total{gpu="0"}[1m])`, 200 * time.Second, []string{`{gpu="0", node="n1"} 6`}},
		"nothing before the beginning": {`errors_total`, -time.Second, []string{}},
		"nothing long after the end":   {`errors_total`, time.Hour, []string{}},
		"a scalar is one sample":       {`1 + 1`, 0, []string{`{} 2`}},
		"the newest last in labels":    {`sort_desc(errors_total)`, 100 * time.Second, []string{`{__name__="errors_total", gpu="0", node="n1"} 10`, `{__name__="errors_total", gpu="1", node="n1"} 0`}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := query(t, db, tc.expr, t0.Add(tc.at)); !cmp.Equal(got, tc.want) {
				t.Errorf("%s = %v, want %v", tc.expr, got, tc.want)
			}
		})
	}
	for name, expr := range map[string]string{"a range": `up[5m]`, "a string": `"x"`, "not PromQL": `sum(`} {
		if _, err := db.Query(t.Context(), expr, t0); err == nil || !strings.Contains(err.Error(), strconv.Quote(expr)) {
			t.Errorf("%s: err = %v, want one that names the query", name, err)
		}
	}
	if _, err := open(t, Options{MaxSamples: 10}).Query(t.Context(), `vector(1)[10m:1s]`, t0); err == nil {
		t.Error("a query over its limit of samples was answered")
	}
}

func TestMemoryIsBoundedAndHistoryIsKept(t *testing.T) {
	db := open(t, Options{Retention: 4 * time.Hour})
	tg := target(t, db, "node", "n1")
	at := t0
	for i := range 12 * 60 { // 12 hours; each hour has a pod of its own
		at = t0.Add(time.Duration(i) * time.Minute)
		mustAppend(t, tg, at, fmt.Sprintf("util{pod=\"p%d\"} %d\nminutes_total %d\n", i/60, i%100, i))
	}
	if got := db.Series(); got > 9 {
		t.Errorf("%d series are in memory after 12 hours, want those of 3 hours at most", got)
	}
	if got, want := query(t, db, `minutes_total`, at.Add(-3*time.Hour)), []string{fmt.Sprintf(`{__name__="minutes_total", node="n1"} %d`, 12*60-1-180)}; !cmp.Equal(got, want) {
		t.Errorf("three hours ago: %v, want %v", got, want)
	}
	if got := query(t, db, `minutes_total`, t0.Add(time.Hour)); len(got) != 0 {
		t.Errorf("11 hours ago, with a retention of 4: %v, want nothing", got)
	}
}

func TestAFolderOfItsOwnKeepsItsSeries(t *testing.T) {
	dir := t.TempDir()
	db, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	mustAppend(t, target(t, db, "node", "n1"), t0, "a 1\n")
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db, err = Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	if got, want := query(t, db, `a`, t0), []string{`{__name__="a", node="n1"} 1`}; !cmp.Equal(got, want) {
		t.Errorf("after a restart: %v, want %v", got, want)
	}
}

func TestATemporaryStoreLeavesNothing(t *testing.T) {
	db, err := Open("", Options{})
	if err != nil {
		t.Fatal(err)
	}
	dir := db.temp
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", dir, err)
	}
}

func TestOpenRefusesWhatCannotBe(t *testing.T) {
	_, err := Open("", Options{Retention: -1, MaxSeries: -2})
	if err == nil || !strings.Contains(err.Error(), "retention") || !strings.Contains(err.Error(), "max series: -2") {
		t.Errorf("err = %v, want both mistakes", err)
	}
	db := open(t, Options{})
	if _, err := db.Target(labels.Label{Name: "a", Value: "1"}, labels.Label{Name: "a", Value: "2"}); err == nil {
		t.Error("a target with a label twice was accepted")
	}
}

// exposition is what a node of 8 GPUs shows: some 300 series.
func exposition(node, round int) []byte {
	var b bytes.Buffer
	for f := range 36 {
		fmt.Fprintf(&b, "# HELP DCGM_FI_DEV_FIELD_%d One field.\n# TYPE DCGM_FI_DEV_FIELD_%d gauge\n", f, f)
		for g := range 8 {
			fmt.Fprintf(&b, "DCGM_FI_DEV_FIELD_%d{gpu=\"%d\",UUID=\"GPU-%08d-1111-2222-3333-44444444%04d\",pci_bus_id=\"00000000:%dA:00.0\",device=\"nvidia%d\",modelName=\"NVIDIA A100-SXM4-80GB\",Hostname=\"n%d\"} %d\n",
				f, g, node, g, g+1, g, node, (f*7+g*3+round)%100)
		}
	}
	return b.Bytes()
}

// BenchmarkTwoHours appends what 8 nodes show every 10 s in two hours.
func BenchmarkTwoHours(b *testing.B) {
	var pages [8][10][]byte
	for n := range pages {
		for r := range pages[n] {
			pages[n][r] = exposition(n, r)
		}
	}
	samples := 0
	for b.Loop() {
		db := open(b, Options{})
		var targets [8]*Target
		for n := range targets {
			targets[n] = target(b, db, "node", fmt.Sprintf("n%d", n))
		}
		for s := 0; s < 7200; s += 10 {
			for n, tg := range targets {
				if _, err := tg.Append(b.Context(), t0.Add(time.Duration(s)*time.Second), pages[n][s/10%10]); err != nil {
					b.Fatal(err)
				}
				samples += len(tg.last)
			}
		}
	}
	b.ReportMetric(float64(samples)/b.Elapsed().Seconds(), "samples/s")
}

func BenchmarkQuery(b *testing.B) {
	db := open(b, Options{})
	for n := range 8 {
		tg := target(b, db, "node", fmt.Sprintf("n%d", n))
		for s := 0; s < 3600; s += 10 {
			if _, err := tg.Append(b.Context(), t0.Add(time.Duration(s)*time.Second), exposition(n, s)); err != nil {
				b.Fatal(err)
			}
		}
	}
	for b.Loop() {
		if _, err := db.Query(b.Context(), `avg by (node) (avg_over_time(DCGM_FI_DEV_FIELD_3[10m])) > 10`, t0.Add(time.Hour)); err != nil {
			b.Fatal(err)
		}
	}
}
