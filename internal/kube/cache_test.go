package kube

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/observe"
)

// An api serves lists and watches of nodes and pods from memory, as a server does
// that cannot stream lists. It can be told to fall silent.
type api struct {
	*httptest.Server

	mu      sync.Mutex
	version int
	objects map[string]map[string]map[string]any // by path, by name
	log     map[string][]map[string]any          // watch events by path
	changed chan struct{}                        // closed at each change
	mute    bool                                 // answer nothing, and nothing more on open watches
	refuse  map[string]http.HandlerFunc          // by path
	watches int
}

func newAPI(t *testing.T) *api {
	t.Helper()
	a := &api{
		objects: map[string]map[string]map[string]any{"/api/v1/nodes": {}, "/api/v1/pods": {}},
		log:     map[string][]map[string]any{}, refuse: map[string]http.HandlerFunc{}, changed: make(chan struct{}),
	}
	a.Server = httptest.NewServer(http.HandlerFunc(a.serve))
	t.Cleanup(func() {
		a.CloseClientConnections()
		a.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return a
}

// put creates or changes an object, and removes it where it has no content.
func (a *api) put(path, name string, obj map[string]any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	kind := map[string]string{"/api/v1/nodes": "Node", "/api/v1/pods": "Pod"}[path]
	event := map[string]any{"type": "MODIFIED", "object": obj}
	if obj == nil {
		event = map[string]any{"type": "DELETED", "object": a.objects[path][name]}
		delete(a.objects[path], name)
	} else {
		if a.objects[path][name] == nil {
			event["type"] = "ADDED"
		}
		obj["apiVersion"], obj["kind"] = "v1", kind
		meta, _ := obj["metadata"].(map[string]any)
		if meta == nil {
			meta = map[string]any{}
			obj["metadata"] = meta
		}
		meta["name"], meta["uid"], meta["resourceVersion"] = name, "u-"+name, strconv.Itoa(a.version)
		a.objects[path][name] = obj
	}
	event["version"] = a.version
	a.log[path] = append(a.log[path], event)
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *api) set(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *api) serve(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	mute, refuse := a.mute, a.refuse[r.URL.Path]
	a.mu.Unlock()
	switch {
	case mute:
		silent(w, r)
	case refuse != nil:
		refuse(w, r)
	case r.URL.Query().Get("sendInitialEvents") != "":
		text(400, "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled")(w, r)
	case r.URL.Query().Get("watch") != "":
		a.watch(w, r)
	default:
		a.mu.Lock()
		defer a.mu.Unlock()
		items := []any{}
		for _, obj := range a.objects[r.URL.Path] {
			items = append(items, obj)
		}
		answer(200, map[string]any{"apiVersion": "v1", "kind": "List", "metadata": map[string]any{"resourceVersion": strconv.Itoa(a.version)}, "items": items})(w, r)
	}
}

func (a *api) watch(w http.ResponseWriter, r *http.Request) {
	seconds, err := strconv.Atoi(r.URL.Query().Get("timeoutSeconds"))
	if err != nil {
		panic(err)
	}
	after, err := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	if err != nil {
		panic(err)
	}
	a.mu.Lock()
	a.watches++
	a.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	w.(http.Flusher).Flush()
	end := time.After(time.Duration(seconds) * time.Second)
	for {
		a.mu.Lock()
		changed, mute := a.changed, a.mute
		for _, e := range a.log[r.URL.Path] {
			if v := e["version"].(int); v > after && !mute {
				after = v
				if err := json.NewEncoder(w).Encode(e); err != nil {
					a.mu.Unlock()
					return
				}
			}
		}
		a.mu.Unlock()
		w.(http.Flusher).Flush()
		if mute {
			end = nil // a hanging server ends nothing
		}
		select {
		case <-changed:
		case <-end:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// runCache runs a cache until the test ends and checks that it then ends.
func runCache(t *testing.T, a *api, tune func(*Cache)) *Cache {
	t.Helper()
	s := &server{Server: a.Server}
	c := NewCache(slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})), s.client(t, 10*time.Second), observe.Nodes{}, observe.Pods{})
	c.proof, c.accept, c.listing = time.Second, time.Second, 2*time.Second
	if tune != nil {
		tune(c)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Error("the cache did not end with its context")
		}
	})
	return c
}

