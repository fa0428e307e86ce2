//go:build cgo && linux

package dcgm_test

import (
	"slices"
	"strings"
	"testing"

	"stoker.dev/stoker/collector/dcgm"
	"stoker.dev/stoker/internal/fleet"
)

// family returns the series of a family as gpu and labels, but for the driver's version.
func family(s *fleet.Samples, field string) map[string]float64 {
	out := map[string]float64{}
	for _, v := range s.Values {
		if v.Field != field {
			continue
		}
		key := []string{s.GPUs[v.GPU].Device}
		for _, l := range v.Labels {
			if l.Name != "DCGM_FI_DRIVER_VERSION" {
				key = append(key, l.Name+"="+l.Value)
			}
		}
		out[strings.Join(key, " ")] = v.Value
	}
	return out
}

func wantFamily(t testing.TB, s *fleet.Samples, field string, want map[string]float64) {
	t.Helper()
	got := family(s, field)
	for key, v := range want {
		if g, ok := got[key]; !ok || g != v {
			t.Errorf("%s: %q is %v (there: %v), want %v", field, key, g, ok, v)
		}
	}
	for key := range got {
		if _, ok := want[key]; !ok {
			t.Errorf("%s: %q is there", field, key)
		}
	}
}

var clockList = []dcgm.Field{{ID: 150, Name: "DCGM_FI_DEV_GPU_TEMP", Type: "gauge"}, {Name: "DCGM_EXP_CLOCK_EVENTS_COUNT", Type: "counter", Help: "x"}}

// TestClockEventsAreCountedAsEvents: a reason that holds for many samples is one event, one
// that was there at the first sample is none, and those of before the window are forgotten.
func TestClockEventsAreCountedAsEvents(t *testing.T) {
	n := newNode(t, dcgm.Options{Fields: clockList})
	const ms = 1000
	for i, bits := range []int{0x1, 0x1, 0x5, 0x4, 0x4, 0, 0x4, 0x24} {
		n.do("sample 1 112 %d %d", bits, (100-i)*ms)
	}
	n.do("sample 2 112 0 %d", 400_000*ms)
	n.do("sample 2 112 8 %d", 390_000*ms) // before the window of five minutes
	n.do("sample 3 112 64 %d", 50*ms)     // there when we first looked
	want := map[string]float64{
		"nvidia1 clock_event=power_cap window_size_in_ms=300000":  2,
		"nvidia1 clock_event=sw_thermal window_size_in_ms=300000": 1,
	}
	wantFamily(t, n.collect(), "DCGM_EXP_CLOCK_EVENTS_COUNT", want)
	wantFamily(t, n.collect(), "DCGM_EXP_CLOCK_EVENTS_COUNT", want) // what is read again is known
	n.do("sample 3 112 0 %d", 40*ms)
	n.do("sample 3 112 320 %d", 30*ms)
	want["nvidia3 clock_event=hw_thermal window_size_in_ms=300000"] = 1
	want["nvidia3 clock_event=display_clocks window_size_in_ms=300000"] = 1
	got := n.collect()
	wantFamily(t, got, "DCGM_EXP_CLOCK_EVENTS_COUNT", want)
	at := slices.IndexFunc(got.Fields, func(f fleet.Field) bool { return f.Name == "DCGM_EXP_CLOCK_EVENTS_COUNT" })
	if at < 0 || got.Fields[at].Type != "gauge" {
		t.Errorf("fields %+v, want the count as a gauge: it falls", got.Fields)
	}
	// A cut connection is no reason to count anything twice.
	n.do("cut")
	n.collect()
	wantFamily(t, n.collect(), "DCGM_EXP_CLOCK_EVENTS_COUNT", want)
}

// TestClockEventsAsDcgmExporterCountsThem: each sample counts, and a GPU without any has a 0.
func TestClockEventsAsDcgmExporterCountsThem(t *testing.T) {
	n := newNode(t, dcgm.Options{Fields: clockList, Compatible: true})
	n.do("reset 3")
	for i := range 9 {
		n.do("sample 1 112 4 %d", 1000*(100-i))
	}
	n.do("sample 2 112 0 1000")
	got := n.collect()
	wantFamily(t, got, "DCGM_EXP_CLOCK_EVENTS_COUNT", map[string]float64{
		"nvidia0 window_size_in_ms=300000":                       0,
		"nvidia1 clock_event=power_cap window_size_in_ms=300000": 9,
	})
	if got.Fields[1].Type != "counter" {
		t.Errorf("type %q, want the list's", got.Fields[1].Type)
	}
}

func TestClockEventsThatAreRefused(t *testing.T) {
	n := newNode(t, dcgm.Options{Fields: clockList})
	n.do("refuse 112 -6")
	if _, ok := value(n.collect(), 0, "", "DCGM_FI_DEV_GPU_TEMP"); !ok {
		t.Error("the temperature has gone with them")
	}
	wantLine(t, n.source, `stoker_dcgm_field_absent{field="DCGM_EXP_CLOCK_EVENTS_COUNT",reason="refused: not supported"} 8`)
}

// TestWhichGPUsReachEachOther: two that don't are shown, a lost GPU has no row, and an
// engine that can't tell costs nothing else.
func TestWhichGPUsReachEachOther(t *testing.T) {
	list := []dcgm.Field{{ID: 150, Name: "DCGM_FI_DEV_GPU_TEMP", Type: "gauge"}, {Name: "DCGM_EXP_P2P_STATUS", Type: "gauge", Help: "x"}}
	n := newNode(t, dcgm.Options{Fields: list})
	n.do("reset 3")
	n.do("peers 0 2 4")
	n.do("peers 2 0 9")
	want := map[string]float64{
		"nvidia0 link_status=OK peer_gpu=1": 0, "nvidia0 link_status=DisabledByRegKey peer_gpu=2": 4,
		"nvidia1 link_status=OK peer_gpu=0": 0, "nvidia1 link_status=OK peer_gpu=2": 0,
		"nvidia2 link_status=Unknown peer_gpu=0": 9, "nvidia2 link_status=OK peer_gpu=1": 0,
	}
	wantFamily(t, n.collect(), "DCGM_EXP_P2P_STATUS", want)
	wantFamily(t, n.collect(), "DCGM_EXP_P2P_STATUS", want)
	if calls := n.do("peer-calls"); calls != 1 {
		t.Errorf("the driver was asked %d times in a moment, want once", calls)
	}
	n.do("lose 2")
	wantFamily(t, n.collect(), "DCGM_EXP_P2P_STATUS", map[string]float64{"nvidia0 link_status=OK peer_gpu=1": 0, "nvidia1 link_status=OK peer_gpu=0": 0})

	for name, tc := range map[string]struct{ do, reason string }{
		"an engine that can't tell":        {"peers-code -6", "not supported"},
		"an engine before 4.4":             {"peers-code -12", "version mismatch"},
		"an answer that is not understood": {"peers-odd 1", "an answer that is not understood: GPU 4711"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, dcgm.Options{Fields: list})
			n.do("%s", tc.do)
			got := n.collect()
			if _, ok := value(got, 7, "", "DCGM_FI_DEV_GPU_TEMP"); !ok {
				t.Error("the temperature has gone with it")
			}
			wantFamily(t, got, "DCGM_EXP_P2P_STATUS", nil)
			wantLine(t, n.source, `stoker_dcgm_field_absent{field="DCGM_EXP_P2P_STATUS",reason="`+tc.reason+`"} 8`)
		})
	}
}
