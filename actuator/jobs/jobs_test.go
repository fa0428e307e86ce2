package jobs

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// TestEveryAdapter holds for all frameworks, also those not written yet.
func TestEveryAdapter(t *testing.T) {
	kinds := map[string]bool{}
	for _, s := range Adapters {
		t.Run(s.Name, func(t *testing.T) {
			if s.Name == "" || s.Doc == "" || !strings.HasSuffix(s.Doc, ".") {
				t.Errorf("name %q and doc %q have to say what it is", s.Name, s.Doc)
			}
			if kinds[s.Kind.String()] {
				t.Errorf("two adapters are for %s", s.Kind)
			}
			kinds[s.Kind.String()] = true
			if s.Resource.Group != s.Kind.Group || s.Resource.Resource == "" || s.Resource.Version == "" {
				t.Errorf("resource %s is not of kind %s", s.Resource, s.Kind)
			}
			a := s.New()
			if got := a.Kinds(); len(got) == 0 || got[0].GroupKind() != s.Kind {
				t.Errorf("it observes %v, want %s first", got, s.Kind)
			}
			verbs := map[string]bool{}
			for _, r := range s.RBAC {
				if r.Own {
					t.Errorf("rule %+v is for our own namespace; jobs are elsewhere", r)
				}
				if !slices.IsSorted(r.Verbs) {
					t.Errorf("verbs %v are not in order", r.Verbs)
				}
				if r.Group == s.Resource.Group && r.Resource == s.Resource.Resource {
					for _, v := range r.Verbs {
						verbs[v] = true
					}
				}
				for _, v := range r.Verbs {
					if slices.Contains([]string{"*", "delete", "deletecollection", "escalate", "impersonate"}, v) {
						t.Errorf("verb %q is more than an adapter needs", v)
					}
				}
			}
			if want := map[string]bool{"get": true, "list": true, "watch": true, "patch": true}; !cmp.Equal(want, verbs) {
				t.Errorf("verbs on the job itself are %v, want %v", verbs, want)
			}

			// An object of which nothing is known is neither a panic nor a job that runs.
			empty := map[string]any{"metadata": map[string]any{"namespace": "n", "name": "x"}}
			j := a.Job(a.Trim(empty), time.Time{})
			if j.Phase == fleet.JobRunning || j.Phase.Ended() || !j.Started.IsZero() {
				t.Errorf("an empty object is a job that is %s, started %v", j.Phase, j.Started)
			}
			if want := (fleet.JobRef{Kind: s.Kind.String(), Namespace: "n", Name: "x"}); j.Ref != want {
				t.Errorf("it is called %+v, want %+v", j.Ref, want)
			}
			if _, err := a.Pods(empty); err == nil {
				t.Error("an object that selects no pods has a selector")
			}
			for name, act := range map[string]func() (Change, error){
				"start":  func() (Change, error) { return a.Start(empty, "k", actuator.Restart{}) },
				"recipe": func() (Change, error) { return a.Recipe(empty, "k", map[string]string{"A": "1"}) },
			} {
				_, err := act()
				if _, ok := errors.AsType[*remedy.Failure](err); !ok {
					t.Errorf("%s of a job that is not stopped: %v, want a failure", name, err)
				}
			}
		})
	}
}

func object(t testing.TB, text string) map[string]any {
	t.Helper()
	u := &unstructured.Unstructured{}
	data, err := yaml.YAMLToJSON([]byte(text))
	if err == nil {
		err = u.UnmarshalJSON(data)
	}
	if err != nil {
		t.Fatal(err)
	}
	return u.Object
}

// with returns the object with another value at a path.
func with(t testing.TB, obj map[string]any, value any, path ...string) map[string]any {
	t.Helper()
	u := (&unstructured.Unstructured{Object: obj}).DeepCopy()
	if err := unstructured.SetNestedField(u.Object, value, path...); err != nil {
		t.Fatal(err)
	}
	return u.Object
}

func plain(t testing.TB, v any) any {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var out any
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// wantPatch compares a patch with one that is written as YAML.
func wantPatch(t testing.TB, got map[string]any, want string) {
	t.Helper()
	var w any
	if err := yaml.Unmarshal([]byte(want), &w); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(w, plain(t, got)); d != "" {
		t.Errorf("patch differs (-want +got):\n%s", d)
	}
}

func wantEnding(t testing.TB, err error, want remedy.Ending, text string) {
	t.Helper()
	f, ok := errors.AsType[*remedy.Failure](err)
	if !ok || f.Ending != want || !strings.Contains(err.Error(), text) {
		t.Errorf("err = %v, want %s with %q", err, want, text)
	}
}
