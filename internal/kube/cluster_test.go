package kube

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

var reboot = actuator.Repair{Name: "reboot-gpu-a-02-abc", Action: "reboot", Key: "gpu-lost-a/5/reboot", Node: "gpu-a-02", BootID: "b-1"}

func templates(t *testing.T) Templates {
	t.Helper()
	tpl, err := ParseTemplates(nil)
	if err != nil {
		t.Fatal(err)
	}
	return tpl
}

func cluster(t *testing.T, s *server) *Cluster {
	t.Helper()
	return NewCluster(slog.New(slog.NewTextHandler(t.Output(), nil)), s.client(t, 10*time.Second), ClusterOptions{Namespace: "own", Repairs: templates(t)})
}

func yamlAnswer(t *testing.T, text string) http.HandlerFunc {
	t.Helper()
	var v any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return answer(200, v)
}

// wantBody compares what was sent with what is written as YAML.
func wantBody(t *testing.T, r request, want string) {
	t.Helper()
	var w, got any
	if err := yaml.Unmarshal([]byte(want), &w); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(r.Body, &got); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(w, got); d != "" {
		t.Errorf("%s %s sent something else (-want +got):\n%s", r.Method, r.Path, d)
	}
}

func TestMarkNode(t *testing.T) {
	s := newServer(t)
	s.on("PATCH /api/v1/nodes/gpu-a-02", yamlAnswer(t, `{apiVersion: v1, kind: Node, metadata: {name: gpu-a-02, uid: n-2, resourceVersion: "13"}, spec: {unschedulable: true}}`))
	c := cluster(t, s)
	n := fleet.Node{Name: "gpu-a-02", UID: "n-2", Version: 12}
	hold := fleet.Hold{Cordoned: true, Why: "XID 79"}.With("gpu-lost-a", time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC))
	got, err := c.MarkNode(t.Context(), n, hold, true)
	if err != nil {
		t.Fatal(err)
	}
	if got.Version != 13 || !got.Unschedulable {
		t.Errorf("MarkNode returned %+v, want what the API answered", got)
	}
	wantBody(t, s.sent("PATCH")[0], `
metadata:
  uid: n-2
  resourceVersion: "12"
  annotations:
    stoker.dev/hold: '{"incidents":{"gpu-lost-a":"2026-11-30T09:00:00Z"},"cordoned":true,"why":"XID 79"}'
    stoker.dev/why: XID 79
spec: {unschedulable: true}`)

	if _, err := c.MarkNode(t.Context(), n, fleet.Hold{}, false); err != nil {
		t.Fatal(err)
	}
	wantBody(t, s.sent("PATCH")[1], `
metadata: {uid: n-2, resourceVersion: "12", annotations: {stoker.dev/hold: null, stoker.dev/why: null}}
spec: {unschedulable: null}`)
}

