package scene

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The tests of this file judge the judge; they need no cluster.

func TestEffectOf(t *testing.T) {
	const system = "stoker-x"
	for name, tc := range map[string]struct {
		Write
		want Effect
	}{
		"a hold that comes with a cordon": {
			Write{Verb: "patch", Resource: "nodes", body: []byte(`{"metadata":{"annotations":{"stoker.dev/hold":"{}"}},"spec":{"unschedulable":true}}`)}, Cordons,
		},
		"a hold that goes": {
			Write{Verb: "patch", Resource: "nodes", body: []byte(`{"metadata":{"annotations":{"stoker.dev/hold":null}},"spec":{"unschedulable":null}}`)}, Releases,
		},
		"a cordon without a hold": {
			Write{Verb: "patch", Resource: "nodes", body: []byte(`{"spec":{"unschedulable":true}}`)}, unknown,
		},
		"a hold without a cordon": {
			Write{Verb: "patch", Resource: "nodes", body: []byte(`{"metadata":{"annotations":{"stoker.dev/hold":"{}"}}}`)}, holdAdds,
		},
		"a taint":                 {Write{Verb: "patch", Resource: "nodes", body: []byte(`{"spec":{"taints":[]}}`)}, unknown},
		"a node's status":         {Write{Verb: "patch", Resource: "nodes", subresource: "status", body: []byte(`{}`)}, unknown},
		"a node replaced":         {Write{Verb: "update", Resource: "nodes", body: []byte(`{}`)}, unknown},
		"a request to save":       {Write{Verb: "patch", Resource: "jobs", body: []byte(`{"metadata":{"annotations":{"stoker.dev/checkpoint-request":"k"}}}`)}, Asks},
		"a job suspended":         {Write{Verb: "patch", Resource: "jobs", body: []byte(`{"spec":{"suspend":true}}`)}, Stops},
		"a job let run":           {Write{Verb: "patch", Resource: "jobs", body: []byte(`{"spec":{"suspend":false}}`)}, Starts},
		"a job's template":        {Write{Verb: "patch", Resource: "jobs", body: []byte(`{"spec":{"template":{"spec":{}}}}`)}, Recipes},
		"a job deleted":           {Write{Verb: "delete", Resource: "jobs", namespace: system}, unknown},
		"a repair":                {Write{Verb: "create", Resource: "jobs", namespace: system}, Reboots},
		"a job made for a user":   {Write{Verb: "create", Resource: "jobs", namespace: "train"}, unknown},
		"an eviction":             {Write{Verb: "create", Resource: "pods", subresource: "eviction"}, Evicts},
		"a pod deleted":           {Write{Verb: "delete", Resource: "pods"}, unknown},
		"an incident":             {Write{Verb: "update", Resource: "incidents", namespace: system}, noEffect},
		"somebody else's lease":   {Write{Verb: "update", Resource: "leases", namespace: "kube-system"}, unknown},
		"a patch of another kind": {Write{Verb: "patch", Resource: "nodes", body: []byte(`[{"op":"add"}]`)}, unknown},
	} {
		if got := EffectOf(tc.Write, system); got != tc.want {
			t.Errorf("%s is %q, want %q", name, got, tc.want)
		}
	}
}

func TestParseWrite(t *testing.T) {
	for path, want := range map[string]Write{
		"/api/v1/nodes/a":                                              {Verb: "patch", Resource: "nodes", name: "a"},
		"/api/v1/namespaces/n":                                         {Verb: "patch", Resource: "namespaces", name: "n"},
		"/api/v1/namespaces/n/pods/p/eviction":                         {Verb: "patch", Resource: "pods", namespace: "n", name: "p", subresource: "eviction"},
		"/apis/batch/v1/namespaces/n/jobs":                             {Verb: "patch", Resource: "jobs", namespace: "n"},
		"/apis/incidents.stoker.dev/v1alpha1/namespaces/n/incidents/i": {Verb: "patch", Resource: "incidents", namespace: "n", name: "i"},
		"/apis/batch/v1":                                               {Verb: "patch"},
		"/":                                                            {Verb: "patch"},
	} {
		got := parseWrite(http.MethodPatch, path, nil)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(Write{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
}

func TestReserving(t *testing.T) {
	for name, tc := range map[string]struct {
		body string
		want bool
	}{
		"the step runs":             {`{"status":{"steps":[{"action":"cordon","ending":"done"},{"action":"stop"}]}}`, true},
		"the step has ended":        {`{"status":{"steps":[{"action":"stop","ending":"done"},{"action":"start"}]}}`, false},
		"the step was passed over":  {`{"status":{"steps":[{"action":"stop","skipped":true}]}}`, false},
		"no step yet":               {`{"status":{}}`, false},
		"a patch reserves it":       {`[{"op":"replace","path":"/metadata/resourceVersion","value":"7"},{"op":"add","path":"/status","value":{"steps":[{"action":"stop"}]}}]`, true},
		"a patch of something else": {`[{"op":"add","path":"/metadata/labels","value":{}}]`, false},
		"what is no JSON":           {`[`, false},
	} {
		w := Write{Verb: "update", Resource: "incidents", body: []byte(tc.body)}
		if got := Reserving("stop")(w); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

func TestASampleWithoutXIDsShowsNone(t *testing.T) {
	sample := ExporterSample(t)
	clean := WithoutXIDs(sample)
	if strings.Contains(clean, `xid="`) || strings.Contains(clean, `err_code="79"`) {
		t.Error("the page still shows an XID")
	}
	if got := strings.Count(clean, `UUID="GPU-00000003`); got == 0 || got >= strings.Count(sample, `UUID="GPU-00000003`) {
		t.Errorf("%d series of GPU 3 are left, want most of those of the sample", got)
	}
}
