package pods

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"stoker.dev/stoker/collector/pods/fake"
	"stoker.dev/stoker/internal/fleet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var gpus = []fleet.SampledGPU{
	{Index: 0, UUID: "GPU-a0", PCI: "00000000:1A:00.0"},
	{Index: 1, UUID: "GPU-b1", PCI: "00000000:1B:00.0"},
	{Index: 2, UUID: "GPU-c2", PCI: "00000000:9A:00.0"},
}

var devices = []fleet.MIGDevice{{UUID: "MIG-5f3c", GPU: "GPU-c2", Instance: "7"}, {UUID: "MIG-lost", GPU: "GPU-gone", Instance: "7"}}

func node() Seen { return Seen{Node: "n", GPUs: gpus, MIG: devices} }

func gpusOf(resource string, ids ...string) *podresources.ContainerDevices {
	return &podresources.ContainerDevices{ResourceName: resource, DeviceIds: ids}
}

func podOf(name string, devices ...*podresources.ContainerDevices) *podresources.PodResources {
	return &podresources.PodResources{Namespace: "ns", Name: name, Containers: []*podresources.ContainerResources{{Name: "c", Devices: devices}}}
}

func said(pods ...*podresources.PodResources) *podresources.ListPodResourcesResponse {
	return &podresources.ListPodResourcesResponse{PodResources: pods}
}

func lister(t *testing.T, o Options) *Lister {
	t.Helper()
	if o.Socket == "" {
		o.Socket = "none"
	}
	return New(slog.New(slog.NewTextHandler(t.Output(), nil)), o, node)
}

// page is what is shown once everything that is known is.
func (l *Lister) page() string {
	l.build()
	return string(l.AppendPage(nil))
}

func info(gpu, uuid, rest string) string {
	return `stoker_gpu_pod_info{node="n",gpu="` + gpu + `",UUID="` + uuid + `",` + rest + "} 1\n"
}

func wantIn(t *testing.T, got string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if strings.Count(got, want) != 1 {
			t.Errorf("%q is there %d times in\n%s", want, strings.Count(got, want), got)
		}
	}
}

// TestComplaint_12_EveryFormOfADevicesID finds the GPU of every form that there is, and
// says of every other one why not.
func TestComplaint_12_EveryFormOfADevicesID(t *testing.T) {
	for name, tc := range map[string]struct {
		resource, id string
		want         string // GPU, and instance; or the reason
	}{
		"a UUID":                                        {"nvidia.com/gpu", "GPU-b1", "GPU-b1"},
		"a share of a UUID":                             {"nvidia.com/gpu", "GPU-b1::3", "GPU-b1"},
		"a share of it under a name of its own":         {"nvidia.com/gpu.shared", "GPU-b1::3", "GPU-b1"},
		"a UUID of a resource that nobody has named":    {"acme.com/a100", "GPU-b1", "GPU-b1"},
		"a UUID that is not here":                       {"nvidia.com/gpu", "GPU-gone", "no-such-gpu"},
		"a UUID of somebody else's device":              {"acme.com/a100", "GPU-gone", ""},
		"a MIG device":                                  {"nvidia.com/mig-1g.10gb", "MIG-5f3c", "GPU-c2 7"},
		"a MIG device as a GPU, single strategy":        {"nvidia.com/gpu", "MIG-5f3c", "GPU-c2 7"},
		"a share of a MIG device":                       {"nvidia.com/mig-1g.10gb.shared", "MIG-5f3c::2", "GPU-c2 7"},
		"a MIG device that no source knows":             {"nvidia.com/mig-1g.10gb", "MIG-0000", "unknown-mig"},
		"a MIG device of a GPU that is not here":        {"nvidia.com/mig-1g.10gb", "MIG-lost", "no-such-gpu"},
		"a MIG device of before branch 470":             {"nvidia.com/mig-2g.20gb", "MIG-GPU-c2/3/0", "GPU-c2 3"},
		"a share of it":                                 {"nvidia.com/mig-2g.20gb", "MIG-GPU-c2/3/0::1", "GPU-c2 3"},
		"GKE":                                           {"nvidia.com/gpu", "nvidia2", "GPU-c2"},
		"GKE, MIG":                                      {"nvidia.com/gpu", "nvidia1/gi7", "GPU-b1 7"},
		"GKE, a share":                                  {"nvidia.com/gpu", "nvidia1/vgpu0", "GPU-b1"},
		"GKE, a share of MIG":                           {"nvidia.com/gpu", "nvidia1/gi7/vgpu0", "GPU-b1 7"},
		"GKE, a number that is not here":                {"nvidia.com/gpu", "nvidia9", "no-such-gpu"},
		"GKE, a number that nobody can mean":            {"nvidia.com/gpu", "nvidia99999999999999999999", "unknown-id"},
		"a number of a resource that nobody has named":  {"acme.com/gpu", "nvidia1", "unlisted-resource"},
		"a number of a resource that somebody has":      {"example.com/gpu", "nvidia1", "GPU-b1"},
		"an id of nothing known":                        {"nvidia.com/gpu", "what", "unknown-id"},
		"no id":                                         {"nvidia.com/gpu", "", "unknown-id"},
		"no GPU":                                        {"acme.com/nic", "eth0", ""},
		"a UUID with more behind it":                    {"nvidia.com/gpu", "GPU-b1/0", "unknown-id"},
		"a CDI name of a device plugin":                 {"nvidia.com/gpu", "nvidia.com/gpu=GPU-b1", "GPU-b1"},
		"a CDI name of a MIG device":                    {"nvidia.com/gpu", "nvidia.com/gpu=MIG-5f3c", "GPU-c2 7"},
		"an id that is longer than any":                 {"nvidia.com/gpu", "GPU-" + strings.Repeat("f", 1000), "unknown-id"},
		"an id that is neither text nor of one line \n": {"nvidia.com/gpu", "\xff\"\n", "unknown-id"},
	} {
		t.Run(name, func(t *testing.T) {
			l := lister(t, Options{Resources: []string{"example.com/gpu"}})
			l.take(said(podOf("p", gpusOf(tc.resource, tc.id))), time.Now())
			l.check(t, tc.want, tc.resource)
		})
	}
}

