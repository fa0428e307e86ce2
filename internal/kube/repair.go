package kube

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/actuator/jobs/manifest"
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// What a repair's containers are told.
const (
	envBootID = "STOKER_EXPECT_BOOT_ID" // the boot in which they are to act; in any other they must do nothing
	envNode   = "STOKER_NODE"
	envGPU    = "STOKER_GPU" // uuid of the GPU, of a repair that is about one
)

const (
	repairDeadline = 20 * 60          // seconds that a repair may run when its template does not say
	repairKept     = 7 * 24 * 60 * 60 // seconds that it is kept when it has ended
)

// The repair templates of a configuration that names none.
var (
	//go:embed reboot.yaml
	defaultReboot []byte
	//go:embed reset.yaml
	defaultReset []byte
)

// Templates are what repairs are made from, by action.
type Templates map[string]Template

// ParseTemplates reads the template of each action that has one: those given, and of the
// others the one that is shipped. The error names the action.
func ParseTemplates(given map[string][]byte) (Templates, error) {
	out := Templates{}
	for action, data := range map[string][]byte{"reboot": defaultReboot, "reset": defaultReset} {
		if own, ok := given[action]; ok {
			data = own
		}
		t, err := ParseTemplate(data, "")
		if err != nil {
			return nil, fmt.Errorf("%s: %w", action, err)
		}
		out[action] = t
	}
	return out, nil
}

// A Template is the Job that every repair is made from. Its zero value runs nothing.
type Template struct{ job *batchv1.Job }