func TestMarkNodeRefuses(t *testing.T) {
	s := newServer(t)
	s.on("GET /api/v1/nodes/a", yamlAnswer(t, `{apiVersion: v1, kind: Node, metadata: {name: a, uid: u, resourceVersion: "3", annotations: {stoker.dev/hold: broken}}, spec: {unschedulable: true}}`))
	c := cluster(t, s)
	broken, err := c.Node(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	for name, n := range map[string]fleet.Node{
		"a hold that cannot be read": broken,
		"a node without a version":   {Name: "a", UID: "u"},
		"a node without a uid":       {Name: "a", Version: 3},
	} {
		_, err := c.MarkNode(t.Context(), n, fleet.Hold{}, false)
		wantEnding(t, err, remedy.Rejected)
		if len(s.sent("PATCH")) != 0 {
			t.Errorf("%s: it was written", name)
		}
	}
}

func TestEvict(t *testing.T) {
	const route = "POST /api/v1/namespaces/train/pods/p/eviction"
	pod := fleet.PodRef{Namespace: "train", Name: "p", UID: "u-1"}
	budget := status(429, metav1.StatusReasonTooManyRequests, "Cannot evict pod as it would violate the pod's disruption budget.", &metav1.StatusDetails{
		Causes: []metav1.StatusCause{{Type: "DisruptionBudget", Message: "The disruption budget llm needs 4 healthy pods and has 4 currently"}},
	})
	another := yamlAnswer(t, `{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: train, uid: u-2}}`)
	for name, tc := range map[string]struct {
		answer, get http.HandlerFunc
		want        remedy.Ending // empty: it succeeds
		saying      string
	}{
		"it goes":                     {answer(201, metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess}), nil, "", ""},
		"a disruption budget refuses": {retryAfter("10", budget), nil, remedy.Conflict, "The disruption budget llm needs 4 healthy pods"},
		"it has gone":                 {status(404, metav1.StatusReasonNotFound, "not found", &metav1.StatusDetails{Name: "p"}), nil, remedy.Gone, ""},
		"its name is another pod's":   {status(409, metav1.StatusReasonConflict, "the UID in the precondition does not match", &metav1.StatusDetails{Name: "p"}), another, remedy.Gone, "another object"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			s.on(route, tc.answer)
			if tc.get != nil {
				s.on("GET /api/v1/namespaces/train/pods/p", tc.get)
			}
			err := cluster(t, s).Evict(t.Context(), pod)
			if tc.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				wantBody(t, s.sent("POST")[0], `{apiVersion: policy/v1, kind: Eviction, metadata: {name: p, namespace: train}, deleteOptions: {preconditions: {uid: u-1}}}`)
				return
			}
			wantEnding(t, err, tc.want)
			if !strings.Contains(err.Error(), tc.saying) {
				t.Errorf("err = %v, want it to say %q", err, tc.saying)
			}
		})
	}
	s := newServer(t)
	wantEnding(t, cluster(t, s).Evict(t.Context(), fleet.PodRef{Namespace: "train", Name: "p"}), remedy.Rejected)
	if len(s.sent("POST")) != 0 {
		t.Error("a pod of which the uid is not known was evicted")
	}
}

const stoppedJob = `
apiVersion: batch/v1
kind: Job
metadata: {name: llm-2, namespace: train, uid: j-1, resourceVersion: "21"}
spec: {parallelism: 2, completions: 2, suspend: true, selector: {matchLabels: {uid: j-1}}, template: {spec: {containers: [{name: c}]}}}
status: {conditions: [{type: Suspended, status: "True"}]}`

var llm2 = fleet.JobRef{Kind: "Job.batch", Namespace: "train", Name: "llm-2"}

const jobRoute = "/apis/batch/v1/namespaces/train/jobs/llm-2"

func TestStartJobFallsBackWhereTheTemplateIsFixed(t *testing.T) {
	s := newServer(t)
	s.on("GET "+jobRoute, yamlAnswer(t, stoppedJob))
	s.on("PATCH "+jobRoute,
		status(422, metav1.StatusReasonInvalid, "spec.template: field is immutable", &metav1.StatusDetails{Name: "llm-2"}),
		yamlAnswer(t, strings.Replace(stoppedJob, "suspend: true", "suspend: false", 1)))
	c := cluster(t, s)
	j, err := c.Job(t.Context(), llm2)
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.StartJob(t.Context(), j, "k", actuator.Restart{Resume: "/x", Avoid: []string{"gpu-a-02"}})
	if err != nil {
		t.Fatal(err)
	}
	if got.Suspended || got.Resume != "" || len(got.Avoid) != 0 {
		t.Errorf("job = %+v, want one that runs and shows that it took neither resume nor avoid", got)
	}
	patches := s.sent("PATCH")
	if len(patches) != 2 {
		t.Fatalf("%d patches, want the full one and the plain one", len(patches))
	}
	wantBody(t, patches[1], `{metadata: {uid: j-1, resourceVersion: "21", annotations: {stoker.dev/started-by: k, stoker.dev/attempt: "1"}}, spec: {suspend: false}}`)
}