// check compares the only device with the GPU and instance that are wanted, or the reason.
func (l *Lister) check(t *testing.T, want, resource string) {
	t.Helper()
	rows, missed := match(l.holds, node(), l.isGPU, false)
	got := ""
	for _, r := range rows {
		got += gpus[r.gpu].UUID
		if r.instance != "" {
			got += " " + r.instance
		}
	}
	for _, m := range missed {
		got += m.why
		page := l.page()
		wantIn(t, page, fmt.Sprintf("stoker_pods_unmatched_devices{reason=%q} 1\n", m.why))
		of := ""
		if m.why == whyPlaced {
			of = `gpu="2",UUID="GPU-c2",`
		}
		if !strings.Contains(page, `stoker_gpu_pod_missing_info{node="n",`+of+`namespace="ns",pod="p",container="c",resource="`+resource+`",id="`) {
			t.Errorf("the pod is not named in\n%s", page)
		}
	}
	if got != want {
		t.Errorf("it is %q, want %q", got, want)
	}
}

// TestComplaint_12_EveryFormOfAClaim does so for what DRA gives.
func TestComplaint_12_EveryFormOfAClaim(t *testing.T) {
	const uid = "dab5ab50-d59a-42a6-af16-cfd4628c0f7a-"
	for name, tc := range map[string]struct {
		driver, device string
		cdi            []string
		want           string
	}{
		"a device by its number":                  {"gpu.nvidia.com", "gpu-2", nil, "GPU-c2"},
		"with the CDI name of the claim":          {"gpu.nvidia.com", "gpu-2", []string{"k8s.gpu.nvidia.com/claim=" + uid + "gpu-2"}, "GPU-c2"},
		"only the CDI name":                       {"gpu.nvidia.com", "", []string{"k8s.gpu.nvidia.com/claim=" + uid + "gpu-2"}, "GPU-c2"},
		"the CDI name of older drivers":           {"gpu.nvidia.com", "", []string{"k8s.gpu.nvidia.com/device=gpu-2"}, "GPU-c2"},
		"a CDI name with the UUID":                {"gpu.nvidia.com", "x", []string{"nvidia.com/gpu=GPU-b1"}, "GPU-b1"},
		"a CDI name with a claim and a UUID":      {"gpu.nvidia.com", "x", []string{"k8s.gpu.nvidia.com/claim=" + uid + "GPU-b1"}, "GPU-b1"},
		"a CDI name with a MIG device":            {"gpu.nvidia.com", "gpu-2-mig-1g10gb-19-0", []string{"nvidia.com/gpu=MIG-5f3c"}, "GPU-c2 7"},
		"a MIG device by its place":               {"gpu.nvidia.com", "gpu-2-mig-1g10gb-19-0", []string{"k8s.gpu.nvidia.com/claim=" + uid + "gpu-2-mig-1g10gb-19-0"}, "mig-by-place"},
		"a MIG device by its place, older":        {"gpu.nvidia.com", "gpu-2-mig-19-0-1", nil, "mig-by-place"},
		"a number that is not here":               {"gpu.nvidia.com", "gpu-9", nil, "no-such-gpu"},
		"a place on a GPU that is not here":       {"gpu.nvidia.com", "gpu-9-mig-19-0-1", nil, "no-such-gpu"},
		"nothing that names it":                   {"gpu.nvidia.com", "", nil, "unknown-id"},
		"passed through to a virtual machine":     {"gpu.nvidia.com", "gpu-vfio-0", nil, "unknown-id"},
		"a driver of other devices":               {"nic.acme.com", "eth0", []string{"acme.com/nic=eth0"}, ""},
		"another driver that has GPUs":            {"gpu.acme.com", "x", []string{"nvidia.com/gpu=GPU-b1"}, "GPU-b1"},
		"another driver that counts as we do":     {"gpu.acme.com", "gpu-2", nil, "unlisted-resource"},
		"another driver that somebody has named":  {"example.com/gpu", "gpu-2", nil, "GPU-c2"},
		"the driver of NVLink domains, no device": {"compute-domain.nvidia.com", "channel-0", nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			l := lister(t, Options{Resources: []string{"example.com/gpu"}})
			p := podOf("p")
			claim := &podresources.ClaimResource{DriverName: tc.driver, PoolName: "n", DeviceName: tc.device}
			for _, name := range tc.cdi {
				claim.CdiDevices = append(claim.CdiDevices, &podresources.CDIDevice{Name: name})
			}
			p.Containers[0].DynamicResources = []*podresources.DynamicResource{{ClaimName: "two", ClaimNamespace: "ns", ClaimResources: []*podresources.ClaimResource{claim}}}
			l.take(said(p), time.Now())
			l.check(t, tc.want, tc.driver)
			if strings.HasPrefix(tc.want, "GPU-c2") && tc.device == "gpu-2" {
				wantIn(t, l.page(), info("2", "GPU-c2", `namespace="ns",pod="p",container="c",resource="`+tc.driver+
					`",shared="false",dra_claim_namespace="ns",dra_claim_name="two",dra_driver_name="`+tc.driver+`",dra_pool_name="n",dra_device_name="gpu-2"`))
			}
		})
	}
}

