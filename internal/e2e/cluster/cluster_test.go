package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// soon bounds what a healthy cluster does within a second or two. The machine may
// be busy with other things.
const soon = time.Minute

// TestCluster starts one real control plane and tries everything that tests of
// Stoker will build on. Its parts run one after the other on the same cluster.
func TestCluster(t *testing.T) {
	webhook := make(chan string, 10)
	receiver := listen(t, webhook)
	c := Start(t, Options{
		Alertmanager: fmt.Sprintf(`
route: {receiver: hook, group_by: [alertname], group_wait: 0s, group_interval: 1s, repeat_interval: 1h}
receivers: [{name: hook, webhook_configs: [{url: "http://%s/", send_resolved: true}]}]
`, receiver),
		NodeGrace: 15 * time.Second,
	})
	began := time.Now()
	nodes := c.AddNodes(t, 8, Nodes{Labels: map[string]string{"topology.stoker.dev/rack": "r1"}})
	t.Logf("the control plane was ready after %.1f s, 8 nodes %.1f s later", c.StartedIn.Seconds(), time.Since(began).Seconds())
	trainer := c.StartTrainer(t, TrainerOptions{
		Delay: 500 * time.Millisecond,
		Deaf:  func(job *batchv1.Job) bool { return job.Name == "deaf" },
	})
	rebooter := c.StartRebooter(t, RebooterOptions{
		Down: 2 * time.Second,
		End: func(action, node string) Ending {
			if node == "gpu-008" {
				return EndsNever
			}
			if action == "diagnose" {
				return EndsBadly
			}
			return EndsWell
		},
	})

	t.Run("nodes are what their kubelets say", func(t *testing.T) {
		n := c.Node(t, nodes[0])
		gpus := n.Status.Allocatable[GPU]
		if gpus.Value() != 8 || n.Labels["nvidia.com/gpu.present"] != "true" || n.Labels["topology.stoker.dev/rack"] != "r1" || n.Labels[corev1.LabelHostname] != nodes[0] {
			t.Errorf("node has %d GPUs and labels %v", gpus.Value(), n.Labels)
		}
		c.SetAllocatableGPUs(t, nodes[0], 7)
		c.SetCondition(t, nodes[0], corev1.NodeCondition{Type: "GPUUnhealthy", Status: corev1.ConditionTrue, Reason: "XID79"})
		n = c.Node(t, nodes[0])
		gpus = n.Status.Allocatable[GPU]
		if whole := n.Status.Capacity[GPU]; gpus.Value() != 7 || whole.Value() != 8 {
			t.Errorf("offers %d of %d GPUs, want 7 of 8", gpus.Value(), whole.Value())
		}
		if !slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == "GPUUnhealthy" }) {
			t.Errorf("conditions are %v, want GPUUnhealthy among them", n.Status.Conditions)
		}
		c.SetAllocatableGPUs(t, nodes[0], 8)
	})

	t.Run("a boot id stays through heartbeats, and these come however often the node is changed", func(t *testing.T) {
		c.SetBootID(t, nodes[1], "11111111-2222-4333-8444-555555555555")
		first := heartbeat(c.Node(t, nodes[1]))
		last, gap := first, time.Duration(0)
		c.Await(t, "three more heartbeats", soon, func(ctx context.Context) (bool, string, error) {
			change := map[string]any{"metadata": map[string]any{"annotations": map[string]any{"e2e.stoker.dev/changed": time.Now().String()}}}
			if err := patchNode(ctx, c.Client, nodes[1], "", change); err != nil {
				return false, "", err
			}
			n, err := c.Client.CoreV1().Nodes().Get(ctx, nodes[1], metav1.GetOptions{})
			if err != nil {
				return false, "", err
			}
			now := heartbeat(n)
			last, gap = now, max(gap, now.Sub(last))
			return now.Sub(first) > 14*time.Second, now.String(), nil
		})
		if gap > 12*time.Second { // of the 50 s after which a node is unknown
			t.Errorf("of a node that is changed all the time no heartbeat came for %v", gap)
		}
		if got := c.Node(t, nodes[1]).Status.NodeInfo.BootID; got != "11111111-2222-4333-8444-555555555555" {
			t.Errorf("boot id is %q, want the one that was set", got)
		}
	})

	began = time.Now()
	c.CreateJob(t, IndexedJob("train", "gang", 4, 8))
	gang := c.AwaitRunning(t, "train", "gang", soon)
	t.Logf("a gang of 4 x 8 GPUs ran %.1f s after it was created", time.Since(began).Seconds())

	t.Run("a gang has a node each for its pods", func(t *testing.T) {
		on, indexes := map[string]bool{}, map[string]bool{}
		for _, p := range gang {
			on[p.Spec.NodeName] = true
			indexes[p.Annotations[batchv1.JobCompletionIndexAnnotation]] = true
		}
		if len(on) != 4 || len(indexes) != 4 {
			t.Errorf("pods run on nodes %v with indexes %v, want 4 of each", slices.Collect(maps.Keys(on)), slices.Collect(maps.Keys(indexes)))
		}
	})

	t.Run("a job that does not fit waits", func(t *testing.T) {
		c.CreateJob(t, IndexedJob("train", "more", 5, 8)) // 4 nodes are left
		c.Await(t, "four pods to run and one to wait", soon, func(ctx context.Context) (bool, string, error) {
			pods, err := jobPods(ctx, c.Client, "train", "more")
			phases := map[corev1.PodPhase]int{}
			for _, p := range pods {
				phases[p.Status.Phase]++
			}
			return phases[corev1.PodRunning] == 4 && phases[corev1.PodPending] == 1, fmt.Sprint(phases), err
		})
		err := c.Client.BatchV1().Jobs("train").Delete(t.Context(), "more", metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)})
		if err != nil {
			t.Fatal(err)
		}
		c.AwaitNoPods(t, "train", "more", soon)
	})

	t.Run("the audit log tells who did what", func(t *testing.T) {
		for what, pick := range map[string]func(AuditLog) AuditLog{
			"the admin's job": func(l AuditLog) AuditLog {
				return l.By(UserAdmin).Verb("create").Of("jobs").In("train").Named("gang").Done()
			},
			"the job controller's pod": func(l AuditLog) AuditLog {
				return l.ByServiceAccount("kube-system", "job-controller").Verb("create").Of("pods/").Done()
			},
			"the scheduler's binding": func(l AuditLog) AuditLog { return l.By(UserScheduler).Of("pods/binding").Done() },
			"the kubelet's node status": func(l AuditLog) AuditLog {
				return l.By(UserKwok).Verb("patch").Of("nodes/status").Named(nodes[0]).Done()
			},
		} {
			picked := c.AwaitAudit(t, what, soon, pick)
			if e := picked[0]; e.Object == nil || e.Time.IsZero() || e.URI == "" {
				t.Errorf("%s lacks its object, time or URI: %+v", what, e)
			}
		}
		var job batchv1.Job
		sent := c.Audit(t).By(UserAdmin).Verb("create").Of("jobs").Named("gang")[0].Object
		if err := json.Unmarshal(sent, &job); err != nil || *job.Spec.Parallelism != 4 {
			t.Errorf("the job that was sent reads %s, %v", sent, err)
		}
	})

	t.Run("training code answers a request for a checkpoint once it runs", func(t *testing.T) {
		deaf := IndexedJob("train", "deaf", 1, 1)
		deaf.Annotations = map[string]string{CheckpointRequest: "k1"}
		c.CreateJob(t, deaf)
		suspended := IndexedJob("train", "suspended", 1, 1)
		suspended.Spec.Suspend = new(true)
		suspended.Annotations = map[string]string{CheckpointRequest: "k1"}
		c.CreateJob(t, suspended)
		c.AwaitRunning(t, "train", "deaf", soon)
		annotateJob(t, c, "gang", CheckpointRequest, "k1")
		c.Await(t, "the gang's answer", soon, func(ctx context.Context) (bool, string, error) {
			job, err := c.Client.BatchV1().Jobs("train").Get(ctx, "gang", metav1.GetOptions{})
			return err == nil && job.Annotations[CheckpointAck] == "k1", fmt.Sprint(job.Annotations), err
		})
		got := c.Job(t, "train", "gang").Annotations
		if got[CheckpointStep] != "18200" || got[CheckpointURI] != "/ckpt/gang/step-18200" {
			t.Errorf("annotations are %v", got)
		}
		if _, err := time.Parse(time.RFC3339, got[CheckpointTime]); err != nil {
			t.Error(err)
		}
		annotateJob(t, c, "gang", CheckpointRequest, "k2")
		c.Await(t, "the second answer", soon, func(context.Context) (bool, string, error) {
			return len(trainer.Acks()) == 2, fmt.Sprint(trainer.Acks()), trainer.Err()
		})
		if acks := trainer.Acks(); acks[0].Key != "k1" || acks[1].Key != "k2" || acks[0].Job != "gang" || acks[1].Job != "gang" {
			t.Errorf("acks are %v, want k1 and k2 of the gang: nobody answers for the deaf and the suspended job", acks)
		}
		c.AwaitAudit(t, "the trainer's patch", soon, func(l AuditLog) AuditLog { return l.By(UserTrainer).Verb("patch").Of("jobs").Named("gang") })
	})

	t.Run("a suspended gang goes whole and comes back", func(t *testing.T) {
		suspend(t, c, "gang", true)
		c.AwaitNoPods(t, "train", "gang", soon)
		suspend(t, c, "gang", false)
		again := c.AwaitRunning(t, "train", "gang", soon)
		for _, p := range again {
			if slices.ContainsFunc(gang, func(old corev1.Pod) bool { return old.UID == p.UID }) {
				t.Errorf("pod %s is the old one", p.Name)
			}
		}
		if failed := c.Job(t, "train", "gang").Status.Failed; failed != 0 {
			t.Errorf("the stop counts as %d failures", failed)
		}
		gang = again
	})

	t.Run("an evicted pod is replaced when it is gone, and does not count as failed", func(t *testing.T) {
		slow := IndexedJob("train", "slow", 1, 1)
		StopAfter(slow, 3*time.Second)
		c.CreateJob(t, slow)
		old := c.AwaitRunning(t, "train", "slow", soon)[0]
		evicted := time.Now()
		err := c.Client.CoreV1().Pods("train").EvictV1(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: old.Name, Namespace: "train"}})
		if err != nil {
			t.Fatal(err)
		}
		c.Await(t, "the old pod to go", soon, func(ctx context.Context) (bool, string, error) {
			pods, err := jobPods(ctx, c.Client, "train", "slow")
			there := slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.UID == old.UID })
			if there && len(pods) > 1 {
				t.Errorf("%d pods at once, though a replacement has to wait", len(pods))
			}
			return !there, "still there", err
		})
		if took := time.Since(evicted); took < 2900*time.Millisecond {
			t.Errorf("the old pod was gone after %v, though it takes 3 s to die", took)
		}
		if replaced := c.AwaitRunning(t, "train", "slow", soon)[0]; replaced.UID == old.UID {
			t.Errorf("pod %s was evicted and runs", old.Name)
		}
		if failed := c.Job(t, "train", "slow").Status.Failed; failed != 0 {
			t.Errorf("the eviction counts as %d failures", failed)
		}
	})

	t.Run("a pod that fails is a failure", func(t *testing.T) {
		c.CreateJob(t, IndexedJob("train", "broken", 1, 1))
		pod := c.AwaitRunning(t, "train", "broken", soon)[0]
		c.EndPod(t, pod, 134)
		c.Await(t, "the job to count a failure", soon, func(ctx context.Context) (bool, string, error) {
			job, err := c.Client.BatchV1().Jobs("train").Get(ctx, "broken", metav1.GetOptions{})
			return err == nil && job.Status.Failed == 1, fmt.Sprintf("%d failed", job.Status.Failed), err
		})
	})

	t.Run("a node that falls silent becomes unknown, its pods cannot die, and a reboot mends both", func(t *testing.T) {
		pod := gang[0]
		node := pod.Spec.NodeName
		boot := c.Node(t, node).Status.NodeInfo.BootID
		c.Silence(t, node)
		c.Await(t, "node "+node+" to become unknown", soon, func(ctx context.Context) (bool, string, error) {
			n, err := c.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
			return err == nil && Ready(*n) == corev1.ConditionUnknown, string(Ready(*n)), err
		})
		suspend(t, c, "gang", true)
		c.Await(t, "all pods but one to go", soon, func(ctx context.Context) (bool, string, error) {
			pods, err := jobPods(ctx, c.Client, "train", "gang")
			return len(pods) == 1 && pods[0].UID == pod.UID && pods[0].DeletionTimestamp != nil, fmt.Sprint(len(pods)), err
		})
		c.CreateJob(t, repairJob("reboot-1", ActionReboot, node))
		c.AwaitNoPods(t, "train", "gang", soon)
		awaitComplete(t, c, "reboot-1", batchv1.JobComplete)
		c.AwaitReady(t, soon, node)
		if got := c.Node(t, node).Status.NodeInfo.BootID; got == boot || got != rebooter.Reboots()[0].BootID {
			t.Errorf("boot id is %q after the reboot, %q before, and the rebooter set %q", got, boot, rebooter.Reboots()[0].BootID)
		}
		suspend(t, c, "gang", false)
		gang = c.AwaitRunning(t, "train", "gang", soon)
		c.AwaitAudit(t, "the change of the boot id", soon, func(l AuditLog) AuditLog {
			return l.By(UserRebooter).Of("nodes/status").Named(node).Where(func(e AuditEvent) bool { return strings.Contains(string(e.Object), "bootID") })
		})
	})

	t.Run("other repairs end as told and reboot nothing", func(t *testing.T) {
		before := c.Node(t, nodes[2]).Status.NodeInfo.BootID
		c.CreateJob(t, repairJob("diagnose-1", "diagnose", nodes[2]))
		awaitComplete(t, c, "diagnose-1", batchv1.JobFailed)
		c.CreateJob(t, repairJob("never", ActionReboot, "gpu-008"))
		pod := c.AwaitRunning(t, "stoker-system", "never", soon)[0]
		if got := c.Node(t, nodes[2]).Status.NodeInfo.BootID; got != before {
			t.Errorf("a diagnosis changed the boot id from %q to %q", before, got)
		}
		if reboots := rebooter.Reboots(); len(reboots) != 2 || reboots[1].Ending != EndsBadly || reboots[1].BootID != "" {
			t.Errorf("repairs that ended are %+v; want the reboot and the diagnosis, pod %s never ends", reboots, pod.Name)
		}
	})

	t.Run("a service account may do what RBAC grants and no more", func(t *testing.T) {
		c.ApplyYAML(t, []byte(grants))
		kubeconfig := c.ServiceAccountKubeconfig(t, "stoker-system", "stoker")
		cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		if err != nil {
			t.Fatal(err)
		}
		httpClient, err := c.httpClient(cfg)
		if err != nil {
			t.Fatal(err)
		}
		client, err := kubernetes.NewForConfigAndClient(cfg, httpClient)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err != nil {
			t.Errorf("list nodes: %v", err)
		}
		err = client.CoreV1().Nodes().Delete(t.Context(), nodes[7], metav1.DeleteOptions{})
		if !apierrors.IsForbidden(err) {
			t.Errorf("delete a node: %v, want forbidden", err)
		}
		c.AwaitAudit(t, "the refusal", soon, func(l AuditLog) AuditLog {
			return l.ByServiceAccount("stoker-system", "stoker").Verb("delete").Of("nodes").Named(nodes[7]).Denied()
		})
		c.AwaitAudit(t, "the account's read", soon, func(l AuditLog) AuditLog {
			return l.ByServiceAccount("stoker-system", "stoker").Verb("list").Of("nodes").Done()
		})
		widgets := c.Dynamic.Resource(schema.GroupVersionResource{Group: "e2e.stoker.dev", Version: "v1", Resource: "widgets"})
		if w, err := widgets.Namespace("stoker-system").Get(t.Context(), "w", metav1.GetOptions{}); err != nil || w.GetKind() != "Widget" {
			t.Errorf("the custom resource that was applied together with its definition: %v, %v", w, err)
		}
	})

	t.Run("Alertmanager sends what fires and not what is silenced", func(t *testing.T) {
		c.SilenceAlerts(t, time.Hour, Matcher{Name: "alertname", Value: "Quiet", IsEqual: true})
		c.PostAlerts(t,
			Alert{Labels: map[string]string{"alertname": "Quiet"}},
			Alert{Labels: map[string]string{"alertname": "GPULost", "node": nodes[0]}},
		)
		got := receive(t, webhook)
		if !strings.Contains(got, `"GPULost"`) || strings.Contains(got, "Quiet") || !strings.Contains(got, `"status":"firing"`) {
			t.Errorf("the webhook got %s", got)
		}
		c.PostAlerts(t, Alert{Labels: map[string]string{"alertname": "GPULost", "node": nodes[0]}, EndsAt: time.Now().Add(-time.Second)})
		if got := receive(t, webhook); !strings.Contains(got, `"status":"resolved"`) {
			t.Errorf("after the alert ended the webhook got %s", got)
		}
	})

	t.Run("the API server goes and comes back with everything", func(t *testing.T) {
		url, before := c.URL, c.Job(t, "train", "gang")
		c.APIServer.Stop(t)
		if _, err := c.Client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err == nil {
			t.Error("an API server that was stopped answers")
		}
		c.Await(t, "the trainer to notice", soon, func(context.Context) (bool, string, error) {
			return trainer.Err() != nil, "no error", nil
		})
		began := time.Now()
		c.APIServer.Start(t)
		t.Logf("the API server was back after %.1f s", time.Since(began).Seconds())
		after := c.Job(t, "train", "gang")
		if after.UID != before.UID || c.URL != url {
			t.Errorf("the job has uid %s, before %s", after.UID, before.UID)
		}
		annotateJob(t, c, "gang", CheckpointRequest, "k3")
		c.Await(t, "the trainer to go on", soon, func(context.Context) (bool, string, error) {
			acks := trainer.Acks()
			return acks[len(acks)-1].Key == "k3", fmt.Sprint(acks), trainer.Err()
		})
		suspend(t, c, "gang", true) // the other programs have come through it too
		c.AwaitNoPods(t, "train", "gang", soon)
		suspend(t, c, "gang", false)
		c.AwaitRunning(t, "train", "gang", soon)
		c.AwaitAudit(t, "what was before the stop", soon, func(l AuditLog) AuditLog { return l.By(UserAdmin).Verb("create").Of("jobs").Named("gang") })

		c.APIServer.Kill(t) // kill -9 loses nothing either
		c.APIServer.Start(t)
		if got := c.Job(t, "train", "gang").UID; got != before.UID {
			t.Errorf("the job has uid %s after kill -9, before %s", got, before.UID)
		}
		c.Audit(t)
	})

	t.Run("a program of the test is killed and started again", func(t *testing.T) {
		args := []string{"-c", `trap "exit 0" TERM; echo "up as $ROLE"; while :; do sleep 0.05; done`}
		first := c.StartProgram(t, "script", "/bin/sh", args, []string{"ROLE=first"})
		c.AwaitLog(t, first, "up as first", soon)
		if err := first.Kill(); err != nil {
			t.Fatal(err)
		}
		second := c.StartProgram(t, "script", "/bin/sh", args, []string{"ROLE=second"})
		c.AwaitLog(t, second, "up as second", soon)
		if strings.Contains(second.Log(t), "first") || first.LogPath == second.LogPath {
			t.Errorf("both write to %s", second.LogPath)
		}
	})

	t.Run("Stoker of this checkout is built and runs", func(t *testing.T) {
		p := c.StartStoker(t, []string{"--help"}, nil)
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		defer cancel()
		if err := p.Wait(ctx); err != nil {
			t.Fatal(err)
		}
		if p.ExitCode() != 0 || !strings.Contains(p.Log(t), "help for stoker") {
			t.Errorf("stoker --help ends with %d and says:\n%s", p.ExitCode(), p.Log(t))
		}
	})

	t.Run("pods run until somebody ends them", func(t *testing.T) {
		for _, name := range []string{"gang", "deaf", "slow"} {
			if job := c.Job(t, "train", name); job.Status.Succeeded != 0 || job.Status.CompletionTime != nil {
				t.Errorf("job %s has ended by itself: %+v", name, job.Status)
			}
		}
	})

	t.Run("closing leaves nothing running", func(t *testing.T) {
		var pids []int
		for _, s := range []*Server{c.Etcd, c.APIServer, c.ControllerManager, c.Scheduler, c.Kwok, c.Alertmanager} {
			pids = append(pids, s.Process().Pid())
		}
		for range 2 {
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
		}
		for _, pid := range pids {
			if err := syscall.Kill(pid, 0); err == nil {
				t.Errorf("process %d is still there", pid)
			}
		}
		if _, err := os.Stat(c.Dir); err != nil {
			t.Errorf("the logs are gone: %v", err)
		}
	})
}

