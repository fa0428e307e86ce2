//go:build cgo && linux

package dcgm_test

import (
	"testing"
	"time"

	"stoker.dev/stoker/collector"
	"stoker.dev/stoker/collector/dcgm"
	"stoker.dev/stoker/internal/fleet"
)

// later collects as of some time from now.
func (n *node) later(d time.Duration) *fleet.Samples {
	n.t.Helper()
	into := &fleet.Samples{At: time.Now().Add(d)}
	if err := n.source.Collect(n.t.Context(), into); err != nil {
		n.t.Fatalf("collect: %v", err)
	}
	return into
}

// TestComplaint_07_OneSickGPU: the engine has not read it for a while, though it calls it
// well. What is old is not shown, nothing is known of it, and the others go on.
func TestComplaint_07_OneSickGPU(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	n.collect()
	n.do("age 3 60000")
	n.do("age 4 3000") // a little late, as all are when one keeps the engine busy
	got := n.collect()
	if _, ok := value(got, 3, "", "DCGM_FI_DEV_GPU_TEMP"); ok {
		t.Error("a value of a minute ago is shown")
	}
	if up := gpu(t, got, 3).Up; up != fleet.Unknown {
		t.Errorf("GPU 3 is up: %v, want unknown", up)
	}
	for _, id := range []int{0, 4} {
		if _, ok := value(got, id, "", "DCGM_FI_DEV_GPU_TEMP"); !ok || gpu(t, got, id).Up != fleet.True {
			t.Errorf("GPU %d has gone, too", id)
		}
	}
	wantLine(t, n.source, `stoker_dcgm_field_absent{field="DCGM_FI_DEV_GPU_TEMP",reason="stale"} 1`)
	wantIn(t, string(n.source.AppendPage(nil)), `stoker_dcgm_sample_age_seconds{gpu="3"} 60.0`, `stoker_dcgm_sample_age_seconds{gpu="4"} 3.0`)
	wantLine(t, n.source, `stoker_dcgm_state{state="ok"} 1`)
	n.do("age 3 0")
	if got := n.collect(); gpu(t, got, 3).Up != fleet.True {
		t.Error("GPU 3 does not come back")
	}
}

// TestComplaint_07_ASickGPUAtTheStart: the call that asks the driver who it is hangs until
// the library gives up, and so do watches, which the engine makes all the same. The others
// are read, and the sick one is not asked again at once.
func TestComplaint_07_ASickGPUAtTheStart(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	n.do("sick-for-ever 3")
	n.do("slow-watches 2")
	c := newCollector(t, collector.Options{}, n.source)
	wantIn(t, page(t, c), `DCGM_FI_DEV_GPU_TEMP{gpu="2"`, `stoker_gpu_up{node="n",gpu="2"`)
	asked := n.do("attribute-calls")
	page(t, c)
	if more := n.do("attribute-calls") - asked; more != 0 {
		t.Errorf("it was asked %d times more", more)
	}
	n.do("xid 3 79 0 0")
	wantIn(t, page(t, c), `xid="79"} 1`) // its events are told
	n.do("sick 3 0")
	if g := gpu(t, n.later(time.Hour), 3); g.UUID == "" {
		t.Error("when it is well again it is not asked who it is")
	}
}
