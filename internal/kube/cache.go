package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/observe"
)

const (
	// proofEvery is how often a watch on which nothing happens is asked for anew. A server
	// that accepts a watch from our last version has told all that came before; that is
	// the one sign of life that all servers give, and it costs one request without content.
	proofEvery = 15 * time.Second
	// proofGrace is how much longer a watch may last before it is given up: the server
	// has to end it in time, and one that hangs proves nothing.
	proofGrace = 5 * time.Second
	// listTimeout bounds one page of a list, and the silence while a list is streamed. Of
	// a big cluster it is long.
	listTimeout = time.Minute
	// watchTimeout bounds the wait for a server to accept a watch.
	watchTimeout = 15 * time.Second
	// absentEvery is how often a kind that the server does not have is asked for again.
	absentEvery = 30 * time.Second
)

// A Cache holds what observers need of the objects of their kinds, as the cluster's
// watches tell of them. Its Fill runs the observers over them and says, as the time of
// its source, when the slowest of its watches was last known to be alive: a server
// that does not answer, or a cut line, lets that time stand still.
type Cache struct {
	log       *slog.Logger
	client    *Client
	observers []observe.Observer
	proof     time.Duration // see proofEvery
	accept    time.Duration // see watchTimeout
	listing   time.Duration // see listTimeout
	now       func() time.Time
	kinds     []*kind // of all observers, in their order
}

// NewCache returns a cache for the observers. It holds nothing until it runs.
func NewCache(log *slog.Logger, client *Client, observers ...observe.Observer) *Cache {
	c := &Cache{log: log, client: client, observers: observers, proof: proofEvery, accept: watchTimeout, listing: listTimeout, now: time.Now}
	for _, o := range observers {
		for _, gvk := range o.Kinds() {
			res, _ := meta.UnsafeGuessKindToResource(gvk)
			trim, _ := o.(observe.Trimmer)
			c.kinds = append(c.kinds, &kind{cache: c, gvk: gvk, resource: res, trim: trim, objects: map[string]map[string]any{}})
		}
	}
	return c
}

// Run keeps the cache up to date until ctx ends and returns when nothing of it runs
// any more. It is called once.
func (c *Cache) Run(ctx context.Context) {
	// What client-go logs at each try, we log once, and when it is over.
	quiet := logr.Discard()
	ctx = klog.NewContext(ctx, quiet)
	var wg sync.WaitGroup
	for _, k := range c.kinds {
		wg.Go(func() { k.run(ctx, quiet) })
	}
	wg.Wait()
}

// Fill adds what the observers make of the objects. It is an error while not every
// kind has been listed: what is missing would look as if it did not exist.
func (c *Cache) Fill(_ context.Context, _ time.Time, into *fleet.Facts) error {
	var errs []error
	objs := make([][]unstructured.Unstructured, len(c.kinds))
	var alive time.Time
	for i, k := range c.kinds {
		list, seen, err := k.snapshot()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		objs[i] = list
		if !seen.IsZero() && (alive.IsZero() || seen.Before(alive)) {
			alive = seen
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	into.Sources[observe.Cluster] = alive.UTC()
	i := 0
	for _, o := range c.observers {
		n := len(o.Kinds())
		var all []unstructured.Unstructured
		for _, list := range objs[i : i+n] {
			all = append(all, list...)
		}
		i += n
		o.Observe(all, into)
	}
	return nil
}

// WaitSynced waits until every kind has been listed, or ctx has ended.
func (c *Cache) WaitSynced(ctx context.Context) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		var errs []error
		for _, k := range c.kinds {
			if _, _, err := k.snapshot(); err != nil {
				errs = append(errs, err)
			}
		}
		if len(errs) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("cluster not read in time: %w", errors.Join(errs...))
		case <-tick.C:
		}
	}
}

// A kind is the store, the lister and the watcher of one reflector.
type kind struct {
	cache    *Cache
	gvk      schema.GroupVersionKind
	resource schema.GroupVersionResource
	trim     observe.Trimmer

	mu      sync.Mutex
	synced  bool
	absent  bool                      // the server has no such kind
	alive   time.Time                 // when what is held was last known to be true
	listed  time.Time                 // see asked
	err     error                     // of the last try that failed, until one succeeds
	objects map[string]map[string]any // by namespace/name; never changed once they are in

	watches sync.WaitGroup
}

