package jobs

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"pgregory.net/rapid"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

const running = `
apiVersion: batch/v1
kind: Job
metadata:
  name: llm-2
  namespace: train
  uid: j-1
  resourceVersion: "4711"
  managedFields: [{manager: kubectl}]
  labels: {team: vision}
  annotations:
    stoker.dev/checkpoint-request: gpu-lost-a/2/save
    stoker.dev/checkpoint-ack: gpu-lost-a/2/save
    stoker.dev/checkpoint-step: "18200"
    stoker.dev/checkpoint-uri: /ckpt/llm-2/step-18200
    stoker.dev/checkpoint-time: "2026-11-30T08:55:00Z"
    stoker.dev/stopped-by: gpu-ecc-b/3/stop
    stoker.dev/started-by: gpu-ecc-b/4/start
    stoker.dev/attempt: "1"
    batch.kubernetes.io/job-tracking: ""
spec:
  completionMode: Indexed
  parallelism: 4
  completions: 4
  suspend: false
  backoffLimit: 3
  selector: {matchLabels: {batch.kubernetes.io/controller-uid: j-1}}
  template:
    metadata:
      labels: {batch.kubernetes.io/controller-uid: j-1}
      annotations: {stoker.dev/resume-from: /ckpt/llm-2/step-9000, other: x}
    spec:
      restartPolicy: Never
      containers:
        - {name: trainer, image: x, resources: {requests: {cpu: "16", memory: 256Gi, nvidia.com/gpu: "8"}, limits: {nvidia.com/gpu: "8"}}}
status: {active: 4, ready: 4, startTime: "2026-11-30T06:00:00Z", conditions: [{type: Suspended, status: "False", lastTransitionTime: "2026-11-30T06:00:00Z"}]}
`

var (
	seen    = time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC)
	started = time.Date(2026, 11, 30, 6, 0, 0, 0, time.UTC)
	llm2    = fleet.JobRef{Kind: "Job.batch", Namespace: "train", Name: "llm-2"}
)

func TestBatchReadsAJob(t *testing.T) {
	obj := object(t, running)
	want := fleet.Job{
		Ref: llm2, UID: "j-1", Version: 4711, Workers: 4,
		Each:  fleet.Resources{GPUs: 8, MilliCPU: 16_000, MemoryBytes: 256 << 30},
		Phase: fleet.JobRunning, Started: started, Attempt: 1,
		Checkpoint:      fleet.Checkpoint{Step: 18200, URI: "/ckpt/llm-2/step-18200", At: time.Date(2026, 11, 30, 8, 55, 0, 0, time.UTC)},
		CheckpointAsked: "gpu-lost-a/2/save", CheckpointAnswered: "gpu-lost-a/2/save",
		StoppedBy: "gpu-ecc-b/3/stop", StartedBy: "gpu-ecc-b/4/start",
		Resume: "/ckpt/llm-2/step-9000", Seen: seen,
	}
	b := batch{}
	if d := cmp.Diff(want, b.Job(obj, seen)); d != "" {
		t.Errorf("job differs (-want +got):\n%s", d)
	}
	if d := cmp.Diff(want, b.Job(b.Trim(obj), seen)); d != "" {
		t.Errorf("the trimmed object says something else (-want +got):\n%s", d)
	}
	for what, o := range map[string]map[string]any{"whole": obj, "trimmed": b.Trim(obj)} {
		if got, err := b.Pods(o); err != nil || got != "batch.kubernetes.io/controller-uid=j-1" {
			t.Errorf("%s: selector %q, %v", what, got, err)
		}
	}
}

