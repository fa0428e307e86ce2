//go:build cgo && linux

package dcgm_test

import (
	"slices"
	"testing"
	"time"

	"stoker.dev/stoker/collector/dcgm"
	"stoker.dev/stoker/collector/dcgm/fake"
	"stoker.dev/stoker/internal/fleet"
)

// TestDCGM3 reads everything through a library of DCGM 3: its callbacks, its structs, its
// groups of 64 entities, and without what only later ones have.
func TestDCGM3(t *testing.T) {
	n := &node{Library: fake.New3(t), t: t}
	n.source = n.open(dcgm.Options{Fields: list(t, "DCGM_FI_DEV_GPU_TEMP, gauge, a\nDCGM_FI_DEV_FB_USED, gauge, b\nDCGM_FI_DEV_NVSWITCH_LINK_THROUGHPUT_TX, gauge, c\nDCGM_EXP_GPU_HEALTH_STATUS, gauge, d\n")})
	for gpu := range 8 {
		for i := range 7 {
			n.do("mig %d %d %d 1", gpu, 10*gpu+i, i)
		}
	}
	n.do("switch 0 58")
	n.do("link 3 0 63 3")
	n.do("health 3 16 20 41")
	got := n.collect()
	wantLine(t, n.source, `stoker_dcgm_version_info{engine="3.3.9",library="3.3.9"} 1`)
	if len(got.GPUs) != 8+56 {
		t.Errorf("%d GPUs and instances, want 64", len(got.GPUs))
	}
	if _, ok := value(got, 7, "6", "DCGM_FI_DEV_FB_USED"); !ok {
		t.Error("the last instance is not read")
	}
	if !slices.ContainsFunc(got.Values, func(v fleet.Sample) bool {
		return v.GPU == fleet.NoGPU && slices.Contains(v.Labels, fleet.Label{Name: "nvlink", Value: "63"})
	}) {
		t.Error("a link of a switch is not read")
	}
	ill := slices.IndexFunc(got.Values, func(v fleet.Sample) bool {
		return v.Field == "DCGM_EXP_GPU_HEALTH_STATUS" && v.Value == 20 && slices.Contains(v.Labels, fleet.Label{Name: "health_watch", Value: "MEM"})
	})
	if ill < 0 || got.GPUs[got.Values[ill].GPU].Index != 3 {
		t.Error("the failed check of GPU 3 is not told")
	}
	// Of the compute instance that is last in the engine's list: the 121st entity.
	n.do("xid-of 5 76 31 0 0")
	select {
	case <-n.source.Wake():
	case <-time.After(5 * time.Second):
		t.Fatal("nobody was woken up")
	}
	if x := xids(n.collect(), 7); !slices.Equal(x, []int{31}) {
		t.Errorf("told %v, want the 31", x)
	}
	// It can't say how a GPU does, but which it has and can't ask.
	n.do("lose 2")
	if g := gpu(t, n.collect(), 2); g.Up != fleet.False || g.UUID == "" {
		t.Errorf("GPU 2 is %+v, want lost and known", g)
	}
	n.close(n.source)
	if held := n.do("held"); held != 0 {
		t.Errorf("the engine still holds %d things", held)
	}
}

// TestLinksOfEveryRelease: the struct that tells of them has grown twice.
func TestLinksOfEveryRelease(t *testing.T) {
	for _, old := range []int{0, 1} {
		n := newNode(t, dcgm.Options{Fields: list(t, "DCGM_FI_DEV_NVSWITCH_LINK_THROUGHPUT_TX, gauge, c\n")})
		n.do("old-links %d", old)
		n.do("switch 0 58")
		n.do("link 3 0 200 3")
		n.do("link 1 7 17 3")
		if got := n.collect(); len(got.Values) != 3 {
			t.Errorf("older engine %v: %d values, want those of the switch and of both links", old == 1, len(got.Values))
		}
	}
}
