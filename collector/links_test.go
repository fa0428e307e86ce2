package collector

import (
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/internal/fleet"
)

// TestNVLinksOnThePage: the domain of each GPU and its links, by what is at the other end.
// Two sources tell of a GPU once.
func TestNVLinksOnThePage(t *testing.T) {
	gpus := []fleet.SampledGPU{{Index: 0, UUID: "GPU-a", PCI: "00000000:1A:00.0", Up: fleet.True}, {Index: 1, UUID: "GPU-b", PCI: "00000000:1B:00.0", Up: fleet.True}}
	a := &script{"a", tell(fleet.Samples{GPUs: gpus, NVLinks: []fleet.NVLinks{{GPU: "GPU-a", Domain: "d\"1", Clique: 2, Peers: []fleet.NVLinkPeer{
		{Kind: "gpu", PCI: "0000:1b:00.0", Links: 4}, {Kind: "gpu", PCI: "0000:9b:00.0", Links: 2}, {Kind: "switch", Links: 6},
	}}}})}
	b := &script{"b", tell(fleet.Samples{GPUs: gpus, NVLinks: []fleet.NVLinks{{GPU: "GPU-a", Domain: "other"}, {GPU: "GPU-b", Domain: "d2"}, {GPU: "GPU-gone", Domain: "d3"}}})}
	c := newCollector(t, Options{}, a, b)
	if err := c.Gather(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	page := string(c.AppendPage(nil, time.Now()))
	const first = `{node="n",gpu="0",UUID="GPU-a",pci_bus_id="00000000:1A:00.0",`
	for _, want := range []string{
		"stoker_gpu_nvlink_domain_info" + first + `domain="d\"1",clique="2"} 1` + "\n",
		`stoker_gpu_nvlink_domain_info{node="n",gpu="1",UUID="GPU-b",pci_bus_id="00000000:1B:00.0",domain="d2",clique="0"} 1` + "\n",
		"stoker_gpu_nvlink_links" + first + `peer_kind="gpu",peer_pci_bus_id="00000000:1B:00.0",peer="GPU-b"} 4` + "\n",
		"stoker_gpu_nvlink_links" + first + `peer_kind="gpu",peer_pci_bus_id="00000000:9B:00.0"} 2` + "\n",
		"stoker_gpu_nvlink_links" + first + `peer_kind="switch"} 6` + "\n",
	} {
		if strings.Count(page, want) != 1 {
			t.Errorf("%q is there %d times in\n%s", want, strings.Count(page, want), page)
		}
	}
	if n := strings.Count(page, "\nstoker_gpu_nvlink_"); n != 5 {
		t.Errorf("%d series of NVLink, want 5 in\n%s", n, page)
	}
	// None is no family.
	if page := newCollector(t, Options{}, &script{"a", tell(fleet.Samples{GPUs: gpus})}).AppendPage(nil, time.Now()); strings.Contains(string(page), "nvlink") {
		t.Errorf("there is something of NVLink in\n%s", page)
	}
}

// TestAnXIDOfAnInstanceIsToldSo in the sighting and counted for its GPU.
func TestAnXIDOfAnInstanceIsToldSo(t *testing.T) {
	var seen []Sighting
	part := fleet.SampledGPU{Index: 0, UUID: "GPU-a", Instance: "7", Up: fleet.True}
	now := time.Now()
	c := newCollector(t, Options{See: func(s []Sighting) { seen = append(seen, s...) }}, &script{"a", tell(fleet.Samples{
		GPUs: []fleet.SampledGPU{part}, Events: []fleet.XIDEvent{{GPU: 0, XID: 43, At: now}},
	})})
	if err := c.Gather(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	if len(seen) != 1 || seen[0].Instance != "7" || seen[0].UUID != "GPU-a" {
		t.Errorf("seen %+v", seen)
	}
	if page := string(c.AppendPage(nil, now)); !strings.Contains(page, `stoker_gpu_xid_errors_total{node="n",gpu="0",UUID="GPU-a",pci_bus_id="",xid="43"} 1`) {
		t.Errorf("not counted in\n%s", page)
	}
}

// TestLabelsAreAddedBeforeThePage: what Label adds is shown, and checked as everything is.
func TestLabelsAreAddedBeforeThePage(t *testing.T) {
	gpu := fleet.SampledGPU{Index: 0, UUID: "GPU-a", Up: fleet.True}
	shared := []fleet.Label{{Name: "driver", Value: "1"}}
	c := newCollector(t, Options{Label: func(s *fleet.Samples) {
		for i := range s.Values {
			s.Values[i].Labels = append(s.Values[i].Labels[:1:1], fleet.Label{Name: "pod", Value: "p"})
		}
	}}, &script{"a", tell(fleet.Samples{GPUs: []fleet.SampledGPU{gpu}, Values: []fleet.Sample{{Field: "X", GPU: 0, Value: 1, Labels: shared}}})})
	if err := c.Gather(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	if page := string(c.AppendPage(nil, time.Now())); !strings.Contains(page, `X{gpu="0",UUID="GPU-a",hostname="n",driver="1",pod="p"} 1`) {
		t.Errorf("the label is not there:\n%s", page)
	}
}
