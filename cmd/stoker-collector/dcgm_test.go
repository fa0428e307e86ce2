//go:build cgo && linux

package main

import (
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
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
	p := start(t, "--source", "dcgm", "--dcgm-library", lib.Path, "-k", "-d", "g:0,3", "--pod-resources-kubelet-socket", filepath.Join(t.TempDir(), "kubelet.sock"))
	p.await(t, `DCGM_FI_DEV_GPU_TEMP{gpu="3",UUID="GPU-00000003-1111-2222-3333-444444440003",pci_bus_id="00000000:4A:00.0",device="nvidia3",modelName="NVIDIA H100 80GB HBM3",hostname="node-7",DCGM_FI_DRIVER_VERSION="570.124.06"} 153`)
	p.await(t, `stoker_gpu_up{node="node-7",gpu="7"`)
	p.await(t, "stoker_dcgm_up 1")
	p.await(t, `stoker_pods_up{reason="socket-missing"} 0`)
	if strings.Contains(p.await(t, "stoker_dcgm_up 1"), `DCGM_FI_DEV_GPU_TEMP{gpu="1"`) {
		t.Error("a GPU that was not asked for is shown")
	}
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
	if health := get(t, "http://"+p.address+"/health"); health != "OK" {
		t.Errorf("/health says %q", health)
	}
	// A line that is wrong costs itself alone.
	writePage(t, list, "DCGM_FI_DEV_GPU_UTIL, gauge, GPU utilization (in %).\nDCGM_FI_DEV_GPU_TEMPER, gauge, a slip\nDCGM_FI_DEV_FB_USED, gauge, Used.\n")
	p.await(t, "DCGM_FI_DEV_FB_USED{")
	p.await(t, `stoker_dcgm_list_up{list="file",reason="wrong-lines"} 0`)
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := p.end(t); code != 0 {
		t.Errorf("status %d after SIGTERM, want 0:\n%s", code, p.log)
	}
	if want := `level=ERROR msg="some lines of the list of fields can't be used" source=dcgm used=2 err="` + list + `: line 2: no field is called \"DCGM_FI_DEV_GPU_TEMPER\""`; !strings.Contains(p.log.String(), want) {
		t.Errorf("the log does not name the line: no %s in\n%s", want, p.log)
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

// TestAListOfTheCluster: the fields are those of a ConfigMap before the first page is shown, and
// those of the file while there is none.
func TestAListOfTheCluster(t *testing.T) {
	lib, dir := fake.New(t), t.TempDir()
	var found atomic.Bool
	cluster := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !found.Load() || r.URL.Path != "/api/v1/namespaces/gpus/configmaps/fields" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(`{"data":{"metrics":"DCGM_FI_DEV_FB_USED, gauge, Used.\n"}}`))
	}))
	t.Cleanup(cluster.Close)
	u, err := url.Parse(cluster.URL)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{
		"ca.crt": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cluster.Certificate().Raw})), "token": "secret",
		"fields.csv": "DCGM_FI_DEV_GPU_TEMP, gauge, Temperature.\n",
	} {
		writePage(t, filepath.Join(dir, name), data)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", u.Hostname())
	t.Setenv("KUBERNETES_SERVICE_PORT", u.Port())
	args := []string{"--source", "dcgm", "--dcgm-library", lib.Path, "--node", "n", "-c", "100", "-m", "gpus:fields", "-f", filepath.Join(dir, "fields.csv"), "--service-account", dir}
	p := start(t, args...)
	p.await(t, "DCGM_FI_DEV_GPU_TEMP{")
	p.await(t, `stoker_dcgm_list_up{list="configmap",reason="not-found"} 0`)
	found.Store(true) // it is asked for again after 5 s
	p.await(t, "DCGM_FI_DEV_FB_USED{")
	p.await(t, `stoker_dcgm_list_up{list="configmap",reason=""} 1`)
	p.stop(t)
	if !strings.Contains(p.log.String(), `level=ERROR msg="list of fields of the cluster can't be used, the one before stays in force" configmap=gpus:fields reason=not-found err="404 Not Found"`) {
		t.Errorf("the log does not say what is missing:\n%s", p.log)
	}
	p = start(t, args...)
	if got := p.await(t, "DCGM_FI_DEV_"); strings.Contains(got, "DCGM_FI_DEV_GPU_TEMP") {
		t.Error("the first page has the fields of the file")
	}
	p.stop(t)
}

// TestASocketOfSystemd: the program serves on a socket that was opened for it.
func TestASocketOfSystemd(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	file, err := listener.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close()
	// The process that systemd starts has its number in LISTEN_PID.
	cmd := exec.Command("sh", "-c", `LISTEN_PID=$$ exec "$0" "$@"`, os.Args[0], "--source", "dcgm", "--dcgm-library", filepath.Join(t.TempDir(), "none"), "--web-systemd-socket")
	cmd.Env = append(os.Environ(), "STOKER_COLLECTOR_MAIN=1", "LISTEN_FDS=1", "DCGM_EXPORTER_SYSTEMD_SOCKET=false")
	cmd.ExtraFiles = []*os.File{file}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	if got := get(t, "http://"+address+"/health"); got != "OK" {
		t.Errorf("/health says %q", got)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	err = run(t.Context(), []string{"--source", "nvml", "--web-systemd-socket"}, io.Discard, io.Discard)
	if err == nil || err.Error() != "listen: systemd has opened no socket for this process" {
		t.Errorf("without systemd: %v", err)
	}
}
