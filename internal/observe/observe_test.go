package observe

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"stoker.dev/stoker/internal/fleet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	seen  = time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC)
	since = time.Date(2026, 11, 29, 8, 30, 0, 0, time.UTC)
)

// object decodes YAML as the API's JSON is decoded.
func object(t *testing.T, text string) map[string]any {
	t.Helper()
	u := &unstructured.Unstructured{}
	data, err := yaml.YAMLToJSON([]byte(text))
	if err == nil {
		err = u.UnmarshalJSON(data)
	}
	if err != nil {
		t.Fatal(err)
	}
	return u.Object
}

const fullNode = `
apiVersion: v1
kind: Node
metadata:
  name: gpu-a-02
  uid: n-2
  resourceVersion: "4711"
  managedFields: [{manager: kubelet}]
  labels: {kubernetes.io/hostname: host-2, karpenter.sh/nodepool: h200, topology.rack: r7}
  annotations:
    stoker.dev/hold: '{"incidents":{"gpu-lost-a":"2026-11-30T08:00:00Z"},"cordoned":true,"why":"XID 79"}'
    volumes.kubernetes.io/controller-managed-attach-detach: "true"
spec: {unschedulable: true, podCIDR: 10.0.0.0/24, taints: [{key: x, effect: NoSchedule}]}
status:
  capacity: {cpu: "192", memory: 2Ti, nvidia.com/gpu: "8", pods: "110"}
  allocatable: {cpu: 191500m, memory: 2000Gi, nvidia.com/gpu: "7", pods: "110"}
  nodeInfo: {bootID: b-1, kubeletVersion: v1.37.2}
  images: [{names: [a], sizeBytes: 5}]
  conditions:
    - {type: MemoryPressure, status: "False", lastTransitionTime: "2026-11-01T00:00:00Z"}
    - {type: Ready, status: "True", lastTransitionTime: "2026-11-29T08:30:00Z", lastHeartbeatTime: "2026-11-30T08:59:00Z"}
`

