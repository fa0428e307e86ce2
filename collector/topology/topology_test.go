package topology

import (
	"context"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"stoker.dev/stoker/internal/fleet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const pci = "00000000:1A:00.0"

// plug makes the kernel's files of a GPU below a bridge.
func plug(t *testing.T, root, addr string, gpu, bridge map[string]string, minor string) {
	t.Helper()
	above := filepath.Join(root, "sys/devices/pci0000:10/0000:10:01.0")
	write := func(dir string, files map[string]string) {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	write(above, bridge)
	write(filepath.Join(above, addr), gpu)
	devices := filepath.Join(root, "sys/bus/pci/devices")
	write(devices, nil)
	if err := os.Symlink("../../../devices/pci0000:10/0000:10:01.0/"+addr, filepath.Join(devices, addr)); err != nil {
		t.Fatal(err)
	}
	if minor != "" {
		write(filepath.Join(root, "proc/driver/nvidia/gpus", addr), map[string]string{"information": "Model: \t\t NVIDIA H100\nDevice Minor: \t " + minor + "\n"})
	}
}

func files(pairs ...string) map[string]string {
	out := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		out[pairs[i]] = pairs[i+1]
	}
	return out
}

func TestReading(t *testing.T) {
	fast := []string{"current_link_speed", "16.0 GT/s PCIe", "current_link_width", "8", "max_link_speed", "32.0 GT/s PCIe", "max_link_width", "16"}
	for name, tc := range map[string]struct {
		gpu, bridge map[string]string
		minor       string
		want        place
		bad         string // part of the error
	}{
		"all is known": {
			files(append(fast, "numa_node", "1", "local_cpulist", "2-3,8,6-7")...), files("max_link_speed", "64.0 GT/s PCIe", "max_link_width", "16"), "3",
			place{1, "2-3,8,6-7", []int{2, 3, 6, 7, 8}, "nvidia3", Link{4, 8}, Link{5, 16}},
			"",
		},
		"no node is not node 0, and all CPUs are none": {
			files("numa_node", "-1", "local_cpulist", "0-7"), nil, "", place{numa: -1}, "",
		},
		"a GPU that can do more than what it is plugged into": {
			files(fast...), files("max_link_speed", "16.0 GT/s PCIe", "max_link_width", "8"), "", place{numa: -1, now: Link{4, 8}, most: Link{4, 8}}, "",
		},
		"a GPU that does not answer": {
			files("current_link_speed", "Unknown", "current_link_width", "63", "max_link_speed", "Unknown", "max_link_width", "255"), nil, "", place{numa: -1}, "",
		},
		"nothing but the folder":      {nil, nil, "", place{numa: -1}, ""},
		"a node that is no number":    {files("numa_node", "x"), nil, "", place{numa: -1}, "numa_node: "},
		"CPUs that are no list":       {files("numa_node", "0", "local_cpulist", "3-1"), nil, "", place{numa: 0}, `"3-1" is no list of CPUs`},
		"more CPUs than there can be": {files("numa_node", "0", "local_cpulist", "0-99999999"), nil, "", place{numa: 0}, "is no list of CPUs"},
		"a minor that is no number":   {nil, nil, "x", place{numa: -1}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			plug(t, root, "0000:1a:00.0", tc.gpu, tc.bridge, tc.minor)
			got, err := read(root, pci)
			if (err == nil) != (tc.bad == "") || err != nil && !strings.Contains(err.Error(), tc.bad) {
				t.Errorf("err = %v, want %q", err, tc.bad)
			}
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(place{})); diff != "" {
				t.Errorf("place (-want +got):\n%s", diff)
			}
		})
	}
	for _, bad := range []string{"../../etc", "", pci} {
		if p, err := read(t.TempDir(), bad); err == nil || p.numa != -1 {
			t.Errorf("read %q: %+v, %v", bad, p, err)
		}
	}
}