func TestOnlyAnInvalidTemplateFallsBack(t *testing.T) {
	for name, refuse := range map[string]http.HandlerFunc{
		"changed since":    status(409, metav1.StatusReasonConflict, "modified", &metav1.StatusDetails{Name: "llm-2"}),
		"not allowed":      status(403, metav1.StatusReasonForbidden, "no", &metav1.StatusDetails{Name: "llm-2"}),
		"nobody knows":     hangUp,
		"no such job":      status(404, metav1.StatusReasonNotFound, "no", &metav1.StatusDetails{Name: "llm-2"}),
		"the server fails": status(500, metav1.StatusReasonInternalError, "no", nil),
	} {
		s := newServer(t)
		s.on("GET "+jobRoute, yamlAnswer(t, stoppedJob))
		s.on("PATCH "+jobRoute, refuse)
		c := cluster(t, s)
		j, err := c.Job(t.Context(), llm2)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.StartJob(t.Context(), j, "k", actuator.Restart{Resume: "/x"}); err == nil {
			t.Errorf("%s: it succeeded", name)
		}
		if n := len(s.sent("PATCH")); n != 1 {
			t.Errorf("%s: %d patches, want one", name, n)
		}
	}
}

func TestJobThatWasChangedSinceItWasRead(t *testing.T) {
	s := newServer(t)
	s.on("GET "+jobRoute, yamlAnswer(t, stoppedJob))
	c := cluster(t, s)
	j, err := c.Job(t.Context(), llm2)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		uid     string
		version fleet.Version
		want    remedy.Ending
	}{
		"an older version":  {j.UID, j.Version - 1, remedy.Conflict},
		"another job's uid": {"j-0", j.Version, remedy.Gone},
	} {
		old := j
		old.UID, old.Version = tc.uid, tc.version
		_, err := c.StartJob(t.Context(), old, "k", actuator.Restart{})
		if endingOf(err) != tc.want {
			t.Errorf("%s: %v, want %s", name, err, tc.want)
		}
	}
	if n := len(s.sent("PATCH")); n != 0 {
		t.Errorf("%d patches were sent", n)
	}
	_, err = c.Job(t.Context(), fleet.JobRef{Kind: "RayJob.ray.io", Namespace: "n", Name: "x"})
	wantEnding(t, err, remedy.Rejected)
}

const twoPods = `
apiVersion: v1
kind: PodList
metadata: {}
items:
  - {apiVersion: v1, kind: Pod, metadata: {name: a, namespace: train, uid: p-1, ownerReferences: [{apiVersion: batch/v1, kind: Job, name: llm-2, controller: true}]}, status: {phase: Running}}
  - {apiVersion: v1, kind: Pod, metadata: {name: b, namespace: train, uid: p-2, ownerReferences: [{apiVersion: batch/v1, kind: Job, name: llm-3, controller: true}]}, status: {phase: Running}}
  - {apiVersion: v1, kind: Pod, metadata: {name: c, namespace: train, uid: p-3, ownerReferences: [{apiVersion: batch/v1, kind: Job, name: llm-2, controller: true}]}, status: {phase: Failed}}
`

