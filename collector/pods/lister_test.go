package pods

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"stoker.dev/stoker/internal/fleet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var gpus = []fleet.SampledGPU{{Index: 0, UUID: "GPU-a0"}, {Index: 1, UUID: "GPU-b1"}, {Index: 2, UUID: "GPU-c2"}}

// A kubelet is a fake one on a socket.
type kubelet struct {
	podresources.UnimplementedPodResourcesListerServer
	answer atomic.Pointer[podresources.ListPodResourcesResponse]
}

func (k *kubelet) List(ctx context.Context, _ *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	if a := k.answer.Load(); a != nil {
		return a, nil
	}
	<-ctx.Done() // it is slow
	return nil, ctx.Err()
}

func gpusOf(resource string, ids ...string) *podresources.ContainerDevices {
	return &podresources.ContainerDevices{ResourceName: resource, DeviceIds: ids}
}

func pod(name string, devices ...*podresources.ContainerDevices) *podresources.PodResources {
	return &podresources.PodResources{Namespace: "ns", Name: name, Containers: []*podresources.ContainerResources{{Name: "c", Devices: devices}}}
}

func said(pods ...*podresources.PodResources) *podresources.ListPodResourcesResponse {
	return &podresources.ListPodResourcesResponse{PodResources: pods}
}

func lister(t *testing.T, socket string) *Lister {
	t.Helper()
	return New(slog.New(slog.NewTextHandler(t.Output(), nil)), Options{Socket: socket, Resources: []string{"example.com/gpu"}})
}

func (l *Lister) page() string { return string(l.AppendPage([]byte("\n"), "n", gpus)) }

func info(gpu, uuid, rest string) string {
	return `stoker_gpu_pod_info{node="n",gpu="` + gpu + `",UUID="` + uuid + `",` + rest + "} 1\n"
}

// TestComplaint_12_EveryFormOfADevicesID finds the GPU of every form that there is.
func TestComplaint_12_EveryFormOfADevicesID(t *testing.T) {
	l := lister(t, "none")
	claim := pod("claims")
	claim.Containers[0].DynamicResources = []*podresources.DynamicResource{{
		ClaimName:      "two",
		ClaimResources: []*podresources.ClaimResource{{DriverName: "gpu.nvidia.com", DeviceName: "gpu-2"}, {DriverName: "else", DeviceName: "gpu-0"}},
	}}
	l.take(said(
		pod("uuid", gpusOf("nvidia.com/gpu", "GPU-b1")),
		pod("gke", gpusOf("nvidia.com/gpu", "nvidia2")),
		pod("gke-mig", gpusOf("nvidia.com/mig-1g.10gb", "nvidia1/gi7")),
		pod("gke-shared", gpusOf("nvidia.com/gpu", "nvidia1/gi7/vgpu0", "nvidia0/vgpu3")),
		pod("old-mig", gpusOf("nvidia.com/mig-2g.20gb", "MIG-GPU-c2/3/0")),
		pod("named", gpusOf("example.com/gpu", "GPU-a0")),
		pod("strange", gpusOf("nvidia.com/gpu", "MIG-5f3c", "GPU-gone", "what", "MIG-5f3c::2"), gpusOf("vendor.com/nic", "eth0", "eth1")),
		claim,
	), time.Now())
	got := l.page()
	for _, want := range []string{
		info("1", "GPU-b1", `namespace="ns",pod="uuid",container="c",resource="nvidia.com/gpu",shared="false"`),
		info("2", "GPU-c2", `namespace="ns",pod="gke",container="c",resource="nvidia.com/gpu",shared="true"`),
		info("2", "GPU-c2", `namespace="ns",pod="claims",container="c",resource="gpu.nvidia.com/two",shared="true"`),
		info("1", "GPU-b1", `GPU_I_ID="7",namespace="ns",pod="gke-mig",container="c",resource="nvidia.com/mig-1g.10gb",shared="true"`),
		info("1", "GPU-b1", `GPU_I_ID="7",namespace="ns",pod="gke-shared",container="c",resource="nvidia.com/gpu",shared="true"`),
		info("2", "GPU-c2", `GPU_I_ID="3",namespace="ns",pod="old-mig",container="c",resource="nvidia.com/mig-2g.20gb",shared="false"`),
		info("0", "GPU-a0", `namespace="ns",pod="named",container="c",resource="example.com/gpu",shared="true"`),
		"stoker_pods_unmatched_devices{reason=\"mig-uuid\"} 2\n",
		"stoker_pods_unmatched_devices{reason=\"no-such-gpu\"} 1\n",
		"stoker_pods_unmatched_devices{reason=\"unknown-id\"} 1\n",
		"stoker_pods_unmatched_devices{reason=\"other-resource\"} 2\n",
		"stoker_pods_up{reason=\"\"} 1\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

// TestComplaint_14_SharedGPUs: each pod has its row, which says that the GPU is shared.
func TestComplaint_14_SharedGPUs(t *testing.T) {
	l := lister(t, "none")
	l.take(said(
		pod("one", gpusOf("nvidia.com/gpu.shared", "GPU-a0::0", "GPU-a0::1")),
		pod("two", gpusOf("nvidia.com/gpu.shared", "GPU-a0::2")),
		pod("alone", gpusOf("nvidia.com/gpu", "GPU-b1")),
	), time.Now())
	got := l.page()
	for _, want := range []string{`pod="one",container="c",resource="nvidia.com/gpu.shared",shared="true"} 1`, `pod="two",container="c",resource="nvidia.com/gpu.shared",shared="true"} 1`, `pod="alone",container="c",resource="nvidia.com/gpu",shared="false"} 1`} {
		if strings.Count(got, want) != 1 {
			t.Errorf("%q is there %d times in\n%s", want, strings.Count(got, want), got)
		}
	}
}

func TestWhatIsOldIsNotShown(t *testing.T) {
	l := lister(t, "none")
	l.take(said(pod("p", gpusOf("nvidia.com/gpu", "GPU-a0"))), time.Now().Add(-maxAge-time.Second))
	if got := l.page(); strings.Contains(got, "stoker_gpu_pod_info") {
		t.Errorf("pods of long ago are shown:\n%s", got)
	}
}

func wantSoon(t *testing.T, l *Lister, want string) {
	t.Helper()
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if strings.Contains(l.page(), want) {
			return
		}
	}
	t.Fatalf("no %q in\n%s", want, l.page())
}

func serve(t *testing.T, socket string, k *kubelet) {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, k)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-done })
}