func facts(t *testing.T, c *Cache) *fleet.Facts {
	t.Helper()
	f := fleet.NewFacts()
	if err := c.Fill(t.Context(), time.Now(), f); err != nil {
		t.Fatal(err)
	}
	return f
}

// await waits until the facts are as wanted.
func await(t *testing.T, c *Cache, what string, want func(*fleet.Facts) bool) *fleet.Facts {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		f := fleet.NewFacts()
		err := c.Fill(t.Context(), time.Now(), f)
		if err == nil && want(f) {
			return f
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not in time; facts %+v, %v", what, f, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func gpus(n string) map[string]any {
	return map[string]any{
		"metadata": map[string]any{"managedFields": []any{map[string]any{"manager": "kubelet"}}},
		"status":   map[string]any{"allocatable": map[string]any{"nvidia.com/gpu": n}, "images": []any{map[string]any{"sizeBytes": 5}}},
	}
}

func TestCacheFollowsTheCluster(t *testing.T) {
	a := newAPI(t)
	a.put("/api/v1/nodes", "a", gpus("8"))
	a.put("/api/v1/pods", "p", map[string]any{"spec": map[string]any{"nodeName": "a"}, "status": map[string]any{"phase": "Running"}})
	c := runCache(t, a, nil)
	if err := c.WaitSynced(t.Context()); err != nil {
		t.Fatal(err)
	}
	f := facts(t, c)
	if f.Nodes["a"].Allocatable.GPUs != 8 || f.Pods["u-p"].Node != "a" {
		t.Fatalf("facts = %+v, want node a with 8 GPUs and its pod", f)
	}
	a.put("/api/v1/nodes", "a", gpus("7"))
	a.put("/api/v1/nodes", "b", gpus("8"))
	await(t, c, "a change and a new node", func(f *fleet.Facts) bool { return f.Nodes["a"].Allocatable.GPUs == 7 && len(f.Nodes) == 2 })
	a.put("/api/v1/pods", "p", map[string]any{"spec": map[string]any{"nodeName": "a"}, "status": map[string]any{"phase": "Succeeded"}})
	await(t, c, "a pod that ends", func(f *fleet.Facts) bool { return len(f.Pods) == 0 })
	a.put("/api/v1/nodes", "b", nil)
	await(t, c, "a node that goes", func(f *fleet.Facts) bool { return len(f.Nodes) == 1 })

	for _, k := range c.kinds {
		objs, _, err := k.snapshot()
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objs {
			data, err := json.Marshal(o.Object)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(data), "managedFields") || strings.Contains(string(data), "images") {
				t.Errorf("kept more than observers need: %s", data)
			}
		}
	}
}

