package alerts

import (
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"

	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/internal/xid"
)

// parsed reads every embedded file as strictly as Prometheus does, by file name.
func parsed(t *testing.T) map[string]*rulefmt.RuleGroups {
	t.Helper()
	names, err := fs.Glob(Files(), "*")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*rulefmt.RuleGroups{}
	for _, name := range names {
		b, err := fs.ReadFile(Files(), name)
		if err != nil {
			t.Fatal(err)
		}
		groups, errs := rulefmt.Parse(b, false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
		for _, err := range errs {
			t.Errorf("%s: %v", name, err)
		}
		if len(errs) > 0 {
			t.FailNow()
		}
		all[name] = groups
	}
	return all
}

func TestGroupsAreThoseOfTheFiles(t *testing.T) {
	var got []Group
	files := parsed(t)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		for _, g := range files[name].Groups {
			got = append(got, Group{File: name, Name: g.Name})
		}
	}
	if diff := cmp.Diff(Groups(), got); diff != "" {
		t.Errorf("groups (-listed +in the files):\n%s", diff)
	}
}

// TestEveryAlertSaysWhatItIs holds for all files, also those not written yet.
func TestEveryAlertSaysWhatItIs(t *testing.T) {
	classes := append(remedy.ClassNames(), remedy.ClassNone)
	severities := []string{"none", "info", "warning", "critical"}
	for file, groups := range parsed(t) {
		for _, g := range groups.Groups {
			for _, r := range g.Rules {
				if r.Alert == "" {
					continue
				}
				if !slices.Contains(classes, remedy.Class(r.Labels["class"])) {
					t.Errorf("%s: %s: class %q is not in the list", file, r.Alert, r.Labels["class"])
				}
				if !slices.Contains(severities, r.Labels["severity"]) {
					t.Errorf("%s: %s: severity %q is not in the list", file, r.Alert, r.Labels["severity"])
				}
				for _, a := range []string{"summary", "description"} {
					if r.Annotations[a] == "" {
						t.Errorf("%s: %s has no %s", file, r.Alert, a)
					}
				}
				if strings.Contains(r.Annotations["summary"], "$value") {
					t.Errorf("%s: %s: the value is in the summary, which would make it another one at each evaluation", file, r.Alert)
				}
			}
		}
	}
}

// selected returns the codes that an alert selects: those of the catalogue and one
// without a row.
func selected(t *testing.T, expr string) []int {
	t.Helper()
	e, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
	if err != nil {
		t.Fatal(err)
	}
	// The first selector of an expression is the one whose series become alerts.
	m := parser.ExtractSelectors(e)[0]
	i := slices.IndexFunc(m, func(m *labels.Matcher) bool { return m.Name == "xid" })
	if i < 0 {
		t.Fatalf("%s selects all codes", expr)
	}
	var codes []int
	for _, c := range append([]int{codeWithoutRow}, catalogue()...) {
		if m[i].Matches(strconv.Itoa(c)) {
			codes = append(codes, c)
		}
	}
	return codes
}

const codeWithoutRow = 4242

func catalogue() []int {
	var codes []int
	for r := range xid.All() {
		codes = append(codes, r.Code)
	}
	return codes
}

// TestEveryCodeHasItsAlert is about the committed file: every code makes exactly the
// alert that its row says, and no code's number alone makes one of a class that acts
// where its row says that it must not.
func TestEveryCodeHasItsAlert(t *testing.T) {
	type alert struct{ Name, Class, Ladder string }
	got := map[int][]alert{}
	for _, r := range parsed(t)["xid.rules.yaml"].Groups[0].Rules {
		if r.Alert == "" {
			continue
		}
		for _, code := range selected(t, r.Expr) {
			got[code] = append(got[code], alert{r.Alert, r.Labels["class"], r.Labels["ladder"]})
		}
		if r.Annotations["event_time"] != `{{ $value | printf "%.3f" }}` {
			t.Errorf("%s: event_time is %q", r.Alert, r.Annotations["event_time"])
		}
	}
	names := map[xid.Class]string{
		xid.GPULost: "GPUXidGpuLost", xid.GPUECC: "GPUXidGpuEcc", xid.GPUNVLink: "GPUXidGpuNvlink",
		xid.GPUDriver: "GPUXidGpuDriver", xid.GPUApp: "GPUXidGpuApp",
	}
	want := map[int][]alert{codeWithoutRow: {{"GPUXidUnknown", "none", "ALERT"}}}
	for r := range xid.All() {
		if r.Class != xid.None {
			want[r.Code] = append(want[r.Code], alert{names[r.Class], string(r.Class), r.Ladder.String()})
		}
		switch {
		case r.Class != xid.None && !r.NeedsRecovery():
		case r.Ladder[0] == xid.Note:
			want[r.Code] = append(want[r.Code], alert{"GPUXidSeen", "none", "NOTE"})
		default:
			want[r.Code] = append(want[r.Code], alert{"GPUXidSeen", "none", "ALERT"})
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("alerts by code (-want +got):\n%s", diff)
	}
}

// TestCodesThatNeedTheDriverAreAskedForIt finds the XID 154 in the rules of codes
// that may mean nothing by their number.
func TestCodesThatNeedTheDriverAreAskedForIt(t *testing.T) {
	seen := 0
	for _, r := range parsed(t)["xid.rules.yaml"].Groups[0].Rules {
		if r.Alert == "" || r.Labels["class"] == "none" {
			continue
		}
		for _, code := range selected(t, r.Expr) {
			row, _ := xid.Lookup(code)
			if asks := strings.Contains(r.Expr, `{xid="154"}`); asks != row.NeedsRecovery() {
				t.Errorf("code %d: its rule asks for XID 154: %t, its ladder is %v", code, asks, row.Ladder)
			}
			if row.NeedsRecovery() {
				seen++
			}
		}
	}
	if seen < 7 {
		t.Errorf("%d codes ask for XID 154, want at least 144 to 150", seen)
	}
}