func TestGenerations(t *testing.T) {
	for speed, want := range map[string]int{"2.5 GT/s PCIe": 1, "5.0 GT/s": 2, "8 GT/s": 3, "16.0 GT/s PCIe": 4, "32.0 GT/s PCIe": 5, "64.0 GT/s PCIe": 6, "128.0 GT/s PCIe": 7, "Unknown": 0, "": 0} {
		if got := generation(speed); got != want {
			t.Errorf("generation(%q) = %d, want %d", speed, got, want)
		}
	}
}

// A machine is what a reader is run on.
type machine struct {
	mu   sync.Mutex
	gpus []fleet.SampledGPU
}

func (m *machine) set(gpus ...fleet.SampledGPU) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gpus = gpus
}

func (m *machine) get() []fleet.SampledGPU {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.gpus
}

func start(t *testing.T, r *Reader, m *machine) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx, "n", m.get) }()
	t.Cleanup(func() { cancel(); <-done })
}

func wantIn(t *testing.T, got string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if strings.Count(got, want) != 1 {
			t.Errorf("%q is there %d times in\n%s", want, strings.Count(got, want), got)
		}
	}
}

// TestAReader shows what is known, follows GPUs that come, and stays honest while a reading hangs.
func TestAReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &machine{}
		m.set(fleet.SampledGPU{Index: 0, UUID: "GPU-a", PCI: pci})
		r := New(slog.New(slog.NewTextHandler(t.Output(), nil)), "")
		free := make(chan struct{})
		var hang atomic.Bool
		r.read = func(_, addr string) (place, error) {
			if hang.Load() {
				<-free
			}
			if addr != pci {
				return place{numa: -1}, fs.ErrNotExist
			}
			return place{1, "4-5", []int{4, 5}, "nvidia3", Link{4, 8}, Link{5, 16}}, nil
		}
		start(t, r, m)
		synctest.Wait()
		const labels = `{node="n",gpu="0",UUID="GPU-a",pci_bus_id="00000000:1A:00.0"`
		wantIn(t, string(r.AppendPage(nil)),
			"stoker_gpu_topology_info"+labels+`,numa_node="1",cpus="4-5",device="nvidia3"} 1`,
			"stoker_gpu_pcie_link_generation"+labels+"} 4\n", "stoker_gpu_pcie_link_generation_max"+labels+"} 5\n",
			"stoker_gpu_pcie_link_width"+labels+"} 8\n", "stoker_gpu_pcie_link_width_max"+labels+"} 16\n",
			"stoker_topology_up 1\n", "stoker_topology_unknown_gpus 0\n")
		if got := r.Near(pci); len(got) != 2 || r.Near("else") != nil {
			t.Errorf("near CPUs are %v", got)
		}

		m.set(fleet.SampledGPU{Index: 0, UUID: "GPU-a", PCI: pci}, fleet.SampledGPU{Index: 1, UUID: "GPU-b", PCI: "00000000:1B:00.0"}, fleet.SampledGPU{Index: 2})
		time.Sleep(look)
		synctest.Wait()
		wantIn(t, string(r.AppendPage(nil)), `stoker_gpu_topology_info{node="n",gpu="1",UUID="GPU-b",pci_bus_id="00000000:1B:00.0"} 1`, "stoker_topology_unknown_gpus 2\n")
		gpus := m.get()
		if named := r.Name(gpus); named[0].Device != "nvidia3" || named[1].Device != "" || gpus[0].Device != "" {
			t.Errorf("named %+v, of %+v", named, gpus)
		}

		hang.Store(true)
		time.Sleep(every + limit + look)
		synctest.Wait()
		page := string(r.AppendPage(nil))
		wantIn(t, page, "stoker_topology_up 0\n", `numa_node="1"`, "stoker_gpu_pcie_link_width_max"+labels)
		if strings.Contains(page, "link_width{") {
			t.Errorf("a link of before is shown:\n%s", page)
		}
		close(free)
		synctest.Wait()
		wantIn(t, string(r.AppendPage(nil)), "stoker_topology_up 1\n", "stoker_gpu_pcie_link_width"+labels)
	})
}