func (k *kind) run(ctx context.Context, logger logr.Logger) {
	defer k.watches.Wait()
	example := &unstructured.Unstructured{}
	example.SetGroupVersionKind(k.gvk)
	r := cache.NewReflectorWithOptions(k, example, k, cache.ReflectorOptions{
		Name: k.resource.GroupResource().String(), Logger: &logger,
		Backoff: &wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 10, Cap: 5 * time.Second},
	})
	r.RunWithContext(ctx)
}

// snapshot returns the objects and when the server last told of the kind: zero when it
// has no such kind.
func (k *kind) snapshot() ([]unstructured.Unstructured, time.Time, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.synced {
		err := k.err
		if err == nil {
			err = errors.New("no answer so far")
		}
		return nil, time.Time{}, fmt.Errorf("%s are not listed yet: %w", k.resource.GroupResource(), err)
	}
	if k.absent {
		return nil, time.Time{}, nil
	}
	list := make([]unstructured.Unstructured, 0, len(k.objects))
	for _, obj := range k.objects {
		list = append(list, unstructured.Unstructured{Object: obj})
	}
	return list, k.alive, nil
}

// told notes that what is held was true at that time.
func (k *kind) told(at time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err != nil {
		k.cache.log.Info("cluster is told of again", "kind", k.gvk.Kind)
	}
	k.err = nil
	if at.After(k.alive) {
		k.alive = at
	}
}

// asked notes of when the list is that the reflector is about to put in.
func (k *kind) asked(at time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.listed = at
}

func (k *kind) failed(err error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err == nil && !errors.Is(err, context.Canceled) {
		k.cache.log.Warn("cluster is not told of", "kind", k.gvk.Kind, "err", err)
	}
	k.err = err
	return err
}

// The lister and watcher.

var (
	_ cache.ListerWatcher            = (*kind)(nil)
	_ cache.ListerWatcherWithContext = (*kind)(nil)
	_ cache.ReflectorStore           = (*kind)(nil)
)

// List is for reflectors of before there were contexts; ours does not call it.
func (k *kind) List(opts metav1.ListOptions) (runtime.Object, error) {
	return k.ListWithContext(context.Background(), opts)
}

// Watch is for reflectors of before there were contexts; ours does not call it.
func (k *kind) Watch(opts metav1.ListOptions) (watch.Interface, error) {
	return k.WatchWithContext(context.Background(), opts)
}

func (k *kind) ListWithContext(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
	if opts.ResourceVersion == "0" {
		opts.ResourceVersion = "" // anything would do for that server, also what is long over
	}
	bounded, cancel := context.WithTimeout(ctx, k.cache.listing)
	defer cancel()
	asked := k.cache.now()
	list, err := k.cache.client.dynamic.Resource(k.resource).List(bounded, opts)
	if missing(err) {
		k.lacks()
		select { // the reflector asks again at once
		case <-ctx.Done():
		case <-time.After(absentEvery):
		}
		return nil, err
	}
	if err != nil {
		return nil, k.failed(err)
	}
	for i := range list.Items {
		list.Items[i].Object = k.trimmed(list.Items[i].Object)
	}
	if opts.Continue == "" {
		k.asked(asked) // later pages are as old as the first
	}
	return list, nil
}

// missing reports whether the server has no such kind.
func missing(err error) bool {
	status := apierrors.APIStatus(nil)
	return errors.As(err, &status) && status.Status().Code == http.StatusNotFound && unknownToServer(status.Status())
}

// lacks notes that the server answers and has no such kind. It may get it later.
func (k *kind) lacks() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.absent {
		k.cache.log.Info("cluster has no such kind", "kind", k.gvk.Kind, "group", k.gvk.Group)
	}
	k.synced, k.absent, k.err = true, true, nil
}

