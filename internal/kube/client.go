// Package kube is Stoker's side of a Kubernetes API: the cached world that deciding
// reads, the live reads and guarded writes that actions make, leader election, and
// events.
//
// It owns connections, deadlines and the sorting of errors. It decides nothing and
// repeats nothing: each call is one request with one deadline, whose error says what
// became of it, and whoever asked looks again. Every write carries the uid and version
// of what was read, or makes an object under a name that can exist once.
package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"stoker.dev/stoker/internal/remedy"
)

const (
	callTimeout  = 10 * time.Second // of one request, waiting for its turn included
	clientQPS    = 50               // requests per second in the long run
	clientBurst  = 100
	listPage     = 500 // objects in one answer
	fieldManager = "stoker"
)

// Config reads how to reach the API server: from the kubeconfig file at path, or where
// path is empty from $KUBECONFIG or the user's kubeconfig, and where there is none of
// them from the pod's own service account. userAgent names us in audit logs.
func Config(path, userAgent string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	if path != "" {
		abs, err := filepath.Abs(path)
		if err != nil {
			return nil, fmt.Errorf("kubeconfig %s: %w", path, err)
		}
		rules.ExplicitPath = abs
	}
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("how to reach the cluster: %w", err)
	}
	cfg.UserAgent = userAgent
	cfg.QPS, cfg.Burst = clientQPS, clientBurst
	return cfg, nil
}

// A Client makes single requests about objects of any kind. All its errors are sorted:
// they carry a [remedy.Failure] where the server, or the fact that nothing was sent,
// tells what became of the request. It may be used by several goroutines.
type Client struct {
	dynamic dynamic.Interface
	rest    rest.Interface
	http    *http.Client
	timeout time.Duration
}

// NewClient returns a client. The caller closes it.
func NewClient(cfg *rest.Config) (*Client, error) { return newClient(cfg, callTimeout) }

func newClient(cfg *rest.Config, timeout time.Duration) (*Client, error) {
	cfg = dynamic.ConfigFor(cfg)
	cfg.GroupVersion, cfg.APIPath = nil, "/"
	hc, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("reach the cluster: %w", err)
	}
	rc, err := rest.UnversionedRESTClientForConfigAndClient(cfg, hc)
	if err != nil {
		return nil, fmt.Errorf("reach the cluster: %w", err)
	}
	return &Client{dynamic: dynamic.New(once{rc}), rest: once{rc}, http: hc, timeout: timeout}, nil
}

// Close gives up the connections that are not in use.
func (c *Client) Close() { utilnet.CloseIdleConnectionsFor(c.http.Transport) }

// once is a REST client that sends each request once. Without it, client-go repeats
// what a server asks to be repeated later, also writes, up to ten times, and all of
// that under one deadline of ours.
type once struct{ rest.Interface }

func (c once) Verb(verb string) *rest.Request { return c.Interface.Verb(verb).MaxRetries(0) }
func (c once) Post() *rest.Request            { return c.Interface.Post().MaxRetries(0) }
func (c once) Put() *rest.Request             { return c.Interface.Put().MaxRetries(0) }
func (c once) Get() *rest.Request             { return c.Interface.Get().MaxRetries(0) }
func (c once) Delete() *rest.Request          { return c.Interface.Delete().MaxRetries(0) }
func (c once) Patch(pt types.PatchType) *rest.Request {
	return c.Interface.Patch(pt).MaxRetries(0)
}

// call makes one request within the deadline and sorts its error.
func (c *Client) call(ctx context.Context, what string, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("no answer within %v", c.timeout))
	defer cancel()
	ctx = klog.NewContext(ctx, logr.Discard()) // the error says it all, once
	var connected atomic.Bool
	err := f(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	}))
	if err != nil {
		return sorted(what, err, connected.Load())
	}
	return nil
}

func (c *Client) of(res schema.GroupVersionResource, namespace string) dynamic.ResourceInterface {
	if namespace == "" {
		return c.dynamic.Resource(res)
	}
	return c.dynamic.Resource(res).Namespace(namespace)
}

