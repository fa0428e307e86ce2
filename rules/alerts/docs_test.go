package alerts

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/rulefmt"
)

const page = "../../docs/alerts/README.md"

// rows returns the cells of the table whose header begins with first, by first cell.
func rows(t *testing.T, first string) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(text), "\n| "+first+" |")
	if !ok {
		t.Fatalf("%s has no table of %s", page, first)
	}
	table, _, _ = strings.Cut(table, "\n\n")
	out := map[string][]string{}
	for _, line := range strings.Split(table, "\n")[2:] {
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.Trim(strings.TrimSpace(cells[i]), "`")
		}
		if _, twice := out[cells[0]]; twice {
			t.Errorf("%s is in the table twice", cells[0])
		}
		out[cells[0]] = cells[1:]
	}
	return out
}

// TestThePageHasEveryAlert compares the table that people read with the rule files.
func TestThePageHasEveryAlert(t *testing.T) {
	type facts struct{ Class, Severity, For string }
	want := map[string]map[string][]string{}
	eachRule(t, func(_ string, r rulefmt.Rule) {
		if r.Alert == "" {
			return
		}
		if want[r.Alert] == nil {
			want[r.Alert] = map[string][]string{}
		}
		held := "–"
		if r.For > 0 {
			held = r.For.String()
		}
		for k, v := range map[string]string{"class": r.Labels["class"], "severity": r.Labels["severity"], "for": held} {
			if !slices.Contains(want[r.Alert][k], v) {
				want[r.Alert][k] = append(want[r.Alert][k], v)
			}
		}
	})
	wanted, got := map[string]facts{}, map[string]facts{}
	for name, of := range want {
		list := func(k string) string { return strings.Join(slices.Sorted(slices.Values(of[k])), ", ") }
		wanted[name] = facts{list("class"), list("severity"), list("for")}
	}
	for name, cells := range rows(t, "alert") {
		if len(cells) != 5 || cells[3] == "" || cells[4] == "" {
			t.Errorf("%s: cells are %q, want class, severity, for, condition and what follows", name, cells)
			continue
		}
		got[name] = facts{cells[0], cells[1], cells[2]}
		if told := strings.HasPrefix(cells[4], "told") || name == "Watchdog"; told != (cells[0] == "none") {
			t.Errorf("%s of class %s: what follows is %q; what is of class none is told, what is not is an incident", name, cells[0], cells[4])
		}
	}
	if diff := cmp.Diff(wanted, got); diff != "" {
		t.Errorf("alerts (-in the rule files +on the page):\n%s", diff)
	}
}

// TestThePageHasEveryName compares the names that others may read with the page.
func TestThePageHasEveryName(t *testing.T) {
	var recorded []string
	eachRule(t, func(file string, r rulefmt.Rule) {
		if file == "recording.rules.yaml" {
			recorded = append(recorded, r.Record)
		}
	})
	slices.Sort(recorded)
	if diff := cmp.Diff(recorded, slices.Sorted(maps.Keys(rows(t, "name")))); diff != "" {
		t.Errorf("recorded names (-in the rule file +on the page):\n%s", diff)
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(foreign)), slices.Sorted(maps.Keys(rows(t, "series")))); diff != "" {
		t.Errorf("foreign series (-in the list +on the page):\n%s", diff)
	}
}

// TestThePageHasEveryReason compares the causes of a stall with the page.
func TestThePageHasEveryReason(t *testing.T) {
	var expr string
	eachRule(t, func(_ string, r rulefmt.Rule) {
		if r.Record == "stoker:job_stalled:seconds" {
			expr = r.Expr
		}
	})
	want := []string{"computing"} // is another alert, and no stall
	for reason := range rows(t, "reason") {
		want = append(want, reason)
	}
	var got []string
	for _, part := range strings.Split(expr, `"reason", "`)[1:] {
		reason, _, _ := strings.Cut(part, `"`)
		got = append(got, reason)
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("reasons (-on the page +in the rule):\n%s", diff)
	}
}
