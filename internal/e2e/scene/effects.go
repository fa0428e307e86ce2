package scene

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/internal/e2e/cluster"
)

// An Effect is what a write does, named like the step that is to do it.
type Effect string

// The effects that a write can have.
const (
	noEffect Effect = ""            // the service's own bookkeeping: incidents, lease, events
	unknown  Effect = "unknown"     // a write that no step has a name for
	holdAdds Effect = "hold change" // a change of a hold that is neither of the next two

	Cordons  Effect = "cordon"
	Asks     Effect = "checkpoint"
	Stops    Effect = "stop"
	Starts   Effect = "start"
	Evicts   Effect = "drain"
	Reboots  Effect = "reboot" // or another repair of a node
	Releases Effect = "release"
	Recipes  Effect = "recipe"
)

// OnceEach is every effect of a ladder that is climbed on a node with one job and, beside
// it, one pod.
var OnceEach = map[Effect]int{Cordons: 1, Asks: 1, Stops: 1, Starts: 1, Evicts: 1, Reboots: 1, Releases: 1}

// A Write is a request that changes something, on its way or in the audit log.
type Write struct {
	Verb, Resource, subresource, namespace, name string
	body                                         []byte
}

// EffectOf says what a write of the service in namespace system does. Patches are read as
// merge patches.
func EffectOf(w Write, system string) Effect {
	own := w.namespace == system
	switch {
	case own && (w.Resource == "incidents" || w.Resource == "leases" || w.Resource == "events"), w.Resource == "events", w.Resource == "tokenreviews":
		return noEffect
	case own && w.Resource == "jobs" && w.Verb == "create":
		return Reboots
	case w.Resource == "pods" && w.subresource == "eviction" && w.Verb == "create":
		return Evicts
	case w.Verb != "patch" || w.subresource != "":
		return unknown
	}
	var patch struct {
		Metadata struct {
			Annotations map[string]any `json:"annotations"`
		} `json:"metadata"`
		Spec map[string]any `json:"spec"`
	}
	if err := json.Unmarshal(w.body, &patch); err != nil {
		return unknown
	}
	switch w.Resource {
	case "nodes":
		hold, changed := patch.Metadata.Annotations["stoker.dev/hold"]
		switch {
		case changed && hold == nil:
			return Releases
		case changed && patch.Spec["unschedulable"] == true:
			return Cordons
		case changed:
			return holdAdds
		}
	case "jobs":
		if suspend, changed := patch.Spec["suspend"]; changed {
			if suspend == true {
				return Stops
			}
			return Starts
		}
		if patch.Spec["template"] != nil {
			return Recipes
		}
		if patch.Metadata.Annotations["stoker.dev/checkpoint-request"] != nil {
			return Asks
		}
	}
	return unknown
}

// WriteOf is the write that an audit event tells of.
func WriteOf(e cluster.AuditEvent) Write {
	return Write{e.Verb, e.Resource, e.Subresource, e.Namespace, e.Name, e.Object}
}

// Did returns what the service's account has done, as the API server wrote it down:
// the writes that were answered with success, by what they do.
func (f *Fixture) Did(t *testing.T) map[Effect]cluster.AuditLog {
	t.Helper()
	out := map[Effect]cluster.AuditLog{}
	for _, e := range f.Audit(t).By(f.User).Writes().Done() {
		what := EffectOf(WriteOf(e), f.System)
		out[what] = append(out[what], e)
	}
	return out
}

// Settle is how long after the end of an incident a late second effect would have come.
const Settle = 2 * time.Second

// CheckEffects waits a little and then checks that the service has had exactly these effects
// and no other, that no pod was evicted twice, and that its account was never refused
// anything. It logs the counts.
func (f *Fixture) CheckEffects(t *testing.T, want map[Effect]int) {
	t.Helper()
	time.Sleep(Settle)
	did := f.Did(t)
	bookkeeping := did[noEffect]
	delete(did, noEffect)
	got := map[Effect]int{}
	var counts []string
	for _, what := range slices.Sorted(maps.Keys(did)) {
		got[what] = len(did[what])
		counts = append(counts, fmt.Sprintf("%s %d", what, got[what]))
	}
	t.Logf("effects by the audit log: %s; beside them %d writes of incidents, %d of leases, %d of events",
		strings.Join(counts, ", "), len(bookkeeping.Of("incidents")), len(bookkeeping.Of("leases")), len(bookkeeping.Of("events")))
	if !maps.Equal(got, want) {
		t.Errorf("effects %v, want %v; the account's writes beside leases:\n%s", got, want,
			f.Audit(t).By(f.User).Writes().Where(func(e cluster.AuditEvent) bool { return e.Resource != "leases" }))
	}
	evicted := map[string]int{}
	for _, e := range did[Evicts] {
		var body struct {
			DeleteOptions struct {
				Preconditions struct{ UID string }
			}
		}
		if err := json.Unmarshal(e.Object, &body); err != nil {
			t.Fatalf("eviction %s: %v", e, err)
		}
		uid := body.DeleteOptions.Preconditions.UID
		if uid == "" {
			t.Errorf("an eviction names no uid: %s", e)
		}
		if evicted[uid]++; evicted[uid] > 1 {
			t.Errorf("pod %s with uid %s was evicted %d times", e.Name, uid, evicted[uid])
		}
	}
	if refused := f.Audit(t).By(f.User).Denied().Since(f.Pardoned); len(refused) > 0 {
		t.Errorf("the account was refused what it asked for:\n%s", refused)
	}
}

// Effects picks what has had an effect from the audit log.
func (f *Fixture) Effects(e Effect) func(cluster.AuditLog) cluster.AuditLog {
	return func(l cluster.AuditLog) cluster.AuditLog {
		return l.By(f.User).Done().Where(func(ev cluster.AuditEvent) bool { return ev.Write() && EffectOf(WriteOf(ev), f.System) == e })
	}
}

// SecondRefusal picks the evictions that a budget has refused, when there are two.
func (f *Fixture) SecondRefusal(l cluster.AuditLog) cluster.AuditLog {
	return l.By(f.User).Of("pods/eviction").Where(func(e cluster.AuditEvent) bool { return e.Code == http.StatusTooManyRequests }).AtLeast(2)
}
