package store

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"stoker.dev/stoker/internal/remedy"
)

// Incidents is the resource that [Resource] keeps; its definition is in deploy/crds.
var Incidents = schema.GroupVersionResource{Group: "stoker.dev", Version: "v1alpha1", Resource: "incidents"}

// noVersion is one that no object has. An empty one would let the patch apply to any.
const noVersion = "1"

// objects is what the store needs of a cluster. Errors carry a [remedy.Failure]
// where it is known what became of the write.
type objects interface {
	List(ctx context.Context, res schema.GroupVersionResource, namespace, labels, fields string) ([]unstructured.Unstructured, error)
	Create(ctx context.Context, res schema.GroupVersionResource, obj *unstructured.Unstructured) (*unstructured.Unstructured, error)
	Patch(ctx context.Context, res schema.GroupVersionResource, namespace, name string, pt types.PatchType, patch []byte) (*unstructured.Unstructured, error)
	Delete(ctx context.Context, res schema.GroupVersionResource, namespace, name, version string) error
}

// Resource keeps incidents as custom resources in one namespace. Its versions are
// resource versions. It may be used by several goroutines.
type Resource struct {
	objects   objects
	namespace string
}

// NewResource returns the store of the incidents in a namespace.
func NewResource(o objects, namespace string) *Resource { return &Resource{o, namespace} }

// List reads all incidents live, and a [Corrupt] for each that cannot be read.
func (s *Resource) List(ctx context.Context) ([]remedy.Incident, error) {
	objs, err := s.objects.List(ctx, Incidents, s.namespace, "", "")
	if err != nil {
		return nil, fmt.Errorf("list incidents: %w", err)
	}
	var (
		all = []remedy.Incident{} // not nil, also when none can be read
		bad []*Corrupt
	)
	for i := range objs {
		in, err := fromObject(&objs[i])
		if err != nil {
			bad = append(bad, &Corrupt{objs[i].GetName(), err})
			continue
		}
		all = append(all, in)
	}
	return all, joinCorrupt(bad)
}

// Create stores a new incident; Conflict when its name is taken.
func (s *Resource) Create(ctx context.Context, in remedy.Incident) (remedy.Incident, error) {
	status, err := statusOf(in)
	if err != nil {
		return remedy.Incident{}, err
	}
	obj := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"namespace": s.namespace, "name": in.Name},
		"spec":     map[string]any{"subject": in.Subject.String(), "class": string(in.Class)},
		"status":   status,
	}}
	obj.SetGroupVersionKind(Incidents.GroupVersion().WithKind("Incident"))
	obj, err = s.objects.Create(ctx, Incidents, obj)
	if err != nil {
		return remedy.Incident{}, fmt.Errorf("create incident %s: %w", in.Name, err)
	}
	return stored(in, obj)
}

// Update replaces the incident if its version is still in.Version. What people have
// put on the object besides, labels and annotations, stays.
func (s *Resource) Update(ctx context.Context, in remedy.Incident) (remedy.Incident, error) {
	status, err := statusOf(in)
	if err != nil {
		return remedy.Incident{}, err
	}
	// Merging would keep what the incident has no longer, so the status is replaced whole.
	// A version that the object has no longer makes the server refuse the patch as a conflict.
	patch, err := json.Marshal([]map[string]any{
		{"op": "replace", "path": "/metadata/resourceVersion", "value": cmp.Or(in.Version, noVersion)},
		{"op": "add", "path": "/status", "value": status},
	})
	if err != nil {
		return remedy.Incident{}, failure(remedy.Rejected, "incident %s: %w", in.Name, err)
	}
	obj, err := s.objects.Patch(ctx, Incidents, s.namespace, in.Name, types.JSONPatchType, patch)
	if err != nil {
		return remedy.Incident{}, fmt.Errorf("update incident %s: %w", in.Name, err)
	}
	return stored(in, obj)
}

// Delete removes a closed incident if its version is still in.Version.
func (s *Resource) Delete(ctx context.Context, in remedy.Incident) error {
	if err := checkClosed(in); err != nil {
		return err
	}
	if err := s.objects.Delete(ctx, Incidents, s.namespace, in.Name, in.Version); err != nil {
		return fmt.Errorf("delete incident %s: %w", in.Name, err)
	}
	return nil
}

// statusOf returns the stored form of the incident with what the columns show.
func statusOf(in remedy.Incident) (map[string]any, error) {
	data, err := encode(in)
	if err != nil {
		return nil, err
	}
	status := map[string]any{}
	if err := utiljson.Unmarshal(data, &status); err != nil {
		return nil, fmt.Errorf("incident %s: %w", in.Name, err)
	}
	status["step"] = in.StepName()
	return status, nil
}

// stored returns the incident with its version, once the object shows that it was
// kept: a definition without the schema of ours would have the server drop it.
func stored(in remedy.Incident, obj *unstructured.Unstructured) (remedy.Incident, error) {
	if _, err := fromObject(obj); err != nil {
		return remedy.Incident{}, fmt.Errorf("incident %s was not kept as it was sent; is the definition of %s the one of this version? %w", in.Name, Incidents.GroupResource(), err)
	}
	in = in.Clone()
	in.Version = obj.GetResourceVersion()
	return in, nil
}

func fromObject(obj *unstructured.Unstructured) (remedy.Incident, error) {
	status, ok := obj.Object["status"].(map[string]any)
	if !ok {
		return remedy.Incident{}, fmt.Errorf("it has no status")
	}
	data, err := json.Marshal(status)
	if err != nil {
		return remedy.Incident{}, err
	}
	in, err := decode(obj.GetName(), data)
	if err != nil {
		return remedy.Incident{}, err
	}
	in.Version = obj.GetResourceVersion()
	return in, nil
}
