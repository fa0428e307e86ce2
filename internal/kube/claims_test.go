package kube

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/internal/remedy"
)

func TestClaimsOfAJob(t *testing.T) {
	volumes := "volumes: ["
	for _, name := range []string{"bound", "pending", "going", "missing"} {
		volumes += fmt.Sprintf("{name: %s, persistentVolumeClaim: {claimName: %s}}, ", name, name)
	}
	mounts := strings.Replace(stoppedJob, "spec: {containers: [{name: c}]}", "spec: {containers: [{name: c}], "+volumes+"]}", 1)
	claim := func(name, more, phase string) string {
		return fmt.Sprintf("{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: %s, namespace: train%s}, status: {phase: %s}}", name, more, phase)
	}
	s := newServer(t)
	const route = "GET /api/v1/namespaces/train/persistentvolumeclaims/"
	s.on("GET "+jobRoute, yamlAnswer(t, mounts))
	s.on(route+"bound", yamlAnswer(t, claim("bound", "", "Bound")))
	s.on(route+"pending", yamlAnswer(t, claim("pending", "", "Pending")))
	s.on(route+"going", yamlAnswer(t, claim("going", `, deletionTimestamp: "2026-03-01T12:00:00Z"`, "Bound")))
	s.on(route+"missing", status(404, metav1.StatusReasonNotFound, "not found", &metav1.StatusDetails{Name: "missing", Kind: "persistentvolumeclaims"}))
	c := cluster(t, s)
	j, err := c.Job(t.Context(), llm2)
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.ClaimsOf(t.Context(), j)
	want := []actuator.Claim{{Name: "bound"}, {Name: "going", Lacks: "is being deleted"}, {Name: "missing", Lacks: "is not there"}, {Name: "pending", Lacks: "is Pending"}}
	if d := cmp.Diff(got, want); err != nil || d != "" {
		t.Errorf("%v (-got +want):\n%s", err, d)
	}

	s.on(route+"bound", status(403, metav1.StatusReasonForbidden, "may not", nil))
	if _, err := c.ClaimsOf(t.Context(), j); err == nil || endingOf(err) == remedy.Gone {
		t.Errorf("claims that may not be read: %v, want an error", err)
	}
}

func TestARecipeThatTheAPIRefusesIsRejected(t *testing.T) {
	s := newServer(t)
	s.on("GET "+jobRoute, yamlAnswer(t, stoppedJob))
	s.on("PATCH "+jobRoute, status(422, metav1.StatusReasonInvalid, "spec.template: field is immutable", &metav1.StatusDetails{Name: "llm-2"}))
	c := cluster(t, s)
	j, err := c.Job(t.Context(), llm2)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.SetRecipe(t.Context(), j, "k", map[string]string{"BATCH_SIZE": "8"})
	wantEnding(t, err, remedy.Rejected)
	patches := s.sent("PATCH")
	if len(patches) != 1 {
		t.Fatalf("%d patches, want one: half a recipe is none", len(patches))
	}
	wantBody(t, patches[0], `{metadata: {uid: j-1, resourceVersion: "21", annotations: {stoker.dev/recipe-by: k}}, spec: {template: {metadata: {annotations: {env.stoker.dev/BATCH_SIZE: "8"}}}}}`)
}
