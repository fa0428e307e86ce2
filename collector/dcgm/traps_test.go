//go:build cgo && linux

package dcgm_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/collector"
	"stoker.dev/stoker/collector/dcgm"
	"stoker.dev/stoker/internal/fleet"
)

// What libdcgm does that nobody would expect, as it was measured.

func TestTrap_AValueWhoseStatusIsBadIsNone(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	n.do("set 1 0 150 e -13")
	got := n.collect()
	if v, ok := value(got, 0, "", "DCGM_FI_DEV_GPU_TEMP"); ok {
		t.Errorf("a temperature of %v", v)
	}
	if _, ok := value(got, 1, "", "DCGM_FI_DEV_GPU_TEMP"); !ok {
		t.Error("the other GPU's has gone, too")
	}
}

func TestTrap_BlanksAreRangesOfTheirType(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	n.do("set 1 0 156 i 2147483634")          // a blank of 32 bits is a fine number of 64
	n.do("set 1 1 156 i 9223372036854775794") // not supported
	n.do("set 1 2 156 i 9223372036854775807") // a blank that nobody has named yet
	n.do("set 1 0 155 d 140737488355329.0")   // not found
	n.do("set 1 1 155 d nan")
	got := n.collect()
	const energy, power = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_DEV_POWER_USAGE"
	if v, ok := value(got, 0, "", energy); !ok || v != 2147483634 {
		t.Errorf("energy %v %v, want 2147483634", v, ok)
	}
	for gpu, field := range []string{power, energy, energy} {
		if v, ok := value(got, gpu, "", field); ok {
			t.Errorf("%s of GPU %d is %v, want none", field, gpu, v)
		}
	}
	if v, ok := value(got, 1, "", power); ok {
		t.Errorf("power that is not a number is %v, want none", v)
	}
}

func TestTrap_TwoClientsOfOneEngine(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	other := n.open(dcgm.Options{})
	n.collect()
	if _, err := collect(t, other); err != nil {
		t.Errorf("the second client: %v", err)
	}
	n.close(n.source)
	if got, err := collect(t, other); err != nil || len(got.Values) == 0 {
		t.Errorf("after the first one has ended: %d values, %v", len(got.Values), err)
	}
}

func TestTrap_GroupsThatTheEngineHasForgotten(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	n.collect()
	n.do("forget") // -5 NOT_CONFIGURED from now on
	if got := n.collect(); len(got.Values) == 0 {
		t.Error("nothing is read any more")
	}
}

func TestTrap_AnotherMajorVersion(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	n.do("version 3.3.9")
	_, err := collect(t, n.source)
	if err == nil || !strings.Contains(err.Error(), "the library is DCGM 4.6.0 and the engine 3.3.9: their major versions must be equal") {
		t.Errorf("err = %v", err)
	}
	if n.do("held") != 0 {
		t.Error("the connection was kept")
	}
}

func TestTrap_XIDsTurnUpLateAndInAnyOrder(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	n.collect()
	start := time.Now()
	time.Sleep(60 * time.Millisecond)
	n.do("xid 0 31 0 0")
	n.do("xid 0 43 10000 0")       // 10 ms ago
	n.do("xid 0 13 20000 1000000") // 20 ms ago, to be seen in a second
	got := n.collect()
	if x := xids(got, 0); !slices.Equal(x, []int{31, 43}) {
		t.Errorf("at first %v, want 31 and 43", x)
	}
	for _, e := range got.Events {
		if e.At.Before(start) || e.At.After(got.At) {
			t.Errorf("XID %d is of %v, want the time when it happened, between %v and %v", e.XID, e.At, start, got.At)
		}
	}
	time.Sleep(1010 * time.Millisecond)
	if x := xids(n.collect(), 0); !slices.Equal(x, []int{13}) {
		t.Errorf("then %v, want 13", x)
	}
	if x := xids(n.collect(), 0); len(x) != 0 {
		t.Errorf("and then %v again", x)
	}
}

