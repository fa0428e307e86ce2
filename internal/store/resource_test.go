package store_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/internal/store"
	"stoker.dev/stoker/internal/store/contract"
)

// A server keeps objects as an API server does, as far as the store goes: whole, under
// a version, with patches that replace the version and the status. What the real one
// makes of it is in the end-to-end tests.
type server struct {
	mu      sync.Mutex
	version int
	objects map[string]*unstructured.Unstructured
	drop    bool // the status, as a definition with the status subresource would
}

func refuse(e remedy.Ending, text string) error {
	return &remedy.Failure{Ending: e, Err: errors.New(text)}
}

func (s *server) put(obj *unstructured.Unstructured) *unstructured.Unstructured {
	s.version++
	obj = obj.DeepCopy()
	obj.SetResourceVersion(strconv.Itoa(s.version + 100))
	if s.drop {
		delete(obj.Object, "status")
	}
	s.objects[obj.GetName()] = obj
	return obj.DeepCopy()
}

func (s *server) List(ctx context.Context, _ schema.GroupVersionResource, _, _, _ string) ([]unstructured.Unstructured, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []unstructured.Unstructured
	for _, name := range slices.Sorted(maps.Keys(s.objects)) {
		out = append(out, *s.objects[name].DeepCopy())
	}
	return out, ctx.Err()
}

func (s *server) Create(ctx context.Context, _ schema.GroupVersionResource, obj *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.objects[obj.GetName()] != nil {
		return nil, refuse(remedy.Conflict, "already exists")
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return s.put(obj), nil
}

func (s *server) Patch(ctx context.Context, _ schema.GroupVersionResource, _, name string, pt types.PatchType, data []byte) (*unstructured.Unstructured, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ops []struct {
		Op, Path string
		Value    any
	}
	if err := json.Unmarshal(data, &ops); err != nil || pt != types.JSONPatchType {
		return nil, refuse(remedy.Rejected, fmt.Sprintf("a %s that is %v", pt, err))
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	old := s.objects[name]
	if old == nil {
		return nil, refuse(remedy.Gone, "not found")
	}
	changed := old.DeepCopy()
	for _, op := range ops {
		switch op.Op + " " + op.Path {
		case "replace /metadata/resourceVersion":
			if v := op.Value.(string); v == "" || v == "0" {
				return nil, refuse(remedy.Rejected, "the patch would apply to any version")
			} else if v != old.GetResourceVersion() {
				return nil, refuse(remedy.Conflict, "the object has been modified")
			}
		case "add /status":
			changed.Object["status"] = op.Value
		default:
			return nil, refuse(remedy.Rejected, op.Op+" "+op.Path)
		}
	}
	return s.put(changed), nil
}

func (s *server) Delete(ctx context.Context, _ schema.GroupVersionResource, _, name, version string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch old := s.objects[name]; {
	case ctx.Err() != nil:
		return ctx.Err()
	case old == nil:
		return refuse(remedy.Gone, "not found")
	case old.GetResourceVersion() != version:
		return refuse(remedy.Conflict, "the object has been modified")
	}
	delete(s.objects, name)
	return nil
}

func newServer() *server { return &server{objects: map[string]*unstructured.Unstructured{}} }

func TestResourceContract(t *testing.T) {
	servers := map[contract.Store]*server{}
	open := func(srv *server) contract.Store {
		s := store.NewResource(srv, "own")
		servers[s] = srv
		return s
	}
	contract.Test(t, contract.Opener{
		Open:   func(*testing.T) contract.Store { return open(newServer()) },
		Reopen: func(_ *testing.T, s contract.Store) contract.Store { return open(servers[s]) },
		Size: func(t *testing.T, s contract.Store, name string) int {
			t.Helper()
			data, err := json.Marshal(servers[s].objects[name])
			if err != nil {
				t.Fatal(err)
			}
			return len(data)
		},
	})
}

func TestResourceShowsColumns(t *testing.T) {
	for name, in := range map[string]remedy.Incident{"usual": contract.Incident("usual"), "packed": contract.Full("packed")} {
		srv := newServer()
		if _, err := store.NewResource(srv, "own").Create(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		obj := srv.objects[name]
		for path, want := range map[string]string{
			"spec.subject": "gpu-a-02/gpu-0", "spec.class": "gpu-lost", "status.phase": "acting", "status.step": "stop 2/2", "status.reason": "stop 2/2 is running",
			"metadata.namespace": "own", "kind": "Incident", "apiVersion": store.Incidents.GroupVersion().String(),
		} {
			if got, _, _ := unstructured.NestedString(obj.Object, strings.Split(path, ".")...); got != want {
				t.Errorf("%s: %s = %q, want %q", name, path, got, want)
			}
		}
		if _, is, _ := unstructured.NestedString(obj.Object, "status", "packed"); is != (name == "packed") {
			t.Errorf("%s: packed = %v", name, is)
		}
	}
}

func TestResourceThatIsNotKept(t *testing.T) {
	srv := newServer()
	srv.drop = true
	s := store.NewResource(srv, "own")
	if _, err := s.Create(t.Context(), contract.Incident("a")); err == nil || !strings.Contains(err.Error(), "was not kept as it was sent") {
		t.Errorf("err = %v, want that the server does not keep the status", err)
	}
	all, err := s.List(t.Context())
	if c, ok := errors.AsType[*store.Corrupt](err); !ok || c.Name != "a" || len(all) != 0 {
		t.Errorf("%d incidents, %v; want that a cannot be read", len(all), err)
	}
}
