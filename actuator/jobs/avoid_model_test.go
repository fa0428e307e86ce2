package jobs

import (
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"stoker.dev/stoker/actuator/jobs/manifest"
)

// A model of what Kubernetes makes of node affinity, for TestAvoid.

// lands reports whether a pod with this spec may land on a node: one of its terms, if
// there are any, must hold whole, and a term without entries never does.
func lands(podSpec map[string]any, node, zone string) bool {
	terms := termsOf(podSpec)
	if terms == nil {
		return true
	}
	for _, t := range terms {
		entries := append(manifest.List(t.(map[string]any), "matchExpressions"), manifest.List(t.(map[string]any), "matchFields")...)
		holds := len(entries) > 0
		for _, e := range entries {
			value := zone
			if e["key"] == fieldName {
				value = node
			}
			in := slices.Contains(e["values"].([]any), any(value))
			if in != (e["operator"] == "In") {
				holds = false
			}
		}
		if holds {
			return true
		}
	}
	return false
}

func termsOf(podSpec map[string]any) []any {
	list, _ := manifest.Map(podSpec, "affinity", "nodeAffinity", required)[termsKey].([]any)
	return list
}

// apply merges an affinity patch into a copy of the spec, as the API does.
func apply(podSpec, affinity map[string]any) map[string]any {
	out := plainOf(podSpec)
	req := affinity["nodeAffinity"].(map[string]any)[required]
	if req == nil {
		unstructured.RemoveNestedField(out, "affinity", "nodeAffinity", required)
		return out
	}
	out["affinity"] = map[string]any{"nodeAffinity": map[string]any{required: plainOf(req.(map[string]any))}}
	return out
}

func plainOf(m map[string]any) map[string]any {
	return (&unstructured.Unstructured{Object: m}).DeepCopy().Object
}

func anys(list []map[string]any) []any {
	out := make([]any, len(list))
	for i, m := range list {
		out[i] = m
	}
	return out
}

func contains(list []string, s string) bool { return slices.Contains(list, s) }
