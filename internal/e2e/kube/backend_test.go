package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/actuator/contract"
	"stoker.dev/stoker/internal/e2e/cluster"
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/kube"
	"stoker.dev/stoker/internal/observe"
	"stoker.dev/stoker/internal/remedy"
)

// A backend is the real cluster as the actuator's contract wants it: Stoker's hands
// are the account's, everybody else's are the admin's.
type backend struct {
	*suite

	t         *testing.T
	hands     *kube.Cluster
	world     *observe.World
	nodes     []string
	namespace string // of this test's jobs and pods
	pods      int
	barriers  int
}

var _ contract.Backend = (*backend)(nil)

func TestClusterKeepsTheContract(t *testing.T) {
	s := theSuite(t)
	hands := s.hands(t)
	cache := kube.NewCache(logger(t), s.client(t), hands.Observers()...)
	run(t, cache)
	nodes := s.AddNodes(t, 6, cluster.Nodes{Prefix: "contract-", Labels: map[string]string{testLabel: "contract"}})
	tests := 0
	contract.Run(t, func(t *testing.T) contract.Backend {
		t.Helper()
		tests++
		b := &backend{suite: s, t: t, hands: hands, nodes: nodes, namespace: fmt.Sprint("contract-", tests)}
		b.world = observe.NewWorld(logger(t), observe.Source{Name: observe.Cluster, Filler: cache, Needed: true})
		s.Namespace(t, b.namespace)
		t.Cleanup(b.clear)
		b.Until(t, "the nodes are seen", func(f fleet.Snapshot) bool {
			for _, n := range nodes {
				if node := f.Nodes[n]; !node.Available() || node.Hold.Any() || len(f.PodsOn(n)) > 0 {
					return false
				}
			}
			return true
		})
		return b
	})
}

// clear leaves the nodes as they were.
func (b *backend) clear() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*soon) // the test's own has ended
	defer cancel()
	var zero int64
	background := metav1.DeletePropagationBackground
	var errs []error
	errs = append(errs, b.Client.CoreV1().Namespaces().Delete(ctx, b.namespace, metav1.DeleteOptions{}))
	errs = append(errs, b.Client.BatchV1().Jobs(own).DeleteCollection(ctx, metav1.DeleteOptions{PropagationPolicy: &background}, metav1.ListOptions{}))
	for _, n := range b.nodes {
		patch := []byte(`{"spec":{"unschedulable":null},"metadata":{"annotations":{"stoker.dev/hold":null,"stoker.dev/why":null}}}`)
		_, err := b.Client.CoreV1().Nodes().Patch(ctx, n, types.MergePatchType, patch, metav1.PatchOptions{})
		errs = append(errs, err)
		errs = append(errs, cluster.Await(ctx, "the pods of "+n+" to go", soon, func(ctx context.Context) (bool, string, error) {
			pods, err := b.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + n})
			if err != nil {
				return false, "", err
			}
			for _, p := range pods.Items {
				_ = b.Client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &zero}) // looked at again
			}
			return len(pods.Items) == 0, fmt.Sprintf("%d left", len(pods.Items)), nil
		}))
	}
	for _, err := range errs {
		if err != nil {
			b.t.Errorf("clear up: %v", err)
		}
	}
}

func (b *backend) Cluster() actuator.Cluster { return b.hands }
func (b *backend) Nodes() []string           { return b.nodes }
func (b *backend) Now() time.Time            { return time.Now().UTC() }

// Until looks at snapshots that know at least what had happened when it was called:
// watches tell of it a moment later, and a test would see the past.
func (b *backend) Until(t *testing.T, what string, ok func(fleet.Snapshot) bool) fleet.Snapshot {
	t.Helper()
	caught := b.barrier(t)
	b.look(t, "the watches to catch up", caught)
	return b.look(t, what, ok)
}

