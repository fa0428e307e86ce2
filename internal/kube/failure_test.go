package kube

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"stoker.dev/stoker/internal/remedy"
)

func wantEnding(t *testing.T, err error, want remedy.Ending) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %s", want)
	}
	if got := endingOf(err); got != want {
		t.Fatalf("err = %v with %s, want %s", err, got, want)
	}
}

func TestEndings(t *testing.T) {
	named := &metav1.StatusDetails{Name: "gpu-a-02", Kind: "nodes"}
	for name, tc := range map[string]struct {
		answer http.HandlerFunc
		want   remedy.Ending
		saying string
	}{
		"the object was changed":              {status(409, metav1.StatusReasonConflict, "the object has been modified", named), remedy.Conflict, "modified"},
		"the server is busy":                  {retryAfter("7", status(429, metav1.StatusReasonTooManyRequests, "too many requests", named)), remedy.Conflict, "too many"},
		"the object does not exist":           {status(404, metav1.StatusReasonNotFound, `nodes "gpu-a-02" not found`, named), remedy.Gone, "gpu-a-02"},
		"the server has no such kind":         {text(404, "404 page not found"), remedy.Rejected, "could not find"},
		"the object is not valid":             {status(422, metav1.StatusReasonInvalid, "field is immutable", named), remedy.Rejected, "immutable"},
		"the request is not valid":            {status(400, metav1.StatusReasonBadRequest, "bad", named), remedy.Rejected, "bad"},
		"we may not":                          {status(403, metav1.StatusReasonForbidden, "nodes is forbidden", named), remedy.Conflict, "forbidden"},
		"our token has run out":               {status(401, metav1.StatusReasonUnauthorized, "Unauthorized", nil), remedy.Conflict, "Unauthorized"},
		"the verb does not exist":             {status(405, metav1.StatusReasonMethodNotAllowed, "not allowed", named), remedy.Rejected, ""},
		"the object is too big":               {status(413, metav1.StatusReasonRequestEntityTooLarge, "too large", named), remedy.Rejected, ""},
		"the server failed":                   {status(500, metav1.StatusReasonInternalError, "etcd", named), remedy.Unclear, "etcd"},
		"the server is going down":            {retryAfter("1", status(503, metav1.StatusReasonServiceUnavailable, "shutting down", named)), remedy.Unclear, ""},
		"the server took too long":            {status(504, metav1.StatusReasonTimeout, "timeout", named), remedy.Unclear, ""},
		"a proxy answers for a server":        {text(502, "<html>bad gateway"), remedy.Unclear, ""},
		"the connection was cut":              {hangUp, remedy.Unclear, "EOF"},
		"the answer was cut":                  {half, remedy.Unclear, "EOF"},
		"there was no answer in time":         {silent, remedy.Unclear, "no answer within 300ms"},
		"an answer of 200 that is no object":  {text(200, "hello"), remedy.Unclear, ""},
		"a redirect is not followed blindly":  {text(304, ""), remedy.Unclear, ""},
		"several budgets guard the pod":       {status(500, metav1.StatusReasonInternalError, "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.", named), remedy.Rejected, "more than one"},
		"a code that nobody knows is unclear": {status(418, "Teapot", "short and stout", named), remedy.Unclear, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			s.on("PATCH /api/v1/nodes/gpu-a-02", tc.answer)
			timeout := 20 * time.Second
			if strings.Contains(tc.saying, "no answer") {
				timeout = 300 * time.Millisecond
			}
			c := s.client(t, timeout)
			begun := time.Now()
			_, err := c.Patch(t.Context(), nodeResource, "", "gpu-a-02", types.MergePatchType, []byte("{}"))
			wantEnding(t, err, tc.want)
			if !strings.Contains(err.Error(), tc.saying) || !strings.Contains(err.Error(), "patch nodes gpu-a-02") {
				t.Errorf("err = %q, want it to name the request and to say %q", err, tc.saying)
			}
			if n := len(s.sent("PATCH")); n != 1 {
				t.Errorf("the request was sent %d times, want once: repeating is not decided here", n)
			}
			if d := time.Since(begun); d > 10*time.Second {
				t.Errorf("it took %v", d)
			}
		})
	}
}

