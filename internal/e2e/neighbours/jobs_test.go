package neighbours

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.dev/stoker/internal/e2e/scene"
)

// failures are the shipped playbooks for jobs that have failed, with times for a test.
const failures = `  - name: job-out-of-memory
    class: job-failed
    match: ['recipe="oom"']
    steps:
      - stop: {within: 3m}
      - recipe: {name: oom, allow: [BATCH_SIZE]}
      - start: {from: latest-complete, attempts: 1, per: 24h}
      - watch: {for: 3s, within: 3m}
    onFailure: [hold, notify]
  - name: job-network
    class: job-failed
    match: ['reason="nccl"']
    steps:
      - inspect: {within: 3m}
      - stop: {within: 3m}
      - start: {from: latest-complete, attempts: 2, per: 24h}
      - watch: {for: 3s, within: 3m}
    onFailure: [hold, notify]
`

// TestJobsThatFail lets a worker of a gang end badly, as the kubelet writes it down. What
// follows depends on why: the gang is started anew, with what its owner has said would help,
// or it is only told.
func TestJobsThatFail(t *testing.T) {
	for _, tc := range []struct {
		id, reason, message string // of the worker's end
		annotations         map[string]string
		summary             string
		steps               []string
		effects             map[scene.Effect]int
		env                 string // BATCH_SIZE of the pods in the end
	}{
		{
			id: "nccl", message: "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp, unhandled system error",
			summary: "nccl", steps: []string{"inspect", "stop", "start", "watch"}, effects: map[scene.Effect]int{scene.Stops: 1, scene.Starts: 1},
		},
		{
			id: "oom", reason: "OOMKilled", annotations: map[string]string{"stoker.dev/on-oom": "BATCH_SIZE=4"},
			summary: "out-of-memory", steps: []string{"stop", "recipe", "start", "watch"},
			effects: map[scene.Effect]int{scene.Stops: 1, scene.Recipes: 1, scene.Starts: 1}, env: "4",
		},
		{
			id: "usererror", message: "Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\nKeyError: 'lr'",
			summary: "user-error", effects: map[scene.Effect]int{},
		},
	} {
		t.Run(tc.id, func(t *testing.T) {
			f := scene.SetUp(t, tc.id, scene.Needs{})
			f.StartJob(t, 0)
			if tc.annotations != nil {
				annotate(t, f, tc.annotations)
			}
			s := f.Serve(t, scene.Settings{Playbooks: failures})
			s.AwaitLeader(t)
			first := f.JobPods(t, f.Train, scene.JobName)
			f.FailPod(t, first[1], tc.reason, tc.message)

			var in scene.Incident
			f.Await(t, "the incident of the job to be over", scene.Soon, func(ctx context.Context) (bool, string, error) {
				all, err := f.StoredAbout(ctx, "job-failed", f.Train, scene.JobName)
				if err != nil || len(all) == 0 {
					return false, "no incident", err
				}
				in = all[len(all)-1]
				return in.Over(), in.String(), nil
			})
			t.Log(in)
			if reason := in.Evidence[0].Labels["reason"]; reason != tc.summary || in.Phase != "resolved" {
				t.Errorf("the reason is %q and the incident %s, want %s and resolved", reason, in.Phase, tc.summary)
			}
			var did []string
			for _, s := range in.Steps {
				did = append(did, s.Action)
			}
			if !slices.Equal(did, tc.steps) {
				t.Errorf("steps %v, want %v", did, tc.steps)
			}
			f.CheckEffects(t, tc.effects)
			pods := f.AwaitRunning(t, f.Train, scene.JobName, scene.Soon)
			for _, p := range pods {
				// The containers of a Job never change: the pod reads it by fieldRef.
				if got := p.Annotations["env.stoker.dev/BATCH_SIZE"]; got != tc.env {
					t.Errorf("pod %s is told BATCH_SIZE %q, want %q", p.Name, got, tc.env)
				}
				again := slices.ContainsFunc(first, func(o corev1.Pod) bool { return o.UID == p.UID })
				if again && tc.effects[scene.Stops] > 0 {
					t.Errorf("pod %s is of the gang that failed", p.Name)
				}
			}
		})
	}
}

func annotate(t *testing.T, f *scene.Fixture, annotations map[string]string) {
	t.Helper()
	var parts []string
	for k, v := range annotations {
		parts = append(parts, fmt.Sprintf("%q:%q", k, v))
	}
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%s}}}`, strings.Join(parts, ","))
	if _, err := f.Client.BatchV1().Jobs(f.Train).Patch(t.Context(), scene.JobName, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}
