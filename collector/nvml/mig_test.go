//go:build cgo && linux

package nvml

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"github.com/google/go-cmp/cmp"

	"stoker.dev/stoker/internal/fleet"
)

// A slice is one MIG device to be made: a profile of the mock's GPU and how many compute
// instances it is divided into.
type slice struct{ gi, ci, count int }

// divide makes MIG devices of a GPU of the mock, which knows instances but not the devices
// that a driver makes of them.
func (b *box) divide(t *testing.T, gpu int, slices ...slice) {
	t.Helper()
	d := b.devices[gpu]
	must := func(r nvml.Return) {
		t.Helper()
		if r != nvml.SUCCESS {
			t.Fatalf("the mock says %v", r)
		}
	}
	_, r := d.SetMigMode(nvml.DEVICE_MIG_ENABLE)
	must(r)
	var made []nvml.Device
	for _, s := range slices {
		profile, r := d.GetGpuInstanceProfileInfo(s.gi)
		must(r)
		gi, r := d.CreateGpuInstance(&profile)
		must(r)
		for range s.count {
			ciProfile, r := gi.GetComputeInstanceProfileInfo(s.ci, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
			must(r)
			ci, r := gi.CreateComputeInstance(&ciProfile)
			must(r)
			made = append(made, b.migDevice(t, gpu, gi, ci, profile))
		}
	}
	d.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 7, nvml.SUCCESS }
	d.GetMigDeviceHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if b.fades.Load() && i == 2 {
			return nil, nvml.ERROR_GPU_IS_LOST
		}
		// The first place is free, as after one was taken away.
		if i == 0 || i > len(made) {
			return nil, nvml.ERROR_NOT_FOUND
		}
		return made[i-1], nvml.SUCCESS
	}
}

func (b *box) migDevice(t *testing.T, gpu int, gi nvml.GpuInstance, ci nvml.ComputeInstance, p nvml.GpuInstanceProfileInfo) nvml.Device {
	t.Helper()
	g, r1 := gi.GetInfo()
	c, r2 := ci.GetInfo()
	if r1 != nvml.SUCCESS || r2 != nvml.SUCCESS {
		t.Fatal(r1, r2)
	}
	gb := (p.MemorySizeMB + 1023) / 1024
	name := "NVIDIA" // one that does not say what it is
	if g.Id > 0 {
		name = fmt.Sprintf("NVIDIA MIG 1c.%dg.%dgb", p.SliceCount, gb)
	}
	return &mock.Device{
		GetUUIDFunc:          func() (string, nvml.Return) { return fmt.Sprintf("MIG-%d-%d-%d", gpu, g.Id, c.Id), nvml.SUCCESS },
		GetGpuInstanceIdFunc: func() (int, nvml.Return) { return int(g.Id), nvml.SUCCESS },
		GetNameFunc:          func() (string, nvml.Return) { return name, nvml.SUCCESS },
		GetAttributesFunc: func() (nvml.DeviceAttributes, nvml.Return) {
			return nvml.DeviceAttributes{GpuInstanceSliceCount: p.SliceCount, MemorySizeMB: p.MemorySizeMB}, nvml.SUCCESS
		},
		GetMemoryInfoFunc: func() (nvml.Memory, nvml.Return) {
			return nvml.Memory{Total: p.MemorySizeMB * mib, Free: (p.MemorySizeMB - 100) * mib, Used: 100 * mib}, nvml.SUCCESS
		},
	}
}

func partOf(s *fleet.Samples, gpu int, instance string) int {
	return slices.IndexFunc(s.GPUs, func(g fleet.SampledGPU) bool { return g.Index == gpu && g.Instance == instance })
}