// grants is a definition with its object, and the rights of a service account.
const grants = `
apiVersion: e2e.stoker.dev/v1
kind: Widget
metadata: {name: w, namespace: stoker-system}
spec: {size: 1}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.e2e.stoker.dev}
spec:
  group: e2e.stoker.dev
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: v1
kind: List
items:
- apiVersion: rbac.authorization.k8s.io/v1
  kind: ClusterRole
  metadata: {name: stoker-e2e}
  rules: [{apiGroups: [""], resources: [nodes], verbs: [list]}]
- apiVersion: rbac.authorization.k8s.io/v1
  kind: ClusterRoleBinding
  metadata: {name: stoker-e2e}
  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: stoker-e2e}
  subjects: [{kind: ServiceAccount, name: stoker, namespace: stoker-system}]
`

// repairJob is what Stoker's template of a repair looks like to the machine.
func repairJob(name, action, node string) *batchv1.Job {
	job := IndexedJob("stoker-system", name, 1, 0)
	job.Labels = map[string]string{ActionLabel: action}
	job.Spec.BackoffLimit = new(int32(0))
	job.Spec.Template.Spec.NodeName = node
	job.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	job.Spec.Template.Spec.Containers[0].Resources = corev1.ResourceRequirements{}
	return job
}

func awaitComplete(t *testing.T, c *Cluster, name string, want batchv1.JobConditionType) {
	t.Helper()
	c.Await(t, fmt.Sprintf("job %s to be %s", name, want), soon, func(ctx context.Context) (bool, string, error) {
		job, err := c.Client.BatchV1().Jobs("stoker-system").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		has := slices.ContainsFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool {
			return c.Type == want && c.Status == corev1.ConditionTrue
		})
		return has, fmt.Sprint(job.Status.Conditions), nil
	})
}

