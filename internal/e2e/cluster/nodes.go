package cluster

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// GPU is the resource that NVIDIA's device plugin advertises.
const GPU corev1.ResourceName = "nvidia.com/gpu"

// silentLabel stops kwok's heartbeat of a node, stuckAnnotation keeps a deleted
// pod, stopAfterAnnotation delays its end; see stages.yaml.
const (
	silentLabel         = "e2e.stoker.dev/silent"
	stuckAnnotation     = "e2e.stoker.dev/stuck"
	stopAfterAnnotation = "e2e.stoker.dev/stop-after"
)

// Nodes says what the nodes of one [Cluster.AddNodes] are like.
type Nodes struct {
	// Prefix begins their names, which go on with a number from 001. "" means "gpu-".
	Prefix string
	// GPUs is how many each has. 0 means 8, less than 0 means none.
	GPUs int
	// Product is the value of the label nvidia.com/gpu.product. "" means "NVIDIA-H200".
	Product string
	// CPU and Memory are what each has. "" means 192 and 2Ti.
	CPU, Memory string
	// Labels are further labels, such as pool, rack and spot.
	Labels map[string]string
	// Taints are the nodes' own.
	Taints []corev1.Taint
}

// AddNodes adds n nodes, waits until pods can be placed on them, and returns
// their names. Each gets a boot id, which stays until [Cluster.SetBootID] or a
// [Rebooter] sets another.
func (c *Cluster) AddNodes(t testing.TB, n int, like Nodes) []string {
	t.Helper()
	prefix := cmp.Or(like.Prefix, "gpu-")
	var names []string
	for range n {
		c.mu.Lock()
		c.nodes[prefix]++
		name := fmt.Sprintf("%s%03d", prefix, c.nodes[prefix])
		c.mu.Unlock()
		if _, err := c.Client.CoreV1().Nodes().Create(t.Context(), like.node(name), metav1.CreateOptions{}); err != nil {
			t.Fatalf("create node %s: %v", name, err)
		}
		names = append(names, name)
	}
	c.AwaitReady(t, readyWithin, names...)
	return names
}

// node returns one node as its kubelet would register it.
func (like Nodes) node(name string) *corev1.Node {
	labels := map[string]string{
		corev1.LabelHostname:   name,
		corev1.LabelArchStable: "amd64",
		corev1.LabelOSStable:   "linux",
	}
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:              resource.MustParse(cmp.Or(like.CPU, "192")),
		corev1.ResourceMemory:           resource.MustParse(cmp.Or(like.Memory, "2Ti")),
		corev1.ResourceEphemeralStorage: resource.MustParse("1Ti"),
		corev1.ResourcePods:             resource.MustParse("110"),
	}
	if gpus := cmp.Or(like.GPUs, 8); gpus > 0 {
		labels["nvidia.com/gpu.present"] = "true"
		labels["nvidia.com/gpu.product"] = cmp.Or(like.Product, "NVIDIA-H200")
		labels["nvidia.com/gpu.count"] = strconv.Itoa(gpus)
		capacity[GPU] = *resource.NewQuantity(int64(gpus), resource.DecimalSI)
	}
	maps.Copy(labels, like.Labels)
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec:       corev1.NodeSpec{Taints: like.Taints, ProviderID: "kwok://" + name},
		Status: corev1.NodeStatus{
			Capacity:    capacity,
			Allocatable: capacity.DeepCopy(),
			Addresses:   []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}},
			NodeInfo: corev1.NodeSystemInfo{
				BootID: newBootID(), MachineID: rand.Text(), SystemUUID: rand.Text(),
				Architecture: "amd64", OperatingSystem: "linux", OSImage: "kwok",
				KernelVersion: "6.8.0", KubeletVersion: "v1.37.2", ContainerRuntimeVersion: "containerd://2.1.0",
			},
		},
	}
}