func TestTrap_WhatIsNoXID(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	n.collect()
	n.do("xid 0 0 0 0")
	n.do("xid 0 -1 0 0")
	n.do("xid 0 9223372036854775792 0 0")
	n.do("xid 0 4711 0 0") // above every list, but one
	got := n.collect()
	if x := xids(got, 0); !slices.Equal(x, []int{4711}) {
		t.Errorf("told %v, want 4711 alone", x)
	}
	for _, v := range got.Values {
		if v.Field == "DCGM_FI_DEV_XID_ERRORS" && !slices.Contains(v.Labels, fleet.Label{Name: "err_msg", Value: "Unknown Error"}) {
			t.Errorf("4711 is called %v", v.Labels)
		}
	}
}

func TestTrap_TwoEqualXIDsAtOneTime(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	c := newCollector(t, collector.Options{}, n.source)
	page(t, c)
	for range 20 { // the engine gives each a microsecond more
		n.do("xid 0 31 0 0")
	}
	wantIn(t, page(t, c), count(0, 31, 20))
}

func TestTrap_HistoryIsNotCounted(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	n.do("xid 0 63 60000000 0")
	n.do("kernel 1 79 3600000000")
	c := newCollector(t, collector.Options{}, n.source)
	got := page(t, c)
	wantIn(t, got, count(0, 63, 0), count(1, 79, 0), `err_code="79",err_msg="GPU has fallen off the bus"} 79`)
}

// TestTrap_TheKernelsRingIsReadAgain: by the engine when it starts, and by two runs of
// the collector.
func TestTrap_TheKernelsRingIsReadAgain(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	o := collector.Options{State: t.TempDir() + "/state", BootID: "b"}
	c := newCollector(t, o, n.source)
	page(t, c)
	n.do("kernel 1 79 0")
	n.do("kernel 2 120 0")
	wantIn(t, page(t, c), count(1, 79, 1), count(2, 120, 1))
	n.close(n.source)

	n.do("kernel 4 79 0") // while nobody looks
	n.do("jitter -211")
	n.do("die")
	n.do("start")
	next := n.open(dcgm.Options{})
	c = newCollector(t, o, next)
	wantIn(t, page(t, c), count(1, 79, 1), count(2, 120, 1), count(4, 79, 1))
	n.do("die")
	n.do("jitter 1500")
	n.do("start")
	wantIn(t, page(t, c), count(1, 79, 1), count(2, 120, 1), count(4, 79, 1))
	n.close(next)

	last := n.open(dcgm.Options{})
	wantIn(t, page(t, newCollector(t, o, last)), count(1, 79, 1), count(2, 120, 1), count(4, 79, 1))
}

func TestTrap_HealthOfALostGPU(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	n.do("health 3 16 20 41")
	n.do("health 3 2 10 7")
	rows := func(s *fleet.Samples) (out []string) {
		for _, v := range s.Values {
			if v.Field == "DCGM_EXP_GPU_HEALTH_STATUS" && s.GPUs[v.GPU].Index == 3 {
				for _, l := range v.Labels {
					if l.Name == "health_watch" && v.Value > 0 {
						out = append(out, l.Value)
					}
				}
			}
		}
		return out
	}
	if got := rows(n.collect()); !slices.Equal(got, []string{"NVLINK", "MEM"}) {
		t.Errorf("found %v, want NVLINK and MEM", got)
	}
	n.do("lose 3")
	got := n.collect()
	for _, v := range got.Values {
		if v.Field == "DCGM_EXP_GPU_HEALTH_STATUS" && got.GPUs[v.GPU].Index == 3 {
			t.Fatal("a lost GPU has a health")
		}
	}
}

// TestTrap_AnEngineThatAsksTheDriverNothing: after a 119 of one GPU every value of all
// GPUs is blank, though the engine calls all of them well.
func TestTrap_AnEngineThatAsksTheDriverNothing(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	n.collect()
	n.do("kernel 5 119 0")
	got := n.collect()
	if x := xids(got, 5); !slices.Equal(x, []int{119}) {
		t.Errorf("told %v, want the 119", x)
	}
	for _, g := range got.GPUs {
		if g.Up != fleet.Unknown || g.UUID == "" {
			t.Errorf("GPU %d is %+v, want that nothing is known but who it is", g.Index, g)
		}
	}
	wantLine(t, n.source, `stoker_dcgm_state{state="silent"} 1`)
	events := &fleet.Samples{At: time.Now()}
	if err := n.source.CollectEvents(t.Context(), events); err != nil {
		t.Fatal(err)
	}
	if g := gpu(t, events, 0); g.Up != fleet.Unknown {
		t.Errorf("between two readings of values GPU 0 is %v", g.Up)
	}
	n.do("blank 0")
	if g := gpu(t, n.collect(), 0); g.Up != fleet.True {
		t.Errorf("with values again GPU 0 is %v", g.Up)
	}
	wantLine(t, n.source, `stoker_dcgm_state{state="ok"} 1`)

	// An engine that starts with the 119 in the kernel's log does not say who the GPUs are.
	n.do("die")
	n.do("start")
	n.do("blank 1")
	for _, g := range n.collect().GPUs {
		if g.Up != fleet.Unknown || g.UUID == "" || g.Model == "" {
			t.Errorf("after a restart of the engine GPU %d is %+v, want who it was", g.Index, g)
		}
	}
}