// TestComplaint_16_MIG: instances are told with their profile and memory, and each MIG
// device's UUID with its GPU and instance, also after they were made anew.
func TestComplaint_16_MIG(t *testing.T) {
	for name, tc := range map[string]struct {
		server *server.Server
		small  string
		large  string
	}{
		"a100": {dgxa100.New(), "1g.5gb", "3g.20gb"},
		"h100": {dgxh100.New(), "1g.10gb", "3g.40gb"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, tc.server)
			s := open(t, b)
			if got := collect(t, s); len(got.GPUs) != 8 || len(got.MIG) != 0 {
				t.Fatalf("%d GPUs, MIG %v", len(got.GPUs), got.MIG)
			}
			b.divide(t, 2, slice{nvml.GPU_INSTANCE_PROFILE_1_SLICE, nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE, 1},
				slice{nvml.GPU_INSTANCE_PROFILE_3_SLICE, nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE, 3})
			got := collect(t, s)
			uuid := b.devices[2].UUID
			want := []fleet.MIGDevice{
				{UUID: "MIG-2-0-0", GPU: uuid, Instance: "0"},
				{UUID: "MIG-2-1-0", GPU: uuid, Instance: "1"},
				{UUID: "MIG-2-1-1", GPU: uuid, Instance: "1"},
				{UUID: "MIG-2-1-2", GPU: uuid, Instance: "1"},
			}
			if diff := cmp.Diff(want, got.MIG); diff != "" {
				t.Errorf("devices (-want +got):\n%s", diff)
			}
			if len(got.GPUs) != 10 {
				t.Fatalf("%d GPUs and instances, want 8 and 2", len(got.GPUs))
			}
			for instance, profile := range map[string]string{"0": tc.small, "1": tc.large} {
				at := partOf(got, 2, instance)
				if at < 0 || got.GPUs[at].Profile != profile || got.GPUs[at].UUID != uuid || got.GPUs[at].Up != fleet.True {
					t.Fatalf("instance %s is %d in %+v, want %s", instance, at, got.GPUs, profile)
				}
				used := 0
				for _, v := range got.Values {
					if v.GPU == at {
						if used++; v.Field == "DCGM_FI_DEV_FB_USED" && v.Value != 100 {
							t.Errorf("instance %s uses %v MiB", instance, v.Value)
						}
					}
				}
				if used != len(ofInstance) {
					t.Errorf("instance %s has %d values, want %d", instance, used, len(ofInstance))
				}
			}

			// As with the source dcgm: a sum counts nothing twice, and nothing is missing.
			whole := map[string]bool{}
			for _, v := range got.Values {
				if v.GPU == partOf(got, 2, "") {
					whole[v.Field] = true
				}
			}
			if whole["DCGM_FI_DEV_FB_USED"] || whole["DCGM_FI_DEV_FB_FREE"] || !whole["DCGM_FI_DEV_GPU_TEMP"] {
				t.Errorf("the whole GPU has %v", whole)
			}

			// Lost while it is asked for its instances: they go with it, the others stay.
			b.fades.Store(true)
			got = collect(t, s)
			for _, instance := range []string{"", "0"} {
				at := partOf(got, 2, instance)
				if at < 0 || got.GPUs[at].Up != fleet.False || slices.ContainsFunc(got.Values, func(v fleet.Sample) bool { return v.GPU == at }) {
					t.Errorf("instance %q of the lost GPU is %d in %+v", instance, at, got.GPUs)
				}
			}
			if _, ok := value(got, 3, "DCGM_FI_DEV_FB_USED"); !ok {
				t.Error("the others have no values")
			}
			b.fades.Store(false)

			// Taken apart, they are gone.
			b.devices[2].MigMode = nvml.DEVICE_MIG_DISABLE
			if got := collect(t, s); len(got.GPUs) != 8 || len(got.MIG) != 0 {
				t.Errorf("%d GPUs, MIG %v", len(got.GPUs), got.MIG)
			}
		})
	}
}

// TestAnXIDOfAnInstance is told of the instance, and one of no instance of the GPU.
func TestAnXIDOfAnInstance(t *testing.T) {
	b := newBox(t, dgxh100.New())
	b.divide(t, 1, slice{nvml.GPU_INSTANCE_PROFILE_1_SLICE, nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE, 1}, slice{nvml.GPU_INSTANCE_PROFILE_2_SLICE, nvml.COMPUTE_INSTANCE_PROFILE_2_SLICE, 1})
	s := open(t, b)
	collect(t, s)
	for _, e := range []struct {
		gpu      int
		instance uint32
		xid      uint64
	}{{1, 1, 43}, {1, 0xFFFFFFFF, 31}, {4, 0, 9_999}} { // the last by a library that leaves it 0
		b.events <- nvml.EventData{Device: b.devices[e.gpu], EventType: nvml.EventTypeXidCriticalError, EventData: e.xid, GpuInstanceId: e.instance}
	}
	got := map[string]bool{}
	for end := time.Now().Add(10 * time.Second); len(got) < 3 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		into := &fleet.Samples{At: time.Now()}
		if err := s.CollectEvents(t.Context(), into); err != nil {
			t.Fatal(err)
		}
		for _, e := range into.Events {
			got[fmt.Sprintf("%d of GPU %d %s", e.XID, into.GPUs[e.GPU].Index, into.GPUs[e.GPU].Instance)] = true
		}
	}
	if diff := cmp.Diff(map[string]bool{"43 of GPU 1 1": true, "31 of GPU 1 ": true, "9999 of GPU 4 ": true}, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	shown := collect(t, s)
	last := map[string]float64{}
	for _, v := range shown.Values {
		if v.Field == lastXID.Name {
			if message := v.Labels[len(v.Labels)-1]; message.Name != "err_msg" || (message.Value == "Unknown Error") != (v.Value == 9_999) {
				t.Errorf("XID %v is called %v", v.Value, message)
			}
			last[fmt.Sprint(shown.GPUs[v.GPU].Index, " ", shown.GPUs[v.GPU].Instance)] = v.Value
		}
	}
	if diff := cmp.Diff(map[string]float64{"1 1": 43, "1 ": 31, "4 ": 9_999}, last); diff != "" {
		t.Errorf("last XIDs (-want +got):\n%s", diff)
	}
}

