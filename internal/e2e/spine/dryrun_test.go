package spine

import (
	"context"
	"fmt"
	"testing"
	"time"

	"stoker.dev/stoker/internal/e2e/cluster"
)

// TestDryRunWritesNothing: in mode dry-run the service says what it would do and asks the
// API server for no change of anything, not even of a lease.
func TestDryRunWritesNothing(t *testing.T) {
	f := setUp(t, "dry", needs{nodes: 4})
	ill := f.startJob(t, 0)
	s := f.serve(t, settings{mode: "dry-run"})
	s.awaitLeader(t)
	s.tell(t, webhookBody(t, f.gpuLost(t, ill, time.Now())))

	var in incident
	s.Await(t, "the API to tell what would be done", soon, func(context.Context) (bool, string, error) {
		all := s.incidents(t)
		if len(all) != 1 {
			return false, fmt.Sprintf("%d incidents", len(all)), nil
		}
		in = all[0]
		return len(in.Waiting) > 0, in.String(), nil
	})
	t.Log(in)
	if !contains(in.String(), "mode", "dry-run") || in.closed() {
		t.Errorf("the incident does not say that it waits for mode dry-run: %s", in)
	}
	text := s.explain(t, "node/"+ill)
	if !contains(text, append([]string{"dry-run"}, ladder...)...) {
		t.Errorf("explain does not say what would be done, from cordon to release:\n%s", text)
	}

	time.Sleep(3 * time.Second) // some more ticks
	did := f.Audit(t).By(f.user)
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
