package jobs

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/actuator/jobs/manifest"
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// Batch is Kubernetes' own Job.
var Batch = Spec{
	Name:     "batch",
	Doc:      "Kubernetes' own Job, Indexed or not, where no other controller owns it and no queueing system admits it.",
	Kind:     schema.GroupKind{Group: "batch", Kind: "Job"},
	Resource: schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"},
	RBAC:     []actuator.Rule{{Group: "batch", Resource: "jobs", Verbs: []string{"get", "list", "patch", "watch"}}},
	New:      func() Adapter { return batch{} },
}

const (
	queueMark     = "kueue.x-k8s.io/queue-name"
	jobController = "kubernetes.io/job-controller"
)

// batch suspends and resumes Jobs. Their template's annotations and node affinity can
// be changed while a Job is suspended and has no pods that are active: since Kubernetes
// 1.36 always, before that only if it never ran.
type batch struct{}

func (batch) Kinds() []schema.GroupVersionKind {
	return []schema.GroupVersionKind{Batch.Kind.WithVersion(Batch.Resource.Version)}
}

func (b batch) Observe(objs []unstructured.Unstructured, into *fleet.Facts) {
	running := map[fleet.JobRef]bool{}
	for _, p := range into.Pods {
		if p.Running {
			running[p.Job] = true
		}
	}
	seen := into.Sources["kubernetes"]
	for i := range objs {
		j := b.Job(objs[i].Object, seen)
		// Status tells of ready pods alone, and those of a node that does not answer are not ready.
		if running[j.Ref] && j.Started.IsZero() && !j.Phase.Ended() {
			j.Started = manifest.Time(objs[i].Object, "status", "startTime")
		}
		into.Jobs[j.Ref] = j
	}
}

func (batch) Job(obj map[string]any, seen time.Time) fleet.Job {
	template := manifest.Map(obj, "spec", "template")
	j := fleet.Job{
		Ref: fleet.JobRef{
			Kind:      Batch.Kind.String(),
			Namespace: manifest.String(obj, "metadata", "namespace"),
			Name:      manifest.String(obj, "metadata", "name"),
		},
		UID:                manifest.String(obj, "metadata", "uid"),
		Version:            manifest.Version(obj),
		Queue:              queue(obj),
		Workers:            workers(obj),
		Each:               manifest.Demand(manifest.Map(template, "spec")),
		Suspended:          manifest.Bool(obj, "spec", "suspend"),
		Attempt:            attempt(obj),
		Checkpoint:         checkpoint(obj),
		CheckpointAsked:    manifest.Annotation(obj, remedy.MarkCheckpointRequest),
		CheckpointAnswered: manifest.Annotation(obj, remedy.MarkCheckpointAck),
		StoppedBy:          manifest.Annotation(obj, remedy.MarkStoppedBy),
		StartedBy:          manifest.Annotation(obj, remedy.MarkStartedBy),
		Resume:             manifest.Annotation(template, remedy.MarkResumeFrom),
		Avoid:              avoided(manifest.Map(template, "spec")),
		ReadLogs:           manifest.Annotation(obj, remedy.MarkReadLogs) == "true",
		Recipes:            manifest.Prefixed(obj, remedy.MarkRecipe),
		Env:                manifest.Prefixed(template, remedy.MarkEnv),
		RecipeBy:           manifest.Annotation(obj, remedy.MarkRecipeBy),
		OptOut:             manifest.OptOut(obj),
		Seen:               seen,
	}
	active, _ := manifest.Int(obj, "status", "active")
	ready, _ := manifest.Int(obj, "status", "ready")
	succeeded, _ := manifest.Int(obj, "status", "succeeded")
	failed, _ := manifest.Int(obj, "status", "failed")
	switch {
	case manifest.ConditionOf(obj, "Complete").Status == fleet.True:
		j.Phase = fleet.JobSucceeded
	case manifest.ConditionOf(obj, "Failed").Status == fleet.True:
		j.Phase = fleet.JobFailed
		j.Ended, j.EndReason = manifest.ConditionOf(obj, "Failed").Since, manifest.ReasonOf(obj, "Failed")
	case j.Suspended && active == 0:
		j.Phase = fleet.JobSuspended
	case ready > 0 && ready+succeeded >= j.Workers:
		j.Phase = fleet.JobRunning
	default:
		j.Phase = fleet.JobPending
	}
	// The controller sets startTime before any pod runs; until one has, nothing was started.
	if !j.Phase.Ended() && j.Phase != fleet.JobSuspended && (ready > 0 || succeeded > 0 || failed > 0) {
		j.Started = manifest.Time(obj, "status", "startTime")
	}
	return j
}