func TestNode(t *testing.T) {
	full := fleet.Node{
		Name: "gpu-a-02", UID: "n-2", Version: 4711, BootID: "b-1", Pool: "h200",
		Labels:        map[string]string{"kubernetes.io/hostname": "host-2", "karpenter.sh/nodepool": "h200", "topology.rack": "r7"},
		Ready:         fleet.Condition{Status: fleet.True, Since: since},
		Unschedulable: true,
		Hold:          fleet.Hold{Incidents: map[string]time.Time{"gpu-lost-a": seen.Add(-time.Hour)}, Cordoned: true, Why: "XID 79"},
		Capacity:      fleet.Resources{GPUs: 8, MilliCPU: 192_000, MemoryBytes: 2 << 40},
		Allocatable:   fleet.Resources{GPUs: 7, MilliCPU: 191_500, MemoryBytes: 2000 << 30},
		Seen:          seen,
	}
	for name, tc := range map[string]struct {
		object string
		want   fleet.Node
	}{
		"a node with everything": {fullNode, full},
		"a node that has told nothing yet": {
			"apiVersion: v1\nkind: Node\nmetadata: {name: new, uid: n-9, resourceVersion: '12'}",
			fleet.Node{Name: "new", UID: "n-9", Version: 12, Seen: seen},
		},
		"a node that no longer answers is not known, and since when": {
			"apiVersion: v1\nkind: Node\nmetadata: {name: a}\nstatus: {conditions: [{type: Ready, status: Unknown, lastTransitionTime: '2026-11-29T08:30:00Z'}]}",
			fleet.Node{Name: "a", Ready: fleet.Condition{Status: fleet.Unknown, Since: since}, Seen: seen},
		},
		"a node whose kubelet says that it is not ready": {
			"apiVersion: v1\nkind: Node\nmetadata: {name: a}\nstatus: {conditions: [{type: Ready, status: 'False', lastTransitionTime: '2026-11-29T08:30:00Z'}]}",
			fleet.Node{Name: "a", Ready: fleet.Condition{Status: fleet.False, Since: since}, Seen: seen},
		},
		"our own pool label beats a provider's": {
			"apiVersion: v1\nkind: Node\nmetadata: {name: a, labels: {stoker.dev/pool: mine, eks.amazonaws.com/nodegroup: theirs}}",
			fleet.Node{Name: "a", Pool: "mine", Labels: map[string]string{"stoker.dev/pool": "mine", "eks.amazonaws.com/nodegroup": "theirs"}, Seen: seen},
		},
		"a person opts out by an annotation that says why": {
			"apiVersion: v1\nkind: Node\nmetadata: {name: a, annotations: {stoker.dev/opt-out: bring-up until Friday}}",
			fleet.Node{Name: "a", OptOut: "bring-up until Friday", Seen: seen},
		},
		"a person opts out by a label": {
			"apiVersion: v1\nkind: Node\nmetadata: {name: a, labels: {stoker.dev/opt-out: 'true'}}",
			fleet.Node{Name: "a", OptOut: "stoker.dev/opt-out is set", Labels: map[string]string{"stoker.dev/opt-out": "true"}, Seen: seen},
		},
		"an opt-out of false is none": {
			"apiVersion: v1\nkind: Node\nmetadata: {name: a, annotations: {stoker.dev/opt-out: 'false'}}",
			fleet.Node{Name: "a", Seen: seen},
		},
		"a resource version that is no number is not known": {
			"apiVersion: v1\nkind: Node\nmetadata: {name: a, resourceVersion: x7}",
			fleet.Node{Name: "a", Seen: seen},
		},
	} {
		t.Run(name, func(t *testing.T) {
			obj := object(t, tc.object)
			o := Nodes{PoolKeys: PoolKeys}
			if d := cmp.Diff(tc.want, o.Node(obj, seen)); d != "" {
				t.Errorf("node differs (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tc.want, o.Node(o.Trim(obj), seen)); d != "" {
				t.Errorf("the trimmed object says something else (-want +got):\n%s", d)
			}
		})
	}
}

func TestHoldThatCannotBeRead(t *testing.T) {
	for name, mark := range map[string]string{
		"no JSON":                    `held`,
		"JSON of another shape":      `{"incidents":["a"]}`,
		"a field of a newer version": `{"incidents":{},"until":"2027"}`,
		"two values":                 `{} {}`,
		"a time that is none":        `{"incidents":{"a":"yesterday"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			obj := map[string]any{"metadata": map[string]any{"name": "a", "annotations": map[string]any{"stoker.dev/hold": mark, "stoker.dev/opt-out": "mine"}}}
			n := Nodes{}.Node(obj, seen)
			if n.Hold.Any() || n.Hold.Cordoned {
				t.Errorf("hold = %+v, want none: nobody may release what nobody can read", n.Hold)
			}
			if !HoldUnreadable(n) || n.OptOut == "" {
				t.Errorf("opt-out = %q, want that the mark cannot be read", n.OptOut)
			}
		})
	}
	if n := (Nodes{}).Node(object(t, fullNode), seen); HoldUnreadable(n) {
		t.Errorf("a hold that can be read is said not to be: %q", n.OptOut)
	}
}

var batchJobs = []schema.GroupKind{{Group: "batch", Kind: "Job"}}

const gangPod = `
apiVersion: v1
kind: Pod
metadata:
  name: llm-2-0-abcde
  namespace: train
  uid: p-1
  resourceVersion: "99"
  labels: {a: b}
  ownerReferences:
    - {apiVersion: v1, kind: ConfigMap, name: other}
    - {apiVersion: batch/v1, kind: Job, name: llm-2, uid: j-1, controller: true}
spec:
  nodeName: gpu-a-02
  containers:
    - {name: trainer, image: x, env: [{name: A, value: b}], resources: {limits: {nvidia.com/gpu: "4", cpu: "8"}}}
    - {name: log, resources: {requests: {cpu: 100m}}}
    - {name: second, resources: {requests: {nvidia.com/gpu: "4"}, limits: {nvidia.com/gpu: "4"}}}
status: {phase: Running, podIP: 10.0.0.1}
`

func TestPod(t *testing.T) {
	job := fleet.JobRef{Kind: "Job.batch", Namespace: "train", Name: "llm-2"}
	plain := func(meta, rest string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: ns, uid: u, %s}\n%s", meta, rest)
	}
	ref := fleet.PodRef{Namespace: "ns", Name: "p", UID: "u"}
	for name, tc := range map[string]struct {
		object string
		want   *fleet.Pod // nil: it has ended
	}{
		"a worker of a gang": {gangPod, &fleet.Pod{
			PodRef: fleet.PodRef{Namespace: "train", Name: "llm-2-0-abcde", UID: "p-1", Node: "gpu-a-02"},
			Job:    job, GPUs: 8, Running: true, Controlled: true,
		}},
		"a pod that waits for a node": {plain("", "status: {phase: Pending}"), &fleet.Pod{PodRef: ref}},
		"a pod that was asked to go": {
			plain("deletionTimestamp: '2026-11-30T08:00:00Z'", "status: {phase: Running}"),
			&fleet.Pod{PodRef: ref, Running: true, Terminating: true},
		},
		"a pod of a DaemonSet stays with its node": {
			plain("ownerReferences: [{apiVersion: apps/v1, kind: DaemonSet, name: d, controller: true}]", "status: {phase: Running}"),
			&fleet.Pod{PodRef: ref, Running: true, Resident: true, Controlled: true},
		},
		"a static pod stays with its node": {
			plain("annotations: {kubernetes.io/config.mirror: abc}, ownerReferences: [{apiVersion: v1, kind: Node, name: gpu-a-02, controller: true}]", "status: {phase: Running}"),
			&fleet.Pod{PodRef: ref, Running: true, Resident: true, Controlled: true},
		},
		"a pod of an owner that is no job": {
			plain("ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: r, controller: true}]", "status: {phase: Running}"),
			&fleet.Pod{PodRef: ref, Running: true, Controlled: true},
		},
		"a Job of another group is not ours": {
			plain("ownerReferences: [{apiVersion: batch.volcano.sh/v1alpha1, kind: Job, name: r, controller: true}]", "status: {phase: Running}"),
			&fleet.Pod{PodRef: ref, Running: true, Controlled: true},
		},
		"an init container that needs more than all others": {
			plain("", "spec: {containers: [{resources: {limits: {nvidia.com/gpu: '1'}}}], initContainers: [{resources: {limits: {nvidia.com/gpu: '2'}}}]}\nstatus: {phase: Running}"),
			&fleet.Pod{PodRef: ref, Running: true, GPUs: 2},
		},
		"a sidecar counts beside the containers": {
			plain("", "spec: {containers: [{resources: {limits: {nvidia.com/gpu: '1'}}}], initContainers: [{restartPolicy: Always, resources: {limits: {nvidia.com/gpu: '2'}}}]}\nstatus: {phase: Running}"),
			&fleet.Pod{PodRef: ref, Running: true, GPUs: 3},
		},
		"a pod that has succeeded": {plain("", "status: {phase: Succeeded}"), nil},
		"a pod that has failed":    {plain("", "status: {phase: Failed}"), nil},
		"a pod whose phase nobody knows has not ended": {
			plain("", "status: {phase: Unknown}"), &fleet.Pod{PodRef: ref},
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := Pods{Owners: batchJobs}
			obj := object(t, tc.object)
			for what, obj := range map[string]map[string]any{"whole": obj, "trimmed": o.Trim(obj)} {
				got, runs := o.Pod(obj)
				if runs != (tc.want != nil) {
					t.Fatalf("%s: has it not ended: %v, want %v", what, runs, tc.want != nil)
				}
				if tc.want == nil {
					continue
				}
				if d := cmp.Diff(*tc.want, got); d != "" {
					t.Errorf("%s: pod differs (-want +got):\n%s", what, d)
				}
			}
		})
	}
}

func TestObserveFillsFacts(t *testing.T) {
	f := fleet.NewFacts()
	f.Sources[Cluster] = seen
	Nodes{}.Observe([]unstructured.Unstructured{{Object: object(t, fullNode)}}, f)
	Pods{Owners: batchJobs}.Observe([]unstructured.Unstructured{{Object: object(t, gangPod)}}, f)
	snap := f.Snapshot(seen.Add(time.Second), fleet.Snapshot{})
	if n := snap.Nodes["gpu-a-02"]; !n.Seen.Equal(seen) {
		t.Errorf("node seen at %v, want the time of the source, %v", n.Seen, seen)
	}
	if got := snap.Pods["p-1"].BootID; got != "b-1" {
		t.Errorf("the pod's boot is %q, want its node's", got)
	}
	if got := snap.JobsOn("gpu-a-02"); len(got) != 1 || got[0].Name != "llm-2" {
		t.Errorf("jobs on the node: %v, want llm-2", got)
	}
}

func BenchmarkObserve(b *testing.B) {
	var data unstructured.Unstructured
	text, err := yaml.YAMLToJSON([]byte(gangPod))
	if err != nil {
		b.Fatal(err)
	}
	if err := data.UnmarshalJSON(text); err != nil {
		b.Fatal(err)
	}
	pods := Pods{Owners: batchJobs}
	trimmed := pods.Trim(data.Object)
	for b.Loop() {
		pods.Pod(trimmed)
	}
}
