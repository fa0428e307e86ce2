package main

import (
	"fmt"
	"os"
	"regexp"

	"github.com/spf13/pflag"

	"stoker.dev/stoker/collector/kubeget"
)

// podFlags declares the flags about pods, which are dcgm-exporter's.
func (d *dropin) podFlags(f *pflag.FlagSet) {
	f.BoolVarP(&d.kubernetes, "kubernetes", "k", d.yes("DCGM_EXPORTER_KUBERNETES"),
		"show which pods have which GPUs (env DCGM_EXPORTER_KUBERNETES)")
	f.StringVar(&d.pods.Socket, "pod-resources-kubelet-socket", os.Getenv("DCGM_POD_RESOURCES_KUBELET_SOCKET"),
		"the kubelet's socket; /var/lib/kubelet/pod-resources/kubelet.sock if empty (env DCGM_POD_RESOURCES_KUBELET_SOCKET)")
	f.StringSliceVar(&d.pods.Resources, "nvidia-resource-names", split(os.Getenv("NVIDIA_RESOURCE_NAMES")),
		"names of resources that are GPUs beside nvidia.com/gpu and nvidia.com/mig-* (env NVIDIA_RESOURCE_NAMES)")
	f.BoolVar(&d.pods.Replicas, "kubernetes-virtual-gpus", d.yes("KUBERNETES_VIRTUAL_GPUS"),
		"tell the shares of a shared GPU apart, each with its number (env KUBERNETES_VIRTUAL_GPUS)")
	f.BoolVar(&d.pods.About.UID, "kubernetes-enable-pod-uid", d.yes("DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID"),
		"show the uids of pods, which the cluster is asked for (env DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID)")
	f.BoolVar(&d.pods.About.Labels, "kubernetes-enable-pod-labels", d.yes("DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS"),
		"show the labels of pods, which the cluster is asked for (env DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS)")
	f.StringSliceVar(&d.allow, "kubernetes-pod-label-allowlist-regex", split(os.Getenv("DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX")),
		"which labels of pods, by expressions that one of must be found in the key; all if empty (env DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX)")
	f.StringVar(&d.pods.ServiceAccount, "service-account", kubeget.ServiceAccount,
		"folder of the token and the certificate with which the cluster is asked")
	f.BoolVar(&d.pods.Published, "kubernetes-enable-dra", d.yes("KUBERNETES_ENABLE_DRA"),
		"ask the cluster which GPUs the devices of DRA are, where their names do not say so (env KUBERNETES_ENABLE_DRA)")
	// What is always so here, whatever it says.
	f.String("kubernetes-gpu-id-type", "", "every form of id is understood")
	f.Lookup("kubernetes-gpu-id-type").Hidden = true
}

// applyPods makes settings of them, and returns what is wrong. The node is the one that was
// named, empty if none was.
func (d *dropin) applyPods(node string) []error {
	var errs []error
	a := &d.pods.About
	d.pods.Node = node
	for _, asks := range []struct {
		flag string
		on   bool
	}{{"kubernetes-enable-pod-labels", a.Labels}, {"kubernetes-enable-pod-uid", a.UID}, {"kubernetes-enable-dra", d.pods.Published}} {
		if d.kubernetes && asks.on && node == "" {
			errs = append(errs, fmt.Errorf("--%s: the cluster is asked about one node, and which one this is must be said by --node or NODE_NAME", asks.flag))
		}
	}
	a.Allow = nil
	for _, text := range d.allow {
		r, err := regexp.Compile(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("--kubernetes-pod-label-allowlist-regex: %w", err))
			continue
		}
		a.Allow = append(a.Allow, r)
	}
	return errs
}