func TestBatchPhases(t *testing.T) {
	status := func(s string) string {
		return "apiVersion: batch/v1\nkind: Job\nmetadata: {name: a}\nspec: {parallelism: 4, completions: 4}\nstatus: " + s
	}
	suspended := func(s string) string {
		return "apiVersion: batch/v1\nkind: Job\nmetadata: {name: a}\nspec: {parallelism: 4, completions: 4, suspend: true}\nstatus: " + s
	}
	for name, tc := range map[string]struct {
		object  string
		want    fleet.JobPhase
		started bool
	}{
		"nothing has happened yet":               {status("{}"), fleet.JobPending, false},
		"pods wait for nodes":                    {status("{active: 4, ready: 0, startTime: '2026-11-30T06:00:00Z'}"), fleet.JobPending, false},
		"the gang is whole":                      {status("{active: 4, ready: 4, startTime: '2026-11-30T06:00:00Z'}"), fleet.JobRunning, true},
		"one of the gang is missing":             {status("{active: 4, ready: 3, startTime: '2026-11-30T06:00:00Z'}"), fleet.JobPending, true},
		"one of the gang has ended well":         {status("{active: 3, ready: 3, succeeded: 1, startTime: '2026-11-30T06:00:00Z'}"), fleet.JobRunning, true},
		"its pods have failed and come again":    {status("{active: 4, ready: 0, failed: 4, startTime: '2026-11-30T06:00:00Z'}"), fleet.JobPending, true},
		"told to stop, and its pods are there":   {suspended("{active: 4, ready: 4, startTime: '2026-11-30T06:00:00Z'}"), fleet.JobRunning, true},
		"told to stop, and its pods have gone":   {suspended("{active: 0, startTime: '2026-11-30T06:00:00Z'}"), fleet.JobSuspended, false},
		"suspended since it was made":            {suspended("{}"), fleet.JobSuspended, false},
		"has succeeded":                          {status("{succeeded: 4, startTime: '2026-11-30T06:00:00Z', conditions: [{type: Complete, status: 'True'}]}"), fleet.JobSucceeded, false},
		"has failed":                             {status("{failed: 4, startTime: '2026-11-30T06:00:00Z', conditions: [{type: Failed, status: 'True'}]}"), fleet.JobFailed, false},
		"has failed while it was told to stop":   {suspended("{failed: 4, conditions: [{type: Failed, status: 'True'}]}"), fleet.JobFailed, false},
		"is about to succeed, not there yet":     {status("{active: 0, ready: 0, succeeded: 4, startTime: '2026-11-30T06:00:00Z', conditions: [{type: SuccessCriteriaMet, status: 'True'}]}"), fleet.JobPending, true},
		"failed once, says a condition of False": {status("{conditions: [{type: Failed, status: 'False'}]}"), fleet.JobPending, false},
	} {
		t.Run(name, func(t *testing.T) {
			j := batch{}.Job(object(t, tc.object), seen)
			if j.Phase != tc.want || !j.Started.IsZero() != tc.started {
				t.Errorf("phase %s, started %v; want %s, started: %v", j.Phase, j.Started, tc.want, tc.started)
			}
		})
	}
}

func TestBatchWorkers(t *testing.T) {
	for spec, want := range map[string]int{
		"{}":                               1,
		"{parallelism: 4}":                 4,
		"{parallelism: 4, completions: 4}": 4,
		"{parallelism: 2, completions: 8, completionMode: Indexed}": 2,
		"{parallelism: 8, completions: 3}":                          3,
		"{parallelism: 0, completions: 3}":                          0,
	} {
		obj := object(t, "apiVersion: batch/v1\nkind: Job\nmetadata: {name: a}\nspec: "+spec)
		if got := (batch{}).Job(obj, seen).Workers; got != want {
			t.Errorf("%s: %d workers, want %d", spec, got, want)
		}
	}
}

func TestBatchCheckpointWithoutTimeIsNone(t *testing.T) {
	for name, obj := range map[string]map[string]any{
		"no time":           with(t, object(t, running), "", "metadata", "annotations", remedy.MarkCheckpointTime),
		"a time that isn't": with(t, object(t, running), "today", "metadata", "annotations", remedy.MarkCheckpointTime),
	} {
		if c := (batch{}).Job(obj, seen).Checkpoint; c.Known() {
			t.Errorf("%s: checkpoint %+v, want none", name, c)
		}
	}
	odd := with(t, object(t, running), "many", "metadata", "annotations", remedy.MarkCheckpointStep)
	if c := (batch{}).Job(odd, seen).Checkpoint; c.Step != 0 || c.URI == "" {
		t.Errorf("a step that is no number: %+v, want the rest of it", c)
	}
}

func TestBatchObserve(t *testing.T) {
	silent := with(t, object(t, running), int64(0), "status", "ready") // its node does not answer
	f := fleet.NewFacts()
	f.Sources["kubernetes"] = seen
	f.Pods["p"] = fleet.Pod{PodRef: fleet.PodRef{UID: "p"}, Job: llm2, Running: true}
	batch{}.Observe([]unstructured.Unstructured{{Object: silent}}, f)
	j := f.Jobs[llm2]
	if !j.Started.Equal(started) || !j.Seen.Equal(seen) {
		t.Errorf("started %v, seen %v; want %v and %v: a pod of it still runs", j.Started, j.Seen, started, seen)
	}
}