func TestTrap_TheDriverIsDetachedAndAttached(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	n.collect()
	n.do("detach")
	for range 2 {
		if _, err := collect(t, n.source); err == nil || !strings.Contains(err.Error(), "GPUs are detached (-67)") {
			t.Errorf("err = %v, want that they are detached", err)
		}
	}
	wantLine(t, n.source, `stoker_dcgm_state{state="detached"} 1`)
	n.do("attach")
	got := n.collect()
	if _, ok := value(got, 7, "", "DCGM_FI_DEV_GPU_TEMP"); !ok || gpu(t, got, 7).Up != fleet.True {
		t.Error("after the driver was attached GPU 7 is not read")
	}
}

// TestTrap_TheDriverIsExchangedBetweenTwoReadings: nothing looks different afterwards, but
// the engine has forgotten what it watched, and tells by an event that it was so.
func TestTrap_TheDriverIsExchangedBetweenTwoReadings(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	n.collect()
	watched := n.do("watched 1 150")
	held := n.do("held")
	n.do("detach")
	n.do("attach")
	if got := n.collect(); len(got.Values) == 0 {
		t.Error("nothing is read")
	}
	if again := n.do("watched 1 150") - watched; again != 1 {
		t.Errorf("the watches were made anew %d times, want once", again)
	}
	n.collect()
	if again := n.do("watched 1 150") - watched; again != 1 {
		t.Errorf("one event has had the watches made anew %d times", again)
	}
	if now := n.do("held"); now != held {
		t.Errorf("the engine holds %d things, %d before", now, held)
	}
}

func TestTrap_TheEngineWakesUsUp(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	n.collect()
	n.do("xid 6 48 0 0")
	select {
	case <-n.source.Wake():
	case <-time.After(5 * time.Second):
		t.Fatal("nobody was woken up")
	}
	got := &fleet.Samples{At: time.Now()}
	if err := n.source.CollectEvents(t.Context(), got); err != nil {
		t.Fatal(err)
	}
	if x := xids(got, 6); !slices.Equal(x, []int{48}) {
		t.Errorf("told %v, want the 48", x)
	}
	if len(got.Values) != 0 || n.do("latest-calls") != 1 {
		t.Error("values were read for an event")
	}
}

// TestTrap_NumbersMoveWhenAGPUIsGone: an engine that starts without one GPU counts the
// others anew.
func TestTrap_NumbersMoveWhenAGPUIsGone(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	n.collect()
	n.do("xid 3 79 0 0")
	before := n.collect()
	n.do("die")
	n.do("gone 3")
	n.do("start")
	got := n.collect()
	for _, v := range got.Values {
		if v.Field == "DCGM_FI_DEV_XID_ERRORS" && got.GPUs[v.GPU].UUID != gpu(t, before, 3).UUID {
			t.Errorf("the last XID of GPU 3 is shown for %s, which has its number now", got.GPUs[v.GPU].UUID)
		}
	}
	if !slices.ContainsFunc(got.Values, func(v fleet.Sample) bool { return v.Field == "DCGM_FI_DEV_XID_ERRORS" }) {
		t.Error("the last XID of the GPU that has gone is not shown")
	}
	if len(got.GPUs) != 8 {
		t.Fatalf("%d GPUs, want the 7 that are there and the one that is not", len(got.GPUs))
	}
	for _, was := range before.GPUs {
		i := slices.IndexFunc(got.GPUs, func(g fleet.SampledGPU) bool { return g.UUID == was.UUID })
		if i < 0 {
			t.Errorf("%s is not listed any more", was.UUID)
			continue
		}
		if up := got.GPUs[i].Up; up != fleet.TruthOf(was.Index != 3) {
			t.Errorf("%s, once GPU %d, is up: %v", was.UUID, was.Index, up)
		}
	}
}

