package kube

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.dev/stoker/internal/e2e/cluster"
	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/internal/store"
	"stoker.dev/stoker/internal/store/contract"
)

// empty removes every incident.
func (s *suite) empty(t *testing.T) {
	t.Helper()
	if err := s.Dynamic.Resource(store.Incidents).Namespace(own).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestResourceStoreKeepsTheContract(t *testing.T) {
	s := theSuite(t)
	contract.Test(t, contract.Opener{
		Open: func(t *testing.T) contract.Store {
			t.Helper()
			s.empty(t)
			return store.NewResource(s.client(t), own)
		},
		// What is in the API server outlives us; another replica reads it by a connection of its own.
		Reopen: func(t *testing.T, _ contract.Store) contract.Store {
			t.Helper()
			return store.NewResource(s.client(t), own)
		},
		Size: func(t *testing.T, _ contract.Store, name string) int {
			t.Helper()
			obj, err := s.Dynamic.Resource(store.Incidents).Namespace(own).Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			data, err := json.Marshal(obj)
			if err != nil {
				t.Fatal(err)
			}
			return len(data)
		},
	})
}

func TestIncidentIsOneWriteEach(t *testing.T) {
	s := theSuite(t)
	s.empty(t)
	st := store.NewResource(s.client(t), own)
	in, err := st.Create(t.Context(), contract.Incident("one-write"))
	if err != nil {
		t.Fatal(err)
	}
	in.Rung++
	if in, err = st.Update(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	in.Phase = remedy.PhaseResolved
	if in, err = st.Update(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	if err := st.Delete(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	writes := s.AwaitAudit(t, "four writes of the incident", soon, func(l cluster.AuditLog) cluster.AuditLog {
		return l.ByServiceAccount(own, account).Writes().Of("incidents").Named("one-write").AtLeast(4)
	})
	if len(writes) != 4 {
		t.Errorf("%d writes, want create, two patches and delete:\n%s", len(writes), writes)
	}
}

func TestIncidentAsPeopleSeeIt(t *testing.T) {
	s := theSuite(t)
	s.empty(t)
	st := store.NewResource(s.client(t), own)
	in, err := st.Create(t.Context(), contract.Incident("columns"))
	if err != nil {
		t.Fatal(err)
	}
	data, err := s.Client.Discovery().RESTClient().Get().AbsPath("/apis/"+store.Incidents.GroupVersion().String()+"/namespaces/"+own+"/incidents").
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Do(t.Context()).Raw()
	if err != nil {
		t.Fatal(err)
	}
	var table metav1.Table
	if err := json.Unmarshal(data, &table); err != nil {
		t.Fatal(err)
	}
	var row []string
	for i, c := range table.ColumnDefinitions {
		row = append(row, fmt.Sprintf("%s=%v", c.Name, table.Rows[0].Cells[i]))
	}
	got := strings.Join(row, " ")
	for _, want := range []string{"Name=columns", "Subject=gpu-a-02/gpu-0", "Class=gpu-lost", "Phase=acting", "Step=stop 2/2", "Reason=stop 2/2 is running", "Age="} {
		if !strings.Contains(got, want) {
			t.Errorf("columns are %q, want %q among them", got, want)
		}
	}

	// What people put on the object stays, and a change of theirs is a conflict to whoever has not seen it.
	patch := []byte(`{"metadata":{"labels":{"ticket":"4711"}}}`)
	if _, err := s.Dynamic.Resource(store.Incidents).Namespace(own).Patch(t.Context(), "columns", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = st.Update(t.Context(), in)
	wantEnding(t, err, remedy.Conflict)
	all, err := st.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := st.Update(t.Context(), all[0]); err != nil {
		t.Fatal(err)
	}
	obj, err := s.Dynamic.Resource(store.Incidents).Namespace(own).Get(t.Context(), "columns", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if obj.GetLabels()["ticket"] != "4711" {
		t.Errorf("labels are %v after an update, want the person's", obj.GetLabels())
	}
}

func TestDamagedIncidentHidesNoOther(t *testing.T) {
	s := theSuite(t)
	s.empty(t)
	st := store.NewResource(s.client(t), own)
	for _, name := range []string{"a", "b", "c"} {
		if _, err := st.Create(t.Context(), contract.Incident(name)); err != nil {
			t.Fatal(err)
		}
	}
	patch := []byte(`{"status":{"rung":"none"}}`)
	if _, err := s.Dynamic.Resource(store.Incidents).Namespace(own).Patch(t.Context(), "b", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	all, err := st.List(t.Context())
	if len(all) != 2 || err == nil || !strings.Contains(err.Error(), "stored incident b cannot be read") {
		t.Errorf("%d incidents, %v; want a and c, and that b cannot be read", len(all), err)
	}
	// The schema refuses what could not even be listed.
	if _, err := s.Dynamic.Resource(store.Incidents).Namespace(own).Patch(t.Context(), "a", types.MergePatchType, []byte(`{"status":{"phase":7}}`), metav1.PatchOptions{}); err == nil {
		t.Error("a phase that is a number was accepted")
	}
	if _, err := s.Dynamic.Resource(store.Incidents).Namespace(own).Patch(t.Context(), "a", types.MergePatchType, []byte(`{"spec":{"class":"gpu-ecc"}}`), metav1.PatchOptions{}); err == nil {
		t.Error("what an incident is about was changed")
	}
}