// barrier changes something of each kind and returns whether a snapshot knows of it.
// Events of one kind are told in order.
func (b *backend) barrier(t *testing.T) func(fleet.Snapshot) bool {
	t.Helper()
	b.barriers++
	name := fmt.Sprint("barrier-", b.barriers)
	container := []corev1.Container{{Name: "c", Image: "example.com/c:1"}}
	pod, err := b.Client.CoreV1().Pods(b.namespace).Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		SchedulingGates: []corev1.PodSchedulingGate{{Name: "e2e.stoker.dev/never"}}, Containers: container,
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	job, err := b.Client.BatchV1().Jobs(b.namespace).Create(t.Context(), &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: batchv1.JobSpec{
		Suspend: new(true), Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: container}},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	last := b.nodes[len(b.nodes)-1] // no test changes it while somebody else does
	mark := b.namespace + "." + name
	if _, err := b.Client.CoreV1().Nodes().Patch(t.Context(), last, types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{"barrier":%q}}}`, mark), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	ref := fleet.JobRef{Kind: "Job.batch", Namespace: b.namespace, Name: job.Name}
	return func(f fleet.Snapshot) bool {
		_, seenPod := f.Pods[string(pod.UID)]
		_, seenJob := f.Jobs[ref]
		return seenPod && seenJob && f.Nodes[last].Labels["barrier"] == mark
	}
}

func (b *backend) look(t *testing.T, what string, ok func(fleet.Snapshot) bool) fleet.Snapshot {
	t.Helper()
	var last error
	for deadline := time.Now().Add(soon); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		f, err := b.world.Snapshot(t.Context(), b.Now())
		if last = err; err == nil && ok(f) {
			return f
		}
	}
	t.Fatalf("%s: not within %v (%v)", what, soon, last)
	return fleet.Snapshot{}
}

func (b *backend) RunJob(t *testing.T, name string, workers, gpus int) fleet.JobRef {
	t.Helper()
	job := cluster.IndexedJob(b.namespace, name, workers, gpus)
	job.Spec.Template.Spec.NodeSelector = map[string]string{testLabel: "contract"}
	b.CreateJob(t, job)
	b.AwaitRunning(t, b.namespace, name, soon)
	return fleet.JobRef{Kind: "Job.batch", Namespace: b.namespace, Name: name}
}

func (b *backend) RunPod(t *testing.T, node string, kind contract.PodKind) fleet.PodRef {
	t.Helper()
	b.pods++
	name := fmt.Sprintf("%s-%d", kind, b.pods)
	meta := metav1.ObjectMeta{Namespace: b.namespace, Name: name, Labels: map[string]string{"pod": name}}
	spec := corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "example.com/c:1"}}}
	var err error
	switch kind {
	case contract.PodControlled:
		spec.NodeName, spec.NodeSelector = "", map[string]string{corev1.LabelHostname: node}
		_, err = b.Client.AppsV1().ReplicaSets(b.namespace).Create(t.Context(), &appsv1.ReplicaSet{ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{
			Replicas: new(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: meta.Labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: meta.Labels}, Spec: spec},
		}}, metav1.CreateOptions{})
	case contract.PodResident:
		meta.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "abc"}
		fallthrough
	case contract.PodBare:
		_, err = b.Client.CoreV1().Pods(b.namespace).Create(t.Context(), &corev1.Pod{ObjectMeta: meta, Spec: spec}, metav1.CreateOptions{})
	default:
		t.Fatalf("nobody knows how to make a pod that is %s", kind)
	}
	if err != nil {
		t.Fatal(err)
	}
	var ref fleet.PodRef
	b.Await(t, "pod "+name+" to run", soon, func(ctx context.Context) (bool, string, error) {
		pods, err := b.Client.CoreV1().Pods(b.namespace).List(ctx, metav1.ListOptions{LabelSelector: "pod=" + name})
		if err != nil || len(pods.Items) == 0 || pods.Items[0].Status.Phase != corev1.PodRunning {
			return false, "not running", err
		}
		p := pods.Items[0]
		ref = fleet.PodRef{Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), Node: p.Spec.NodeName}
		return true, "", nil
	})
	return ref
}

func (b *backend) budget(p fleet.PodRef) (name string) {
	name, _, _ = strings.Cut(strings.TrimPrefix(p.Name, string(contract.PodControlled)+"-"), "-")
	return string(contract.PodControlled) + "-" + name
}

func (b *backend) Refuse(t *testing.T, p fleet.PodRef) {
	t.Helper()
	name := b.budget(p)
	pdbs := b.Client.PolicyV1().PodDisruptionBudgets(p.Namespace)
	_, err := pdbs.Create(t.Context(), &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: policyv1.PodDisruptionBudgetSpec{
		MinAvailable: &intstr.IntOrString{IntVal: 1}, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"pod": name}},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b.Await(t, "the budget to count its pod", soon, func(ctx context.Context) (bool, string, error) {
		pdb, err := pdbs.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		return pdb.Status.CurrentHealthy == 1 && pdb.Status.ObservedGeneration == pdb.Generation, fmt.Sprintf("%+v", pdb.Status), nil
	})
}

func (b *backend) Allow(t *testing.T, p fleet.PodRef) {
	t.Helper()
	if err := b.Client.PolicyV1().PodDisruptionBudgets(p.Namespace).Delete(t.Context(), b.budget(p), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (b *backend) Cordon(t *testing.T, node string, unschedulable bool) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"unschedulable":%v}}`, unschedulable)
	if _, err := b.Client.CoreV1().Nodes().Patch(t.Context(), node, types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (b *backend) Suspend(t *testing.T, job fleet.JobRef, suspend bool) {
	t.Helper()
	b.patchJob(t, job, map[string]any{"spec": map[string]any{"suspend": suspend}})
}

func (b *backend) Save(t *testing.T, job fleet.JobRef, key string, c fleet.Checkpoint) {
	t.Helper()
	marks := map[string]any{
		remedy.MarkCheckpointStep: strconv.FormatInt(c.Step, 10),
		remedy.MarkCheckpointURI:  c.URI,
		remedy.MarkCheckpointTime: c.At.UTC().Format(time.RFC3339Nano),
	}
	if key != "" {
		marks[remedy.MarkCheckpointAck] = key
	}
	b.patchJob(t, job, map[string]any{"metadata": map[string]any{"annotations": marks}})
}

func (b *backend) Recipe(t *testing.T, job fleet.JobRef, name, text string) {
	t.Helper()
	b.patchJob(t, job, map[string]any{"metadata": map[string]any{"annotations": map[string]any{remedy.MarkRecipe + name: text}}})
}

func (b *backend) patchJob(t *testing.T, job fleet.JobRef, patch map[string]any) {
	t.Helper()
	data, err := json.Marshal(patch)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Client.BatchV1().Jobs(job.Namespace).Patch(t.Context(), job.Name, types.MergePatchType, data, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (b *backend) Boot(t *testing.T, node string) {
	t.Helper()
	b.SetBootID(t, node, fmt.Sprintf("boot-%d", time.Now().UnixNano()))
}

func (b *backend) FailRepair(t *testing.T, repair, _ string) {
	t.Helper()
	b.endRepair(t, repair, 1, batchv1.JobFailed)
}

func (b *backend) GPU(node string) string { return "GPU-0-of-" + node }

func (b *backend) EndRepair(t *testing.T, repair string) {
	t.Helper()
	b.endRepair(t, repair, 0, batchv1.JobComplete)
}

// endRepair ends the repair's pod and waits until its job says so.
func (b *backend) endRepair(t *testing.T, repair string, code int32, want batchv1.JobConditionType) {
	t.Helper()
	ended := false
	for deadline := time.Now().Add(soon); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		for _, c := range b.Job(t, own, repair).Status.Conditions {
			if c.Type == want && c.Status == corev1.ConditionTrue {
				return
			}
		}
		if pods := b.JobPods(t, own, repair); !ended && len(pods) > 0 && pods[0].Status.Phase == corev1.PodRunning {
			b.EndPod(t, pods[0], code)
			ended = true
		}
	}
	t.Fatalf("repair %s is not %s within %v", repair, want, soon)
}

func wantEnding(t *testing.T, err error, want remedy.Ending) {
	t.Helper()
	if got := endingOf(err); err == nil || got != want {
		t.Fatalf("err = %v with %s, want %s", err, cmp.Or(got, "nothing"), want)
	}
}