// TestNumbersAreThoseOfDeviceFiles: where it is known that they differ from the order of the
// GPUs, nvidia0 is the file.
func TestNumbersAreThoseOfDeviceFiles(t *testing.T) {
	s := node()
	s.GPUs = []fleet.SampledGPU{{Index: 0, UUID: "GPU-a0", Device: "nvidia1"}, {Index: 1, UUID: "GPU-b1", Device: "nvidia0"}}
	rows, missed := match([]hold{{owner{resource: "x"}, []string{"nvidia0"}, nil}}, s, func(string) bool { return true }, false)
	if len(missed) != 0 || len(rows) != 1 || rows[0].gpu != 1 {
		t.Errorf("nvidia0 is %+v, missed %+v; want the second GPU", rows, missed)
	}
}

// TestComplaint_14_SharedGPUs: each pod has its row, which says that the GPU is shared.
func TestComplaint_14_SharedGPUs(t *testing.T) {
	answer := said(
		podOf("one", gpusOf("nvidia.com/gpu.shared", "GPU-a0::0", "GPU-a0::1")),
		podOf("two", gpusOf("nvidia.com/gpu.shared", "GPU-a0::2")),
		podOf("alone", gpusOf("nvidia.com/gpu", "GPU-b1")),
		podOf("left", gpusOf("nvidia.com/mig-1g.10gb.shared", "MIG-5f3c::0")),
		podOf("right", gpusOf("nvidia.com/mig-1g.10gb.shared", "MIG-5f3c::1")),
	)
	l := lister(t, Options{})
	l.take(answer, time.Now())
	got := l.page()
	wantIn(t, got,
		`pod="one",container="c",resource="nvidia.com/gpu.shared",shared="true"} 1`,
		`pod="two",container="c",resource="nvidia.com/gpu.shared",shared="true"} 1`,
		`pod="alone",container="c",resource="nvidia.com/gpu",shared="false"} 1`,
		`GPU_I_ID="7",namespace="ns",pod="left",container="c",resource="nvidia.com/mig-1g.10gb.shared",shared="true"} 1`,
		`GPU_I_ID="7",namespace="ns",pod="right",container="c",resource="nvidia.com/mig-1g.10gb.shared",shared="true"} 1`)

	l = lister(t, Options{Replicas: true})
	l.take(answer, time.Now())
	got = l.page()
	wantIn(t, got,
		`pod="one",container="c",resource="nvidia.com/gpu.shared",shared="true",vgpu="0"} 1`,
		`pod="one",container="c",resource="nvidia.com/gpu.shared",shared="true",vgpu="1"} 1`,
		`pod="two",container="c",resource="nvidia.com/gpu.shared",shared="true",vgpu="2"} 1`,
		`pod="alone",container="c",resource="nvidia.com/gpu",shared="false"} 1`)
}

