package cluster

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	sigsyaml "sigs.k8s.io/yaml"
)

// fieldManager is the name under which the test writes by server-side apply.
const fieldManager = "e2e"

// ApplyYAML applies every object in data, which may hold many documents and
// lists, as the admin. Namespaces and custom resource definitions go first, and the
// definitions are waited for. Objects without a namespace go to "default".
func (c *Cluster) ApplyYAML(t testing.TB, data []byte) {
	t.Helper()
	objs, err := parseObjects(data)
	if err != nil {
		t.Fatal(err)
	}
	first := func(o unstructured.Unstructured) bool {
		return o.GetKind() == "Namespace" || o.GetKind() == "CustomResourceDefinition"
	}
	for _, early := range []bool{true, false} {
		for _, o := range objs {
			if first(o) == early {
				c.apply(t, o)
			}
		}
		for _, o := range objs {
			if early && o.GetKind() == "CustomResourceDefinition" {
				c.awaitEstablished(t, o.GetName())
			}
		}
	}
}

func (c *Cluster) apply(t testing.TB, o unstructured.Unstructured) {
	t.Helper()
	what := fmt.Sprintf("%s %s to be applied", o.GetKind(), o.GetName())
	c.Await(t, what, readyWithin, func(ctx context.Context) (bool, string, error) {
		gvk := o.GroupVersionKind()
		mapping, err := c.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
		if meta.IsNoMatchError(err) {
			c.mapper.Reset() // the kind may have come since
			return false, "", err
		}
		if err != nil {
			return false, "", err
		}
		client := c.Dynamic.Resource(mapping.Resource).Namespace("")
		if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
			client = c.Dynamic.Resource(mapping.Resource).Namespace(cmp.Or(o.GetNamespace(), metav1.NamespaceDefault))
		}
		_, err = client.Apply(ctx, o.GetName(), &o, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
		if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) {
			t.Fatalf("apply %s %s: %v", o.GetKind(), o.GetName(), err) // waiting won't mend it
		}
		return err == nil, "applied", err
	})
}

func (c *Cluster) awaitEstablished(t testing.TB, name string) {
	t.Helper()
	crds := c.Dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	c.Await(t, "custom resource definition "+name+" to be established", readyWithin, func(ctx context.Context) (bool, string, error) {
		crd, err := crds.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		conditions, _, err := unstructured.NestedSlice(crd.Object, "status", "conditions")
		if err != nil {
			return false, "", err
		}
		established := slices.ContainsFunc(conditions, func(c any) bool {
			m, ok := c.(map[string]any)
			return ok && m["type"] == "Established" && m["status"] == "True"
		})
		return established, fmt.Sprint(conditions), nil
	})
}

// parseObjects decodes all documents of data and opens lists.
func parseObjects(data []byte) ([]unstructured.Unstructured, error) {
	var objs []unstructured.Unstructured
	docs := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for n := 1; ; n++ {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return objs, nil
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
		var o unstructured.Unstructured
		if err := sigsyaml.Unmarshal(doc, &o.Object); err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
		if len(o.Object) == 0 { // only comments
			continue
		}
		if !o.IsList() {
			objs = append(objs, o)
			continue
		}
		list, err := o.ToList()
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
		objs = append(objs, list.Items...)
	}
}

// Namespace makes a namespace if it is not there, and waits for its default
// service account, without which it can run no pods.
func (c *Cluster) Namespace(t testing.TB, name string) {
	t.Helper()
	_, err := c.Client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatalf("create namespace %s: %v", name, err)
	}
	c.Await(t, "the default service account of namespace "+name, readyWithin, func(ctx context.Context) (bool, string, error) {
		_, err := c.Client.CoreV1().ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{})
		return err == nil, "there", err
	})
}

// ServiceAccountKubeconfig returns the path of a kubeconfig with a token of the
// service account, good for 24 hours. The namespace and the account are made
// where they are missing; what the account may do is for the test to say.
func (c *Cluster) ServiceAccountKubeconfig(t testing.TB, namespace, name string) string {
	t.Helper()
	c.Namespace(t, namespace)
	accounts := c.Client.CoreV1().ServiceAccounts(namespace)
	_, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatalf("create service account %s/%s: %v", namespace, name, err)
	}
	token, err := accounts.CreateToken(t.Context(), name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(24 * 3600))},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("request a token of %s/%s: %v", namespace, name, err)
	}
	path, err := c.creds.kubeconfig(c.URL, serviceAccountUser(namespace, name), namespace, token.Status.Token)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// A Right is one thing that an account may do: everywhere, or in one namespace.
type Right struct{ Verb, Group, Resource, Namespace string }

// AwaitRights waits until the API server grants a service account these rights. It hears of
// roles and bindings by watches of its own, a moment after it has stored them, and denies
// until then.
func (c *Cluster) AwaitRights(t testing.TB, namespace, name string, rights ...Right) {
	t.Helper()
	for _, r := range rights {
		c.Await(t, fmt.Sprintf("%s/%s to be granted %+v", namespace, name, r), readyWithin, func(ctx context.Context) (bool, string, error) {
			review, err := c.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
				Spec: authorizationv1.SubjectAccessReviewSpec{
					User:               serviceAccountUser(namespace, name),
					ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: r.Verb, Group: r.Group, Resource: r.Resource, Namespace: r.Namespace},
				},
			}, metav1.CreateOptions{})
			if err != nil {
				return false, "", err
			}
			return review.Status.Allowed, review.Status.Reason, nil
		})
	}
}

// PodToken returns a token of the service account for the audience, good for an hour and
// bound to a pod of that account on the node, as the kubelet projects one into the pod.
func (c *Cluster) PodToken(t testing.TB, namespace, account, node, audience string) string {
	t.Helper()
	pod, err := c.Client.CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: account + "-"},
		Spec: corev1.PodSpec{
			NodeName: node, ServiceAccountName: account,
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers:  []corev1.Container{{Name: "collector", Image: "example.com/collector:1"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("create a pod of %s on %s: %v", account, node, err)
	}
	token, err := c.Client.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), account, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{
			Audiences: []string{audience}, ExpirationSeconds: new(int64(3600)),
			BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("request a token of %s/%s for a pod on %s: %v", namespace, account, node, err)
	}
	return token.Status.Token
}

// serviceAccountUser returns the user name of a service account.
func serviceAccountUser(namespace, name string) string {
	return "system:serviceaccount:" + namespace + ":" + name
}
