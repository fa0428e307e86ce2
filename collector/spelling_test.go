package collector

import (
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/internal/fleet"
)

// TestSpellings: labels of the series of sources are called as asked for, and those of our
// own families as always.
func TestSpellings(t *testing.T) {
	pod := []fleet.Label{{Name: "Hostname", Value: "x"}, {Name: "container", Value: "c"}, {Name: "namespace", Value: "ns"}, {Name: "pod", Value: "p"}}
	told := fleet.Samples{
		GPUs: []fleet.SampledGPU{{Index: 0, UUID: "GPU-a", PCI: "00:1A", Device: "nvidia0", Model: "NVIDIA  H100 80GB", Up: fleet.True}},
		Values: []fleet.Sample{
			{Field: "DCGM_FI_DEV_GPU_TEMP", GPU: 0, Value: 40, Labels: pod},
			{Field: "DCGM_FI_DEV_SWITCH", GPU: fleet.NoGPU, Value: 1, Labels: []fleet.Label{{Name: "nvswitch", Value: "0"}, {Name: "Hostname", Value: "x"}}},
		},
	}
	for name, tc := range map[string]struct {
		spell        Spelling
		temp, others string
	}{
		"as the source has them": {
			Spelling{},
			`{gpu="0",UUID="GPU-a",pci_bus_id="00:1A",device="nvidia0",modelName="NVIDIA  H100 80GB",Hostname="n",container="c",namespace="ns",pod="p"} 40`,
			`{nvswitch="0",Hostname="n"} 1`,
		},
		"as before 2.0": {
			Spelling{Old: true},
			`{gpu="0",uuid="GPU-a",pci_bus_id="00:1A",device="nvidia0",modelName="NVIDIA  H100 80GB",Hostname="n",container_name="c",pod_namespace="ns",pod_name="p"} 40`,
			`{nvswitch="0",Hostname="n"} 1`,
		},
		"the host and the model": {
			Spelling{Host: "hostname", JoinModel: true},
			`{gpu="0",UUID="GPU-a",pci_bus_id="00:1A",device="nvidia0",modelName="NVIDIA-H100-80GB",hostname="n",container="c",namespace="ns",pod="p"} 40`,
			`{nvswitch="0",hostname="n"} 1`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCollector(t, Options{Spelling: tc.spell}, &script{name: "s", tell: tell(told)})
			now := time.Now()
			if err := c.Gather(t.Context(), now); err != nil {
				t.Fatal(err)
			}
			page := string(c.AppendPage(nil, now))
			for _, want := range []string{"DCGM_FI_DEV_GPU_TEMP" + tc.temp, "DCGM_FI_DEV_SWITCH" + tc.others, `stoker_gpu_up{node="n",gpu="0",UUID="GPU-a",pci_bus_id="00:1A"} 1`} {
				if !strings.Contains(page, want+"\n") {
					t.Errorf("no %s in\n%s", want, page)
				}
			}
		})
	}
}

// TestTwoLabelsOfOneOldName: a series that would have a label twice is left out, and counted.
func TestTwoLabelsOfOneOldName(t *testing.T) {
	sc := newScreen(Spelling{Old: true})
	for _, twice := range [][]fleet.Label{{{Name: "pod", Value: "a"}, {Name: "pod_name", Value: "b"}}, {{Name: "uuid", Value: "b"}}} {
		s := &fleet.Samples{GPUs: []fleet.SampledGPU{{UUID: "a"}}, Values: []fleet.Sample{{Field: "x", Labels: twice}}}
		if got := sc.show("n", s, []int{0}, 0); len(got.text) > 0 || got.dropped != 1 {
			t.Errorf("%v: dropped %d, page %q", twice, got.dropped, got.text)
		}
	}
}