// TestNVLinks: the domain, and what is at the other end of each link.
func TestNVLinks(t *testing.T) {
	b := newBox(t, dgxh100.New())
	asked := 0
	b.devices[0].GetGpuFabricInfoFunc = func() (nvml.GpuFabricInfo, nvml.Return) {
		asked++
		return nvml.GpuFabricInfo{State: nvml.GPU_FABRIC_STATE_COMPLETED, ClusterUuid: [16]uint8{0: 0xab, 15: 1}, CliqueId: 32766}, nvml.SUCCESS
	}
	b.devices[1].GetGpuFabricInfoFunc = func() (nvml.GpuFabricInfo, nvml.Return) {
		return nvml.GpuFabricInfo{State: nvml.GPU_FABRIC_STATE_IN_PROGRESS, ClusterUuid: [16]uint8{1}}, nvml.SUCCESS
	}
	b.devices[0].GetNvLinkStateFunc = func(link int) (nvml.EnableState, nvml.Return) {
		if link >= 6 {
			return 0, nvml.ERROR_INVALID_ARGUMENT
		}
		return nvml.EnableState(min(link, 1)), nvml.SUCCESS // the first is off
	}
	b.devices[0].GetNvLinkRemoteDeviceTypeFunc = func(link int) (nvml.IntNvLinkDeviceType, nvml.Return) {
		if link <= 3 {
			return nvml.NVLINK_DEVICE_TYPE_SWITCH, nvml.SUCCESS
		}
		return nvml.NVLINK_DEVICE_TYPE_GPU, nvml.SUCCESS
	}
	b.devices[0].GetNvLinkRemotePciInfoFunc = func(int) (nvml.PciInfo, nvml.Return) { return b.devices[1].GetPciInfo() }
	s := open(t, b)
	got := collect(t, s)
	want := []fleet.NVLinks{{GPU: b.devices[0].UUID, Domain: "ab000000-0000-0000-0000-000000000001", Clique: 32766, Peers: []fleet.NVLinkPeer{
		{Kind: "switch", Links: 3}, {Kind: "gpu", PCI: "00000000:2A:00.0", Links: 2},
	}}}
	if diff := cmp.Diff(want, got.NVLinks); diff != "" {
		t.Errorf("links (-want +got):\n%s", diff)
	}
	if again := collect(t, s); len(again.NVLinks) != 1 || asked != 1 {
		t.Errorf("asked %d times within a minute, links %v", asked, again.NVLinks)
	}
}

// TestAnOldLibrary: what it lacks is not called, which would end the process.
func TestAnOldLibrary(t *testing.T) {
	b := newBox(t, dgxh100.New())
	b.divide(t, 0, slice{nvml.GPU_INSTANCE_PROFILE_1_SLICE, nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE, 1})
	b.LookupSymbolFunc = func(string) error { return fmt.Errorf("no such symbol") }
	b.devices[0].GetMigModeFunc = func() (int, int, nvml.Return) { panic("called") }
	b.devices[0].GetNvLinkStateFunc = func(int) (nvml.EnableState, nvml.Return) { panic("called") }
	b.devices[0].GetGpuFabricInfoFunc = func() (nvml.GpuFabricInfo, nvml.Return) { panic("called") }
	if got := collect(t, open(t, b)); len(got.GPUs) != 8 {
		t.Errorf("%d GPUs", len(got.GPUs))
	}
}
