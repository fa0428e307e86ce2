package observe

import (
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"stoker.dev/stoker/actuator/jobs/manifest"
	"stoker.dev/stoker/internal/fleet"
)

// mirrorMark is on a pod that the kubelet runs from a file.
const mirrorMark = "kubernetes.io/config.mirror"

// Pods observes pods that have not ended, and how those of jobs have ended.
type Pods struct {
	// Owners are the kinds of job that may own pods. A pod of any other owner belongs to
	// no job that we know.
	Owners []schema.GroupKind
}

// Kinds is the core pod.
func (Pods) Kinds() []schema.GroupVersionKind {
	return []schema.GroupVersionKind{{Version: "v1", Kind: "Pod"}}
}

// Observe adds the pods that have not ended, and how those of jobs have ended badly.
func (o Pods) Observe(objs []unstructured.Unstructured, into *fleet.Facts) {
	for i := range objs {
		if job, f, failed := o.Failure(objs[i].Object); failed {
			into.Failures[job] = append(into.Failures[job], f)
		}
		if p, runs := o.Pod(objs[i].Object); runs {
			into.Pods[p.UID] = p
		}
	}
}

// Pod reads one pod; false when it has ended.
func (o Pods) Pod(obj map[string]any) (fleet.Pod, bool) {
	phase := manifest.String(obj, "status", "phase")
	if phase == "Succeeded" || phase == "Failed" {
		return fleet.Pod{}, false
	}
	owner := manifest.Controller(obj)
	demand := manifest.Demand(manifest.Map(obj, "spec"))
	p := fleet.Pod{
		PodRef: fleet.PodRef{
			Namespace: manifest.String(obj, "metadata", "namespace"),
			Name:      manifest.String(obj, "metadata", "name"),
			UID:       manifest.String(obj, "metadata", "uid"),
			Node:      manifest.String(obj, "spec", "nodeName"),
		},
		GPUs:        demand.GPUs,
		Share:       demand.Share,
		Running:     phase == "Running",
		Terminating: manifest.String(obj, "metadata", "deletionTimestamp") != "",
		Controlled:  owner != nil,
	}
	// The kubelet alone owns mirror pods, by a reference to their node.
	p.Resident = manifest.Annotation(obj, mirrorMark) != ""
	switch manifest.String(owner, "kind") {
	case "DaemonSet", "Node":
		p.Resident = true
	default:
		p.Job = o.job(obj)
	}
	return p, true
}

// job is the job that owns the pod; zero when none that we know does.
func (o Pods) job(obj map[string]any) fleet.JobRef {
	owner := manifest.Controller(obj)
	kind := manifest.String(owner, "kind")
	group, _, slash := strings.Cut(manifest.String(owner, "apiVersion"), "/")
	if !slash {
		group = "" // the core group has none
	}
	for _, k := range o.Owners {
		if k.Kind == kind && k.Group == group {
			return fleet.JobRef{Kind: k.String(), Namespace: manifest.String(obj, "metadata", "namespace"), Name: manifest.String(owner, "name")}
		}
	}
	return fleet.JobRef{}
}

// Trim keeps what Pod and Failure read.
func (o Pods) Trim(obj map[string]any) map[string]any {
	spec := manifest.PickDemand(manifest.Map(obj, "spec"))
	if node := manifest.String(obj, "spec", "nodeName"); node != "" {
		spec["nodeName"] = node
	}
	status := manifest.Pick(manifest.Map(obj, "status"), "phase")
	if o.job(obj) != (fleet.JobRef{}) {
		trimFailure(manifest.Map(obj, "status"), status)
	}
	return map[string]any{"metadata": manifest.PickMeta(obj, mirrorMark), "spec": spec, "status": status}
}