func TestWhatWasNotSentMayBeRepeated(t *testing.T) {
	// Nobody listens on port 1. One that was free a moment ago could be somebody's by now.
	c, err := newClient(&rest.Config{Host: "http://127.0.0.1:1", QPS: -1}, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.Patch(t.Context(), nodeResource, "", "a", types.MergePatchType, []byte("{}"))
	wantEnding(t, err, remedy.Conflict)
	if !strings.Contains(err.Error(), "nothing was sent") {
		t.Errorf("err = %v, want that nothing was sent", err)
	}

	s := newServer(t)
	ours := s.client(t, 10*time.Second)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = ours.Patch(ctx, nodeResource, "", "a", types.MergePatchType, []byte("{}"))
	wantEnding(t, err, remedy.Conflict)
	if n := len(s.sent("PATCH")); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

func TestOwnLimitIsNotSent(t *testing.T) {
	s := newServer(t)
	s.on("PATCH /api/v1/nodes/a", answer(200, map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "a"}}))
	c, err := newClient(&rest.Config{Host: s.URL, QPS: 0.01, Burst: 1}, 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Patch(t.Context(), nodeResource, "", "a", types.MergePatchType, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	_, err = c.Patch(t.Context(), nodeResource, "", "a", types.MergePatchType, []byte("{}"))
	wantEnding(t, err, remedy.Conflict)
	if n := len(s.sent("PATCH")); n != 1 {
		t.Errorf("%d requests were sent, want the first alone", n)
	}
}

func TestConflictOfAnotherObjectIsGone(t *testing.T) {
	changed := status(409, metav1.StatusReasonConflict, "modified", &metav1.StatusDetails{Name: "a"})
	node := func(uid string) http.HandlerFunc {
		return answer(200, map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "a", "uid": uid}})
	}
	for name, tc := range map[string]struct {
		get  http.HandlerFunc
		want remedy.Ending
	}{
		"it was changed":                       {node("u-1"), remedy.Conflict},
		"it is another one":                    {node("u-2"), remedy.Gone},
		"there is none any more":               {status(404, metav1.StatusReasonNotFound, "not found", &metav1.StatusDetails{Name: "a"}), remedy.Gone},
		"it can't be read: the conflict holds": {status(500, metav1.StatusReasonInternalError, "x", nil), remedy.Conflict},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			s.on("PATCH /api/v1/nodes/a", changed)
			s.on("GET /api/v1/nodes/a", tc.get)
			_, err := s.client(t, 10*time.Second).Merge(t.Context(), nodeResource, "", "a", "u-1", "7", map[string]any{"spec": map[string]any{}})
			wantEnding(t, err, tc.want)
		})
	}
}

func TestMergeIsGuarded(t *testing.T) {
	s := newServer(t)
	s.on("PATCH /api/v1/nodes/a", answer(200, map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "a"}}))
	patch := map[string]any{"metadata": map[string]any{"annotations": map[string]any{"x": "y"}}}
	if _, err := s.client(t, 10*time.Second).Merge(t.Context(), nodeResource, "", "a", "u-1", "7", patch); err != nil {
		t.Fatal(err)
	}
	r := s.sent("PATCH")[0]
	if want := `{"metadata":{"annotations":{"x":"y"},"resourceVersion":"7","uid":"u-1"}}`; string(r.Body) != want {
		t.Errorf("sent %s, want %s", r.Body, want)
	}
	if r.Type != string(types.MergePatchType) || !strings.Contains(r.Query, "fieldManager=stoker") {
		t.Errorf("sent as %s?%s", r.Type, r.Query)
	}
	if _, ok := patch["metadata"].(map[string]any)["uid"]; ok {
		t.Error("the caller's patch was changed")
	}
}

func TestListReadsAllPages(t *testing.T) {
	page := func(next string, names ...string) http.HandlerFunc {
		var items []any
		for _, n := range names {
			items = append(items, map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": n}})
		}
		return answer(200, map[string]any{"apiVersion": "v1", "kind": "NodeList", "metadata": map[string]any{"continue": next}, "items": items})
	}
	s := newServer(t)
	s.on("GET /api/v1/nodes", page("more", "a", "b"), page("", "c"))
	objs, err := s.client(t, 10*time.Second).List(t.Context(), nodeResource, "", "pool=x", "")
	if err != nil {
		t.Fatal(err)
	}
	if len(objs) != 3 || objs[2].GetName() != "c" {
		t.Errorf("%d objects, want a, b and c", len(objs))
	}
	if q := s.sent("GET")[1].Query; !strings.Contains(q, "continue=more") || !strings.Contains(q, "labelSelector=pool%3Dx") {
		t.Errorf("the second page was asked for by %q", q)
	}
	s.on("GET /api/v1/nodes", page("more", "a"), status(410, metav1.StatusReasonExpired, "too old", nil))
	_, err = s.client(t, 10*time.Second).List(t.Context(), nodeResource, "", "", "")
	wantEnding(t, err, remedy.Conflict)
}

func TestCreateInMissingNamespaceIsRejected(t *testing.T) {
	s := newServer(t)
	s.on("POST /apis/batch/v1/namespaces/own/jobs", status(404, metav1.StatusReasonNotFound, `namespaces "own" not found`, &metav1.StatusDetails{Name: "own", Kind: "namespaces"}))
	c := NewCluster(nil, s.client(t, 10*time.Second), ClusterOptions{Namespace: "own", Repairs: templates(t)})
	_, err := c.CreateRepair(t.Context(), reboot)
	wantEnding(t, err, remedy.Rejected)
	if f, ok := errors.AsType[*remedy.Failure](err); !ok || !strings.Contains(f.Error(), "own") {
		t.Errorf("err = %v, want one that names the namespace", err)
	}
}
