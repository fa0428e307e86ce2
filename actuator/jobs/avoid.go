package jobs

import (
	"maps"
	"slices"
	"strings"

	"stoker.dev/stoker/actuator/jobs/manifest"
)

// markAvoid on a job lists the nodes, comma separated, that its pods avoid on our
// account, so that they can be let go again without touching what the user wrote.
const markAvoid = "stoker.dev/avoid"

const (
	fieldName     = "metadata.name"
	labelHostname = "kubernetes.io/hostname"
)

// Nodes are avoided by their name, in matchFields, and not by kubernetes.io/hostname:
// that label is often another name than the node's. An API accepts one name for each
// entry. Terms are alternatives, so each of them has to exclude the node.

// avoid returns the affinity, as a merge patch of a pod spec's, with which pods land on
// none of the nodes, and the value of markAvoid. ours is its value so far: what it
// lists and is not wanted any more is let go. changed is false when nothing has to be
// written to the template.
func avoid(podSpec map[string]any, ours string, nodes []string) (affinity map[string]any, mark string, changed bool) {
	had := split(ours)
	terms := manifest.List(podSpec, "affinity", "nodeAffinity", required, termsKey)
	// What the user excludes already is not ours to add, nor to let go later.
	add := map[string]bool{}
	for _, n := range nodes {
		if n != "" && (slices.Contains(had, n) || !excludedByAll(terms, n)) {
			add[n] = true
		}
	}
	want := slices.Sorted(maps.Keys(add))
	if slices.Equal(want, had) {
		return nil, ours, false
	}
	out := make([]any, 0, len(terms)+1)
	for _, t := range terms {
		if len(manifest.List(t, "matchExpressions"))+len(manifest.List(t, "matchFields")) == 0 {
			out = append(out, t) // it matches nothing; with an entry of ours it would match
			continue
		}
		term := maps.Clone(t)
		var entries []any
		for _, f := range without(manifest.List(t, "matchFields"), had) {
			entries = append(entries, f)
		}
		for _, n := range want {
			entries = append(entries, exclude(n))
		}
		delete(term, "matchFields")
		if len(entries) > 0 {
			term["matchFields"] = entries
		}
		if len(term) > 0 {
			out = append(out, term)
		}
	}
	if len(terms) == 0 && len(want) > 0 {
		var entries []any
		for _, n := range want {
			entries = append(entries, exclude(n))
		}
		out = append(out, map[string]any{"matchFields": entries})
	}
	var req any // null removes it: no term is left, since the only ones were ours
	if len(out) > 0 {
		req = map[string]any{termsKey: out}
	}
	return map[string]any{"nodeAffinity": map[string]any{required: req}}, strings.Join(want, ","), true
}

const (
	required = "requiredDuringSchedulingIgnoredDuringExecution"
	termsKey = "nodeSelectorTerms"
)

func exclude(node string) map[string]any {
	return map[string]any{"key": fieldName, "operator": "NotIn", "values": []any{node}}
}

// without returns the entries without one for each of the nodes: the last, which is
// ours, where the user has excluded the same node.
func without(entries []map[string]any, nodes []string) []map[string]any {
	for _, n := range nodes {
		for i := len(entries) - 1; i >= 0; i-- {
			if slices.Equal(excluded(entries[i], fieldName), []string{n}) {
				entries = slices.Delete(entries, i, i+1)
				break
			}
		}
	}
	return entries
}

// excluded returns the values of key that an entry excludes.
func excluded(entry map[string]any, key string) []string {
	if manifest.String(entry, "key") != key || manifest.String(entry, "operator") != "NotIn" {
		return nil
	}
	list, _ := entry["values"].([]any)
	var out []string
	for _, v := range list {
		if s, ok := v.(string); ok {
			out = append(out, s)
		}
	}
	return out
}

// excludes returns the nodes that one term excludes, by name or by the host name label.
func excludes(term map[string]any) []string {
	var out []string
	for _, f := range manifest.List(term, "matchFields") {
		out = append(out, excluded(f, fieldName)...)
	}
	for _, e := range manifest.List(term, "matchExpressions") {
		out = append(out, excluded(e, labelHostname)...)
	}
	return out
}

func excludedByAll(terms []map[string]any, node string) bool {
	for _, t := range terms {
		if !slices.Contains(excludes(t), node) {
			return false
		}
	}
	return len(terms) > 0
}

// avoided returns the nodes that a pod with this spec cannot land on because it
// excludes them, in order: those that every term excludes.
func avoided(podSpec map[string]any) []string {
	terms := manifest.List(podSpec, "affinity", "nodeAffinity", required, termsKey)
	if len(terms) == 0 {
		return nil
	}
	var out []string
	for _, n := range excludes(terms[0]) {
		if excludedByAll(terms, n) && !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

func split(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}
