package scene

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.dev/stoker/internal/e2e/cluster"
)

// Times and names that all tests share.
const (
	// Soon bounds what takes a moment, Long what takes a whole ladder with restarts in
	// between, both on a machine that has other things to do too.
	Soon = 90 * time.Second
	Long = 4 * time.Minute

	testLabel = "e2e.stoker.dev/test"
	account   = "stoker"
	workers   = 4 // of the job
	// gpusEach is more than half of a node, so that each worker has one of its own, and
	// less than all, so that it may not have held the GPU that is lost and is asked to save.
	gpusEach    = 5
	JobName     = "llm"
	resumedFrom = "/ckpt/llm/step-18200" // what the trainer writes
)

// A Fixture is what one test has of its own.
type Fixture struct {
	*Suite

	ID         string
	System     string // namespace of the service
	Train      string // namespace of the jobs
	User       string // the service's, as the audit log names it
	Kubeconfig string // of its account
	Nodes      []string
	trainer    *cluster.Trainer
	rebooter   *cluster.Rebooter
	gang       []string // pods of the job as it was started first
	// pardoned is until when what the account is refused does not count: an API server
	// that has just started answers before it knows who may what.
	Pardoned time.Time
}

// Needs says how a test's fixture differs from the usual one: six nodes, a trainer
// that answers and a rebooter that reboots.
type Needs struct {
	Nodes    int
	trainer  cluster.TrainerOptions
	Rebooter cluster.RebooterOptions
}

// SetUp makes the fixture called id: the service's namespace with what `stoker
// manifests` asks for, a namespace for jobs, and nodes.
func SetUp(t *testing.T, id string, n Needs) *Fixture {
	t.Helper()
	s := theSuite(t)
	s.runs[id]++
	if n := s.runs[id]; n > 1 { // go test -count
		id = fmt.Sprintf("%s-%d", id, n)
	}
	f := &Fixture{Suite: s, ID: id, System: "stoker-" + id, Train: "train-" + id}
	f.User = "system:serviceaccount:" + f.System + ":" + account
	t.Cleanup(func() { f.tearDown(t) })

	manifests, complaint, code := s.Stoker(t, "manifests", "--namespace", f.System, "--service-account", account)
	if code != 0 {
		t.Fatalf("stoker manifests ends with %d: %s", code, complaint)
	}
	s.ApplyYAML(t, []byte(manifests))
	f.Kubeconfig = s.ServiceAccountKubeconfig(t, f.System, account)
	f.AwaitRights(t)

	if n.Nodes == 0 {
		n.Nodes = 6
	}
	f.Nodes = s.AddNodes(t, n.Nodes, cluster.Nodes{Prefix: id + "-", Labels: map[string]string{testLabel: id}})
	f.trainer = s.StartTrainer(t, n.trainer)
	n.Rebooter.Namespace = f.System
	f.rebooter = s.StartRebooter(t, n.Rebooter)
	return f
}

// AwaitRights waits until the API server knows what the service's account may do: also one
// that has just started answers before.
func (f *Fixture) AwaitRights(t *testing.T) {
	t.Helper()
	f.Cluster.AwaitRights(t, f.System, account,
		cluster.Right{Verb: "list", Resource: "nodes"}, cluster.Right{Verb: "create", Group: incidentsResource.Group, Resource: "incidents", Namespace: f.System})
}

// tearDown removes what would be in the way of the next test, and does not wait for what
// only takes time: nothing else lands on these nodes. The rest goes with the control plane.
func (f *Fixture) tearDown(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), Soon) // the test's own has ended
	defer cancel()
	core := f.Client.CoreV1()
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	for _, ns := range []string{f.Train, f.System} {
		if err := core.Namespaces().Delete(ctx, ns, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("delete namespace %s: %v", ns, err)
		}
		if err := core.Pods(ns).DeleteCollection(ctx, now, metav1.ListOptions{}); err != nil {
			t.Errorf("delete the pods of namespace %s: %v", ns, err)
		}
	}
	for _, name := range f.Nodes {
		if err := core.Nodes().Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("delete node %s: %v", name, err)
		}
	}
}

// StartJob starts a gang of four workers, each on a node of its own, which take
// stopAfter to die, and returns the node of the second worker: the one to fall ill.
func (f *Fixture) StartJob(t *testing.T, stopAfter time.Duration) (ill string) {
	t.Helper()
	job := cluster.IndexedJob(f.Train, JobName, workers, gpusEach)
	job.Spec.Template.Spec.NodeSelector = map[string]string{testLabel: f.ID}
	cluster.StopAfter(job, stopAfter)
	f.CreateJob(t, job)
	for _, p := range f.AwaitRunning(t, f.Train, JobName, Soon) {
		f.gang = append(f.gang, p.Name)
		if p.Annotations[batchv1.JobCompletionIndexAnnotation] == "1" {
			ill = p.Spec.NodeName
		}
	}
	if ill == "" {
		t.Fatal("no pod of the job says that it is worker 1")
	}
	return ill
}

