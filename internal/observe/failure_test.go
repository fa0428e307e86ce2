package observe

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"stoker.dev/stoker/internal/fleet"
)

var ofBatch = Pods{Owners: []schema.GroupKind{{Group: "batch", Kind: "Job"}}}

// workerPod is a pod of a job with this status, as the API tells of it.
func workerPod(t *testing.T, name, status string) map[string]any {
	t.Helper()
	var obj map[string]any
	text := `{"apiVersion": "v1", "kind": "Pod",
		"metadata": {"namespace": "train", "name": "` + name + `", "uid": "uid-` + name + `", "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "llm", "controller": true}]},
		"spec": {"nodeName": "gpu-a-02", "containers": [{"name": "train", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]},
		"status": ` + status + `}`
	if err := json.Unmarshal([]byte(text), &obj); err != nil {
		t.Fatal(err)
	}
	return obj
}

func TestHowAPodOfAJobEndedBadly(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	pod := fleet.PodRef{Namespace: "train", Name: "p", UID: "uid-p", Node: "gpu-a-02"}
	for name, tc := range map[string]struct {
		status  string
		asked   bool
		foreign bool
		want    *fleet.Failure // nil: it has not
	}{
		"killed for memory": {
			`{"phase": "Failed", "containerStatuses": [{"name": "train", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-03-01T12:00:00Z", "startedAt": "2026-03-01T11:00:00Z"}}}]}`, false, false,
			&fleet.Failure{Pod: pod, GPUs: 8, At: at, Container: "train", Reason: "OOMKilled", ExitCode: 137},
		},
		"started again in its pod": {
			`{"phase": "Running", "containerStatuses": [{"name": "train", "state": {"running": {}}, "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "message": "boom", "finishedAt": "2026-03-01T12:00:00Z"}}}]}`, false, false,
			&fleet.Failure{Pod: pod, GPUs: 8, At: at, Container: "train", Reason: "Error", ExitCode: 1, Message: "boom"},
		},
		"the container that ended first": {
			`{"phase": "Failed", "containerStatuses": [
				{"name": "sidecar", "state": {"terminated": {"exitCode": 143, "reason": "Error", "finishedAt": "2026-03-01T12:00:09Z"}}},
				{"name": "train", "state": {"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": "2026-03-01T12:00:00Z"}}}]}`, false, false,
			&fleet.Failure{Pod: pod, GPUs: 8, At: at, Container: "train", Reason: "Error", ExitCode: 1},
		},
		"evicted by the API, though asked to go": {
			`{"phase": "Failed", "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "lastTransitionTime": "2026-03-01T12:00:00Z"}]}`, true, false,
			&fleet.Failure{Pod: pod, GPUs: 8, At: at, Disruption: "EvictionByEvictionAPI"},
		},
		"evicted by the kubelet, with an end": {
			`{"phase": "Failed", "reason": "Evicted", "containerStatuses": [{"name": "train", "state": {"terminated": {"exitCode": 137, "reason": "Error", "finishedAt": "2026-03-01T12:00:00Z"}}}]}`, false, false,
			&fleet.Failure{Pod: pod, GPUs: 8, At: at, Disruption: "Evicted", Container: "train", Reason: "Error", ExitCode: 137},
		},
		"not when it was asked to go and ended by that": {
			`{"phase": "Failed", "containerStatuses": [{"name": "train", "state": {"terminated": {"exitCode": 143, "reason": "Error", "finishedAt": "2026-03-01T12:00:00Z"}}}]}`, true, false, nil,
		},
		"not when it runs":                     {`{"phase": "Running", "containerStatuses": [{"name": "train", "state": {"running": {}}}]}`, false, false, nil},
		"not when it has succeeded":            {`{"phase": "Succeeded", "containerStatuses": [{"name": "train", "state": {"terminated": {"exitCode": 0, "finishedAt": "2026-03-01T12:00:00Z"}}}]}`, false, false, nil},
		"not when nobody can say when":         {`{"phase": "Failed"}`, false, false, nil},
		"not when it belongs to no known job":  {`{"phase": "Failed", "containerStatuses": [{"name": "train", "state": {"terminated": {"exitCode": 1, "finishedAt": "2026-03-01T12:00:00Z"}}}]}`, false, true, nil},
		"not by a status that is half written": {`{"phase": "Failed", "containerStatuses": ["x", {"name": 7, "state": {"terminated": {"exitCode": "1"}}}]}`, false, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			obj := workerPod(t, "p", tc.status)
			meta := obj["metadata"].(map[string]any)
			if tc.asked {
				meta["deletionTimestamp"] = "2026-03-01T11:59:00Z"
			}
			if tc.foreign {
				meta["ownerReferences"] = []any{map[string]any{"apiVersion": "x.io/v1", "kind": "Job", "name": "llm", "controller": true}}
			}
			for what, o := range map[string]map[string]any{"whole": obj, "trimmed": ofBatch.Trim(obj)} {
				job, got, failed := ofBatch.Failure(o)
				if failed != (tc.want != nil) {
					t.Fatalf("%s: failed %v, want %v: %+v", what, failed, tc.want != nil, got)
				}
				if !failed {
					continue
				}
				if d := cmp.Diff(got, *tc.want); d != "" || job != (fleet.JobRef{Kind: "Job.batch", Namespace: "train", Name: "llm"}) {
					t.Errorf("%s: of job %v (-got +want):\n%s", what, job, d)
				}
			}
		})
	}
}

func TestFailuresAreKeptWithTheirJobAndAreBounded(t *testing.T) {
	var objs []unstructured.Unstructured
	for i := range 200 {
		at := time.Date(2026, 3, 1, 12, 0, i, 0, time.UTC).Format(time.RFC3339)
		long := strings.Repeat("x", 2*fleet.MaxFailureText)
		obj := workerPod(t, "p"+at, `{"phase": "Failed", "containerStatuses": [{"name": "train", "state": {"terminated": {"exitCode": 1, "message": "`+long+`", "finishedAt": "`+at+`"}}}]}`)
		objs = append(objs, unstructured.Unstructured{Object: ofBatch.Trim(obj)})
	}
	facts := fleet.NewFacts()
	llm := fleet.JobRef{Kind: "Job.batch", Namespace: "train", Name: "llm"}
	facts.Jobs[llm] = fleet.Job{Ref: llm}
	ofBatch.Observe(objs, facts)
	s := facts.Snapshot(time.Now(), fleet.Snapshot{})
	kept := s.Jobs[llm].Failures
	if len(kept) == 0 || len(kept) > fleet.MaxFailures || kept[0].At.Second() != 0 || len(kept[0].Message) > fleet.MaxFailureText {
		t.Errorf("%d failures are kept, the first of %v with %d bytes; want the first ones, bounded", len(kept), kept[0].At, len(kept[0].Message))
	}
	if len(s.Pods) > 0 {
		t.Errorf("%d pods, want none of those that have ended", len(s.Pods))
	}
	if got := s.NodesOf(llm); len(got) != 1 || got[0] != "gpu-a-02" {
		t.Errorf("nodes %v, want that of the pods that ended", got)
	}
}
