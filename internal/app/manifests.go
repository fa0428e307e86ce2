package app

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/actuator/jobs"
	"stoker.dev/stoker/deploy/crds"
	"stoker.dev/stoker/internal/kube"
)

// Permissions are all that the service's account needs: what its parts say they do,
// and nothing else but what is given as more. Each resource is in it once.
func Permissions(more ...actuator.Rule) []actuator.Rule {
	lists := [][]actuator.Rule{more, kube.ReadRules, kube.LeaseRules, kube.EventRules, kube.TokenRules, kube.IncidentRules}
	for _, a := range actuator.Actions {
		lists = append(lists, a.RBAC)
	}
	for _, j := range jobs.Adapters {
		lists = append(lists, j.RBAC)
	}
	type key struct {
		group, resource string
		own             bool
	}
	verbs := map[key][]string{}
	for _, r := range slices.Concat(lists...) {
		k := key{r.Group, r.Resource, r.Own}
		verbs[k] = append(verbs[k], r.Verbs...)
	}
	var out []actuator.Rule
	for k, v := range verbs {
		slices.Sort(v)
		out = append(out, actuator.Rule{Group: k.group, Resource: k.resource, Own: k.own, Verbs: slices.Compact(v)})
	}
	slices.SortFunc(out, func(a, b actuator.Rule) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Resource, b.Resource))
	})
	return out
}

// Manifests is the YAML that an administrator applies before the service can run:
// namespace, account, the definition of incidents and the account's rights. Reading logs
// takes one that it has only where readLogs is set; see [FailuresConfig].
func Manifests(namespace, account string, readLogs bool) []byte {
	var b bytes.Buffer
	var more []actuator.Rule
	if readLogs {
		more = kube.LogRules
	}
	fmt.Fprintf(&b, "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: %s\n  labels:\n    # Repairs run there, and a reboot is a privileged pod.\n    pod-security.kubernetes.io/enforce: privileged\n---\n", namespace)
	fmt.Fprintf(&b, "apiVersion: v1\nkind: ServiceAccount\nmetadata:\n  name: %s\n  namespace: %s\n---\n", account, namespace)
	b.Write(bytes.TrimSpace(crds.Incidents))
	b.WriteString("\n---\n")
	role(&b, "ClusterRole", namespace, account, false, more)
	role(&b, "Role", namespace, account, true, more)
	return bytes.TrimSuffix(b.Bytes(), []byte("---\n"))
}

// role writes one role with its binding.
func role(b *bytes.Buffer, kind, namespace, account string, own bool, more []actuator.Rule) {
	where := ""
	if own {
		where = "  namespace: " + namespace + "\n"
	}
	fmt.Fprintf(b, "apiVersion: rbac.authorization.k8s.io/v1\nkind: %s\nmetadata:\n  name: %s\n%srules:\n", kind, account, where)
	for _, r := range Permissions(more...) {
		if r.Own == own {
			fmt.Fprintf(b, "  - apiGroups: [%q]\n    resources: [%s]\n    verbs: [%s]\n", r.Group, r.Resource, strings.Join(r.Verbs, ", "))
		}
	}
	fmt.Fprintf(b, "---\napiVersion: rbac.authorization.k8s.io/v1\nkind: %sBinding\nmetadata:\n  name: %s\n%sroleRef:\n  apiGroup: rbac.authorization.k8s.io\n  kind: %s\n  name: %s\nsubjects:\n  - kind: ServiceAccount\n    name: %s\n    namespace: %s\n---\n",
		kind, account, where, kind, account, account, namespace)
}
