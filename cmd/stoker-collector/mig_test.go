//go:build cgo && linux

package main

import (
	"path/filepath"
	"strings"
	"testing"

	"stoker.dev/stoker/collector/dcgm/fake"
	pods "stoker.dev/stoker/collector/pods/fake"
)

// TestComplaint_12_PodsOfMIGDevices: the kubelet tells of a MIG device by its UUID, the engine
// of which GPU and instance it is; also after instances were made anew, and when none is left
// it is said why the pod is missing.
func TestComplaint_12_PodsOfMIGDevices(t *testing.T) {
	lib := fake.New(t)
	control, do := lib.Pipe(t)
	t.Setenv("FAKE_DCGM_CONTROL", control)
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	pods.Serve(t, socket).Say(
		pods.Hold{Namespace: "ns", Pod: "one", Container: "c", Resource: "nvidia.com/mig-1g.10gb", IDs: []string{"MIG-00000002-5555-6666-7777-000000000009::0"}},
		pods.Hold{Namespace: "ns", Pod: "later", Container: "c", Resource: "nvidia.com/gpu", IDs: []string{"MIG-00000003-5555-6666-7777-00000000000a"}},
	)
	p := start(t, "--source", "dcgm", "--dcgm-library", lib.Path, "--interval", "200ms", "--node", "n", "-k", "--pod-resources-kubelet-socket", socket, "--compatible")
	p.await(t, `stoker_pods_unmatched_devices{reason="unknown-mig"} 2`)
	do("mig 2 9 7 1")
	row := func(gpu, instance, pod, resource string) string {
		return `stoker_gpu_pod_info{node="n",gpu="` + gpu + `",UUID="GPU-0000000` + gpu + `-1111-2222-3333-44444444000` + gpu + `",GPU_I_ID="` + instance +
			`",namespace="ns",pod="` + pod + `",container="c",resource="` + resource + `",shared="false"} 1`
	}
	p.await(t, row("2", "7", "one", "nvidia.com/mig-1g.10gb"))
	p.await(t, `stoker_gpu_pod_missing_info{node="n",namespace="ns",pod="later",container="c",resource="nvidia.com/gpu",id="MIG-00000003-5555-6666-7777-00000000000a",reason="unknown-mig"} 1`)
	do("mig 3 10 1 2")
	p.await(t, row("3", "1", "later", "nvidia.com/gpu"))
	// With the switch the series of the instance have its pod, and those of the GPU have none.
	got := p.await(t, `GPU_I_PROFILE="2g.20gb",GPU_I_ID="1",hostname="n",DCGM_FI_DRIVER_VERSION="570.124.06",container="c",namespace="ns",pod="later"} `)
	if !strings.Contains(got, `device="nvidia3",modelName="NVIDIA H100 80GB HBM3",hostname="n",DCGM_FI_DRIVER_VERSION="570.124.06"} `) {
		t.Errorf("no series of GPU 3 is without a pod:\n%s", got)
	}
	p.await(t, `stoker_pods_unmatched_devices{reason="unknown-mig"} 0`)
	do("mig-none")
	p.await(t, `stoker_pods_unmatched_devices{reason="unknown-mig"} 2`)
	p.stop(t)
}
