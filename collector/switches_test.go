package collector

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"stoker.dev/stoker/internal/fleet"
)

// TestErrorsOfLinksAndSwitches: each error is counted once, whichever source tells of it
// and however often, also over a restart, and is told at once.
func TestErrorsOfLinksAndSwitches(t *testing.T) {
	at := func(ms int) time.Time { return t0.Add(time.Duration(ms) * time.Millisecond) }
	fatal := fleet.NVLinkEvent{GPU: 1, Error: fleet.NVLinkFatal, At: at(100)}
	engine := fleet.Samples{
		GPUs: []fleet.SampledGPU{gpuA, gpuB}, TellsNVLink: true,
		NVLinkErrors: []fleet.NVLinkEvent{fatal, fatal, {GPU: 1, Error: fleet.NVLinkFatal, At: at(101)}, {GPU: 0, Error: "of a later version", At: at(0)}},
		Switches: []fleet.SXIDEvent{
			{PCI: "0000:3a:00.0", Switch: 0, SXID: 20009, Severity: "fatal", At: at(1500)}, // of the same as the kernel's, by another clock
			{Switch: 1, SXID: 12028, Severity: "nonfatal", At: at(0)},                      // one of which the address is not known
			{Switch: -1, SXID: 12028, At: at(0)},                                           // nobody knows of which
		},
	}
	kernel := fleet.Samples{Switches: []fleet.SXIDEvent{
		{PCI: "00000000:3A:00.0", Switch: -1, SXID: 20009, Severity: "fatal", At: at(0)},
		{PCI: "00000000:3A:00.0", Switch: -1, SXID: 20009, Severity: "fatal", At: at(10_000)},
		{PCI: "00000000:3A:00.0", Switch: -1, SXID: 99, At: at(0)},
	}}
	state := filepath.Join(t.TempDir(), "state")
	var seen []Sighting
	var page string
	for range 2 { // the second is another life of the collector, and all is told again
		c := newCollector(t, Options{BootID: "b", State: state, See: func(s []Sighting) { seen = append(seen, s...) }},
			&script{"dcgm", tell(engine)}, &script{"kmsg", tell(kernel)})
		for range 2 {
			if err := c.Gather(t.Context(), at(20_000)); err != nil {
				t.Fatal(err)
			}
		}
		page = string(c.AppendPage(nil, at(20_000)))
		readPage(t, []byte(page))
	}
	const golden = "testdata/links.golden"
	if *update {
		if err := os.WriteFile(golden, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), page); diff != "" {
		t.Errorf("page (-want +got):\n%s", diff)
	}
	on := Sighting{Node: "n", BootID: "b", GPU: 1, UUID: "GPU-b", PCI: "0:2", NVLink: fleet.NVLinkFatal, At: at(100)}
	again := on
	again.At = at(101)
	if diff := cmp.Diff([]Sighting{on, again}, seen); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
}
