package main

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"stoker.dev/stoker/collector/pods/fake"
)

// TestPodsUIDsAndLabels: a kubelet and a cluster tell the program of a pod, as
// dcgm-exporter's variables ask for.
func TestPodsUIDsAndLabels(t *testing.T) {
	dir := t.TempDir()
	asked := make(chan string, 10)
	cluster := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Query().Get("fieldSelector") + " " + r.Header.Get("Authorization")
		_, _ = w.Write([]byte(`{"items":[{"metadata":{"namespace":"ns","name":"p","uid":"u-1","labels":{"app.kubernetes.io/name":"llama","other":"x"}}}]}`))
	}))
	t.Cleanup(cluster.Close)
	u, err := url.Parse(cluster.URL)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{
		"ca.crt": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cluster.Certificate().Raw})), "token": "secret", "gpu.prom": page,
	} {
		writePage(t, filepath.Join(dir, name), data)
	}
	socket := filepath.Join(dir, "kubelet.sock")
	fake.Serve(t, socket).Say(fake.Hold{Namespace: "ns", Pod: "p", Container: "c", Resource: "nvidia.com/gpu", IDs: []string{"GPU-a::0"}})
	for name, value := range map[string]string{
		"KUBERNETES_SERVICE_HOST": u.Hostname(), "KUBERNETES_SERVICE_PORT": u.Port(), "NODE_NAME": "n",
		"DCGM_EXPORTER_KUBERNETES": "true", "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS": "true", "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID": "true",
		"DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX": "^app,^team$", "DCGM_POD_RESOURCES_KUBELET_SOCKET": socket, "KUBERNETES_VIRTUAL_GPUS": "true",
	} {
		t.Setenv(name, value)
	}
	args := []string{"--source", "file", "--file", filepath.Join(dir, "gpu.prom"), "--interval", "100ms", "--service-account", dir}
	p := start(t, append(args, "--compatible")...)
	p.await(t, `stoker_gpu_pod_info{node="n",gpu="0",UUID="GPU-a",namespace="ns",pod="p",container="c",resource="nvidia.com/gpu",`+
		`shared="false",vgpu="0",pod_uid="u-1",app_kubernetes_io_name="llama"} 1`)
	if want := "spec.nodeName=n Bearer secret"; <-asked != want {
		t.Errorf("asked for something else than %q", want)
	}
	labelled := `DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-a",pci_bus_id="00000000:1A:00.0",device="nvidia0",modelName="H100",Hostname="n",` +
		`app_kubernetes_io_name="llama",container="c",namespace="ns",pod="p",pod_uid="u-1",vgpu="0"} 40`
	p.await(t, labelled)
	p.stop(t)
	if strings.Contains(p.log.String(), "no effect") {
		t.Errorf("a flag has no effect:\n%s", p.log)
	}

	// Without the switch no series of a GPU changes with its pods.
	p = start(t, args...)
	got := p.await(t, `pod_uid="u-1"`)
	if !strings.Contains(got, `modelName="H100",Hostname="n"} 40`) {
		t.Errorf("the series of the GPU has labels of its pod:\n%s", got)
	}
	p.stop(t)
}

// stop stops the program.
func (p *process) stop(t *testing.T) {
	t.Helper()
	if err := p.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if status := p.end(t); status != 0 {
		t.Errorf("status %d, log:\n%s", status, p.log)
	}
}

// TestAPodFarFromItsGPU: a pod's own CPUs are compared with those that the kernel says are
// near its GPU, and /dev/nvidia5 is the GPU of which the kernel says so.
func TestAPodFarFromItsGPU(t *testing.T) {
	dir := t.TempDir()
	device, info := filepath.Join(dir, "sys/bus/pci/devices/0000:1a:00.0"), filepath.Join(dir, "proc/driver/nvidia/gpus/0000:1a:00.0")
	for _, d := range []string{device, info} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for path, text := range map[string]string{
		filepath.Join(device, "numa_node"): "1", filepath.Join(device, "local_cpulist"): "8-15",
		filepath.Join(info, "information"): "Device Minor: 5", filepath.Join(dir, "gpu.prom"): page,
	} {
		writePage(t, path, text+"\n")
	}
	socket := filepath.Join(dir, "kubelet.sock")
	fake.Serve(t, socket).Say(
		fake.Hold{Namespace: "ns", Pod: "far", Container: "c", Resource: "nvidia.com/gpu", IDs: []string{"nvidia5"}, CPUs: []int64{0, 1, 2, 8}},
		fake.Hold{Namespace: "ns", Pod: "free", Container: "c", Resource: "nvidia.com/gpu", IDs: []string{"nvidia5"}},
	)
	p := start(t, "--source", "file", "--file", filepath.Join(dir, "gpu.prom"), "--node", "n", "--interval", "100ms",
		"-k", "--pod-resources-kubelet-socket", socket, "--host-root", dir)
	got := p.await(t, `stoker_gpu_pod_near_cpus_ratio{node="n",gpu="0",UUID="GPU-a",namespace="ns",pod="far",container="c"} 0.25`)
	if !strings.Contains(got, `stoker_gpu_topology_info{node="n",gpu="0",UUID="GPU-a",pci_bus_id="00000000:1A:00.0",numa_node="1",cpus="8-15",device="nvidia5"} 1`) ||
		strings.Count(got, "near_cpus_ratio{") != 1 {
		t.Errorf("where the GPU is, or one ratio alone, is missing in\n%s", got)
	}
	p.stop(t)
}

func TestPodFlagsThatAreWrong(t *testing.T) {
	t.Setenv("NODE_NAME", "")
	t.Setenv("KUBERNETES_VIRTUAL_GPUS", "perhaps")
	err := run(t.Context(), []string{"--source", "nvml", "-k", "--kubernetes-enable-pod-labels", "--kubernetes-pod-label-allowlist-regex", "(,ok"}, nil, nil)
	for _, want := range []string{
		`KUBERNETES_VIRTUAL_GPUS: "perhaps" is neither true nor false`,
		"--kubernetes-enable-pod-labels: the cluster is asked about one node, and which one this is must be said by --node or NODE_NAME",
		"--kubernetes-pod-label-allowlist-regex: error parsing regexp",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("err = %v, want %q", err, want)
		}
	}
	if exitCode(err) != 2 {
		t.Errorf("status %d, want 2", exitCode(err))
	}
}
