//go:build cgo && linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"stoker.dev/stoker/collector/dcgm/fake"
)

// TestInThePlaceOfDcgmExporter starts the program as dcgm-exporter's chart would, with a
// library that has an engine of its own.
func TestInThePlaceOfDcgmExporter(t *testing.T) {
	lib := fake.New(t)
	list := filepath.Join(t.TempDir(), "fields.csv")
	writePage(t, list, "DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C).\nDCGM_FI_DRIVER_VERSION, label, Driver Version\n")
	t.Setenv("DCGM_EXPORTER_COLLECTORS", list)
	t.Setenv("DCGM_EXPORTER_INTERVAL", "200")
	t.Setenv("NODE_NAME", "node-7")
	p := start(t, "--source", "dcgm", "--dcgm-library", lib.Path, "-k", "-d", "f", "--pod-resources-kubelet-socket", filepath.Join(t.TempDir(), "kubelet.sock"))
	p.await(t, `DCGM_FI_DEV_GPU_TEMP{gpu="3",UUID="GPU-00000003-1111-2222-3333-444444440003",pci_bus_id="00000000:4A:00.0",device="nvidia3",modelName="NVIDIA H100 80GB HBM3",hostname="node-7",DCGM_FI_DRIVER_VERSION="570.124.06"} 153`)
	p.await(t, `stoker_gpu_up{node="node-7",gpu="7"`)
	p.await(t, "stoker_dcgm_up 1")
	p.await(t, `stoker_pods_up{reason="socket-missing"} 0`)
	if page := p.await(t, "process_cpu_seconds_total"); !strings.Contains(page, "process_resident_memory_bytes ") {
		t.Errorf("the page lacks the program's own memory:\n%s", page)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	if _, err := parser.TextToMetricFamilies(strings.NewReader(p.await(t, "stoker_pods_up"))); err != nil {
		t.Errorf("the page is not valid: %v", err)
	}
	// The list is replaced, as a mounted one is.
	writePage(t, list, "DCGM_FI_DEV_GPU_UTIL, gauge, GPU utilization (in %).\n")
	got := p.await(t, "DCGM_FI_DEV_GPU_UTIL{")
	if strings.Contains(got, "DCGM_FI_DEV_GPU_TEMP") {
		t.Error("a field that is not in the list any more is shown")
	}
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := p.end(t); code != 0 {
		t.Errorf("status %d after SIGTERM, want 0:\n%s", code, p.log)
	}
	if !strings.Contains(p.log.String(), `have no effect here" flags=--devices`) {
		t.Errorf("the log does not say what has no effect:\n%s", p.log)
	}
}

// TestWithoutALibrary: the program runs, and says what is missing.
func TestWithoutALibrary(t *testing.T) {
	p := start(t, "--source", "dcgm", "--dcgm-library", filepath.Join(t.TempDir(), "libdcgm.so.4"), "--node", "n", "--interval", "100ms")
	p.await(t, `stoker_dcgm_state{state="no-library"} 1`)
	p.await(t, `stoker_collector_source_up{node="n",source="dcgm"} 0`)
	if health := get(t, "http://"+p.address+"/healthz"); !strings.Contains(health, "dcgm: down: open libdcgm: ") {
		t.Errorf("/healthz says %q", health)
	}
	if err := p.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := p.end(t); code != 0 {
		t.Errorf("status %d, want 0:\n%s", code, p.log)
	}
}
