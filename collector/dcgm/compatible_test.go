//go:build cgo && linux

package dcgm_test

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"stoker.dev/stoker/collector"
	"stoker.dev/stoker/collector/dcgm"
)

// A shape is one family as its text has it: its head, and its series with their labels in
// their order. Numbers are spelled alike, since dcgm-exporter writes 300.000000.
type shape struct {
	head []string
	rows []string
}

// shapes returns the families of a page in their order, and each of them.
func shapes(t *testing.T, page string) (order []string, all map[string]*shape) {
	t.Helper()
	all = map[string]*shape{}
	at := func(name string) *shape {
		if all[name] == nil {
			all[name] = &shape{}
			order = append(order, name)
		}
		return all[name]
	}
	for line := range strings.Lines(page) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "# ") {
			f := at(strings.Fields(line)[2])
			f.head = append(f.head, line)
			continue
		}
		name, _, _ := strings.Cut(line, "{")
		i := strings.LastIndexByte(line, ' ')
		value, err := strconv.ParseFloat(line[i+1:], 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		f := at(name)
		f.rows = append(f.rows, line[:i+1]+strconv.FormatFloat(value, 'g', -1, 64))
	}
	for _, f := range all {
		slices.Sort(f.rows) // the XIDs of one GPU come in any order there
	}
	return order, all
}

// labelOf returns the value of a label in the text of a series.
func labelOf(row, name string) string {
	_, rest, _ := strings.Cut(row, name+`="`)
	value, _, _ := strings.Cut(rest, `"`)
	return value
}

// differences are the families of dcgm-exporter's page that are not the same here, and why.
// There are none.
var differences = map[string]string{}

// TestThePageOfDcgmExporter: with what its engine had when our sample of dcgm-exporter's
// page was taken, the page has the same families in the same order, with the same help, types,
// labels in the same order and values, and no others. The list is that of the sample: its
// default, with the three families that are switched off there.
func TestThePageOfDcgmExporter(t *testing.T) {
	text, err := os.ReadFile("../exporter/testdata/sample.prom")
	if err != nil {
		t.Fatal(err)
	}
	wantOrder, want := shapes(t, string(text))
	fields := append(dcgm.DefaultFields(),
		dcgm.Field{Name: "DCGM_EXP_CLOCK_EVENTS_COUNT", Type: "gauge", Help: "Count of clock events within the window"},
		dcgm.Field{Name: "DCGM_EXP_XID_ERRORS_COUNT", Type: "gauge", Help: "Count of XID errors within the window"})
	n := newNode(t, dcgm.Options{Fields: fields, Compatible: true})
	doubles := []dcgm.Short{155, 1001, 1004, 1005}
	for _, f := range fields {
		if f.ID == 0 || f.ID == 230 || want[f.Name] == nil {
			continue
		}
		for _, row := range want[f.Name].rows {
			value, kind := row[strings.LastIndexByte(row, ' ')+1:], "d"
			if !slices.Contains(doubles, f.ID) {
				x, err := strconv.ParseFloat(value, 64)
				if err != nil {
					t.Fatal(err)
				}
				value, kind = strconv.FormatFloat(x, 'f', 0, 64), "i"
			}
			n.do("set 1 %s %d %s %s", labelOf(row, "gpu"), f.ID, kind, value)
		}
	}
	for gpu := range 8 {
		for _, id := range []int{449, 526} { // what that engine could not read
			n.do("set 1 %d %d b", gpu, id)
		}
		reasons := 0
		if gpu == 1 {
			reasons = 4 // it ran into its power limit
		}
		for i := range 9 {
			n.do("sample %d 112 %d %d", gpu, reasons, 1000*(100-i))
		}
	}
	n.do("health 0 16 10 101")
	n.do("health 3 4294967295 20 120")
	c, err := collector.New(quiet(t), "127.0.0.1", []collector.Source{n.source}, collector.Options{})
	if err != nil {
		t.Fatal(err)
	}
	page(t, c)
	for _, x := range [][2]int{{0, 31}, {0, 31}, {0, 43}, {3, 79}} {
		n.do("xid %d %d 0 0", x[0], x[1])
		time.Sleep(time.Millisecond)
	}
	gotOrder, got := shapes(t, page(t, c))
	for name, w := range want {
		if why, ok := differences[name]; ok {
			t.Logf("%s differs: %s", name, why)
			continue
		}
		g := got[name]
		if g == nil {
			t.Errorf("%s is not there", name)
			continue
		}
		if d := cmp.Diff(w.head, g.head); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
		if d := cmp.Diff(w.rows, g.rows); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
	gotOrder = slices.DeleteFunc(gotOrder, func(name string) bool { return !strings.HasPrefix(name, "DCGM_") })
	if d := cmp.Diff(wantOrder, gotOrder); d != "" {
		t.Errorf("families (-want +got):\n%s", d)
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
	wantLine(t, n.source, `stoker_dcgm_list_up{list="file",reason="no-field"} 0`)
	time.Sleep(20 * time.Millisecond)
	write("DCGM_FI_DEV_GPU_TEMPER, gauge, a\nDCGM_FI_DEV_GPU_TEMP, gauge, a\n")
	has(true, false) // what is right of it counts
	wantLine(t, n.source, `stoker_dcgm_list_up{list="file",reason="wrong-lines"} 0`)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	has(true, false)
	wantLine(t, n.source, `stoker_dcgm_list_up{list="file",reason="unreadable"} 0`)
	time.Sleep(20 * time.Millisecond)
	write("DCGM_FI_DEV_GPU_UTIL, gauge, b\n")
	has(false, true)
	wantLine(t, n.source, `stoker_dcgm_list_up{list="file",reason=""} 1`)
	n.close(n.source)
	if held := n.do("held"); held != 0 {
		t.Errorf("the engine still holds %d things", held)
	}
}