func (k *kind) WatchWithContext(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	seconds := max(1, int64(k.cache.proof/time.Second))
	if opts.SendInitialEvents == nil { // the first watch sends a whole list; how long that takes nobody knows
		opts.TimeoutSeconds = &seconds
	}
	// The wait for an answer is bounded, the watch that then begins is not by this.
	ctx, cancel := context.WithCancel(ctx)
	giveUp := time.AfterFunc(k.cache.accept, cancel)
	w, err := k.cache.client.dynamic.Resource(k.resource).Watch(ctx, opts)
	if !giveUp.Stop() {
		err = fmt.Errorf("watch %s: no answer within %v", k.resource.GroupResource(), k.cache.accept)
	} else if err == nil && reflect.TypeOf(w) == reflect.TypeOf(watch.NewEmptyWatch()) {
		err = fmt.Errorf("watch %s: no answer", k.resource.GroupResource()) // client-go's way to say so
	}
	if err != nil {
		cancel()
		if w != nil {
			w.Stop()
		}
		if missing(err) { // the list that follows says so too
			return nil, err
		}
		return nil, k.failed(err)
	}
	return newProofWatch(k, w, cancel, opts.SendInitialEvents != nil), nil
}

func (k *kind) trimmed(obj map[string]any) map[string]any {
	if k.trim == nil {
		if m, ok := obj["metadata"].(map[string]any); ok {
			delete(m, "managedFields")
		}
		return obj
	}
	small := k.trim.Trim(obj)
	small["apiVersion"], small["kind"] = obj["apiVersion"], obj["kind"]
	return small
}

// The store of the reflector.

func key(obj any) (string, map[string]any, error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return "", nil, fmt.Errorf("a %T is no object", obj)
	}
	return u.GetNamespace() + "/" + u.GetName(), u.Object, nil
}

func (k *kind) Add(obj any) error { return k.Update(obj) }

func (k *kind) Update(obj any) error {
	name, content, err := key(obj)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.objects[name] = content
	return nil
}

func (k *kind) Delete(obj any) error {
	name, _, err := key(obj)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.objects, name)
	return nil
}

func (k *kind) Replace(list []any, _ string) error {
	objects := make(map[string]map[string]any, len(list))
	for _, obj := range list {
		name, content, err := key(obj)
		if err != nil {
			return err
		}
		objects[name] = content
	}
	k.mu.Lock()
	k.objects, k.synced, k.absent = objects, true, false
	listed := k.listed
	k.mu.Unlock()
	k.told(listed)
	return nil
}

func (k *kind) Resync() error { return nil }

// A proofWatch hands on what a watch brings, trimmed, and notes each event as a sign of
// life. It ends on its own when it lasts longer than it should.
type proofWatch struct {
	inner  watch.Interface
	result chan watch.Event
	stop   chan struct{}
	once   sync.Once
}

func newProofWatch(k *kind, inner watch.Interface, cancel context.CancelFunc, initial bool) *proofWatch {
	w := &proofWatch{inner: inner, result: make(chan watch.Event), stop: make(chan struct{})}
	k.watches.Go(func() {
		defer cancel()
		w.pass(k, initial)
	})
	return w
}

func (w *proofWatch) ResultChan() <-chan watch.Event { return w.result }

// Stop ends the watch. The reflector that owns it calls it on every way out.
func (w *proofWatch) Stop() { w.once.Do(func() { close(w.stop) }) }

// pass hands events on. initial says that a list comes first: until it has ended, only
// silence ends the watch.
func (w *proofWatch) pass(k *kind, initial bool) {
	defer close(w.result)
	defer w.inner.Stop()
	limit := k.cache.proof + proofGrace
	if initial {
		limit = k.cache.listing
	}
	overdue := time.NewTimer(limit)
	defer overdue.Stop()
	// A server that has forgotten our version accepts the watch, and says so at once
	// after. One that says nothing for a while has nothing that we lack.
	accepted := k.cache.now()
	settled := time.NewTimer(min(time.Second, k.cache.proof/4))
	defer settled.Stop()
	for {
		var e watch.Event
		var open bool
		select {
		case <-w.stop:
			return
		case <-overdue.C:
			return
		case <-settled.C:
			if !initial {
				k.told(accepted)
			}
			continue
		case e, open = <-w.inner.ResultChan():
		}
		if !open {
			return
		}
		if e.Type == watch.Error {
			settled.Stop()
		}
		if obj, ok := e.Object.(*unstructured.Unstructured); ok && e.Type != watch.Error {
			switch {
			case e.Type != watch.Bookmark:
				obj.Object = k.trimmed(obj.Object)
			case obj.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true":
				initial = false
				k.asked(k.cache.now())
				overdue.Reset(k.cache.proof)
			}
			if initial {
				overdue.Reset(k.cache.listing)
			} else {
				k.told(k.cache.now())
			}
		}
		select {
		case <-w.stop:
			return
		case w.result <- e:
		}
	}
}