func TestBatchStop(t *testing.T) {
	c, err := batch{}.Stop(object(t, running), "gpu-lost-a/3/stop")
	if err != nil {
		t.Fatal(err)
	}
	wantPatch(t, c.Patch, `{metadata: {annotations: {stoker.dev/stopped-by: gpu-lost-a/3/stop}}, spec: {suspend: true}}`)

	c, err = batch{}.AskCheckpoint(object(t, running), "gpu-lost-a/2/save")
	if err != nil {
		t.Fatal(err)
	}
	wantPatch(t, c.Patch, `{metadata: {annotations: {stoker.dev/checkpoint-request: gpu-lost-a/2/save}}}`)
}

func stopped(tb testing.TB) map[string]any {
	tb.Helper()
	obj := with(tb, object(tb, running), true, "spec", "suspend")
	return with(tb, obj, map[string]any{"conditions": []any{map[string]any{"type": "Suspended", "status": "True"}}}, "status")
}

func TestBatchStart(t *testing.T) {
	to := actuator.Restart{Resume: "/ckpt/llm-2/step-18200", Avoid: []string{"gpu-a-02"}}
	c, err := batch{}.Start(stopped(t), "gpu-lost-a/4/start", to)
	if err != nil {
		t.Fatal(err)
	}
	wantPatch(t, c.Patch, `
metadata: {annotations: {stoker.dev/started-by: gpu-lost-a/4/start, stoker.dev/attempt: "2", stoker.dev/avoid: gpu-a-02}}
spec:
  suspend: false
  template:
    metadata: {annotations: {stoker.dev/resume-from: /ckpt/llm-2/step-18200}}
    spec: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [
      {matchFields: [{key: metadata.name, operator: NotIn, values: [gpu-a-02]}]}]}}}}
`)
	if c.Else == nil {
		t.Fatal("there is no way to start it on an API that does not let the template be changed")
	}
	wantPatch(t, c.Else.Patch, `{metadata: {annotations: {stoker.dev/started-by: gpu-lost-a/4/start, stoker.dev/attempt: "2"}}, spec: {suspend: false}}`)
	if c.Else.Note == "" {
		t.Error("nobody is told that it was started with less than asked")
	}

	same, err := batch{}.Start(stopped(t), "k", actuator.Restart{Resume: "/ckpt/llm-2/step-9000"})
	if err != nil {
		t.Fatal(err)
	}
	wantPatch(t, same.Patch, `{metadata: {annotations: {stoker.dev/started-by: k, stoker.dev/attempt: "2"}}, spec: {suspend: false}}`)
	if same.Else != nil {
		t.Error("a start that leaves the template alone has a second way")
	}

	none, err := batch{}.Start(stopped(t), "k", actuator.Restart{})
	if err != nil {
		t.Fatal(err)
	}
	wantPatch(t, none.Patch, `
metadata: {annotations: {stoker.dev/started-by: k, stoker.dev/attempt: "2", stoker.dev/avoid: null}}
spec: {suspend: false, template: {metadata: {annotations: {stoker.dev/resume-from: null}}}}`)
}

func TestBatchRecipe(t *testing.T) {
	c, err := batch{}.Recipe(stopped(t), "job-failed-a/2/recipe", map[string]string{"BATCH_SIZE": "8"})
	if err != nil {
		t.Fatal(err)
	}
	wantPatch(t, c.Patch, `
metadata: {annotations: {stoker.dev/recipe-by: job-failed-a/2/recipe}}
spec: {template: {metadata: {annotations: {env.stoker.dev/BATCH_SIZE: "8"}}}}`)
	if c.Else != nil {
		t.Error("a recipe that the API refuses has a second way")
	}

	obj := with(t, object(t, running), "BATCH_SIZE=8", "metadata", "annotations", "stoker.dev/on-oom")
	obj = with(t, obj, "8", "spec", "template", "metadata", "annotations", "env.stoker.dev/BATCH_SIZE")
	obj = with(t, obj, "k", "metadata", "annotations", "stoker.dev/recipe-by")
	for what, o := range map[string]map[string]any{"whole": obj, "trimmed": batch{}.Trim(obj)} {
		j := batch{}.Job(o, seen)
		if j.Recipes["oom"] != "BATCH_SIZE=8" || j.Env["BATCH_SIZE"] != "8" || j.RecipeBy != "k" {
			t.Errorf("%s: recipes %v, environment %v by %q", what, j.Recipes, j.Env, j.RecipeBy)
		}
	}

	_, err = batch{}.Recipe(object(t, running), "k", nil)
	wantEnding(t, err, remedy.Yielded, "is not suspended any more")
	late := with(t, stopped(t), int64(3), "status", "active")
	_, err = batch{}.Recipe(late, "k", nil)
	wantEnding(t, err, remedy.Conflict, "3 pods are active")
	queued := with(t, stopped(t), map[string]any{"kueue.x-k8s.io/queue-name": "a"}, "metadata", "labels")
	_, err = batch{}.Recipe(queued, "k", nil)
	wantEnding(t, err, remedy.Rejected, "in queue a")
}

