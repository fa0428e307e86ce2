package manifest

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"stoker.dev/stoker/internal/fleet"
)

// TestPartsOfGPUsCount: a pod with a part of a GPU holds it, and a node that offers only
// parts has GPUs.
func TestPartsOfGPUsCount(t *testing.T) {
	type m = map[string]any
	for name, tc := range map[string]struct {
		amounts m
		want    fleet.Resources
		milli   int
	}{
		"whole":                    {m{"nvidia.com/gpu": "8", "cpu": "1"}, fleet.Resources{GPUs: 8, MilliCPU: 1000}, 8000},
		"shared by time":           {m{"nvidia.com/gpu.shared": "4"}, fleet.Resources{GPUs: 4}, 4000},
		"parts of one kind":        {m{"nvidia.com/mig-1g.10gb": "7"}, fleet.Resources{GPUs: 7, Share: 142}, 994},
		"parts of two kinds":       {m{"nvidia.com/mig-3g.40gb": "1", "nvidia.com/mig-4g.40gb": "1"}, fleet.Resources{GPUs: 2, Share: 499}, 998},
		"parts beside whole GPUs":  {m{"nvidia.com/mig-3g.40gb": int64(2), "nvidia.com/gpu": int64(7)}, fleet.Resources{GPUs: 9, Share: 872}, 7848},
		"a part with its own name": {m{"nvidia.com/mig-1c.3g.40gb": "1", "nvidia.com/mig-1g.10gb.me": "1"}, fleet.Resources{GPUs: 2, Share: 285}, 570},
		"a name that is not known": {m{"nvidia.com/mig-odd": "1"}, fleet.Resources{GPUs: 1}, 1000},
		"none":                     {m{"nvidia.com/mig-1g.10gb": "0", "example.com/gpu": "3"}, fleet.Resources{}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got := Amounts(PickAmounts(tc.amounts))
			if d := cmp.Diff(tc.want, got); d != "" || got.MilliGPUs() != tc.milli {
				t.Errorf("%d thousandths, want %d (-want +got):\n%s", got.MilliGPUs(), tc.milli, d)
			}
		})
	}
	two := m{"containers": []any{
		m{"resources": m{"limits": m{"nvidia.com/mig-1g.10gb": "1"}}}, m{"resources": m{"requests": m{"cpu": "2"}, "limits": m{"nvidia.com/mig-2g.20gb": "1"}}},
	}}
	if got, want := Demand(PickDemand(two)), (fleet.Resources{GPUs: 2, Share: 213, MilliCPU: 2000}); got != want {
		t.Errorf("a pod of two containers takes %+v, want %+v", got, want)
	}
}