func queue(obj map[string]any) string {
	return cmp.Or(manifest.String(obj, "metadata", "labels", queueMark), manifest.Annotation(obj, queueMark))
}

// workers is how many pods run at once.
func workers(obj map[string]any) int {
	n, there := manifest.Int(obj, "spec", "parallelism")
	if !there {
		n = 1
	}
	if completions, there := manifest.Int(obj, "spec", "completions"); there {
		n = min(n, completions)
	}
	return n
}

func attempt(obj map[string]any) int {
	n, err := strconv.Atoi(manifest.Annotation(obj, remedy.MarkAttempt))
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// checkpoint reads what the training code has told. One without a time that can be
// read is none: how much work it saves is not known.
func checkpoint(obj map[string]any) fleet.Checkpoint {
	at, err := time.Parse(time.RFC3339, manifest.Annotation(obj, remedy.MarkCheckpointTime))
	if err != nil {
		return fleet.Checkpoint{}
	}
	c := fleet.Checkpoint{URI: manifest.Annotation(obj, remedy.MarkCheckpointURI), At: at.UTC()}
	if step, err := strconv.ParseInt(manifest.Annotation(obj, remedy.MarkCheckpointStep), 10, 64); err == nil && step > 0 {
		c.Step = step
	}
	return c
}

// Trim keeps what Job, Pods and the acts read.
func (batch) Trim(obj map[string]any) map[string]any {
	template := manifest.Map(obj, "spec", "template")
	podSpec := manifest.PickDemand(manifest.Map(template, "spec"))
	if a := manifest.Map(template, "spec", "affinity"); a != nil {
		podSpec["affinity"] = manifest.Pick(a, "nodeAffinity")
	}
	spec := manifest.Pick(manifest.Map(obj, "spec"), "suspend", "parallelism", "completions", "managedBy", "selector")
	spec["template"] = map[string]any{"metadata": manifest.PickMeta(template, "stoker.dev/", remedy.MarkEnv), "spec": podSpec}
	status := manifest.Pick(manifest.Map(obj, "status"), "active", "ready", "succeeded", "failed", "startTime")
	var conditions []any
	for _, c := range manifest.List(obj, "status", "conditions") {
		conditions = append(conditions, manifest.Pick(c, "type", "status", "reason", "lastTransitionTime"))
	}
	if len(conditions) > 0 {
		status["conditions"] = conditions
	}
	return map[string]any{"metadata": manifest.PickMeta(obj, "stoker.dev/", queueMark), "spec": spec, "status": status}
}

func (batch) Pods(obj map[string]any) (string, error) {
	var s metav1.LabelSelector
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(manifest.Map(obj, "spec", "selector"), &s); err != nil {
		return "", fmt.Errorf("selector of job %s: %w", manifest.String(obj, "metadata", "name"), err)
	}
	selector, err := metav1.LabelSelectorAsSelector(&s)
	if err != nil {
		return "", fmt.Errorf("selector of job %s: %w", manifest.String(obj, "metadata", "name"), err)
	}
	if selector.Empty() {
		return "", fmt.Errorf("job %s has no selector", manifest.String(obj, "metadata", "name"))
	}
	return selector.String(), nil
}

// AskCheckpoint is no more than a mark, so any Job may be asked.
func (b batch) AskCheckpoint(obj map[string]any, key string) (Change, error) {
	if err := b.lives(obj); err != nil {
		return Change{}, err
	}
	return Change{Patch: mark(map[string]string{remedy.MarkCheckpointRequest: key})}, nil
}

func (b batch) Stop(obj map[string]any, key string) (Change, error) {
	if err := b.ours(obj); err != nil {
		return Change{}, err
	}
	if manifest.Bool(obj, "spec", "suspend") {
		return Change{}, failure(remedy.Yielded, "job %s is suspended already, by %s", ref(obj), cmp.Or(manifest.Annotation(obj, remedy.MarkStoppedBy), "somebody else"))
	}
	patch := mark(map[string]string{remedy.MarkStoppedBy: key})
	patch["spec"] = map[string]any{"suspend": true}
	return Change{Patch: patch}, nil
}

func (b batch) Start(obj map[string]any, key string, with actuator.Restart) (Change, error) {
	if err := b.ours(obj); err != nil {
		return Change{}, err
	}
	if !manifest.Bool(obj, "spec", "suspend") {
		return Change{}, failure(remedy.Yielded, "job %s is not suspended any more", ref(obj))
	}
	if err := b.settled(obj); err != nil {
		return Change{}, err
	}
	marks := map[string]string{remedy.MarkStartedBy: key, remedy.MarkAttempt: strconv.Itoa(attempt(obj) + 1)}
	plain := mark(marks)
	plain["spec"] = map[string]any{"suspend": false}

	template := manifest.Map(obj, "spec", "template")
	affinity, ours, changed := avoid(manifest.Map(template, "spec"), manifest.Annotation(obj, markAvoid), with.Avoid)
	if !changed && manifest.Annotation(template, remedy.MarkResumeFrom) == with.Resume {
		return Change{Patch: plain}, nil
	}
	marks[markAvoid] = ours
	full := mark(marks)
	change := mark(map[string]string{remedy.MarkResumeFrom: with.Resume})
	if changed {
		change["spec"] = map[string]any{"affinity": affinity}
	}
	full["spec"] = map[string]any{"suspend": false, "template": change}
	return Change{Patch: full, Else: &Change{
		Patch: plain,
		Note:  "the API does not let the template of a job that ran be changed (Kubernetes before 1.36): it was started without " + remedy.MarkResumeFrom + " and without avoiding nodes",
	}}, nil
}

// settled refuses a job that was told to stop and has not yet: resumed now, its
// controller might never see that it was to stop.
func (batch) settled(obj map[string]any) error {
	active, _ := manifest.Int(obj, "status", "active")
	_, ran := manifest.Map(obj, "status")["startTime"]
	if active > 0 || ran && manifest.ConditionOf(obj, "Suspended").Status != fleet.True {
		return failure(remedy.Conflict, "job %s is not suspended yet: %d pods are active", ref(obj), active)
	}
	return nil
}

// Recipe writes annotations of the pod template, since containers of a Job can't be
// changed at all. Before Kubernetes 1.36 the API refuses those too once the job ran.
func (b batch) Recipe(obj map[string]any, key string, env map[string]string) (Change, error) {
	if err := b.ours(obj); err != nil {
		return Change{}, err
	}
	if !manifest.Bool(obj, "spec", "suspend") {
		return Change{}, failure(remedy.Yielded, "job %s is not suspended any more", ref(obj))
	}
	if err := b.settled(obj); err != nil {
		return Change{}, err
	}
	values := map[string]string{}
	for name, value := range env {
		values[remedy.MarkEnv+name] = value
	}
	patch := mark(map[string]string{remedy.MarkRecipeBy: key})
	patch["spec"] = map[string]any{"template": mark(values)}
	return Change{Patch: patch}, nil
}

func (batch) Claims(obj map[string]any) []string {
	var out []string
	for _, v := range manifest.List(obj, "spec", "template", "spec", "volumes") {
		if name := manifest.String(v, "persistentVolumeClaim", "claimName"); name != "" && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

func ref(obj map[string]any) string {
	return manifest.String(obj, "metadata", "namespace") + "/" + manifest.String(obj, "metadata", "name")
}

// lives refuses jobs that have ended.
func (b batch) lives(obj map[string]any) error {
	if j := b.Job(obj, time.Time{}); j.Phase.Ended() {
		return failure(remedy.Gone, "job %s has ended: it %s", ref(obj), j.Phase)
	}
	if manifest.String(obj, "metadata", "deletionTimestamp") != "" {
		return failure(remedy.Gone, "job %s is being deleted", ref(obj))
	}
	return nil
}

// ours refuses jobs that somebody else decides over: what we wrote to those would be
// undone, or would confuse whoever owns them.
func (b batch) ours(obj map[string]any) error {
	if err := b.lives(obj); err != nil {
		return err
	}
	if q := queue(obj); q != "" {
		return failure(remedy.Rejected, "job %s is in queue %s: the batch adapter does not stop jobs that Kueue manages", ref(obj), q)
	}
	if by := manifest.String(obj, "spec", "managedBy"); by != "" && by != jobController {
		return failure(remedy.Rejected, "job %s is managed by %s: the batch adapter does not stop jobs that another controller manages", ref(obj), by)
	}
	if owner := manifest.Controller(obj); owner != nil {
		return failure(remedy.Rejected, "job %s is owned by %s %s: the batch adapter does not stop jobs that another controller owns", ref(obj), manifest.String(owner, "kind"), manifest.String(owner, "name"))
	}
	return nil
}