func annotateJob(t *testing.T, c *Cluster, name, key, value string) {
	t.Helper()
	patchJob(t, c, name, map[string]any{"metadata": map[string]any{"annotations": map[string]string{key: value}}})
}

func suspend(t *testing.T, c *Cluster, name string, stop bool) {
	t.Helper()
	patchJob(t, c, name, map[string]any{"spec": map[string]any{"suspend": stop}})
}

func patchJob(t *testing.T, c *Cluster, name string, patch map[string]any) {
	t.Helper()
	data, err := json.Marshal(patch)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Client.BatchV1().Jobs("train").Patch(t.Context(), name, types.MergePatchType, data, metav1.PatchOptions{}); err != nil {
		t.Fatalf("patch job %s: %v", name, err)
	}
}

// heartbeat returns when the kubelet last reported that it is ready.
func heartbeat(n *corev1.Node) time.Time {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.LastHeartbeatTime.Time
		}
	}
	return time.Time{}
}

// listen runs a webhook receiver that hands over the bodies it gets, and returns
// its address.
func listen(t *testing.T, bodies chan<- string) string {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(loopback, fmt.Sprint(FreePort(t))))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		bodies <- string(body)
	})}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		if err := server.Serve(l); err != http.ErrServerClosed {
			t.Error(err)
		}
	}()
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		<-gone
	})
	return l.Addr().String()
}

func receive(t *testing.T, bodies <-chan string) string {
	t.Helper()
	select {
	case body := <-bodies:
		return body
	case <-time.After(soon):
		t.Fatalf("the webhook got nothing within %v", soon)
		return ""
	}
}