func TestBatchClaims(t *testing.T) {
	obj := with(t, object(t, running), []any{
		map[string]any{"name": "b", "persistentVolumeClaim": map[string]any{"claimName": "data"}},
		map[string]any{"name": "a", "persistentVolumeClaim": map[string]any{"claimName": "ckpt"}},
		map[string]any{"name": "c", "persistentVolumeClaim": map[string]any{"claimName": "ckpt", "readOnly": true}},
		map[string]any{"name": "d", "emptyDir": map[string]any{}},
		"odd",
	}, "spec", "template", "spec", "volumes")
	if d := cmp.Diff((batch{}).Claims(obj), []string{"ckpt", "data"}); d != "" {
		t.Errorf("claims (-got +want):\n%s", d)
	}
	if got := (batch{}).Claims(object(t, running)); len(got) > 0 {
		t.Errorf("claims %v of a job that mounts none", got)
	}
}

func TestBatchRefuses(t *testing.T) {
	run := object(t, running)
	for name, tc := range map[string]struct {
		obj        map[string]any
		stop       bool // else start
		want       remedy.Ending
		saying     string
		mayBeAsked bool // for a checkpoint
	}{
		"a job in a queue of Kueue": {
			with(t, run, "team-a", "metadata", "labels", "kueue.x-k8s.io/queue-name"), true,
			remedy.Rejected, "the batch adapter does not stop jobs that Kueue manages", true,
		},
		"a job in a queue of Kueue by annotation": {
			with(t, stopped(t), "team-a", "metadata", "annotations", "kueue.x-k8s.io/queue-name"), false,
			remedy.Rejected, "Kueue", true,
		},
		"a job of another controller by its spec": {
			with(t, run, "kueue.x-k8s.io/multikueue", "spec", "managedBy"), true, remedy.Rejected, "managed by kueue.x-k8s.io/multikueue", true,
		},
		"a job that a JobSet owns": {
			with(t, run, []any{map[string]any{"kind": "JobSet", "name": "set-1", "controller": true}}, "metadata", "ownerReferences"), true,
			remedy.Rejected, "owned by JobSet set-1", true,
		},
		"a job that somebody has suspended": {
			with(t, with(t, run, true, "spec", "suspend"), "", "metadata", "annotations", remedy.MarkStoppedBy), true, remedy.Yielded, "somebody else", true,
		},
		"a job that runs cannot be started":   {run, false, remedy.Yielded, "not suspended any more", true},
		"a job whose pods are there still":    {with(t, stopped(t), int64(2), "status", "active"), false, remedy.Conflict, "2 pods are active", true},
		"a job whose stop nobody has seen":    {with(t, with(t, run, true, "spec", "suspend"), int64(0), "status", "active"), false, remedy.Conflict, "not suspended yet", true},
		"a job that has ended":                {with(t, run, []any{map[string]any{"type": "Failed", "status": "True"}}, "status", "conditions"), true, remedy.Gone, "has ended: it failed", false},
		"a job that is being deleted":         {with(t, run, "2026-11-30T08:00:00Z", "metadata", "deletionTimestamp"), true, remedy.Gone, "being deleted", false},
		"a start of a job that has succeeded": {with(t, stopped(t), []any{map[string]any{"type": "Complete", "status": "True"}}, "status", "conditions"), false, remedy.Gone, "succeeded", false},
	} {
		t.Run(name, func(t *testing.T) {
			before := fmt.Sprint(tc.obj)
			act := func() (Change, error) { return batch{}.Start(tc.obj, "k", actuator.Restart{Avoid: []string{"a"}}) }
			if tc.stop {
				act = func() (Change, error) { return batch{}.Stop(tc.obj, "k") }
			}
			_, err := act()
			wantEnding(t, err, tc.want, tc.saying)
			if _, err := (batch{}).AskCheckpoint(tc.obj, "k"); (err == nil) != tc.mayBeAsked {
				t.Errorf("asked for a checkpoint: %v, want it to be allowed: %v", err, tc.mayBeAsked)
			}
			if fmt.Sprint(tc.obj) != before {
				t.Error("the object was changed")
			}
		})
	}
	if _, err := (batch{}).Stop(with(t, run, jobController, "spec", "managedBy"), "k"); err != nil {
		t.Errorf("a job that names Kubernetes' own controller: %v", err)
	}
	never := with(t, with(t, object(t, running), true, "spec", "suspend"), map[string]any{}, "status")
	if _, err := (batch{}).Start(never, "k", actuator.Restart{}); err != nil {
		t.Errorf("a job that has never run: %v", err)
	}
}