func describe(verb string, res schema.GroupVersionResource, namespace, name string) string {
	if namespace != "" {
		name = namespace + "/" + name
	}
	return verb + " " + res.GroupResource().String() + " " + name
}

// Get reads one object live; Gone when there is none. namespace is empty for what has none.
func (c *Client) Get(ctx context.Context, res schema.GroupVersionResource, namespace, name string) (obj *unstructured.Unstructured, err error) {
	err = c.call(ctx, describe("get", res, namespace, name), func(ctx context.Context) (err error) {
		obj, err = c.of(res, namespace).Get(ctx, name, metav1.GetOptions{})
		return err
	})
	return obj, err
}

// List reads live, page by page, all objects that the selectors choose; an empty
// selector chooses all, an empty namespace all of them. Each page has its own deadline.
func (c *Client) List(ctx context.Context, res schema.GroupVersionResource, namespace, labels, fields string) ([]unstructured.Unstructured, error) {
	var all []unstructured.Unstructured
	opts := metav1.ListOptions{LabelSelector: labels, FieldSelector: fields, Limit: listPage}
	for {
		var page *unstructured.UnstructuredList
		err := c.call(ctx, describe("list", res, namespace, labels+fields), func(ctx context.Context) (err error) {
			page, err = c.of(res, namespace).List(ctx, opts)
			return err
		})
		if err != nil {
			return nil, err
		}
		all = append(all, page.Items...)
		if opts.Continue = page.GetContinue(); opts.Continue == "" {
			return all, nil
		}
	}
}

// Create makes the object; Conflict when its name is taken.
func (c *Client) Create(ctx context.Context, res schema.GroupVersionResource, obj *unstructured.Unstructured) (created *unstructured.Unstructured, err error) {
	err = c.call(ctx, describe("create", res, obj.GetNamespace(), obj.GetName()), func(ctx context.Context) (err error) {
		created, err = c.of(res, obj.GetNamespace()).Create(ctx, obj, metav1.CreateOptions{FieldManager: fieldManager})
		return err
	})
	if f, ok := errors.AsType[*remedy.Failure](err); ok && f.Ending == remedy.Gone {
		err = &remedy.Failure{Ending: remedy.Rejected, Err: f.Err} // it is the namespace that is missing
	}
	return created, err
}

// Patch changes one object. The patch itself has to carry the preconditions.
func (c *Client) Patch(ctx context.Context, res schema.GroupVersionResource, namespace, name string, pt types.PatchType, patch []byte) (changed *unstructured.Unstructured, err error) {
	err = c.call(ctx, describe("patch", res, namespace, name), func(ctx context.Context) (err error) {
		changed, err = c.of(res, namespace).Patch(ctx, name, pt, patch, metav1.PatchOptions{FieldManager: fieldManager})
		return err
	})
	return changed, err
}

// Merge changes one object by a JSON merge patch that applies only while the object
// has that uid and version. A name that another object has by now is Gone, an object
// that was changed since a Conflict. The patch is not changed.
func (c *Client) Merge(ctx context.Context, res schema.GroupVersionResource, namespace, name, uid, version string, patch map[string]any) (*unstructured.Unstructured, error) {
	guarded := make(map[string]any, len(patch)+1)
	meta := map[string]any{"uid": uid, "resourceVersion": version}
	for k, v := range patch {
		guarded[k] = v
	}
	if m, ok := patch["metadata"].(map[string]any); ok {
		for k, v := range m {
			meta[k] = v
		}
	}
	guarded["metadata"] = meta
	data, err := json.Marshal(guarded)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", describe("patch", res, namespace, name), err)
	}
	obj, err := c.Patch(ctx, res, namespace, name, types.MergePatchType, data)
	if err != nil {
		return nil, c.another(ctx, err, res, namespace, name, uid)
	}
	return obj, nil
}

// Delete removes one object if it has that version still.
func (c *Client) Delete(ctx context.Context, res schema.GroupVersionResource, namespace, name, version string) error {
	return c.call(ctx, describe("delete", res, namespace, name), func(ctx context.Context) error {
		return c.of(res, namespace).Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &version}})
	})
}