// ParseTemplate reads a repair template: the YAML of a batch/v1 Job. What Stoker sets
// itself, it may not set. image, where it is not empty, replaces that of every
// container. The error names all mistakes.
func ParseTemplate(data []byte, image string) (Template, error) {
	job := &batchv1.Job{}
	if err := yaml.UnmarshalStrict(data, job); err != nil {
		return Template{}, fmt.Errorf("repair template: %w", err)
	}
	var errs []error
	bad := func(path, format string, args ...any) {
		errs = append(errs, fmt.Errorf("repair template: %s: %s", path, fmt.Sprintf(format, args...)))
	}
	if job.APIVersion != "batch/v1" || job.Kind != "Job" {
		bad("apiVersion, kind", "it is a %q of %q, not a Job of batch/v1", job.Kind, job.APIVersion)
	}
	spec, pod := &job.Spec, &job.Spec.Template.Spec
	for _, f := range []struct {
		path string
		set  bool
	}{
		{"metadata.name", job.Name != "" || job.GenerateName != ""},
		{"metadata.namespace", job.Namespace != ""},
		{"metadata.ownerReferences", len(job.OwnerReferences) > 0},
		{"spec.suspend", spec.Suspend != nil},
		{"spec.parallelism", spec.Parallelism != nil && *spec.Parallelism != 1},
		{"spec.completions", spec.Completions != nil && *spec.Completions != 1},
		{"spec.backoffLimit", spec.BackoffLimit != nil && *spec.BackoffLimit != 0},
		{"spec.selector", spec.Selector != nil || spec.ManualSelector != nil},
		{"spec.managedBy", spec.ManagedBy != nil},
		{"spec.template.spec.restartPolicy", pod.RestartPolicy != "" && pod.RestartPolicy != corev1.RestartPolicyNever},
		{"spec.template.spec.nodeName", pod.NodeName != ""},
		{"spec.template.spec.nodeSelector", len(pod.NodeSelector) > 0},
		{"spec.template.spec.affinity", pod.Affinity != nil},
		{"spec.template.spec.tolerations", len(pod.Tolerations) > 0},
		{"status", job.Status.StartTime != nil || len(job.Status.Conditions) > 0},
	} {
		if f.set {
			bad(f.path, "Stoker sets it itself: a repair runs once, on the node that it is for")
		}
	}
	if spec.ActiveDeadlineSeconds != nil && *spec.ActiveDeadlineSeconds <= 0 {
		bad("spec.activeDeadlineSeconds", "%d is not positive", *spec.ActiveDeadlineSeconds)
	}
	if len(pod.Containers) == 0 {
		bad("spec.template.spec.containers", "there is none")
	}
	for _, list := range []struct {
		path       string
		containers []corev1.Container
	}{{"containers", pod.Containers}, {"initContainers", pod.InitContainers}} {
		for i, c := range list.containers {
			path := fmt.Sprintf("spec.template.spec.%s[%d]", list.path, i)
			if image != "" {
				list.containers[i].Image = image
			} else if c.Image == "" {
				bad(path+".image", "there is none")
			}
			for _, e := range c.Env {
				if e.Name == envBootID || e.Name == envNode || e.Name == envGPU {
					bad(path+".env", "Stoker sets %s itself", e.Name)
				}
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return Template{}, err
	}
	return Template{job}, nil
}

// make returns the Job of a repair.
func (t Template) make(r actuator.Repair, namespace string) *batchv1.Job {
	job := t.job.DeepCopy()
	job.Name, job.Namespace = r.Name, namespace
	for _, meta := range []*metav1.ObjectMeta{&job.ObjectMeta, &job.Spec.Template.ObjectMeta} {
		metav1.SetMetaDataLabel(meta, remedy.MarkAction, r.Action)
		metav1.SetMetaDataAnnotation(meta, remedy.MarkAction, r.Action)
		metav1.SetMetaDataAnnotation(meta, remedy.MarkKey, r.Key)
		metav1.SetMetaDataAnnotation(meta, remedy.MarkBootID, r.BootID)
		if r.GPU != "" {
			metav1.SetMetaDataAnnotation(meta, remedy.MarkGPU, r.GPU)
		}
	}
	spec, pod := &job.Spec, &job.Spec.Template.Spec
	spec.Parallelism, spec.Completions, spec.BackoffLimit = new(int32(1)), new(int32(1)), new(int32(0))
	if spec.ActiveDeadlineSeconds == nil {
		spec.ActiveDeadlineSeconds = new(int64(repairDeadline))
	}
	if spec.TTLSecondsAfterFinished == nil {
		spec.TTLSecondsAfterFinished = new(int32(repairKept))
	}
	pod.RestartPolicy = corev1.RestartPolicyNever
	pod.NodeName = r.Node // no scheduler is asked: the node is cordoned
	pod.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	if pod.AutomountServiceAccountToken == nil {
		pod.AutomountServiceAccountToken = new(false)
	}
	env := []corev1.EnvVar{{Name: envBootID, Value: r.BootID}, {Name: envNode, Value: r.Node}}
	if r.GPU != "" {
		env = append(env, corev1.EnvVar{Name: envGPU, Value: r.GPU})
	}
	for _, list := range [][]corev1.Container{pod.Containers, pod.InitContainers} {
		for i := range list {
			list[i].Env = slices.Concat(list[i].Env, env)
		}
	}
	return job
}

// Repair reads the repair of that name, and of one that has failed what it said last.
func (c *Cluster) Repair(ctx context.Context, name string) (actuator.Repair, error) {
	obj, err := c.client.Get(ctx, jobResource, c.own, name)
	if err != nil {
		return actuator.Repair{}, err
	}
	r := repairOf(obj)
	if !r.Failed {
		return r, nil
	}
	pods, err := c.client.List(ctx, podResource, c.own, batchv1.JobNameLabel+"="+name, "")
	if err != nil {
		return r, nil //nolint:nilerr // that it has failed is known; its words are a courtesy
	}
	for i := range pods {
		if _, end, failed := c.pods.Failure(pods[i].Object); failed && end.Message != "" {
			r.Note = lastLines(end.Message) + " (" + r.Note + ")"
			break
		}
	}
	return r, nil
}

// lastLines is the end of what a container has said, in one line.
func lastLines(text string) string {
	const most = 3
	lines := slices.DeleteFunc(strings.Split(text, "\n"), func(l string) bool { return strings.TrimSpace(l) == "" })
	return strings.Join(lines[max(0, len(lines)-most):], "; ")
}

// CreateRepair creates it under its name. A repair is for one boot of one node.
func (c *Cluster) CreateRepair(ctx context.Context, r actuator.Repair) (actuator.Repair, error) {
	template := (*c.repairs.Load())[r.Action]
	switch {
	case template.job == nil:
		return actuator.Repair{}, failure(remedy.Rejected, "repair %s: no template is configured for %q", r.Name, r.Action)
	case r.Node == "" || r.BootID == "" || r.Key == "":
		return actuator.Repair{}, failure(remedy.Rejected, "repair %s: node %q, boot %q and key %q have to be known", r.Name, r.Node, r.BootID, r.Key)
	}
	if msgs := validation.IsValidLabelValue(r.Action); len(msgs) > 0 || r.Action == "" {
		return actuator.Repair{}, failure(remedy.Rejected, "repair %s: action %q cannot be a label: %v", r.Name, r.Action, msgs)
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(template.make(r, c.own))
	if err != nil {
		return actuator.Repair{}, failure(remedy.Rejected, "repair %s: %w", r.Name, err)
	}
	delete(content, "status")
	obj, err := c.client.Create(ctx, jobResource, &unstructured.Unstructured{Object: content})
	if err != nil {
		return actuator.Repair{}, err
	}
	return repairOf(obj), nil
}

func repairOf(obj *unstructured.Unstructured) actuator.Repair {
	r := actuator.Repair{
		Name:    obj.GetName(),
		Action:  manifest.Annotation(obj.Object, remedy.MarkAction),
		Key:     manifest.Annotation(obj.Object, remedy.MarkKey),
		Node:    manifest.String(obj.Object, "spec", "template", "spec", "nodeName"),
		GPU:     manifest.Annotation(obj.Object, remedy.MarkGPU),
		BootID:  manifest.Annotation(obj.Object, remedy.MarkBootID),
		Version: manifest.Version(obj.Object),
		Note:    "runs",
	}
	switch {
	case manifest.ConditionOf(obj.Object, "Failed").Status == fleet.True:
		r.Failed = true
		r.Note = "failed"
		for _, cond := range manifest.List(obj.Object, "status", "conditions") {
			if manifest.String(cond, "type") == "Failed" {
				r.Note = fmt.Sprintf("%s: %s", manifest.String(cond, "reason"), manifest.String(cond, "message"))
			}
		}
	case manifest.ConditionOf(obj.Object, "Complete").Status == fleet.True:
		r.Done, r.Note = true, "has ended well"
	}
	return r
}