func TestPodsOf(t *testing.T) {
	s := newServer(t)
	s.on("GET /api/v1/namespaces/train/pods", yamlAnswer(t, twoPods))
	c := cluster(t, s)
	for name, job := range map[string]http.HandlerFunc{
		"of a job":              yamlAnswer(t, stoppedJob),
		"of a job that is gone": status(404, metav1.StatusReasonNotFound, "not found", &metav1.StatusDetails{Name: "llm-2"}),
	} {
		s.on("GET "+jobRoute, job)
		pods, err := c.PodsOf(t.Context(), llm2)
		if err != nil {
			t.Fatal(err)
		}
		if len(pods) != 1 || pods[0].UID != "p-1" {
			t.Errorf("%s: pods %+v, want p-1 alone", name, pods)
		}
	}
	s.on("GET "+jobRoute, status(500, metav1.StatusReasonInternalError, "x", nil))
	if _, err := c.PodsOf(t.Context(), llm2); err == nil {
		t.Error("a job that could not be read has pods")
	}

	s.on("GET /api/v1/pods", yamlAnswer(t, twoPods))
	pods, err := c.PodsOn(t.Context(), "gpu-a-02")
	if err != nil {
		t.Fatal(err)
	}
	if len(pods) != 2 {
		t.Errorf("%d pods on the node, want those two that have not ended", len(pods))
	}
	all := s.sent("GET")
	if q := all[len(all)-1].Query; !strings.Contains(q, "fieldSelector=spec.nodeName%3Dgpu-a-02") {
		t.Errorf("asked by %q", q)
	}
}

func TestCreateRepair(t *testing.T) {
	s := newServer(t)
	s.on("POST /apis/batch/v1/namespaces/own/jobs", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(201)
		_, _ = w.Write(s.sent("POST")[0].Body)
	})
	c := cluster(t, s)
	got, err := c.CreateRepair(t.Context(), reboot)
	if err != nil {
		t.Fatal(err)
	}
	want := reboot
	want.Note = "runs"
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("repair differs (-want +got):\n%s", d)
	}
	var job struct {
		Metadata metav1.ObjectMeta
		Spec     struct {
			BackoffLimit, Parallelism, Completions *int32
			ActiveDeadlineSeconds                  *int64
			Template                               struct {
				Metadata metav1.ObjectMeta
				Spec     map[string]any
			}
		}
	}
	if err := json.Unmarshal(s.sent("POST")[0].Body, &job); err != nil {
		t.Fatal(err)
	}
	marks := map[string]string{remedy.MarkAction: "reboot", remedy.MarkKey: reboot.Key, remedy.MarkBootID: "b-1"}
	for what, meta := range map[string]metav1.ObjectMeta{"job": job.Metadata, "pod": job.Spec.Template.Metadata} {
		if d := cmp.Diff(marks, meta.Annotations); d != "" {
			t.Errorf("annotations of the %s differ (-want +got):\n%s", what, d)
		}
		if meta.Labels[remedy.MarkAction] != "reboot" {
			t.Errorf("labels of the %s are %v", what, meta.Labels)
		}
	}
	if job.Metadata.Name != reboot.Name || job.Metadata.Namespace != "own" {
		t.Errorf("it is called %s/%s", job.Metadata.Namespace, job.Metadata.Name)
	}
	if *job.Spec.BackoffLimit != 0 || *job.Spec.Parallelism != 1 || *job.Spec.Completions != 1 || *job.Spec.ActiveDeadlineSeconds != 1200 {
		t.Errorf("spec = %+v, want one pod, once, for 20 minutes", job.Spec)
	}
	pod := job.Spec.Template.Spec
	env := pod["containers"].([]any)[0].(map[string]any)["env"]
	for name, pair := range map[string][2]any{
		"node":          {pod["nodeName"], "gpu-a-02"},
		"restartPolicy": {pod["restartPolicy"], "Never"},
		"tolerations":   {pod["tolerations"], []any{map[string]any{"operator": "Exists"}}},
		"env":           {env, []any{map[string]any{"name": "STOKER_EXPECT_BOOT_ID", "value": "b-1"}, map[string]any{"name": "STOKER_NODE", "value": "gpu-a-02"}}},
		"token":         {pod["automountServiceAccountToken"], false},
	} {
		if d := cmp.Diff(pair[1], pair[0]); d != "" {
			t.Errorf("%s differs (-want +got):\n%s", name, d)
		}
	}
}

