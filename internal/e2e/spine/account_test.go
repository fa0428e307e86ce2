package spine

import (
	"fmt"
	"testing"

	"stoker.dev/stoker/internal/e2e/scene"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestTheAccountMayDoNoMore asks the API server what the account that `stoker manifests` sets
// up may do beside what the other tests show that it needs: nothing of this.
func TestTheAccountMayDoNoMore(t *testing.T) {
	f := scene.SetUp(t, "account", scene.Needs{Nodes: 1})
	f.Namespace(t, f.Train)
	for _, may := range []struct {
		group, resource, sub, verb, namespace string
		want                                  bool
	}{
		{"", "nodes", "", "patch", "", true}, // or the question is asked wrongly
		{"", "nodes", "", "delete", "", false},
		{"", "nodes", "", "create", "", false},
		{"", "nodes", "status", "patch", "", false},
		{"", "pods", "", "delete", f.Train, false},
		{"", "pods", "", "create", f.Train, false},
		{"", "pods", "", "create", f.System, false},
		{"", "pods", "exec", "create", f.Train, false},
		{"", "pods", "eviction", "create", f.Train, true},
		{"", "secrets", "", "get", f.Train, false},
		{"", "secrets", "", "list", f.System, false},
		{"", "configmaps", "", "get", f.Train, false},
		{"", "serviceaccounts", "token", "create", f.System, false},
		{"batch", "jobs", "", "create", f.Train, false},
		{"batch", "jobs", "", "create", f.System, true},
		{"batch", "jobs", "", "delete", f.Train, false},
		{"batch", "jobs", "", "deletecollection", f.Train, false},
		{"batch", "jobs", "status", "patch", f.Train, false},
		{"apps", "deployments", "", "patch", f.Train, false},
		{"stoker.dev", "incidents", "", "patch", f.System, true},
		{"stoker.dev", "incidents", "", "create", f.Train, false},
		{"coordination.k8s.io", "leases", "", "update", "kube-system", false},
		{"rbac.authorization.k8s.io", "clusterroles", "", "update", "", false},
		{"rbac.authorization.k8s.io", "rolebindings", "", "create", f.System, false},
		{"apiextensions.k8s.io", "customresourcedefinitions", "", "update", "", false},
	} {
		review, err := f.Client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{
				User:   f.User,
				Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + f.System, "system:authenticated"},
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
