//go:build cgo && linux

package dcgm_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"stoker.dev/stoker/collector"
	"stoker.dev/stoker/collector/dcgm"
	"stoker.dev/stoker/internal/fleet"
)

// TestComplaint_16_WhichInstanceADeviceIs: a container's device is a UUID that says nothing
// of GPU or instance; the engine knows it.
func TestComplaint_16_WhichInstanceADeviceIs(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	c := newCollector(t, collector.Options{}, n.source)
	page(t, c)
	if got := c.MIG(); len(got) != 0 {
		t.Errorf("devices without MIG: %v", got)
	}
	n.do("mig 1 7 3 2")
	n.do("mig 1 8 4 1")
	n.do("mig 6 20 3 1")
	page(t, c)
	device := func(gpu, entity, instance int) fleet.MIGDevice {
		return fleet.MIGDevice{
			UUID: fmt.Sprintf("MIG-%08x-5555-6666-7777-%012x", gpu, entity),
			GPU:  fmt.Sprintf("GPU-%08x-1111-2222-3333-44444444%04x", gpu, gpu), Instance: fmt.Sprint(instance),
		}
	}
	if d := cmp.Diff([]fleet.MIGDevice{device(1, 7, 3), device(1, 8, 4), device(6, 20, 3)}, c.MIG()); d != "" {
		t.Errorf("devices (-want +got):\n%s", d)
	}
	n.do("mig-none")
	n.do("mig 1 9 3 2")  // another one in its place
	n.do("set 5 9 54 b") // of which the engine does not tell at first
	page(t, c)
	if got := c.MIG(); len(got) != 0 {
		t.Errorf("devices that nobody tells of: %v", got)
	}
	n.do("set 5 9 54 s MIG-new")
	if err := c.Gather(t.Context(), time.Now().Add(2*time.Minute)); err != nil {
		t.Fatal(err)
	}
	want := device(1, 9, 3)
	want.UUID = "MIG-new"
	if d := cmp.Diff([]fleet.MIGDevice{want}, c.MIG()); d != "" {
		t.Errorf("devices (-want +got):\n%s", d)
	}
}

// TestComplaint_16_FieldsOfInstances: which of them an instance has is what the engine
// says; where it has one, the GPU's own is not shown beside it, and nothing is missing.
func TestComplaint_16_FieldsOfInstances(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	n.do("mig 1 7 3 2")
	n.do("set 4 7 1004 e -6") // not for this kind of instance
	n.do("set 4 7 253 b")
	got := n.collect()
	has := func(gpu int, instance, field string, want bool) {
		t.Helper()
		if _, ok := value(got, gpu, instance, field); ok != want {
			t.Errorf("%s of GPU %d, instance %q is there: %v", field, gpu, instance, ok)
		}
	}
	for _, field := range []string{"DCGM_FI_DEV_FB_USED", "DCGM_FI_PROF_GR_ENGINE_ACTIVE"} {
		has(1, "3", field, true)
		has(1, "", field, false)
		has(2, "", field, true)
	}
	for _, field := range []string{"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_DEV_FB_RESERVED", "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_PROF_PCIE_TX_BYTES"} {
		has(1, "3", field, false)
		has(1, "", field, true)
	}
	wantLine(t, n.source, `stoker_dcgm_field_absent{field="DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",reason="not supported"} 1`)
	wantLine(t, n.source, `stoker_dcgm_field_absent{field="DCGM_FI_DEV_FB_RESERVED",reason="blank"} 1`)
	for _, v := range got.Values {
		if v.Field == "DCGM_FI_DEV_FB_USED" && got.GPUs[v.GPU].Instance == "3" && !slices.Contains(v.Labels, fleet.Label{Name: "DCGM_FI_DRIVER_VERSION", Value: "570.124.06"}) {
			t.Logf("labels of an instance: %v", v.Labels)
		}
	}
}
