package spine

import (
	"fmt"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestTheAccountMayDoNoMore asks the API server what the account that `stoker manifests` sets
// up may do beside what the other tests show that it needs: nothing of this.
func TestTheAccountMayDoNoMore(t *testing.T) {
	f := setUp(t, "account", needs{nodes: 1})
	f.Namespace(t, f.train)
	for _, may := range []struct {
		group, resource, sub, verb, namespace string
		want                                  bool
	}{
		{"", "nodes", "", "patch", "", true}, // or the question is asked wrongly
		{"", "nodes", "", "delete", "", false},
		{"", "nodes", "", "create", "", false},
		{"", "nodes", "status", "patch", "", false},
		{"", "pods", "", "delete", f.train, false},
		{"", "pods", "", "create", f.train, false},
		{"", "pods", "", "create", f.system, false},
		{"", "pods", "exec", "create", f.train, false},
		{"", "pods", "eviction", "create", f.train, true},
		{"", "secrets", "", "get", f.train, false},
		{"", "secrets", "", "list", f.system, false},
		{"", "configmaps", "", "get", f.train, false},
		{"", "serviceaccounts", "token", "create", f.system, false},
		{"batch", "jobs", "", "create", f.train, false},
		{"batch", "jobs", "", "create", f.system, true},
		{"batch", "jobs", "", "delete", f.train, false},
		{"batch", "jobs", "", "deletecollection", f.train, false},
		{"batch", "jobs", "status", "patch", f.train, false},
		{"apps", "deployments", "", "patch", f.train, false},
		{"stoker.dev", "incidents", "", "patch", f.system, true},
		{"stoker.dev", "incidents", "", "create", f.train, false},
		{"coordination.k8s.io", "leases", "", "update", "kube-system", false},
		{"rbac.authorization.k8s.io", "clusterroles", "", "update", "", false},
		{"rbac.authorization.k8s.io", "rolebindings", "", "create", f.system, false},
		{"apiextensions.k8s.io", "customresourcedefinitions", "", "update", "", false},
	} {
		review, err := f.Client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{
				User:   f.user,
				Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + f.system, "system:authenticated"},
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Group: may.group, Resource: may.resource, Subresource: may.sub, Verb: may.verb, Namespace: may.namespace,
				},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		what := fmt.Sprintf("%s %s/%s.%s in %q", may.verb, may.resource, may.sub, may.group, may.namespace)
		if review.Status.Allowed != may.want {
			t.Errorf("may the account %s: %v, want %v (%s)", what, review.Status.Allowed, may.want, review.Status.Reason)
		}
	}
}
