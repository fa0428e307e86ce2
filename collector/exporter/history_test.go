package exporter

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var t0 = time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)

func itoa(n int) string { return strconv.Itoa(n) }

// xidPage is a page of one or more GPUs: each string is "gpu last xid:count …", with
// "-" for what the page leaves out.
func xidPage(gpus ...string) string {
	var temp, last, count strings.Builder
	for _, g := range gpus {
		f := strings.Fields(g)
		labels := fmt.Sprintf(`gpu="%s",UUID="GPU-%s",pci_bus_id="0:%s"`, f[0], f[0], f[0])
		temp.WriteString("DCGM_FI_DEV_GPU_TEMP{" + labels + "} 30\n")
		if f[1] != "-" {
			last.WriteString("DCGM_FI_DEV_XID_ERRORS{" + labels + "} " + f[1] + "\n")
		}
		if len(f) == 2 {
			count.WriteString("DCGM_EXP_XID_ERRORS_COUNT{" + labels + `,window_size_in_ms="300000"} 0` + "\n")
		}
		for _, c := range f[2:] {
			if code, n, ok := strings.Cut(c, ":"); ok {
				count.WriteString("DCGM_EXP_XID_ERRORS_COUNT{" + labels + `,window_size_in_ms="300000",xid="` + code + `"} ` + n + "\n")
			}
		}
	}
	return temp.String() + last.String() + count.String()
}

func TestHistory(t *testing.T) {
	type step struct {
		after time.Duration // since the page before
		page  string
		want  string // gpu:xid×n
	}
	none := "-" // in a GPU's place of counts: no window counts on the page
	for name, steps := range map[string][]step{
		"what the window holds at first has just happened": {
			{0, xidPage("0 43 31:2 43:1", "1 79 79:1"), "0:31×2 0:43×1 1:79×1"},
		},
		"a last code at first is history": {
			{0, xidPage("0 79"), ""},
			{time.Second, xidPage("0 79"), ""},
			{0, xidPage("1 79 " + none), ""},
		},
		"the same page again brings nothing": {
			{0, xidPage("0 79 79:1"), "0:79×1"},
			{time.Second, xidPage("0 79 79:1"), ""},
			{time.Hour, xidPage("0 79 79:1"), ""},
		},
		"a count that falls and rises is counted by its rises": {
			{0, xidPage("0 31 31:2"), "0:31×2"},
			{time.Minute, xidPage("0 31 31:1"), ""},
			{time.Minute, xidPage("0 31 31:3"), "0:31×2"},
			{time.Minute, xidPage("0 31"), ""},
			{time.Minute, xidPage("0 31 31:1"), "0:31×1"},
		},
		"a last code and a window that tell of one event are one": {
			{0, xidPage("0 0"), ""},
			{time.Second, xidPage("0 79 79:1"), "0:79×1"},
		},
		"a last code that the window does not hold is old": {
			{0, xidPage("0 43"), ""},
			{time.Second, xidPage("0 79"), ""},
		},
		"without a window each change of the last code is one event": {
			{0, xidPage("0 0 " + none), ""},
			{time.Second, xidPage("0 79 " + none), "0:79×1"},
			{time.Second, xidPage("0 79 " + none), ""},
			{time.Second, xidPage("0 31 " + none), "0:31×1"},
			{time.Second, xidPage("0 79 " + none), "0:79×1"},
		},
		"a last code that goes away and comes back is the same event": {
			{0, xidPage("0 0 " + none), ""},
			{time.Second, xidPage("0 79 " + none), "0:79×1"},
			{time.Second, xidPage("0 0 " + none), ""},
			{time.Second, xidPage("0 - " + none), ""},
			{time.Second, xidPage("0 79 " + none), ""},
		},
		"a window that appears later holds what the last code told": {
			{0, xidPage("0 0 " + none), ""},
			{time.Second, xidPage("0 79 " + none), "0:79×1"},
			{time.Second, xidPage("0 79 79:1"), ""},
			{time.Second, xidPage("0 79 79:2"), "0:79×1"},
		},
		"a GPU that goes away for a while is not counted anew": {
			{0, xidPage("0 79 79:1", "1 0"), "0:79×1"},
			{time.Second, xidPage("1 0"), ""},
			{time.Minute, xidPage("0 79 79:1", "1 0"), ""},
		},
		"a window that went away for longer than it is wide holds new events": {
			{0, xidPage("0 79 79:1", "1 0"), "0:79×1"},
			{time.Second, xidPage("0 79 "+none, "1 0"), ""},
			{6 * time.Minute, xidPage("0 79 79:1", "1 0"), "0:79×1"},
		},
		"codes that are no codes and counts that are no counts are left out": {
			{0, xidPage("0 NaN 79:NaN 31:-1 43:1.5 abc:1 -7:1", "1 +Inf 79:1e300"), ""},
			{0, xidPage("0 79.5 "+none, "1 -1 "+none), ""},
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, now := history{}, t0
			for i, s := range steps {
				now = now.Add(s.after)
				p, err := Parse([]byte(s.page))
				if err != nil {
					t.Fatal(err)
				}
				rises, dropped := h.advance(now, &p)
				var got []string
				for _, r := range rises {
					got = append(got, fmt.Sprintf("%s:%d×%d", strings.TrimPrefix(r.uuid, "GPU-"), r.xid, r.n))
				}
				if g := strings.Join(got, " "); g != s.want || dropped != 0 {
					t.Errorf("page %d: got %q and %d dropped, want %q", i, g, dropped, s.want)
				}
			}
		})
	}
}