func TestCreateRepairRefuses(t *testing.T) {
	s := newServer(t)
	c := cluster(t, s)
	unknown := reboot
	unknown.BootID = ""
	_, err := c.CreateRepair(t.Context(), unknown)
	wantEnding(t, err, remedy.Rejected)
	odd := reboot
	odd.Action = "re boot"
	_, err = c.CreateRepair(t.Context(), odd)
	wantEnding(t, err, remedy.Rejected)
	none := NewCluster(slog.New(slog.DiscardHandler), s.client(t, 10*time.Second), ClusterOptions{Namespace: "own"})
	_, err = none.CreateRepair(t.Context(), reboot)
	wantEnding(t, err, remedy.Rejected)
	if len(s.sent("POST")) != 0 {
		t.Error("it was created")
	}
	s.on("POST /apis/batch/v1/namespaces/own/jobs", status(409, metav1.StatusReasonAlreadyExists, "exists", &metav1.StatusDetails{Name: reboot.Name}))
	_, err = c.CreateRepair(t.Context(), reboot)
	wantEnding(t, err, remedy.Conflict)
}

func TestRepair(t *testing.T) {
	const head = `{apiVersion: batch/v1, kind: Job, metadata: {name: r, namespace: own, resourceVersion: "5", annotations: {stoker.dev/action: reboot, stoker.dev/key: k, stoker.dev/boot-id: b-1}}, spec: {template: {spec: {nodeName: gpu-1}}}, status: `
	base := actuator.Repair{Name: "r", Action: "reboot", Key: "k", Node: "gpu-1", BootID: "b-1", Version: 5}
	for name, tc := range map[string]struct {
		status, note string
		failed       bool
	}{
		"it runs":        {`{active: 1}`, "runs", false},
		"it has failed":  {`{conditions: [{type: Failed, status: "True", reason: BackoffLimitExceeded, message: too often}]}`, "BackoffLimitExceeded: too often", true},
		"it has ended":   {`{conditions: [{type: Complete, status: "True"}]}`, "has ended well", false},
		"it fails, soon": {`{conditions: [{type: FailureTarget, status: "True"}]}`, "runs", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			s.on("GET /apis/batch/v1/namespaces/own/jobs/r", yamlAnswer(t, head+tc.status+"}"))
			got, err := cluster(t, s).Repair(t.Context(), "r")
			if err != nil {
				t.Fatal(err)
			}
			want := base
			want.Note, want.Failed, want.Done = tc.note, tc.failed, tc.note == "has ended well"
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("repair differs (-want +got):\n%s", d)
			}
		})
	}
	s := newServer(t)
	_, err := cluster(t, s).Repair(t.Context(), "r")
	wantEnding(t, err, remedy.Gone)
}

func TestOtherTemplatesAreInForceForRepairsToCome(t *testing.T) {
	s := newServer(t)
	s.on("POST /apis/batch/v1/namespaces/own/jobs", answer(http.StatusCreated, map[string]any{"apiVersion": "batch/v1", "kind": "Job", "metadata": map[string]any{"name": "r"}}))
	c := cluster(t, s)
	other, err := ParseTemplates(map[string][]byte{"reboot": []byte("{apiVersion: batch/v1, kind: Job, spec: {template: {spec: {containers: [{name: other, image: mine}]}}}}")})
	if err != nil {
		t.Fatal(err)
	}
	c.SetRepairs(other)
	if _, err := c.CreateRepair(t.Context(), reboot); err != nil {
		t.Fatal(err)
	}
	if sent := s.sent(http.MethodPost); len(sent) != 1 || !strings.Contains(string(sent[0].Body), `"image":"mine"`) {
		t.Errorf("created was %s", sent[0].Body)
	}
}