// TestTrap_AnXIDOfTheFuture, as after a clock was set back: the engine tells of it when its
// time has come, and it is counted then, once.
func TestTrap_AnXIDOfTheFuture(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	n.collect()
	n.do("xid 0 48 -1000000 0")
	n.do("xid 0 31 0 0")
	if x := xids(n.collect(), 0); !slices.Equal(x, []int{31}) {
		t.Errorf("at first %v, want 31 alone", x)
	}
	time.Sleep(1020 * time.Millisecond)
	if x := xids(n.collect(), 0); !slices.Equal(x, []int{48}) {
		t.Errorf("then %v, want 48", x)
	}
	if x := xids(n.collect(), 0); len(x) != 0 {
		t.Errorf("and then %v again", x)
	}
}

// TestTrap_TheClockIsSetBack before the time at which the collector first looked: what happens
// then is no history, and it is the last XID.
func TestTrap_TheClockIsSetBack(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	n.collect()
	n.do("xid 0 31 0 0")
	if x := xids(n.collect(), 0); !slices.Equal(x, []int{31}) {
		t.Fatalf("before it %v, want 31", x)
	}
	n.do("forward -3600000")
	n.do("xid 0 48 0 0")
	var told []int
	got := n.collect()
	for range 3 {
		told = append(told, xids(got, 0)...)
		n.do("xid 1 43 0 0")
		got = n.collect()
	}
	if !slices.Equal(told, []int{48}) {
		t.Errorf("after it %v, want 48", told)
	}
	if v, ok := value(got, 0, "", "DCGM_FI_DEV_XID_ERRORS"); !ok || v != 48 {
		t.Errorf("the last XID is %v %v, want 48", v, ok)
	}
}

// TestTrap_OnePairThatIsNotWatched ends the whole reading of events: they are watched anew.
func TestTrap_OnePairThatIsNotWatched(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	n.collect()
	n.do("unwatch 1 3 230")
	n.do("xid 5 48 0 0")
	if _, err := collect(t, n.source); err == nil || !strings.Contains(err.Error(), "not watched (-16)") {
		t.Errorf("err = %v, want that it is not watched", err)
	}
	if x := xids(n.collect(), 5); !slices.Equal(x, []int{48}) {
		t.Errorf("told %v, want the 48", x)
	}
}

// TestTrap_OthersHaveTheEnginesFieldGroups: of 64 there is room for few. XIDs come first,
// and what is missing says why.
func TestTrap_OthersHaveTheEnginesFieldGroups(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	n.do("field-groups 3") // XIDs, other events, and the fields but those of profiling
	n.collect()
	n.do("xid 5 48 0 0")
	got := n.collect()
	if x := xids(got, 5); !slices.Equal(x, []int{48}) {
		t.Errorf("told %v, want the 48", x)
	}
	if _, ok := value(got, 5, "", "DCGM_FI_DEV_GPU_TEMP"); !ok {
		t.Error("no temperature")
	}
	wantLine(t, n.source, `stoker_dcgm_field_absent{field="DCGM_FI_PROF_DRAM_ACTIVE",reason="refused: limit reached"} 8`)
}

