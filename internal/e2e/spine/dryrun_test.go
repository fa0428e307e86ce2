package spine

import (
	"context"
	"fmt"
	"testing"
	"time"

	"stoker.dev/stoker/internal/e2e/scene"

	"stoker.dev/stoker/internal/e2e/cluster"
)

// TestDryRunWritesNothing: in mode dry-run the service says what it would do and asks the
// API server for no change of anything, not even of a lease.
func TestDryRunWritesNothing(t *testing.T) {
	f := scene.SetUp(t, "dry", scene.Needs{Nodes: 4})
	ill := f.StartJob(t, 0)
	s := f.Serve(t, scene.Settings{Mode: "dry-run"})
	s.AwaitLeader(t)
	s.Tell(t, scene.WebhookBody(t, f.GPULost(t, ill, time.Now())))

	var in scene.Incident
	s.Await(t, "the API to tell what would be done", scene.Soon, func(context.Context) (bool, string, error) {
		all := s.Incidents(t)
		if len(all) != 1 {
			return false, fmt.Sprintf("%d incidents", len(all)), nil
		}
		in = all[0]
		return len(in.Waiting) > 0, in.String(), nil
	})
	t.Log(in)
	if !scene.Contains(in.String(), "mode", "dry-run") || in.Over() {
		t.Errorf("the incident does not say that it waits for mode dry-run: %s", in)
	}
	text := s.Explain(t, "node/"+ill)
	if !scene.Contains(text, append([]string{"dry-run"}, scene.Ladder...)...) {
		t.Errorf("explain does not say what would be done, from cordon to release:\n%s", text)
	}

	time.Sleep(3 * time.Second) // some more ticks
	did := f.Audit(t).By(f.User)
	if writes := did.Writes(); len(writes) > 0 {
		t.Errorf("the service writes:\n%s", writes)
	}
	if reads := did.Where(func(e cluster.AuditEvent) bool { return e.Resource == "nodes" }); len(reads) == 0 {
		t.Error("the audit log has no read of the account either: it is not being watched")
	}
	if n := f.Node(t, ill); n.Spec.Unschedulable || n.Annotations["stoker.dev/hold"] != "" {
		t.Errorf("node %s was marked: %v", ill, n.Annotations)
	}
}
