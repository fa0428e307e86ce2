package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// IndexedJob returns a gang as users write it: pods workers with gpus GPUs each,
// which all run at once, and whose loss to a disruption does not count as a
// failure. It is for the test to change and to create, see [Cluster.CreateJob].
func IndexedJob(namespace, name string, pods, gpus int) *batchv1.Job {
	gpu := *resource.NewQuantity(int64(gpus), resource.DecimalSI)
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: batchv1.JobSpec{
			CompletionMode:       new(batchv1.IndexedCompletion),
			Completions:          new(int32(pods)),
			Parallelism:          new(int32(pods)),
			BackoffLimit:         new(int32(3)),
			PodReplacementPolicy: new(batchv1.Failed),
			PodFailurePolicy: &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
				Action: batchv1.PodFailurePolicyActionIgnore,
				OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{
					Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
				}},
			}}},
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				RestartPolicy:                 corev1.RestartPolicyNever,
				TerminationGracePeriodSeconds: new(int64(30)),
				Containers: []corev1.Container{{
					Name:  "trainer",
					Image: "example.com/trainer:1",
					Resources: corev1.ResourceRequirements{
						Requests: corev1.ResourceList{GPU: gpu},
						Limits:   corev1.ResourceList{GPU: gpu},
					},
				}},
			}},
		},
	}
}

// StopAfter makes the pods of a job take d to die once they are deleted. They
// die at once without it.
func StopAfter(job *batchv1.Job, d time.Duration) {
	metav1.SetMetaDataAnnotation(&job.Spec.Template.ObjectMeta, stopAfterAnnotation, d.String())
}

// CreateJob creates a job as the admin, its namespace too where that is missing.
func (c *Cluster) CreateJob(t testing.TB, job *batchv1.Job) *batchv1.Job {
	t.Helper()
	c.Namespace(t, job.Namespace)
	created, err := c.Client.BatchV1().Jobs(job.Namespace).Create(t.Context(), job, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("create job %s/%s: %v", job.Namespace, job.Name, err)
	}
	return created
}

// Job returns a job as it is now.
func (c *Cluster) Job(t testing.TB, namespace, name string) *batchv1.Job {
	t.Helper()
	job, err := c.Client.BatchV1().Jobs(namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatalf("get job %s/%s: %v", namespace, name, err)
	}
	return job
}

// JobPods returns the pods that a job has now, in whatever phase.
func (c *Cluster) JobPods(t testing.TB, namespace, name string) []corev1.Pod {
	t.Helper()
	pods, err := jobPods(t.Context(), c.Client, namespace, name)
	if err != nil {
		t.Fatal(err)
	}
	return pods
}

func jobPods(ctx context.Context, client kubernetes.Interface, namespace, name string) ([]corev1.Pod, error) {
	list, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: batchv1.JobNameLabel + "=" + name})
	if err != nil {
		return nil, fmt.Errorf("list the pods of job %s/%s: %w", namespace, name, err)
	}
	return list.Items, nil
}

// AwaitRunning waits until the whole gang of a job runs, nothing of it is being
// deleted, and the job's status says so. It returns the pods.
func (c *Cluster) AwaitRunning(t testing.TB, namespace, name string, within time.Duration) []corev1.Pod {
	t.Helper()
	var running []corev1.Pod
	c.Await(t, fmt.Sprintf("job %s/%s to run", namespace, name), within, func(ctx context.Context) (bool, string, error) {
		job, err := c.Client.BatchV1().Jobs(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		pods, err := jobPods(ctx, c.Client, namespace, name)
		if err != nil {
			return false, "", err
		}
		running = nil
		for _, p := range pods {
			if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
				running = append(running, p)
			}
		}
		want := int(*job.Spec.Parallelism)
		ready := 0
		if job.Status.Ready != nil {
			ready = int(*job.Status.Ready)
		}
		seen := fmt.Sprintf("%d of %d pods run, %d ready by the job's status, conditions %v", len(running), want, ready, job.Status.Conditions)
		return len(running) == want && ready == want, seen, nil
	})
	return running
}

// AwaitNoPods waits until no pod of a job is left, running or not.
func (c *Cluster) AwaitNoPods(t testing.TB, namespace, name string, within time.Duration) {
	t.Helper()
	c.Await(t, fmt.Sprintf("the last pod of job %s/%s to go", namespace, name), within, func(ctx context.Context) (bool, string, error) {
		pods, err := jobPods(ctx, c.Client, namespace, name)
		return len(pods) == 0, fmt.Sprintf("%d left", len(pods)), err
	})
}

// EndPod ends a pod's containers with an exit code: 0 makes it Succeeded,
// anything else Failed.
func (c *Cluster) EndPod(t testing.TB, pod corev1.Pod, exitCode int32) {
	t.Helper()
	if err := endPod(t.Context(), c.Client, pod, exitCode, "", ""); err != nil {
		t.Fatal(err)
	}
}

// FailPod ends a pod's containers with exit code 1, for a reason such as OOMKilled and with
// a termination message; both may be empty.
func (c *Cluster) FailPod(t testing.TB, pod corev1.Pod, reason, message string) {
	t.Helper()
	if err := endPod(t.Context(), c.Client, pod, 1, reason, message); err != nil {
		t.Fatal(err)
	}
}

// endPod writes the status that the kubelet writes when all containers have ended.
func endPod(ctx context.Context, client kubernetes.Interface, pod corev1.Pod, exitCode int32, reason, message string) error {
	phase, usual := corev1.PodSucceeded, "Completed"
	if exitCode != 0 {
		phase, usual = corev1.PodFailed, "Error"
	}
	var statuses []any
	for _, container := range pod.Spec.Containers {
		statuses = append(statuses, corev1.ContainerStatus{
			Name: container.Name, Image: container.Image,
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				ExitCode: exitCode, Reason: cmp.Or(reason, usual), Message: message, FinishedAt: metav1.Now(),
			}},
		})
	}
	notReady := func(kind corev1.PodConditionType) corev1.PodCondition {
		return corev1.PodCondition{Type: kind, Status: corev1.ConditionFalse, Reason: "PodCompleted", LastTransitionTime: metav1.Now()}
	}
	return patchPod(ctx, client, pod, "status", map[string]any{"status": map[string]any{
		"phase":             phase,
		"containerStatuses": statuses,
		"conditions":        []any{notReady(corev1.PodReady), notReady(corev1.ContainersReady)},
	}})
}

// patchPod sends a strategic merge patch of a pod or its subresource. A pod that has
// gone, or whose name another pod has now, is left alone without an error.
func patchPod(ctx context.Context, client kubernetes.Interface, pod corev1.Pod, subresource string, patch map[string]any) error {
	meta, _ := patch["metadata"].(map[string]any)
	if meta == nil {
		meta = map[string]any{}
	}
	meta["uid"] = pod.UID // the server refuses when it is another
	patch["metadata"] = meta
	data, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	var sub []string
	if subresource != "" {
		sub = []string{subresource}
	}
	_, err = client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, data, metav1.PatchOptions{}, sub...)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("patch pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
