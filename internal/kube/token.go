package kube

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var tokenReviews = schema.GroupVersionResource{Group: "authentication.k8s.io", Version: "v1", Resource: "tokenreviews"}

// nodeOfToken is where the API server says on which node the pod runs that a token is
// bound to, since Kubernetes 1.30.
const nodeOfToken = "authentication.kubernetes.io/node-name"

// A Bearer is who a token speaks for.
type Bearer struct {
	User string // system:serviceaccount:NAMESPACE:NAME; empty: the token is not valid
	Node string // of the pod that it is bound to; empty: it is bound to none
}

// Review asks the API server about a token that was made for the audience. A token that
// is not valid is no error and has no user.
func (c *Client) Review(ctx context.Context, token, audience string) (Bearer, error) {
	answer, err := c.Create(ctx, tokenReviews, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
		"spec": map[string]any{"token": token, "audiences": []any{audience}},
	}})
	if err != nil {
		return Bearer{}, fmt.Errorf("review a token: %w", err)
	}
	if valid, _, _ := unstructured.NestedBool(answer.Object, "status", "authenticated"); !valid {
		return Bearer{}, nil
	}
	// A server that knows no audiences answers for its own, and says so by naming none.
	audiences, _, _ := unstructured.NestedStringSlice(answer.Object, "status", "audiences")
	if !slices.Contains(audiences, audience) {
		return Bearer{}, nil
	}
	var b Bearer
	b.User, _, _ = unstructured.NestedString(answer.Object, "status", "user", "username")
	nodes, _, _ := unstructured.NestedStringSlice(answer.Object, "status", "user", "extra", nodeOfToken)
	if len(nodes) == 1 {
		b.Node = nodes[0]
	}
	return b, nil
}
