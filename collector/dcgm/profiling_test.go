//go:build cgo && linux

package dcgm_test

import (
	"testing"
	"time"

	"stoker.dev/stoker/collector/dcgm"
)

const active, dram = "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_DRAM_ACTIVE"

// TestComplaint_17_ZerosOfABusyGPU are not believed, and said.
func TestComplaint_17_ZerosOfABusyGPU(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	n.do("set 1 1 203 i 97")
	n.do("set 1 1 1001 d 0")
	n.do("set 1 1 1005 d 0")
	n.do("set 1 2 203 i 3") // does nothing
	n.do("set 1 2 1001 d 0")
	got := n.collect()
	for _, f := range []string{active, dram, "DCGM_FI_PROF_PCIE_TX_BYTES"} {
		if v, ok := value(got, 1, "", f); ok {
			t.Errorf("%s of a busy GPU is %v, want none", f, v)
		}
	}
	if _, ok := value(got, 1, "", "DCGM_FI_DEV_GPU_UTIL"); !ok {
		t.Error("what is not of profiling has gone, too")
	}
	if v, ok := value(got, 2, "", active); !ok || v != 0 {
		t.Errorf("an idle GPU's engines are active %v %v, want 0", v, ok)
	}
	wantLine(t, n.source, `stoker_dcgm_profiling{gpu="1",state="not-believed"} 1`)
	wantLine(t, n.source, `stoker_dcgm_profiling{gpu="2",state="ok"} 1`)
	// When it stays so, profiling is watched anew, but not all the time.
	before := n.do("watched 1 1001")
	for range 6 {
		n.collect()
	}
	if again := n.do("watched 1 1001") - before; again != 1 {
		t.Errorf("profiling was watched anew %d times, want once", again)
	}
	n.do("set 1 1 1001 d 0.7")
	if v, ok := value(n.collect(), 1, "", active); !ok || v != 0.7 {
		t.Errorf("with values again %v %v, want 0.7", v, ok)
	}
	wantLine(t, n.source, `stoker_dcgm_profiling{gpu="1",state="ok"} 1`)
	wantLine(t, n.source, "stoker_dcgm_profiling_rewatches_total 1")
}

// TestComplaint_17_AfterAnXID31 profiling is watched anew; others don't matter to it.
func TestComplaint_17_AfterAnXID31(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	n.collect()
	held := n.do("held")
	n.do("xid 4 43 0 0")
	n.collect()
	wantLine(t, n.source, "stoker_dcgm_profiling_rewatches_total 0")
	for range 3 {
		n.do("xid 4 31 0 0")
		n.collect()
	}
	wantLine(t, n.source, "stoker_dcgm_profiling_rewatches_total 1")
	n.later(2 * time.Minute) // the later ones were not forgotten
	wantLine(t, n.source, "stoker_dcgm_profiling_rewatches_total 2")
	if _, ok := value(n.collect(), 4, "", active); !ok {
		t.Error("and is not read afterwards")
	}
	if now := n.do("held"); now != held {
		t.Errorf("the engine holds %d things, %d before", now, held)
	}
}

// TestComplaint_17_AnotherProgramHasIt, such as a debugger: that is said, all else goes on,
// and it is tried again when a minute has passed.
func TestComplaint_17_AnotherProgramHasIt(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	for _, f := range []int{1001, 1004, 1005, 1009, 1010} {
		n.do("refuse %d -37", f)
	}
	got := n.collect()
	if _, ok := value(got, 0, "", "DCGM_FI_DEV_GPU_TEMP"); !ok {
		t.Error("nothing is read")
	}
	wantLine(t, n.source, `stoker_dcgm_profiling{gpu="0",state="paused"} 1`)
	n.collect()
	n.do("accept")
	if _, ok := value(n.collect(), 0, "", active); ok {
		t.Error("it was tried again at once")
	}
	if _, ok := value(n.later(2*time.Minute), 0, "", active); !ok {
		t.Error("it was not tried again")
	}
	wantLine(t, n.source, `stoker_dcgm_profiling{gpu="0",state="ok"} 1`)

	// The same by the status of each value, while it is watched.
	for _, f := range []int{1001, 1004, 1005, 1009, 1010} {
		n.do("set 1 5 %d e -54", f)
	}
	n.later(2 * time.Minute)
	wantLine(t, n.source, `stoker_dcgm_profiling{gpu="5",state="paused"} 1`)
	wantLine(t, n.source, `stoker_dcgm_profiling{gpu="6",state="ok"} 1`)
	wantLine(t, n.source, `stoker_dcgm_field_absent{field="DCGM_FI_PROF_GR_ENGINE_ACTIVE",reason="paused"} 1`)
}

// TestComplaint_17_WhereThereIsNone, as on a board for games.
func TestComplaint_17_WhereThereIsNone(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	for _, f := range []int{1001, 1004, 1005, 1009, 1010} {
		n.do("refuse %d -36", f)
	}
	n.collect()
	wantLine(t, n.source, `stoker_dcgm_profiling{gpu="0",state="refused"} 1`)
	before := n.do("calls")
	n.later(2 * time.Minute)
	n.later(4 * time.Minute)
	if calls := n.do("calls") - before; calls > 20 {
		t.Errorf("%d calls for two readings: it is tried again and again", calls)
	}
}

// TestComplaint_17_OneFieldThatIsTaken: the others go on, and it is tried again, too.
func TestComplaint_17_OneFieldThatIsTaken(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	n.do("refuse 1005 -37")
	got := n.collect()
	if _, ok := value(got, 0, "", active); !ok {
		t.Error("the others have gone with it")
	}
	n.collect()
	n.do("accept")
	if _, ok := value(n.later(2*time.Minute), 0, "", dram); !ok {
		t.Error("it was not tried again")
	}
}