// TestAvoid holds, for whatever the user wrote: pods land on none of the nodes to
// avoid, land on no node that the user excluded, and once nothing is to be avoided any
// more, the affinity is as the user wrote it.
func TestAvoid(t *testing.T) {
	nodes := []string{"a", "b", "c", "d"}
	entry := rapid.Custom(func(t *rapid.T) map[string]any {
		op := rapid.SampledFrom([]string{"In", "NotIn"}).Draw(t, "operator")
		return map[string]any{"key": "zone", "operator": op, "values": []any{"z1"}}
	})
	byName := rapid.Custom(func(t *rapid.T) map[string]any {
		op := rapid.SampledFrom([]string{"In", "NotIn"}).Draw(t, "operator")
		return map[string]any{"key": "metadata.name", "operator": op, "values": []any{rapid.SampledFrom(nodes).Draw(t, "node")}}
	})
	term := rapid.Custom(func(t *rapid.T) map[string]any {
		out := map[string]any{}
		if es := rapid.SliceOfN(entry, 0, 2).Draw(t, "expressions"); len(es) > 0 {
			out["matchExpressions"] = anys(es)
		}
		if fs := rapid.SliceOfN(byName, 0, 2).Draw(t, "fields"); len(fs) > 0 {
			out["matchFields"] = anys(fs)
		}
		return out
	})
	rapid.Check(t, func(t *rapid.T) {
		terms := rapid.SliceOfN(term, 0, 3).Draw(t, "terms")
		podSpec := map[string]any{}
		if len(terms) > 0 {
			podSpec["affinity"] = map[string]any{"nodeAffinity": map[string]any{required: map[string]any{termsKey: anys(terms)}}}
		}
		original := plainOf(podSpec)
		mark := ""
		for range 3 {
			want := rapid.SliceOfDistinct(rapid.SampledFrom(nodes), rapid.ID).Draw(t, "avoid")
			affinity, next, changed := avoid(podSpec, mark, want)
			if changed {
				mark, podSpec = next, apply(podSpec, affinity)
			}
			for _, n := range nodes {
				for _, zone := range []string{"z1", "z2"} {
					before, after := lands(original, n, zone), lands(podSpec, n, zone)
					if should := before && !contains(want, n); after != should {
						t.Fatalf("on %s in %s: before %v, after avoiding %v %v; spec %v", n, zone, before, want, after, podSpec)
					}
				}
			}
			if _, _, again := avoid(podSpec, mark, want); again {
				t.Fatalf("avoiding %v twice changes the template twice", want)
			}
		}
		if affinity, next, changed := avoid(podSpec, mark, nil); changed {
			mark, podSpec = next, apply(podSpec, affinity)
		}
		if mark != "" {
			t.Fatalf("mark %q is left", mark)
		}
		if d := cmp.Diff(termsOf(original), termsOf(podSpec)); d != "" {
			t.Fatalf("what the user wrote has changed (-want +got):\n%s", d)
		}
	})
}

func TestAvoidedIsWhatNoTermAllows(t *testing.T) {
	spec := object(t, `
apiVersion: v1
kind: x
affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [
  {matchExpressions: [{key: kubernetes.io/hostname, operator: NotIn, values: [b, a]}]},
  {matchFields: [{key: metadata.name, operator: NotIn, values: [a]}, {key: metadata.name, operator: In, values: [b]}]}]}}}
`)
	if d := cmp.Diff([]string{"a"}, avoided(spec)); d != "" {
		t.Errorf("avoided nodes differ (-want +got):\n%s", d)
	}
}