// TestTrap_RatesBeforeTheSecondSample are -14 or blank, as there is nothing to compare with
// yet: no number, no reason to give the field up, and there as soon as the engine has one.
func TestTrap_RatesBeforeTheSecondSample(t *testing.T) {
	const bandwidth = "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"
	n := newNode(t, dcgm.Options{Fields: []dcgm.Field{
		{ID: 150, Name: "DCGM_FI_DEV_GPU_TEMP", Type: "gauge"},
		{ID: 449, Name: bandwidth, Type: "gauge"},
		{ID: 1001, Name: active, Type: "gauge"},
	}})
	for id := range 8 {
		first := []string{"b", "e -14"}[id%2]
		n.do("set 1 %d 449 %s", id, first)
		n.do("set 1 %d 1001 %s", id, first)
	}
	c := newCollector(t, collector.Options{}, n.source)
	for range 2 {
		got := page(t, c)
		wantIn(t, got, `DCGM_FI_DEV_GPU_TEMP{gpu="7"`, `stoker_gpu_up{node="n",gpu="0",UUID="GPU-00000000-1111-2222-3333-444444440000",pci_bus_id="00000000:1A:00.0"} 1`)
		for _, f := range []string{bandwidth, active} {
			if strings.Contains(got, f+"{") {
				t.Fatalf("%s is shown before its second sample:\n%s", f, got)
			}
			wantLine(t, n.source, `stoker_dcgm_field_absent{field="`+f+`",reason="blank"} 4`)
			wantLine(t, n.source, `stoker_dcgm_field_absent{field="`+f+`",reason="no data"} 4`)
		}
	}
	begun := n.do("watched 1 449") + n.do("watched 1 1001")
	for id := range 8 {
		n.do("set 1 %d 449 i %d", id, 1000+id)
		n.do("set 1 %d 1001 d 0.25", id)
	}
	got := n.collect()
	for id := range 8 {
		if v, ok := value(got, id, "", bandwidth); !ok || v != float64(1000+id) {
			t.Errorf("GPU %d: %s is %v %v, want %d", id, bandwidth, v, ok, 1000+id)
		}
		if v, ok := value(got, id, "", active); !ok || v != 0.25 {
			t.Errorf("GPU %d: %s is %v %v, want 0.25", id, active, v, ok)
		}
	}
	if again := n.do("watched 1 449") + n.do("watched 1 1001") - begun; again != 0 {
		t.Errorf("the watches were made anew %d times: their first samples are blank again", again)
	}
	if p := string(n.source.AppendPage(nil)); strings.Contains(p, "stoker_dcgm_field_absent{") {
		t.Errorf("something is still called absent:\n%s", p)
	}
}

// TestTrap_AGroupThatTakesNoEntity says -1, for one that the engine lists and does not know,
// and for one that is a member already as it was listed twice. The others are read.
func TestTrap_AGroupThatTakesNoEntity(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	n.do("mig 6 1 1 3")
	n.do("mig 6 2 2 3")
	n.do("stranger 1 3") // a GPU
	n.do("stranger 4 2") // a GPU instance
	n.do("twice 1 5")    // a GPU
	n.do("twice 5 1")    // a compute instance
	const temp = "DCGM_FI_DEV_GPU_TEMP"
	for range 2 {
		got := n.collect()
		whole := 0
		for _, g := range got.GPUs {
			if g.Instance != "" {
				continue
			}
			whole++
			want := fleet.True
			if g.Index == 3 {
				want = fleet.Unknown // nothing is read of it
			}
			if _, ok := value(got, g.Index, "", temp); ok != (g.Index != 3) || g.Up != want {
				t.Errorf("GPU %d is up: %q, want %q; it has values: %v", g.Index, g.Up, want, ok)
			}
		}
		if whole != 8 {
			t.Errorf("%d GPUs, want 8", whole)
		}
		if _, ok := value(got, 6, "1", active); !ok {
			t.Error("the instance beside the one that is refused has gone, too")
		}
	}
	wantLine(t, n.source, "stoker_dcgm_connects_total 1")
	begun := n.do("watched 1 150")
	for _, id := range []int{2, 4, 5} {
		n.do("xid %d 31 0 0", id)
	}
	got := n.collect()
	for _, id := range []int{2, 4, 5} {
		if x := xids(got, id); !slices.Equal(x, []int{31}) {
			t.Errorf("of GPU %d told %v, want the 31", id, x)
		}
	}
	if again := n.do("watched 1 150") - begun; again != 0 {
		t.Errorf("the watches were made anew %d times", again)
	}
}

// TestTrap_PretendedGPUs all have one UUID, which is nobody's.
func TestTrap_PretendedGPUs(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	for _, id := range []int{5, 6, 7} {
		n.do("pretend %d", id)
	}
	c := newCollector(t, collector.Options{}, n.source)
	got := page(t, c)
	for _, id := range []string{"5", "6", "7"} {
		wantIn(t, got, `stoker_gpu_up{node="n",gpu="`+id+`",UUID="",pci_bus_id=""} 1`)
	}
	if strings.Contains(got, "GPU-00000000-0000-0000") {
		t.Error("they are called by the UUID that all of them have")
	}
}
