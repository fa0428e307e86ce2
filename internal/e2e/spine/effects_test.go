package spine

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

// An effect is what a write does, named like the step that is to do it.
type effect string

const (
	noEffect effect = ""            // the service's own bookkeeping: incidents, lease, events
	unknown  effect = "unknown"     // a write that no step has a name for
	holdAdds effect = "hold change" // a change of a hold that is neither of the next two

	cordons  effect = "cordon"
	asks     effect = "checkpoint"
	stops    effect = "stop"
	starts   effect = "start"
	evicts   effect = "drain"
	reboots  effect = "reboot"
	releases effect = "release"
)

// onceEach is every effect of a ladder that is climbed on a node with one job and, beside
// it, one pod.
var onceEach = map[effect]int{cordons: 1, asks: 1, stops: 1, starts: 1, evicts: 1, reboots: 1, releases: 1}

// A write is a request that changes something, on its way or in the audit log.
type write struct {
	verb, resource, subresource, namespace, name string
	body                                         []byte
}

// effectOf says what a write of the service in namespace system does. Patches are read as
// merge patches.
func effectOf(w write, system string) effect {
	own := w.namespace == system
	switch {
	case own && (w.resource == "incidents" || w.resource == "leases" || w.resource == "events"), w.resource == "events":
		return noEffect
	case own && w.resource == "jobs" && w.verb == "create":
		return reboots
	case w.resource == "pods" && w.subresource == "eviction" && w.verb == "create":
		return evicts
	case w.verb != "patch" || w.subresource != "":
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
	switch w.resource {
	case "nodes":
		hold, changed := patch.Metadata.Annotations["stoker.dev/hold"]
		switch {
		case changed && hold == nil:
			return releases
		case changed && patch.Spec["unschedulable"] == true:
			return cordons
		case changed:
			return holdAdds
		}
	case "jobs":
		if suspend, changed := patch.Spec["suspend"]; changed {
			if suspend == true {
				return stops
			}
			return starts
		}
		if patch.Metadata.Annotations["stoker.dev/checkpoint-request"] != nil {
			return asks
		}
	}
	return unknown
}

func writeOf(e cluster.AuditEvent) write {
	return write{e.Verb, e.Resource, e.Subresource, e.Namespace, e.Name, e.Object}
}

// did returns what the service's account has done, as the API server wrote it down:
// the writes that were answered with success, by what they do.
func (f *fixture) did(t *testing.T) map[effect]cluster.AuditLog {
	t.Helper()
	out := map[effect]cluster.AuditLog{}
	for _, e := range f.Audit(t).By(f.user).Writes().Done() {
		what := effectOf(writeOf(e), f.system)
		out[what] = append(out[what], e)
	}
	return out
}

// settle is how long after the end of an incident a late second effect would have come.
const settle = 2 * time.Second

// checkEffects waits a little and then checks that the service has had exactly these effects
// and no other, that no pod was evicted twice, and that its account was never refused
// anything. It logs the counts.
func (f *fixture) checkEffects(t *testing.T, want map[effect]int) {
	t.Helper()
	time.Sleep(settle)
	did := f.did(t)
	bookkeeping := did[noEffect]
	delete(did, noEffect)
	got := map[effect]int{}
	var counts []string
	for _, what := range slices.Sorted(maps.Keys(did)) {
		got[what] = len(did[what])
		counts = append(counts, fmt.Sprintf("%s %d", what, got[what]))
	}
	t.Logf("effects by the audit log: %s; beside them %d writes of incidents, %d of leases, %d of events",
		strings.Join(counts, ", "), len(bookkeeping.Of("incidents")), len(bookkeeping.Of("leases")), len(bookkeeping.Of("events")))
	if !maps.Equal(got, want) {
		t.Errorf("effects %v, want %v; the account's writes beside leases:\n%s", got, want,
			f.Audit(t).By(f.user).Writes().Where(func(e cluster.AuditEvent) bool { return e.Resource != "leases" }))
	}
	evicted := map[string]int{}
	for _, e := range did[evicts] {
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
	if refused := f.Audit(t).By(f.user).Denied().Since(f.pardoned); len(refused) > 0 {
		t.Errorf("the account was refused what it asked for:\n%s", refused)
	}
}

// effects picks what has had an effect from the audit log.
func (f *fixture) effects(e effect) func(cluster.AuditLog) cluster.AuditLog {
	return func(l cluster.AuditLog) cluster.AuditLog {
		return l.By(f.user).Done().Where(func(ev cluster.AuditEvent) bool { return ev.Write() && effectOf(writeOf(ev), f.system) == e })
	}
}

// secondRefusal picks the evictions that a budget has refused, when there are two.
func (f *fixture) secondRefusal(l cluster.AuditLog) cluster.AuditLog {
	l = l.By(f.user).Of("pods/eviction").Where(func(e cluster.AuditEvent) bool { return e.Code == http.StatusTooManyRequests })
	if len(l) < 2 {
		return nil
	}
	return l
}