// StartLodger starts a replica set of one pod without GPUs on a node, for which the
// drain has to ask. It takes stopAfter to die.
func (f *Fixture) StartLodger(t *testing.T, node string, stopAfter time.Duration) {
	t.Helper()
	labels := map[string]string{"app": "lodger"}
	rs := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.Train, Name: "lodger"},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: new(int32(1)),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{"e2e.stoker.dev/stop-after": stopAfter.String()}},
				Spec: corev1.PodSpec{
					NodeSelector: map[string]string{testLabel: f.ID},
					Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
						PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 100, Preference: corev1.NodeSelectorTerm{
							MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
						}}},
					}},
					TerminationGracePeriodSeconds: new(int64(30)),
					Containers:                    []corev1.Container{{Name: "web", Image: "example.com/web:1"}},
				},
			},
		},
	}
	if _, err := f.Client.AppsV1().ReplicaSets(f.Train).Create(t.Context(), rs, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if at := f.Lodger(t); at != node {
		t.Fatalf("the lodger was put on %s, and is needed on %s", at, node)
	}
}

// Lodger waits until the replica set's pod runs, and returns its node.
func (f *Fixture) Lodger(t *testing.T) (node string) {
	t.Helper()
	f.Await(t, "the lodger to run", Soon, func(ctx context.Context) (bool, string, error) {
		pods, err := f.Client.CoreV1().Pods(f.Train).List(ctx, metav1.ListOptions{LabelSelector: "app=lodger"})
		if err != nil {
			return false, "", err
		}
		for _, p := range pods.Items {
			if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
				node = p.Spec.NodeName
				return true, "", nil
			}
		}
		return false, fmt.Sprintf("%d pods", len(pods.Items)), nil
	})
	return node
}

// A place is where one worker of the job runs.
type place struct{ pod, node, resume string }

// CheckJob waits until the job's gang is whole again and checks that it goes on from
// the trainer's checkpoint and keeps off the nodes in avoid.
func (f *Fixture) CheckJob(t *testing.T, avoid ...string) {
	t.Helper()
	var at []place
	for _, p := range f.AwaitRunning(t, f.Train, JobName, Soon) {
		at = append(at, place{p.Name, p.Spec.NodeName, p.Annotations["stoker.dev/resume-from"]})
	}
	for _, p := range at {
		if slices.Contains(avoid, p.node) {
			t.Errorf("pod %s runs on %s again", p.pod, p.node)
		}
		if p.resume != resumedFrom {
			t.Errorf("pod %s is told to resume from %q, want %q", p.pod, p.resume, resumedFrom)
		}
	}
	f.checkOneGang(t)
}

// checkOneGang checks that the last that anybody wrote about a pod of the first gang, which
// is that it is gone, was before the job was started again: no two gangs ever wrote to one
// checkpoint.
func (f *Fixture) checkOneGang(t *testing.T) {
	t.Helper()
	started := f.Did(t)[Starts]
	if len(started) == 0 {
		t.Error("the job was not started again")
		return
	}
	log := f.Audit(t).Writes().Done().In(f.Train).Of("pods")
	for _, name := range f.gang {
		about := log.Named(name)
		if len(about) == 0 {
			t.Errorf("the audit log has nothing about pod %s", name)
			continue
		}
		if last := about[len(about)-1]; last.Time.After(started[0].Time) {
			t.Errorf("pod %s of the first gang was still there when the job was started again: %s, then %s", name, started[0], last)
		}
	}
}

// CheckUnmarked checks that nothing of ours is left on a node and that it takes work.
func (f *Fixture) CheckUnmarked(t *testing.T, name string) {
	t.Helper()
	n := f.Node(t, name)
	if n.Spec.Unschedulable {
		t.Errorf("node %s is still cordoned", name)
	}
	for _, mark := range []string{"stoker.dev/hold", "stoker.dev/why"} {
		if v, there := n.Annotations[mark]; there {
			t.Errorf("node %s still has %s: %s", name, mark, v)
		}
	}
}

// BootID returns the boot id of a node.
func (f *Fixture) BootID(t *testing.T, node string) string {
	t.Helper()
	return f.Node(t, node).Status.NodeInfo.BootID
}

// CheckRebooted checks that a node is in another boot than before, by one reboot.
func (f *Fixture) CheckRebooted(t *testing.T, node, before string) {
	t.Helper()
	if now := f.BootID(t, node); now == before {
		t.Errorf("node %s is still in boot %s", node, before)
	}
	if done := f.rebooter.Reboots(); len(done) != 1 || done[0].Node != node {
		t.Errorf("%d reboots: %+v; want one, of %s", len(done), done, node)
	}
}

// Repairs are the repairs that have ended so far, oldest first.
func (f *Fixture) Repairs() []cluster.Reboot { return f.rebooter.Reboots() }

// Uncordon does what `kubectl uncordon` does, as the admin.
func (f *Fixture) Uncordon(t *testing.T, node string) {
	t.Helper()
	patch := []byte(`{"spec":{"unschedulable":null}}`)
	if _, err := f.Client.CoreV1().Nodes().Patch(t.Context(), node, types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}
