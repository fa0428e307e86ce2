package exporter

import (
	"errors"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"stoker.dev/stoker/internal/fleet"
)

// sample is the page of a real dcgm-exporter on eight GPUs.
func sample(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile("testdata/sample.prom")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

const (
	gpu0 = `gpu="0",UUID="GPU-a",pci_bus_id="00000000:1A:00.0",device="nvidia0",modelName="H100"`
	gpu1 = `gpu="1",UUID="GPU-b",pci_bus_id="00000000:2A:00.0",device="nvidia1",modelName="H100"`
)

var (
	id0 = fleet.SampledGPU{Index: 0, UUID: "GPU-a", PCI: "00000000:1A:00.0", Device: "nvidia0", Model: "H100", Up: fleet.True}
	id1 = fleet.SampledGPU{Index: 1, UUID: "GPU-b", PCI: "00000000:2A:00.0", Device: "nvidia1", Model: "H100", Up: fleet.True}
)

func up(g fleet.SampledGPU, t fleet.Truth) fleet.SampledGPU { g.Up = t; return g }

func TestParse(t *testing.T) {
	temp := func(gpu int, v float64, labels ...fleet.Label) fleet.Sample {
		return fleet.Sample{Field: "DCGM_FI_DEV_GPU_TEMP", GPU: gpu, Value: v, Labels: labels}
	}
	for name, tc := range map[string]struct {
		page string
		want Page
	}{
		"a family keeps its type, help, labels and their order": {
			"# HELP DCGM_FI_DEV_GPU_TEMP Temperature of the \\\\ die.\n# TYPE DCGM_FI_DEV_GPU_TEMP gauge\n" +
				"DCGM_FI_DEV_GPU_TEMP{" + gpu0 + `,Hostname="n",DCGM_FI_DRIVER_VERSION="570",pod="a\"b\\c\nd"} 35` + "\n",
			Page{
				Fields: []fleet.Field{{Name: "DCGM_FI_DEV_GPU_TEMP", Type: "gauge", Help: `Temperature of the \ die.`}},
				GPUs:   []fleet.SampledGPU{id0},
				Values: []fleet.Sample{temp(0, 35, fleet.Label{Name: "Hostname", Value: "n"},
					fleet.Label{Name: "DCGM_FI_DRIVER_VERSION", Value: "570"}, fleet.Label{Name: "pod", Value: "a\"b\\c\nd"})},
			},
		},
		"families keep the order of the page": {
			"DCGM_FI_B{" + gpu0 + "} 1\n# TYPE DCGM_FI_A counter\nDCGM_FI_A{" + gpu0 + "} 2\n",
			Page{
				Fields: []fleet.Field{{Name: "DCGM_FI_B"}, {Name: "DCGM_FI_A", Type: "counter"}},
				GPUs:   []fleet.SampledGPU{id0},
				Values: []fleet.Sample{{Field: "DCGM_FI_B", Value: 1}, {Field: "DCGM_FI_A", Value: 2}},
			},
		},
		"a line that can't be read costs that line": {
			"DCGM_FI_DEV_GPU_TEMP{" + gpu0 + "} 35\nDCGM_FI_DEV_GPU_TEMP{gpu= 36\nDCGM_FI_DEV_GPU_TEMP{" + gpu1 + "} 37\n\x00\xff}\n",
			Page{
				Fields: []fleet.Field{{Name: "DCGM_FI_DEV_GPU_TEMP"}}, GPUs: []fleet.SampledGPU{id0, id1},
				Values: []fleet.Sample{temp(0, 35), temp(1, 37)}, Dropped: 2,
				Problems: []error{
					errors.New(`line 2: expected '"' at start of label value, found '3'`),
					errors.New("line 4: invalid metric name"),
				},
			},
		},
		"a quote that the exporter did not escape costs that line": {
			"DCGM_FI_DEV_GPU_TEMP{" + gpu0 + "} 35\nDCGM_FI_DEV_GPU_TEMP{" + gpu1 + `,pod="a"b"} 36` + "\n",
			Page{
				Fields: []fleet.Field{{Name: "DCGM_FI_DEV_GPU_TEMP"}}, GPUs: []fleet.SampledGPU{id0},
				Values: []fleet.Sample{temp(0, 35)}, Dropped: 1,
				Problems: []error{errors.New(`line 2: unexpected end of label value "a"`)},
			},
		},
		"a value that is no number costs that line, NaN is a value": {
			"DCGM_FI_DEV_GPU_TEMP{" + gpu0 + "} NaN\nDCGM_FI_DEV_GPU_TEMP{" + gpu1 + "} GPU-c\n",
			Page{
				Fields: []fleet.Field{{Name: "DCGM_FI_DEV_GPU_TEMP"}}, GPUs: []fleet.SampledGPU{id0},
				Values: []fleet.Sample{temp(0, math.NaN())}, Dropped: 1,
				Problems: []error{errors.New(`line 2: expected float as value, got "GPU-c"`)},
			},
		},
		"a type that a single value can't have is no type": {
			"# TYPE DCGM_FI_DEV_GPU_TEMP histogram\nDCGM_FI_DEV_GPU_TEMP{" + gpu0 + "} 35\n",
			Page{
				Fields: []fleet.Field{{Name: "DCGM_FI_DEV_GPU_TEMP"}}, GPUs: []fleet.SampledGPU{id0},
				Values: []fleet.Sample{temp(0, 35)}, Dropped: 1,
				Problems: []error{errors.New(`line 1: DCGM_FI_DEV_GPU_TEMP: no type of a single value: "histogram"`)},
			},
		},
		"an instance is told from its GPU": {
			"DCGM_FI_DEV_GPU_TEMP{" + gpu0 + `,GPU_I_PROFILE="1g.10gb",GPU_I_ID="7",hostname="n"} 35` + "\n",
			Page{
				Fields: []fleet.Field{{Name: "DCGM_FI_DEV_GPU_TEMP"}},
				GPUs: []fleet.SampledGPU{{
					Index: 0, UUID: "GPU-a", PCI: "00000000:1A:00.0", Device: "nvidia0", Model: "H100", Up: fleet.True,
					Instance: "7", Profile: "1g.10gb",
				}},
				Values: []fleet.Sample{temp(0, 35, fleet.Label{Name: "hostname", Value: "n"})},
			},
		},
		"what has no UUID belongs to no GPU and keeps its labels": {
			"DCGM_FI_DEV_GPU_TEMP{" + gpu0 + "} 35\nDCGM_FI_DEV_GPU_TEMP{gpu=\"1\",nvlink=\"2\"} 36\n",
			Page{
				Fields: []fleet.Field{{Name: "DCGM_FI_DEV_GPU_TEMP"}}, GPUs: []fleet.SampledGPU{id0},
				Values: []fleet.Sample{temp(0, 35), temp(fleet.NoGPU, 36, fleet.Label{Name: "gpu", Value: "1"}, fleet.Label{Name: "nvlink", Value: "2"})},
			},
		},
		"an index that is no number belongs to no GPU": {
			"DCGM_FI_DEV_GPU_TEMP{" + gpu0 + "} 35\nDCGM_FI_DEV_GPU_TEMP{gpu=\"x\",UUID=\"GPU-c\"} 36\n",
			Page{
				Fields: []fleet.Field{{Name: "DCGM_FI_DEV_GPU_TEMP"}}, GPUs: []fleet.SampledGPU{id0},
				Values: []fleet.Sample{temp(0, 35), temp(fleet.NoGPU, 36, fleet.Label{Name: "gpu", Value: "x"}, fleet.Label{Name: "UUID", Value: "GPU-c"})},
			},
		},
		"an identity that the driver did not give is no identity": {
			"DCGM_FI_DEV_GPU_TEMP{" + gpu0 + "} 35\nDCGM_FI_DEV_GPU_TEMP{gpu=\"1\",UUID=\"<<<NULL>>>\"} 36\n",
			Page{
				Fields: []fleet.Field{{Name: "DCGM_FI_DEV_GPU_TEMP"}}, GPUs: []fleet.SampledGPU{id0},
				Values: []fleet.Sample{temp(0, 35)}, Dropped: 1,
				Problems: []error{errors.New("DCGM_FI_DEV_GPU_TEMP: the GPU's identity is blank")},
			},
		},
		"the label of old exporters is the UUID, and other programs' metrics are left out": {
			"go_goroutines 7\nstoker_gpu_up{" + gpu1 + "} 1\ndcgm_gpu_temp{gpu=\"0\",uuid=\"GPU-a\"} 35\n",
			Page{
				Fields: []fleet.Field{{Name: "dcgm_gpu_temp"}}, GPUs: []fleet.SampledGPU{{UUID: "GPU-a", Up: fleet.True}},
				Values: []fleet.Sample{{Field: "dcgm_gpu_temp", Value: 35}},
			},
		},
		"a GPU of which only the exporter's own counts are left is lost": {
			"DCGM_FI_DEV_GPU_TEMP{" + gpu0 + "} 35\nDCGM_EXP_XID_ERRORS_COUNT{" + gpu1 + `,xid="79"} 1` + "\n",
			Page{
				Fields: []fleet.Field{{Name: "DCGM_FI_DEV_GPU_TEMP"}, {Name: "DCGM_EXP_XID_ERRORS_COUNT"}},
				GPUs:   []fleet.SampledGPU{id0, up(id1, fleet.False)},
				Values: []fleet.Sample{temp(0, 35), {Field: "DCGM_EXP_XID_ERRORS_COUNT", GPU: 1, Value: 1, Labels: []fleet.Label{{Name: "xid", Value: "79"}}}},
			},
		},
		"when that is so for all of them nothing is known": {
			"DCGM_EXP_XID_ERRORS_COUNT{" + gpu1 + "} 0\n",
			Page{
				Fields: []fleet.Field{{Name: "DCGM_EXP_XID_ERRORS_COUNT"}},
				GPUs:   []fleet.SampledGPU{up(id1, fleet.Unknown)},
				Values: []fleet.Sample{{Field: "DCGM_EXP_XID_ERRORS_COUNT"}},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Parse([]byte(tc.page))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got, cmpopts.IgnoreUnexported(Page{}), cmpopts.EquateNaNs(), cmpopts.EquateEmpty(),
				cmp.Comparer(func(a, b error) bool { return a.Error() == b.Error() })); diff != "" {
				t.Errorf("Parse (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	for name, tc := range map[string]struct{ page, want string }{
		"nothing":                 {"", "page is empty"},
		"a page that is cut off":  {"DCGM_FI_DEV_XID_ERRORS{" + gpu0 + "} 7", "does not end with a line break"},
		"a page without GPUs":     {"go_goroutines 7\n", "page shows no GPU"},
		"a page that is too long": {strings.Repeat("\n", maxPage+1), "page is over 8388608 bytes"},
		"another kind of page": {
			strings.Repeat("<p>502</p>\n", 30), "over 20 lines can't be read, the first: line 1: invalid metric name",
		},
		"a short page of another kind": {"<html>\n", "page shows no GPU\nline 1: invalid metric name"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := Parse([]byte(tc.page))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("err = %v, want one with %q", err, tc.want)
			}
			if len(p.Values) > 0 {
				t.Errorf("got %d values beside the error", len(p.Values))
			}
		})
	}
}

func TestParseReadsTheSampleWhole(t *testing.T) {
	text := sample(t)
	p, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	series := 0
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") {
			series++
		}
	}
	if len(p.Values) != series || len(p.GPUs) != 8 || len(p.Fields) != strings.Count(text, "# TYPE ") || p.Dropped != 0 {
		t.Errorf("got %d series, %d GPUs, %d families, %d dropped; want %d, 8, %d, 0",
			len(p.Values), len(p.GPUs), len(p.Fields), p.Dropped, series, strings.Count(text, "# TYPE "))
	}
	for _, g := range p.GPUs {
		if g.Up != fleet.True {
			t.Errorf("GPU %d is up: %q, want true", g.Index, g.Up)
		}
	}
}

func TestManyGPUsOnAPageAreBounded(t *testing.T) {
	var b strings.Builder
	for b.Len() < 1<<20 {
		b.WriteString(`DCGM_FI_A{gpu="0",UUID="` + strings.Repeat("x", 8) + string(rune('a'+b.Len()%26)) + itoa(b.Len()) + "\"} 1\n")
	}
	p, err := Parse([]byte(b.String()))
	if err != nil {
		t.Fatal(err)
	}
	if len(p.GPUs) != maxEntries || p.Dropped == 0 || len(p.Problems) != 1 {
		t.Errorf("got %d GPUs, %d dropped, problems %v; want %d, some, one", len(p.GPUs), p.Dropped, p.Problems, maxEntries)
	}
}