// newBootID returns a random boot id as the kernel writes them.
func newBootID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// AwaitReady waits until the nodes are Ready and free of the taint that they
// have until then.
func (c *Cluster) AwaitReady(t testing.TB, within time.Duration, names ...string) {
	t.Helper()
	c.Await(t, fmt.Sprintf("%d nodes to be ready", len(names)), within, func(ctx context.Context) (bool, string, error) {
		list, err := c.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, "", err
		}
		left := slices.Clone(names)
		for _, n := range list.Items {
			if Ready(n) == corev1.ConditionTrue && !slices.ContainsFunc(n.Spec.Taints, notReady) {
				left = slices.DeleteFunc(left, func(name string) bool { return name == n.Name })
			}
		}
		return len(left) == 0, fmt.Sprintf("not ready: %v", left), nil
	})
}

// Ready returns the status of a node's condition Ready, Unknown where it has none.
func Ready(n corev1.Node) corev1.ConditionStatus {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status
		}
	}
	return corev1.ConditionUnknown
}

func notReady(t corev1.Taint) bool {
	return t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable
}

// Node returns a node as it is now.
func (c *Cluster) Node(t testing.TB, name string) *corev1.Node {
	t.Helper()
	n, err := c.Client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatalf("get node %s: %v", name, err)
	}
	return n
}

// SetBootID gives a node another boot id, as a reboot does.
func (c *Cluster) SetBootID(t testing.TB, node, id string) {
	t.Helper()
	c.patchNode(t, node, "status", map[string]any{"status": map[string]any{"nodeInfo": map[string]any{"bootID": id}}})
}

// SetAllocatableGPUs sets how many GPUs a node offers; its capacity stays. The
// device plugin does that when a GPU is lost.
func (c *Cluster) SetAllocatableGPUs(t testing.TB, node string, gpus int) {
	t.Helper()
	c.patchNode(t, node, "status", map[string]any{"status": map[string]any{"allocatable": map[string]any{string(GPU): strconv.Itoa(gpus)}}})
}

// SetCondition sets a node condition, as a node problem detector does.
func (c *Cluster) SetCondition(t testing.TB, node string, condition corev1.NodeCondition) {
	t.Helper()
	now := metav1.Now()
	condition.LastHeartbeatTime, condition.LastTransitionTime = now, now
	c.patchNode(t, node, "status", map[string]any{"status": map[string]any{"conditions": []any{condition}}})
}

// Silence ends a node's heartbeat, and the pods on it no longer die when they are
// deleted: a crashed or cut-off node. After [Options].NodeGrace the controller
// manager calls it unknown.
func (c *Cluster) Silence(t testing.TB, node string) {
	t.Helper()
	if err := silence(t.Context(), c.Client, node, true); err != nil {
		t.Fatal(err)
	}
}

// Wake ends what Silence began.
func (c *Cluster) Wake(t testing.TB, node string) {
	t.Helper()
	if err := silence(t.Context(), c.Client, node, false); err != nil {
		t.Fatal(err)
	}
}

// silence sets or removes the marks by which kwok leaves a node and its pods alone.
func silence(ctx context.Context, client kubernetes.Interface, node string, silent bool) error {
	var value any // null removes
	if silent {
		value = "true"
	}
	if err := patchNode(ctx, client, node, "", map[string]any{"metadata": map[string]any{"labels": map[string]any{silentLabel: value}}}); err != nil {
		return err
	}
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return err
	}
	for _, p := range pods.Items {
		err := patchPod(ctx, client, p, "", map[string]any{"metadata": map[string]any{"annotations": map[string]any{stuckAnnotation: value}}})
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) patchNode(t testing.TB, name, subresource string, patch map[string]any) {
	t.Helper()
	if err := patchNode(t.Context(), c.Client, name, subresource, patch); err != nil {
		t.Fatal(err)
	}
}

// patchNode sends a strategic merge patch of a node or of its subresource.
func patchNode(ctx context.Context, client kubernetes.Interface, name, subresource string, patch map[string]any) error {
	data, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	var sub []string
	if subresource != "" {
		sub = []string{subresource}
	}
	if _, err := client.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, data, metav1.PatchOptions{}, sub...); err != nil {
		return fmt.Errorf("patch node %s: %w", name, err)
	}
	return nil
}
