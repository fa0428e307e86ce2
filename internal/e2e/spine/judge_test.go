package spine

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
		write
		want effect
	}{
		"a hold that comes with a cordon": {
			write{verb: "patch", resource: "nodes", body: []byte(`{"metadata":{"annotations":{"stoker.dev/hold":"{}"}},"spec":{"unschedulable":true}}`)}, cordons,
		},
		"a hold that goes": {
			write{verb: "patch", resource: "nodes", body: []byte(`{"metadata":{"annotations":{"stoker.dev/hold":null}},"spec":{"unschedulable":null}}`)}, releases,
		},
		"a cordon without a hold": {
			write{verb: "patch", resource: "nodes", body: []byte(`{"spec":{"unschedulable":true}}`)}, unknown,
		},
		"a hold without a cordon": {
			write{verb: "patch", resource: "nodes", body: []byte(`{"metadata":{"annotations":{"stoker.dev/hold":"{}"}}}`)}, holdAdds,
		},
		"a taint":                 {write{verb: "patch", resource: "nodes", body: []byte(`{"spec":{"taints":[]}}`)}, unknown},
		"a node's status":         {write{verb: "patch", resource: "nodes", subresource: "status", body: []byte(`{}`)}, unknown},
		"a node replaced":         {write{verb: "update", resource: "nodes", body: []byte(`{}`)}, unknown},
		"a request to save":       {write{verb: "patch", resource: "jobs", body: []byte(`{"metadata":{"annotations":{"stoker.dev/checkpoint-request":"k"}}}`)}, asks},
		"a job suspended":         {write{verb: "patch", resource: "jobs", body: []byte(`{"spec":{"suspend":true}}`)}, stops},
		"a job let run":           {write{verb: "patch", resource: "jobs", body: []byte(`{"spec":{"suspend":false}}`)}, starts},
		"a job deleted":           {write{verb: "delete", resource: "jobs", namespace: system}, unknown},
		"a repair":                {write{verb: "create", resource: "jobs", namespace: system}, reboots},
		"a job made for a user":   {write{verb: "create", resource: "jobs", namespace: "train"}, unknown},
		"an eviction":             {write{verb: "create", resource: "pods", subresource: "eviction"}, evicts},
		"a pod deleted":           {write{verb: "delete", resource: "pods"}, unknown},
		"an incident":             {write{verb: "update", resource: "incidents", namespace: system}, noEffect},
		"somebody else's lease":   {write{verb: "update", resource: "leases", namespace: "kube-system"}, unknown},
		"a patch of another kind": {write{verb: "patch", resource: "nodes", body: []byte(`[{"op":"add"}]`)}, unknown},
	} {
		if got := effectOf(tc.write, system); got != tc.want {
			t.Errorf("%s is %q, want %q", name, got, tc.want)
		}
	}
}

func TestParseWrite(t *testing.T) {
	for path, want := range map[string]write{
		"/api/v1/nodes/a":                                              {verb: "patch", resource: "nodes", name: "a"},
		"/api/v1/namespaces/n":                                         {verb: "patch", resource: "namespaces", name: "n"},
		"/api/v1/namespaces/n/pods/p/eviction":                         {verb: "patch", resource: "pods", namespace: "n", name: "p", subresource: "eviction"},
		"/apis/batch/v1/namespaces/n/jobs":                             {verb: "patch", resource: "jobs", namespace: "n"},
		"/apis/incidents.stoker.dev/v1alpha1/namespaces/n/incidents/i": {verb: "patch", resource: "incidents", namespace: "n", name: "i"},
		"/apis/batch/v1":                                               {verb: "patch"},
		"/":                                                            {verb: "patch"},
	} {
		got := parseWrite(http.MethodPatch, path, nil)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(write{})); diff != "" {
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
		w := write{verb: "update", resource: "incidents", body: []byte(tc.body)}
		if got := reserving("stop")(w); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

func TestASampleWithoutXIDsShowsNone(t *testing.T) {
	sample := exporterSample(t)
	clean := withoutXIDs(sample)
	if strings.Contains(clean, `xid="`) || strings.Contains(clean, `err_code="79"`) {
		t.Error("the page still shows an XID")
	}
	if got := strings.Count(clean, `UUID="GPU-00000003`); got == 0 || got >= strings.Count(sample, `UUID="GPU-00000003`) {
		t.Errorf("%d series of GPU 3 are left, want most of those of the sample", got)
	}
}