// TestTheKubelet is there, is not, is slow, and talks something else.
func TestTheKubelet(t *testing.T) {
	dir := t.TempDir()
	run := func(t *testing.T, socket string) *Lister {
		t.Helper()
		l := lister(t, socket)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); l.Run(ctx) }()
		t.Cleanup(func() { cancel(); <-done })
		return l
	}
	t.Run("it answers", func(t *testing.T) {
		k := &kubelet{}
		k.answer.Store(said(pod("p\"\\\n", gpusOf("nvidia.com/gpu", "GPU-a0"))))
		socket := filepath.Join(dir, "well.sock")
		serve(t, socket, k)
		l := run(t, socket)
		wantSoon(t, l, info("0", "GPU-a0", `namespace="ns",pod="p\"\\\n",container="c",resource="nvidia.com/gpu",shared="false"`))
		if l.String() != "up" {
			t.Errorf("it is %s", l)
		}
	})
	t.Run("it is not there", func(t *testing.T) {
		wantSoon(t, run(t, filepath.Join(dir, "none.sock")), `stoker_pods_up{reason="socket-missing"} 0`)
	})
	t.Run("it is slow", func(t *testing.T) {
		socket := filepath.Join(dir, "slow.sock")
		serve(t, socket, &kubelet{})
		wantSoon(t, run(t, socket), `stoker_pods_up{reason="kubelet-does-not-answer"} 0`)
	})
	t.Run("it talks something else", func(t *testing.T) {
		socket := filepath.Join(dir, "odd.sock")
		listener, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = listener.Close() }()
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				_, _ = conn.Write([]byte("220 mail.example.com ready\r\n"))
				_ = conn.Close()
			}
		}()
		wantSoon(t, run(t, socket), "stoker_pods_up{reason=\"kubelet-")
	})
	t.Run("it is a file", func(t *testing.T) {
		file := filepath.Join(dir, "file")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		wantSoon(t, run(t, file), "stoker_pods_up{reason=\"kubelet-")
	})
}

// TestComplaint_15_GPUsDoNotDependOnPods: whatever the kubelet says, of GPUs that nobody
// has nothing is taken away, and nothing is said.
func TestComplaint_15_GPUsDoNotDependOnPods(t *testing.T) {
	l := lister(t, "none")
	before := append([]fleet.SampledGPU(nil), gpus...)
	l.take(said(pod("p", gpusOf("nvidia.com/gpu", "GPU-b1")), pod("idle")), time.Now())
	if got := l.page(); strings.Count(got, "stoker_gpu_pod_info{") != 1 || !strings.Contains(got, `gpu="1"`) {
		t.Errorf("want a row of GPU 1 alone in\n%s", got)
	}
	for i, g := range before {
		if gpus[i] != g {
			t.Errorf("GPU %d was changed: %+v", i, gpus[i])
		}
	}
}