func TestInstancesOfAGPUCountTogether(t *testing.T) {
	page := ""
	for _, id := range []string{"1", "2"} {
		labels := `gpu="0",UUID="GPU-a",GPU_I_PROFILE="1g",GPU_I_ID="` + id + `"`
		page += "DCGM_FI_DEV_GPU_TEMP{" + labels + "} 30\nDCGM_EXP_XID_ERRORS_COUNT{" + labels + `,xid="31"} 1` + "\n"
	}
	p, err := Parse([]byte(page))
	if err != nil {
		t.Fatal(err)
	}
	h := history{}
	rises, _ := h.advance(t0, &p)
	if diff := cmp.Diff([]rise{{"GPU-a", 31, 2}}, rises, cmp.AllowUnexported(rise{})); diff != "" {
		t.Errorf("rises (-want +got):\n%s", diff)
	}
	if again, _ := h.advance(t0.Add(time.Second), &p); len(again) != 0 {
		t.Errorf("the same page again: got %v, want nothing", again)
	}
}

// TestEventsAreAsManyAsTheWindowGrew compares with a window that is kept by itself:
// as long as no event leaves the window in the same interval as another comes, each
// event is told once.
func TestEventsAreAsManyAsTheWindowGrew(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h, now, told, happened := history{}, t0, 0, 0
		count := 0
		for range rapid.IntRange(1, 30).Draw(t, "pages") {
			now = now.Add(time.Duration(rapid.IntRange(1, 60_000).Draw(t, "ms")) * time.Millisecond)
			if rapid.Bool().Draw(t, "leaves") {
				count -= rapid.IntRange(0, count).Draw(t, "gone")
			} else {
				n := rapid.IntRange(0, 50).Draw(t, "new")
				count, happened = count+n, happened+n
			}
			g := "0 31"
			if count > 0 {
				g += " 31:" + itoa(count)
			}
			p, err := Parse([]byte(xidPage(g)))
			if err != nil {
				t.Fatal(err)
			}
			rises, _ := h.advance(now, &p)
			for _, r := range rises {
				told += r.n
			}
		}
		if told != happened {
			t.Fatalf("told of %d events, %d have happened", told, happened)
		}
	})
}

func TestEventsHaveTimesOfTheirOwn(t *testing.T) {
	p, err := Parse([]byte(xidPage("0 -", "1 -")))
	if err != nil {
		t.Fatal(err)
	}
	prev, now := t0, t0.Add(time.Second)
	evs, dropped := events(now, prev, []rise{{"GPU-0", 31, 5000}, {"GPU-1", 79, 1}, {"GPU-1", 95, 7000}}, p.GPUs)
	if len(evs) != maxEvents || dropped != 2001 {
		t.Errorf("got %d events and %d dropped, want %d and 2001", len(evs), dropped, maxEvents)
	}
	seen := map[string]bool{}
	for _, e := range evs {
		key := fmt.Sprint(e.GPU, e.XID, e.At)
		if seen[key] {
			t.Fatalf("two events of %s", key)
		}
		seen[key] = true
		if !e.At.After(prev) || e.At.After(now) {
			t.Fatalf("event at %v, want one after %v and not after %v", e.At, prev, now)
		}
	}
}

func TestHistoryIsBounded(t *testing.T) {
	h := history{}
	for round := range 3 {
		var gpus []string
		for i := range maxEntries {
			g := itoa(round*maxEntries+i) + " 1"
			if i == 0 {
				for code := range maxWindow + 9 {
					g += fmt.Sprintf(" %d:1", 1000+code)
				}
			}
			gpus = append(gpus, g)
		}
		p, err := Parse([]byte(xidPage(gpus...)))
		if err != nil {
			t.Fatal(err)
		}
		_, dropped := h.advance(t0.Add(time.Duration(round)*time.Minute), &p)
		if dropped != 9 || len(h) != maxPlaces {
			t.Errorf("round %d: %d dropped, %d places; want 9, %d", round, dropped, len(h), maxPlaces)
		}
	}
}
