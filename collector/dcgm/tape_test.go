package dcgm

import (
	"testing"
	"time"
)

// TestAnEventAtTheEdgeOfTheOverlap is read again by the next reading, which begins at its very
// time, and is known; one that is older is forgotten.
func TestAnEventAtTheEdgeOfTheOverlap(t *testing.T) {
	tape := newTape(time.Minute)
	now := time.UnixMicro(1_800_000_000_000_000)
	edge := sample{GroupEntityPair{FE_GPU, 0}, fieldXID, now.Add(-time.Minute).UnixMicro(), 31}
	older := edge
	older.ts--
	for _, x := range []sample{edge, older} {
		if fresh, ok := tape.fresh(x); !fresh || !ok {
			t.Fatalf("%v is not new: %v, %v", x, fresh, ok)
		}
	}
	tape.advance(now)
	if since := tape.since().UnixMicro(); since != edge.ts {
		t.Fatalf("the next reading begins at %d, want %d", since, edge.ts)
	}
	if fresh, _ := tape.fresh(edge); fresh {
		t.Error("what is at the edge counts twice")
	}
	if len(tape.seen) != 1 {
		t.Errorf("%d samples are remembered, want the one at the edge", len(tape.seen))
	}
}