// TestComplaint_15_GPUsDoNotDependOnPods: whatever the kubelet says, of GPUs that nobody
// has nothing is taken away, and nothing is said.
func TestComplaint_15_GPUsDoNotDependOnPods(t *testing.T) {
	l := lister(t, Options{Replicas: true})
	l.take(said(podOf("p", gpusOf("nvidia.com/gpu", "GPU-b1")), podOf("idle")), time.Now())
	if got := l.page(); strings.Count(got, "stoker_gpu_pod_info{") != 1 || !strings.Contains(got, `gpu="1"`) {
		t.Errorf("want a row of GPU 1 alone in\n%s", got)
	}
	s := fleet.Samples{GPUs: gpus, Values: []fleet.Sample{{Field: "x", GPU: 0}, {Field: "x", GPU: 1}, {Field: "x", GPU: 2}, {Field: "y", GPU: fleet.NoGPU}}}
	l.Label(&s)
	if len(s.Values) != 4 || len(s.Values[0].Labels)+len(s.Values[2].Labels)+len(s.Values[3].Labels) != 0 || len(s.Values[1].Labels) != 3 {
		t.Errorf("labelled %+v, want the second alone", s.Values)
	}
}

func TestWhatIsOldIsNotShown(t *testing.T) {
	l := lister(t, Options{})
	l.take(said(podOf("p", gpusOf("nvidia.com/gpu", "GPU-a0"))), time.Now().Add(-maxAge-time.Second))
	if got := l.page(); strings.Contains(got, "stoker_gpu_pod_info") {
		t.Errorf("pods of long ago are shown:\n%s", got)
	}
}

// TestComplaint_08_ScrapesDoNotWaitForTheKubelet: while it answers nothing, a thousand scrapes
// take no time, and ask it nothing.
func TestComplaint_08_ScrapesDoNotWaitForTheKubelet(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	k := fake.Serve(t, socket)
	l := run(t, Options{Socket: socket})
	for end := time.Now().Add(15 * time.Second); k.Asked() == 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	begin := time.Now()
	for range 1000 {
		l.AppendPage(nil)
		l.Label(&fleet.Samples{GPUs: gpus, Values: []fleet.Sample{{GPU: 0}}})
	}
	if d := time.Since(begin); d > answerIn*4/5 { // who waits, waits for that long
		t.Errorf("a thousand scrapes took %v", d)
	}
	if n := k.Asked(); n != 1 {
		t.Errorf("the kubelet was asked %d times, want once", n)
	}
}

// TestComplaint_09_OneConnection: the kubelet is asked every ten seconds, however often the
// GPUs and the page are looked at.
func TestComplaint_09_OneConnection(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	k := fake.Serve(t, socket)
	k.Say(fake.Hold{Namespace: "ns", Pod: "p", Container: "c", Resource: "nvidia.com/gpu", IDs: []string{"GPU-a0"}})
	l := run(t, Options{Socket: socket})
	wantSoon(t, l, `pod="p"`)
	for end := time.Now().Add(2*renew + renew/2); time.Now().Before(end); time.Sleep(time.Millisecond) {
		l.AppendPage(nil)
	}
	if n := k.Asked(); n != 1 {
		t.Errorf("the kubelet was asked %d times in two seconds, want once", n)
	}
}

// TestHugeAnswers: what is over a limit is counted, and costs the rest nothing.
func TestHugeAnswers(t *testing.T) {
	l := lister(t, Options{})
	var pods []*podresources.PodResources
	for i := range maxHolds + 5 {
		pods = append(pods, podOf(fmt.Sprintf("p%d", i), gpusOf("nvidia.com/gpu", "GPU-a0::"+fmt.Sprint(i))))
	}
	begin := time.Now()
	l.take(said(pods...), begin)
	got := l.page()
	if n := strings.Count(got, "stoker_gpu_pod_info{"); n != maxHolds {
		t.Errorf("%d rows, want %d", n, maxHolds)
	}
	wantIn(t, got, "stoker_pods_unmatched_devices{reason=\"too-many\"} 5\n")
	if d := time.Since(begin); d > 5*time.Second {
		t.Errorf("it took %v", d)
	}
}