func TestCacheOfAQuietClusterStaysFresh(t *testing.T) {
	a := newAPI(t)
	c := runCache(t, a, nil)
	if err := c.WaitSynced(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := facts(t, c).Sources[observe.Cluster]
	await(t, c, "a proof of life without any event", func(f *fleet.Facts) bool {
		return f.Sources[observe.Cluster].After(first.Add(1500 * time.Millisecond))
	})
}

func TestCacheThatIsNotToldSaysSo(t *testing.T) {
	a := newAPI(t)
	a.put("/api/v1/nodes", "a", gpus("8"))
	c := runCache(t, a, nil)
	if err := c.WaitSynced(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.set(func() { a.mute = true }) // the connections stay, and nothing comes
	muted := time.Now()
	time.Sleep(2500 * time.Millisecond)
	f := facts(t, c)
	if last := f.Sources[observe.Cluster]; last.After(muted.Add(time.Second)) {
		t.Errorf("told last %v after the server fell silent", last.Sub(muted))
	}
	if f.Nodes["a"].Allocatable.GPUs != 8 || !f.Nodes["a"].Seen.Equal(f.Sources[observe.Cluster]) {
		t.Errorf("node = %+v, want what was known last, and since when", f.Nodes["a"])
	}
	a.set(func() { a.mute = false })
	a.put("/api/v1/nodes", "a", gpus("6"))
	await(t, c, "what happened meanwhile", func(f *fleet.Facts) bool {
		return f.Nodes["a"].Allocatable.GPUs == 6 && time.Since(f.Sources[observe.Cluster]) < 2*time.Second
	})
}

func TestCacheIsNotReadyBeforeAllIsListed(t *testing.T) {
	a := newAPI(t)
	a.put("/api/v1/nodes", "a", gpus("8"))
	a.set(func() {
		a.refuse["/api/v1/pods"] = status(403, "Forbidden", "pods is forbidden: no list at the cluster scope", nil)
	})
	c := runCache(t, a, nil)
	eventually(t, "it is said why pods are not known", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		err := c.WaitSynced(ctx)
		return err != nil && strings.Contains(err.Error(), "pods is forbidden")
	})
	if err := c.Fill(t.Context(), time.Now(), fleet.NewFacts()); err == nil || !strings.Contains(err.Error(), "pods are not listed yet") {
		t.Errorf("err = %v, want that pods are not listed", err)
	}
	a.set(func() { delete(a.refuse, "/api/v1/pods") })
	await(t, c, "pods, once they may be listed", func(f *fleet.Facts) bool { return len(f.Nodes) == 1 })
}

func TestCacheOfAKindThatDoesNotExist(t *testing.T) {
	a := newAPI(t)
	a.put("/api/v1/nodes", "a", gpus("8"))
	a.set(func() { a.refuse["/api/v1/pods"] = text(404, "404 page not found") })
	c := runCache(t, a, nil)
	f := await(t, c, "a cluster without that kind", func(f *fleet.Facts) bool { return len(f.Nodes) == 1 })
	if f.Sources[observe.Cluster].IsZero() {
		t.Error("nothing is known of when the cluster was seen")
	}
}

func TestCacheListsAnewWhatItHasMissed(t *testing.T) {
	a := newAPI(t)
	a.put("/api/v1/nodes", "a", gpus("8"))
	a.put("/api/v1/nodes", "b", gpus("8"))
	c := runCache(t, a, nil)
	if err := c.WaitSynced(t.Context()); err != nil {
		t.Fatal(err)
	}
	expired := func(w http.ResponseWriter, r *http.Request) {
		switch q := r.URL.Query(); {
		case q.Get("sendInitialEvents") != "":
			text(400, "no")(w, r)
			return
		case q.Get("watch") == "":
			a.set(func() { delete(a.refuse, "/api/v1/nodes") })
			a.serve(w, r)
			return
		}
		answer(200, map[string]any{"type": "ERROR", "object": map[string]any{"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old resource version"}})(w, r)
	}
	a.set(func() { // a node goes without an event that anybody will ever see
		a.refuse["/api/v1/nodes"] = expired
		delete(a.objects["/api/v1/nodes"], "b")
	})
	await(t, c, "a list anew", func(f *fleet.Facts) bool { return len(f.Nodes) == 1 })
}

func TestManyWatchesLeaveNothingBehind(t *testing.T) {
	a := newAPI(t)
	c := runCache(t, a, nil)
	if err := c.WaitSynced(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		a.put("/api/v1/nodes", "n-"+strconv.Itoa(i%5), gpus(strconv.Itoa(i)))
	}
	await(t, c, "fifty changes", func(f *fleet.Facts) bool { return len(f.Nodes) == 5 && f.Nodes["n-4"].Allocatable.GPUs == 49 })
	// What runs on after the test would be found by goleak.
}

// BenchmarkFill observes a fleet of 1,000 nodes with 10,000 pods, as each tick does.
func BenchmarkFill(b *testing.B) {
	c := NewCache(slog.New(slog.DiscardHandler), nil, observe.Nodes{PoolKeys: observe.PoolKeys}, observe.Pods{})
	for i, k := range c.kinds {
		for n := range []int{1000, 10_000}[i] {
			obj := gpus("8")
			obj["metadata"] = map[string]any{
				"name": strconv.Itoa(n), "namespace": "train", "uid": strconv.Itoa(n), "resourceVersion": "1",
				"labels": map[string]any{"kubernetes.io/hostname": "h", "karpenter.sh/nodepool": "p", "topology.rack": "r"},
			}
			obj["spec"] = map[string]any{"nodeName": strconv.Itoa(n / 10), "containers": []any{map[string]any{"resources": map[string]any{"limits": map[string]any{"nvidia.com/gpu": "1", "cpu": "8"}}}}}
			k.objects[strconv.Itoa(n)] = k.trimmed(obj)
		}
		k.synced = true
	}
	for b.Loop() {
		f := fleet.NewFacts()
		if err := c.Fill(b.Context(), time.Now(), f); err != nil || len(f.Pods) != 10_000 {
			b.Fatalf("%d pods, %v", len(f.Pods), err)
		}
	}
}
