package actuator_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/actuator/contract"
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// silent is a cluster that never answers.
type silent struct{ actuator.Cluster }

func (silent) Node(ctx context.Context, _ string) (fleet.Node, error) {
	<-ctx.Done()
	return fleet.Node{}, context.Cause(ctx)
}

func TestAStartEndsThoughTheClusterDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := open(t, silent{})
		start := time.Now()
		_, err := a.Start(t.Context(), onNode("cordon", "gpu-a-01"))
		wantErr(t, err, remedy.Unclear, "no answer within 30s")
		if d := time.Since(start); d != 30*time.Second {
			t.Errorf("gave up after %v, want 30s", d)
		}
	})
}

func TestAnActionOfAnotherVersionIsRejected(t *testing.T) {
	a := open(t, contract.NewMemory(1))
	_, err := a.Start(t.Context(), onNode("replace", "gpu-a-01"))
	wantErr(t, err, remedy.Rejected, `no action "replace"`)
	out, ended := a.Check(t0, fleet.Snapshot{}, onNode("replace", "gpu-a-01"), remedy.Receipt{})
	want(t, out, ended, remedy.Rejected, `no action "replace"`)
}

func TestAnActionIsListedOnce(t *testing.T) {
	twice := actuator.Specs{actuator.Actions[0], actuator.Actions[0]}
	if _, err := actuator.New(slog.New(slog.DiscardHandler), nil, twice, nil, prometheus.NewRegistry()); err == nil {
		t.Error("an action was taken twice")
	}
}

// cut is a cluster that takes a mark and loses the answer.
type cut struct{ *contract.Memory }

func (c cut) MarkNode(ctx context.Context, n fleet.Node, hold fleet.Hold, unschedulable bool) (fleet.Node, error) {
	if _, err := c.Memory.MarkNode(ctx, n, hold, unschedulable); err != nil {
		return n, err
	}
	return fleet.Node{}, errors.New("EOF")
}

func TestOrdersAreCounted(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := contract.NewMemory(1)
	a, err := actuator.New(slog.New(slog.NewTextHandler(t.Output(), nil)), cut{m}, actuator.Actions, nil, reg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.WithGates(nil).Start(t.Context(), onNode("cordon", "gpu-a-01")); ending(err) != remedy.Unclear {
		t.Fatalf("cordon: %v, want unclear", err)
	}
	r, err := a.Start(t.Context(), onNode("cordon", "gpu-a-01"))
	if err != nil || !r.Found {
		t.Fatalf("cordon again: %+v, %v", r, err)
	}
	o := onNode("cordon", "gpu-a-01")
	now := t0.Add(7 * time.Second)
	if _, ended := a.Check(now, world(now, nil, nil), o, remedy.Receipt{At: now}); ended {
		t.Fatal("ended by a snapshot of the time of the start")
	}
	a.Check(now, world(now, []fleet.Node{whole(nil)}, nil), o, remedy.Receipt{At: t0})
	_, _ = a.Start(t.Context(), onNode("name-out-of-a-store-1", "gpu-a-01"))
	_, _ = a.Start(t.Context(), onNode("name-out-of-a-store-2", "gpu-a-01"))

	const text = `
# HELP stoker_actuator_orders_total Orders that ended, tries that will be repeated included, by action and outcome.
# TYPE stoker_actuator_orders_total counter
stoker_actuator_orders_total{action="cordon",outcome="done"} 1
stoker_actuator_orders_total{action="cordon",outcome="unclear"} 1
stoker_actuator_orders_total{action="unknown",outcome="rejected"} 2
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(text), "stoker_actuator_orders_total"); err != nil {
		t.Error(err)
	}
	if n, err := testutil.GatherAndCount(reg, "stoker_actuator_order_seconds"); err != nil || n != 1 {
		t.Errorf("%d histograms, %v, want that of cordon", n, err)
	}
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
}