func TestARepairThatFailedSaysWhatItsProgramSaid(t *testing.T) {
	s := newServer(t)
	failed := map[string]any{
		"apiVersion": "batch/v1", "kind": "Job", "metadata": map[string]any{"name": "r", "namespace": "own", "uid": "u"},
		"status": map[string]any{"conditions": []any{map[string]any{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "Job has reached the specified backoff limit"}}},
	}
	s.on("GET /apis/batch/v1/namespaces/own/jobs/r", answer(http.StatusOK, failed))
	s.on("GET /api/v1/namespaces/own/pods", answer(http.StatusOK, map[string]any{"apiVersion": "v1", "kind": "PodList", "items": []any{map[string]any{
		"metadata": map[string]any{"name": "r-x", "namespace": "own", "uid": "p", "ownerReferences": []any{map[string]any{"apiVersion": "batch/v1", "kind": "Job", "name": "r", "controller": true}}},
		"status": map[string]any{"phase": "Failed", "containerStatuses": []any{map[string]any{"name": "reset", "state": map[string]any{"terminated": map[string]any{
			"exitCode": 1, "reason": "Error", "finishedAt": "2026-03-01T12:00:00Z", "message": "the first line\nanother\none more\nGPU GPU-8f2b is in use by python3, process 105\n",
		}}}}},
	}}}))
	got, err := cluster(t, s).Repair(t.Context(), "r")
	if want := "another; one more; GPU GPU-8f2b is in use by python3, process 105 (BackoffLimitExceeded: Job has reached the specified backoff limit)"; err != nil || !got.Failed || got.Note != want {
		t.Errorf("note %q, %v; want %q", got.Note, err, want)
	}
	if list := s.sent(http.MethodGet); !strings.Contains(list[len(list)-1].Query, "labelSelector=batch.kubernetes.io%2Fjob-name%3Dr") {
		t.Errorf("pods were asked for by %q", list[len(list)-1].Query)
	}
}

func TestParseTemplateNamesEveryMistake(t *testing.T) {
	_, err := ParseTemplate([]byte(`
apiVersion: batch/v1
kind: Job
metadata: {name: mine, namespace: other}
spec:
  suspend: true
  parallelism: 2
  backoffLimit: 6
  activeDeadlineSeconds: 0
  template:
    spec:
      restartPolicy: OnFailure
      nodeName: a
      tolerations: [{operator: Exists}]
      containers: [{name: a, image: x, env: [{name: STOKER_NODE, value: b}]}, {name: b}]
`), "")
	if err == nil {
		t.Fatal("it was accepted")
	}
	for _, path := range []string{
		"metadata.name", "metadata.namespace", "spec.suspend", "spec.parallelism", "spec.backoffLimit", "spec.activeDeadlineSeconds: 0 is not positive",
		"restartPolicy", "nodeName", "tolerations", "containers[0].env: Stoker sets STOKER_NODE itself", "containers[1].image",
	} {
		if !strings.Contains(err.Error(), path) {
			t.Errorf("the error does not speak of %s:\n%v", path, err)
		}
	}
	for name, text := range map[string]string{
		"a key that does not exist": "apiVersion: batch/v1\nkind: Job\nspec: {template: {spec: {containers: [{name: a, image: x, comand: [y]}]}}}",
		"a key twice":               "apiVersion: batch/v1\nkind: Job\nkind: Job\n",
		"another kind":              "apiVersion: v1\nkind: Pod\nspec: {}",
		"no containers":             "apiVersion: batch/v1\nkind: Job\nspec: {}",
		"nothing":                   "",
	} {
		if _, err := ParseTemplate([]byte(text), ""); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

func TestTemplateImage(t *testing.T) {
	tpl, err := ParseTemplate(defaultReboot, "registry.example.com/tools@sha256:abc")
	if err != nil {
		t.Fatal(err)
	}
	if got := tpl.make(reboot, "own").Spec.Template.Spec.Containers[0].Image; got != "registry.example.com/tools@sha256:abc" {
		t.Errorf("image = %q", got)
	}
	first := tpl.make(reboot, "own")
	first.Spec.Template.Spec.Containers[0].Env[0].Value = "changed"
	if got := tpl.make(reboot, "own").Spec.Template.Spec.Containers[0].Env; len(got) != 2 || got[0].Value != "b-1" {
		t.Errorf("one repair has changed the next: %v", got)
	}
}