// TestContainersCPUs: a container with CPUs of its own away from its GPU is seen.
func TestContainersCPUs(t *testing.T) {
	local := map[string][]int{gpus[0].PCI: {0, 1, 2, 3}, gpus[1].PCI: {4, 5, 6, 7}}
	l := New(slog.New(slog.DiscardHandler), Options{}, func() Seen {
		s := node()
		s.Near = func(pci string) []int { return local[pci] }
		return s
	})
	pinned := func(name, gpu string, cpus ...int64) *podresources.PodResources {
		p := podOf(name, gpusOf("nvidia.com/gpu", gpu))
		p.Containers[0].CpuIds = cpus
		return p
	}
	whole := podOf("whole", gpusOf("nvidia.com/gpu", "GPU-b1"))
	whole.CpuIds = []int64{4, 5, 0, 1}
	l.take(said(pinned("near", "GPU-a0", 0, 1), pinned("far", "GPU-a0", 4, 5), pinned("split", "GPU-b1", 3, 4, 5, 6),
		pinned("free", "GPU-a0"), pinned("nowhere", "GPU-c2", 0, 1), whole), time.Now())
	got := l.page()
	row := func(gpu, uuid, pod, value string) string {
		return `stoker_gpu_pod_near_cpus_ratio{node="n",gpu="` + gpu + `",UUID="` + uuid + `",namespace="ns",pod="` + pod + `",container="c"} ` + value + "\n"
	}
	wantIn(t, got, row("0", "GPU-a0", "near", "1"), row("0", "GPU-a0", "far", "0"), row("1", "GPU-b1", "split", "0.75"), row("1", "GPU-b1", "whole", "0.5"))
	if n := strings.Count(got, "near_cpus_ratio{"); n != 4 {
		t.Errorf("%d rows, want 4 in\n%s", n, got)
	}
}

func wantSoon(t *testing.T, l *Lister, want string) {
	t.Helper()
	page := ""
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if page = string(l.AppendPage(nil)); strings.Contains(page, want) {
			return
		}
	}
	t.Fatalf("no %q in\n%s", want, page)
}

func run(t *testing.T, o Options) *Lister {
	t.Helper()
	l := lister(t, o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); l.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return l
}

// TestTheKubelet is there, is not, is slow, and talks something else.
func TestTheKubelet(t *testing.T) {
	dir := t.TempDir()
	t.Run("it answers", func(t *testing.T) {
		socket := filepath.Join(dir, "well.sock")
		fake.Serve(t, socket).Say(fake.Hold{Namespace: "ns", Pod: "p\"\\\n", Container: "c", Resource: "nvidia.com/gpu", IDs: []string{"GPU-a0"}})
		l := run(t, Options{Socket: socket})
		wantSoon(t, l, info("0", "GPU-a0", `namespace="ns",pod="p\"\\\n",container="c",resource="nvidia.com/gpu",shared="false"`))
		if l.String() != "up" {
			t.Errorf("it is %s", l)
		}
	})
	t.Run("it is not there", func(t *testing.T) {
		wantSoon(t, run(t, Options{Socket: filepath.Join(dir, "none.sock")}), `stoker_pods_up{reason="socket-missing"} 0`)
	})
	t.Run("it is slow", func(t *testing.T) {
		socket := filepath.Join(dir, "slow.sock")
		fake.Serve(t, socket)
		wantSoon(t, run(t, Options{Socket: socket}), `stoker_pods_up{reason="kubelet-does-not-answer"} 0`)
	})
	t.Run("its answer is longer than any", func(t *testing.T) {
		socket := filepath.Join(dir, "long.sock")
		fake.Serve(t, socket).SayAll(said(podOf(strings.Repeat("p", maxAnswer+1))))
		wantSoon(t, run(t, Options{Socket: socket}), `stoker_pods_up{reason="answer-too-long"} 0`)
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
		wantSoon(t, run(t, Options{Socket: socket}), `stoker_pods_up{reason="kubelet-does-not-answer"} 0`)
	})
	t.Run("it has no such service", func(t *testing.T) {
		socket := filepath.Join(dir, "empty.sock")
		listener, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer()
		done := make(chan struct{})
		go func() { defer close(done); _ = server.Serve(listener) }()
		t.Cleanup(func() { server.Stop(); <-done })
		wantSoon(t, run(t, Options{Socket: socket}), `stoker_pods_up{reason="kubelet-refuses"} 0`)
	})
	t.Run("it is a file", func(t *testing.T) {
		file := filepath.Join(dir, "file")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		wantSoon(t, run(t, Options{Socket: file}), `stoker_pods_up{reason="kubelet-does-not-answer"} 0`)
	})
}
