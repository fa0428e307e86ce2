package collector

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"stoker.dev/stoker/internal/fleet"
)

// TestMIGDevicesOfAllSources: what each source told last, each device once.
func TestMIGDevicesOfAllSources(t *testing.T) {
	device := func(n string) fleet.MIGDevice { return fleet.MIGDevice{UUID: "MIG-" + n, GPU: "GPU-a", Instance: n} }
	first := []fleet.MIGDevice{device("2"), device("1")}
	a := &script{"a", func(into *fleet.Samples) error { into.MIG = first; return nil }}
	b := &script{"b", tell(fleet.Samples{MIG: []fleet.MIGDevice{device("2"), device("3")}})}
	c := newCollector(t, Options{}, a, b)
	want := func(want ...fleet.MIGDevice) {
		t.Helper()
		if err := c.Gather(t.Context(), time.Now()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, c.MIG()); diff != "" {
			t.Errorf("devices (-want +got):\n%s", diff)
		}
	}
	want(device("1"), device("2"), device("3"))
	first = nil // they were taken apart
	want(device("2"), device("3"))
}
