//go:build cgo && linux

package dcgm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/collector"
	"stoker.dev/stoker/collector/dcgm"
	"stoker.dev/stoker/collector/dcgm/fake"
	"stoker.dev/stoker/internal/fleet"
)

// What users of exporters complain of, by the number that each has in our list.

// page collects once and returns what a scrape would show.
func page(t *testing.T, c *collector.Collector) string {
	t.Helper()
	if err := c.Gather(t.Context(), time.Now()); err != nil {
		t.Fatalf("gather: %v", err)
	}
	return string(c.AppendPage(nil, time.Now()))
}

func newCollector(t testing.TB, o collector.Options, s *dcgm.Source) *collector.Collector {
	t.Helper()
	c, err := collector.New(quiet(t), "n", []collector.Source{s}, o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// series returns the end of our XID counter's line for a GPU of the fake library.
func series(gpu, xid int) string {
	return fmt.Sprintf(`{node="n",gpu="%d",UUID="GPU-%08x-1111-2222-3333-44444444%04x",pci_bus_id="00000000:%XA:00.0",xid="%d"}`, gpu, gpu, gpu, gpu+1, xid)
}

func count(gpu, xid, n int) string {
	return fmt.Sprintf("stoker_gpu_xid_errors_total%s %d\n", series(gpu, xid), n)
}

func wantIn(t *testing.T, page string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
}

func TestComplaint_01_TheLastXIDGoesAwayWithAge(t *testing.T) {
	n := newNode(t, dcgm.Options{XIDFor: time.Minute})
	n.collect()
	n.do("xid 0 79 0 0")
	if v, ok := value(n.collect(), 0, "", "DCGM_FI_DEV_XID_ERRORS"); !ok || v != 79 {
		t.Errorf("last XID %v %v, want 79", v, ok)
	}
	n.do("forward 60001") // its age is told by the engine's clock, as it is dated
	if v, ok := value(n.collect(), 0, "", "DCGM_FI_DEV_XID_ERRORS"); ok {
		t.Errorf("after its age it is still there: %v", v)
	}
}

func TestComplaint_02_EveryXIDIsCounted(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	c := newCollector(t, collector.Options{}, n.source)
	page(t, c)
	for _, code := range []int{45, 62, 62, 45, 45} {
		n.do("xid 1 %d 0 0", code)
	}
	wantIn(t, page(t, c), count(1, 45, 3), count(1, 62, 2))
	n.do("xid 1 62 0 0") // the same value again
	wantIn(t, page(t, c), count(1, 45, 3), count(1, 62, 3))
}

func TestComplaint_03_WhatOnlyTheKernelTells(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	c := newCollector(t, collector.Options{}, n.source)
	page(t, c)
	time.Sleep(30 * time.Millisecond)
	n.do("kernel 2 79 20000") // 20 ms ago: before what was read last
	wantIn(t, page(t, c), count(2, 79, 1))
	n.do("xid 2 79 0 0") // the driver tells of it, too
	wantIn(t, page(t, c), count(2, 79, 1))
}

func TestComplaint_04_CountersAreThereFromNoughtOn(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	c := newCollector(t, collector.Options{}, n.source)
	wantIn(t, page(t, c), count(0, 79, 0), count(7, 48, 0), count(3, 95, 0))
}

func TestComplaint_05_ALostGPU(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	c := newCollector(t, collector.Options{}, n.source)
	up := func(n int) string {
		return fmt.Sprintf("stoker_gpu_up%s %d\n", strings.Replace(series(3, 0), `,xid="0"`, "", 1), n)
	}
	wantIn(t, page(t, c), up(1))
	n.do("xid 3 79 0 0")
	page(t, c)
	n.do("lose 3")
	page(t, c) // the storm of blanks over the 79
	got := page(t, c)
	wantIn(t, got, up(0), count(3, 79, 1),
		`err_code="79",err_msg="GPU has fallen off the bus"} 79`,
		`DCGM_FI_DEV_GPU_TEMP{gpu="2"`)
	if strings.Contains(got, `DCGM_FI_DEV_GPU_TEMP{gpu="3"`) {
		t.Error("a lost GPU has a temperature")
	}
	if strings.Contains(got, "<<<") {
		t.Error("a blank has become a label")
	}
	wantLine(t, n.source, `stoker_dcgm_gpus{status="lost"} 1`)
	wantLine(t, n.source, `stoker_dcgm_gpus{status="ok"} 7`)
	n.do("return 3")
	wantIn(t, page(t, c), up(1), count(3, 79, 1), `DCGM_FI_DEV_GPU_TEMP{gpu="3"`)
}

func TestComplaint_05_AGPUThatIsLostAtTheStart(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	n.do("lose 3")
	got := n.collect()
	if g := gpu(t, got, 3); g.Up != fleet.False || g.UUID != "" {
		t.Errorf("GPU 3 is %+v, want lost and not known", g)
	}
	if _, ok := value(got, 2, "", "DCGM_FI_DEV_GPU_TEMP"); !ok {
		t.Error("the other GPUs are not read")
	}
	n.do("return 3")
	n.collect()
	got = n.collect()
	if g := gpu(t, got, 3); g.Up != fleet.True || g.UUID == "" {
		t.Errorf("GPU 3 is %+v, want back and known", g)
	}
	if _, ok := value(got, 3, "", "DCGM_FI_DEV_GPU_TEMP"); !ok {
		t.Error("after its return it is not read")
	}
}

func TestComplaint_05_ALostGPUKeepsItsIdentityOverARestart(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	n := newNode(t, dcgm.Options{})
	page(t, newCollector(t, collector.Options{State: state, BootID: "b"}, n.source))
	n.close(n.source)
	n.do("lose 3")
	next := n.open(dcgm.Options{})
	c := newCollector(t, collector.Options{State: state, BootID: "b"}, next)
	wantIn(t, page(t, c), `stoker_gpu_up{node="n",gpu="3",UUID="GPU-00000003-1111-2222-3333-444444440003",pci_bus_id="00000000:4A:00.0"} 0`)
}

func TestComplaint_06_TheEngineRestarts(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	c := newCollector(t, collector.Options{StaleAfter: time.Hour}, n.source)
	page(t, c)
	n.do("xid 1 48 0 0")
	n.do("kernel 1 79 0")
	wantIn(t, page(t, c), count(1, 48, 1), count(1, 79, 1))
	n.do("die")
	err := c.Gather(t.Context(), time.Now())
	if err == nil || !strings.Contains(err.Error(), "connect to localhost:5555") {
		t.Errorf("without an engine: %v", err)
	}
	wantIn(t, string(c.AppendPage(nil, time.Now())), `stoker_collector_source_up{node="n",source="dcgm"} 0`)
	wantIn(t, string(c.AppendPage(nil, time.Now().Add(2*time.Hour))), count(1, 79, 1))
	if strings.Contains(string(c.AppendPage(nil, time.Now().Add(2*time.Hour))), "DCGM_FI") {
		t.Error("old values are shown for ever")
	}
	wantLine(t, n.source, "stoker_dcgm_up 0")
	wantLine(t, n.source, `stoker_dcgm_state{state="no-engine"} 1`)
	n.do("jitter 137") // the engine works out times anew, from the kernel's
	n.do("start")
	got := page(t, c)
	wantIn(t, got, count(1, 48, 1), count(1, 79, 1), `stoker_collector_source_up{node="n",source="dcgm"} 1`)
	wantLine(t, n.source, "stoker_dcgm_connects_total 2")
	wantLine(t, n.source, "stoker_dcgm_up 1")
}

// TestComplaint_06_ItIsTriedFurtherAndFurtherApart where there is no engine.
func TestComplaint_06_ItIsTriedFurtherAndFurtherApart(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "nv-hostengine")
	n := newNode(t, dcgm.Options{Addresses: []string{socket}, FirstRetry: time.Second})
	start := time.Now()
	try := func(after time.Duration) error {
		return n.source.Collect(t.Context(), &fleet.Samples{At: start.Add(after)})
	}
	for _, s := range []float64{0, 1, 3, 7, 15, 31, 61} { // each is tried, and the next pause begins
		at := time.Duration(s * float64(time.Second))
		if err := try(at); err == nil || !strings.Contains(err.Error(), "no such file") {
			t.Fatalf("after %v: %v", at, err)
		}
	}
	if err := os.WriteFile(socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := try(90 * time.Second); err == nil {
		t.Error("it was tried 29s after the last time, want pauses up to 30s")
	}
	if err := try(91 * time.Second); err != nil {
		t.Errorf("30s after the last time: %v", err)
	}
}

func TestComplaint_07_TheEngineHangs(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	n.collect()
	n.do("xid 4 95 0 0")
	n.do("hang 60000")
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("no time left")) // enough to come to where it hangs
	defer cancel()
	start := time.Now()
	err := n.source.Collect(ctx, &fleet.Samples{At: start})
	if d := time.Since(start); d > 20*time.Second {
		t.Errorf("waited for %v", d)
	}
	if err == nil || !strings.Contains(err.Error(), "no time left") || !strings.Contains(err.Error(), "the engine is asking which GPUs are there since") {
		t.Errorf("err = %v, want what it hangs in", err)
	}
	n.do("wake")
	var found []int
	for range 2 { // what the thread found when nobody waited is told with the next
		found = append(found, xids(n.collect(), 4)...)
	}
	if !slices.Equal(found, []int{95}) {
		t.Errorf("after the hang %v were told, want the 95", found)
	}
}

func TestComplaint_07_TheClientGivesUpAndTheConnectionStays(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	n.collect()
	held := n.do("held")
	n.do("limit 50")
	n.do("hang 60000")
	if _, err := collect(t, n.source); err == nil || !strings.Contains(err.Error(), "timeout (-11)") {
		t.Errorf("err = %v, want a timeout", err)
	}
	n.do("wake")
	n.collect()
	wantLine(t, n.source, "stoker_dcgm_connects_total 1")
	if now := n.do("held"); now != held {
		t.Errorf("the engine holds %d things for us, before the hang %d", now, held)
	}
}

// TestComplaint_07_TheEngineHangsWhileGroupsAreMade: what came of the last call nobody knows,
// so that all is given back with the connection: an engine has room for 64 groups.
func TestComplaint_07_TheEngineHangsWhileGroupsAreMade(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	n.collect()
	held := n.do("held")
	n.close(n.source)
	next := n.open(dcgm.Options{})
	n.do("limit 50")
	n.do("latency 10000")
	failed := make(chan error, 1)
	go func() {
		_, err := collect(t, next)
		failed <- err
	}()
	wantSoon(t, func() bool { return n.do("held") >= 3 }, "groups")
	n.do("hang 60000")
	if err := <-failed; err == nil || !strings.Contains(err.Error(), "timeout (-11)") {
		t.Errorf("err = %v, want a timeout", err)
	}
	n.do("latency 0")
	n.do("wake")
	if _, err := collect(t, next); err != nil {
		t.Fatal(err)
	}
	if now := n.do("held"); now != held {
		t.Errorf("the engine holds %d things for us, want %d", now, held)
	}
}

func TestComplaint_08_AScrapeDoesNotWait(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	c := newCollector(t, collector.Options{Watchdog: 500 * time.Millisecond, Interval: time.Second, StaleAfter: time.Hour}, n.source)
	page(t, c)
	n.do("hang 60000")
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- c.Run(ctx) }()
	var took []time.Duration
	var buf []byte
	const down = `stoker_collector_source_up{node="n",source="dcgm"} 0`
	wantSoon(t, func() bool {
		buf = c.AppendPage(buf[:0], time.Now())
		return bytes.Contains(buf, []byte(down))
	}, "source that is down")
	for range 1000 {
		start := time.Now()
		buf = c.AppendPage(buf[:0], start)
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	t.Logf("while the engine hangs: median of a scrape %v, p99 %v", took[500], took[989])
	if took[500] > 100*time.Millisecond { // how long it takes is the benchmark's to say
		t.Errorf("half of the scrapes took over %v while the engine hangs: they wait for it", took[500])
	}
	wantIn(t, string(buf), down, "DCGM_FI_DEV_GPU_TEMP")
	n.do("wake")
	stop()
	if err := <-done; err != nil {
		t.Errorf("run: %v", err)
	}
}

func TestComplaint_10_NothingPilesUpInTheEngine(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	n.collect()
	held := n.do("held")
	for i := range 70 { // over the 64 groups that there may be
		n.do("lose 1")
		n.collect()
		n.do("return 1")
		n.do("mig 2 %d 1 3", 10+i)
		n.collect()
		n.do("mig-none")
		n.collect()
	}
	if now := n.do("held"); now != held {
		t.Errorf("the engine holds %d things, %d at the start", now, held)
	}
}

func TestComplaint_11_TheEndGivesEverythingBack(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	n.collect()
	n.close(n.source)
	if held := n.do("held"); held != 0 {
		t.Errorf("the engine still holds %d things", held)
	}
	if err := n.source.Collect(t.Context(), &fleet.Samples{}); err == nil {
		t.Error("a source that is closed answers")
	}
}

func TestComplaint_16_MIGInstancesComeAndGo(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	n.collect()
	n.do("mig 1 7 3 2")
	n.do("set 4 7 252 i 4711")
	n.collect()
	got := n.collect()
	i := slices.IndexFunc(got.GPUs, func(g fleet.SampledGPU) bool { return g.Instance != "" })
	if i < 0 {
		t.Fatal("the instance is not found")
	}
	if g := got.GPUs[i]; g.Index != 1 || g.Instance != "3" || g.Profile != "2g.20gb" || g.Up != fleet.True {
		t.Errorf("the instance is %+v", g)
	}
	if v, ok := value(got, 1, "3", "DCGM_FI_DEV_FB_USED"); !ok || v != 4711 {
		t.Errorf("memory of the instance %v %v, want 4711", v, ok)
	}
	if _, ok := value(got, 1, "3", "DCGM_FI_DEV_GPU_TEMP"); ok {
		t.Error("an instance has a temperature")
	}
	n.do("xid-of 5 7 43 0 0") // named by its compute instance, whose number is another GPU's
	n.do("xid-of 4 7 31 0 0")
	got = n.collect()
	if x := xids(got, 1); !slices.Equal(x, []int{31, 43}) {
		t.Errorf("GPU 1 has %v, want both", x)
	}
	if x := xids(got, 7); len(x) > 0 {
		t.Errorf("GPU 7 has the XIDs of an instance: %v", x)
	}
	n.do("mig-none")
	n.collect()
	got = n.collect()
	if slices.ContainsFunc(got.GPUs, func(g fleet.SampledGPU) bool { return g.Instance != "" }) {
		t.Error("an instance that has gone is shown")
	}
}

func TestComplaint_17_ProfilingThatIsRefused(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	n.do("refuse 1001 -33")
	n.do("refuse 1009 -37")
	got := n.collect()
	if _, ok := value(got, 0, "", "DCGM_FI_PROF_GR_ENGINE_ACTIVE"); ok {
		t.Error("a field that was refused is there")
	}
	for _, f := range []string{"DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_PROF_PCIE_RX_BYTES", "DCGM_FI_DEV_GPU_TEMP"} {
		if _, ok := value(got, 0, "", f); !ok {
			t.Errorf("%s has gone with it", f)
		}
	}
	wantLine(t, n.source, `stoker_dcgm_field_absent{field="DCGM_FI_PROF_GR_ENGINE_ACTIVE",reason="refused: module not loaded"} 8`)
	wantLine(t, n.source, `stoker_dcgm_field_absent{field="DCGM_FI_PROF_PCIE_TX_BYTES",reason="refused: profiling library error"} 8`)
}

func TestComplaint_18_ARateIsNoCounter(t *testing.T) {
	rates := 0
	for _, f := range newNode(t, dcgm.Options{}).collect().Fields {
		switch f.Name {
		case "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "DCGM_FI_PROF_PCIE_TX_BYTES", "DCGM_FI_PROF_PCIE_RX_BYTES":
			if rates++; f.Type != "gauge" || !strings.Contains(strings.ToLower(f.Help), "rate of data") {
				t.Errorf("%s is a %s: %s", f.Name, f.Type, f.Help)
			}
		}
	}
	if rates != 3 {
		t.Errorf("%d rates are shown, want 3", rates)
	}
}

func TestComplaint_19_WithoutALibrary(t *testing.T) {
	lib := fake.New(t)
	path := filepath.Join(t.TempDir(), "libdcgm.so.4")
	s := dcgm.New(quiet(t), dcgm.Options{Libraries: []string{path}, Addresses: []string{"localhost:5555"}, FirstRetry: time.Nanosecond})
	n := &node{lib, s, t}
	t.Cleanup(func() { n.close(s) })
	_, err := collect(t, s)
	if err == nil || !strings.Contains(err.Error(), "open libdcgm: "+path+": cannot open shared object file") {
		t.Errorf("err = %v, want what is missing", err)
	}
	wantLine(t, s, `stoker_dcgm_state{state="no-library"} 1`)
	// It is installed later.
	if err := os.Symlink(lib.Path, path); err != nil {
		t.Fatal(err)
	}
	n.do("nvml 0")
	if _, err := collect(t, s); err == nil || !strings.Contains(err.Error(), "NVML not loaded") {
		t.Errorf("err = %v, want that there is no driver", err)
	}
	wantLine(t, s, `stoker_dcgm_state{state="no-driver"} 1`)
	n.do("nvml 1")
	if got := n.collect(); len(got.GPUs) != 8 {
		t.Errorf("%d GPUs once there is a driver", len(got.GPUs))
	}
	wantLine(t, s, `stoker_dcgm_state{state="ok"} 1`)
}

func TestComplaint_20_OneBadField(t *testing.T) {
	n := newNode(t, dcgm.Options{Fields: []dcgm.Field{
		{ID: 150, Name: "DCGM_FI_DEV_GPU_TEMP", Type: "gauge"},
		{ID: 1999, Name: "DCGM_FI_DEV_OF_A_LATER_VERSION", Type: "gauge"},
		{ID: 449, Name: "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", Type: "gauge"},
		{ID: 203, Name: "DCGM_FI_DEV_GPU_UTIL", Type: "gauge"},
	}})
	n.do("refuse 449 -6")
	got := n.collect()
	for _, f := range []string{"DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_UTIL"} {
		if _, ok := value(got, 5, "", f); !ok {
			t.Errorf("%s is not there", f)
		}
	}
	wantLine(t, n.source, `stoker_dcgm_field_absent{field="DCGM_FI_DEV_OF_A_LATER_VERSION",reason="refused: bad parameter"} 8`)
	wantLine(t, n.source, `stoker_dcgm_field_absent{field="DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",reason="refused: not supported"} 8`)
}

func TestComplaint_21_WhyAValueIsMissing(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	n.do("set 1 0 393 e -14")
	n.do("set 1 1 393 b")
	n.collect()
	wantLine(t, n.source, `stoker_dcgm_field_absent{field="DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",reason="no data"} 1`)
	wantLine(t, n.source, `stoker_dcgm_field_absent{field="DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",reason="blank"} 1`)
}

func TestComplaint_22_NoSecondEngine(t *testing.T) {
	n := newNode(t, dcgm.Options{Embed: true})
	n.do("hang 300") // it only takes long to answer
	n.collect()
	wantLine(t, n.source, "stoker_dcgm_connects_total 1")
	n.close(n.source)

	// One of another version answers, too, if only with a refusal.
	n.do("mismatch 1")
	next := n.open(dcgm.Options{Embed: true})
	if _, err := collect(t, next); err == nil || !strings.Contains(err.Error(), "version mismatch (-12)") {
		t.Errorf("err = %v, want the engine's refusal", err)
	}
	n.do("mismatch 0")

	n.do("die")
	last := n.open(dcgm.Options{Embed: true})
	got, err := collect(t, last)
	if err != nil || len(got.GPUs) != 8 {
		t.Errorf("where no engine answers: %d GPUs, %v", len(got.GPUs), err)
	}
}
