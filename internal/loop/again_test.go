package loop

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// TestWhatIsTriedAgainIsAdmittedAgain lets a person silence a node whose drain is refused
// and tried again: it is not pressed any further, and goes on when they allow it.
func TestWhatIsTriedAgainIsAdmittedAgain(t *testing.T) {
	w := newWard(t, 1)
	usual := w.every
	w.every = time.Second
	tries, silenced := 0, false
	w.site.before = func(o remedy.Order) error {
		if o.Action != "drain" {
			return nil
		}
		if tries++; tries <= 2 {
			return &remedy.Failure{Ending: remedy.Conflict, Err: errors.New("a disruption budget refuses")}
		}
		return nil
	}
	w.site.gate = func(remedy.Order) []remedy.GateResult {
		return []remedy.GateResult{{Gate: "silence", Pass: !silenced, Reason: "by ann"}}
	}
	w.ingest(lost(0, 3))
	for range 100 {
		if w.ticks(1); tries == 1 {
			break
		}
	}
	silenced = true
	w.ticks(60)
	in := w.loop.Incidents()[0]
	if tries != 1 || len(in.Waiting) != 1 || in.Waiting[0].Gate != "silence" {
		t.Fatalf("tried %d times, waits for %v; want 1 time, and that it waits for the silence", tries, in.Waiting)
	}
	silenced, w.every = false, usual
	w.settle()
	if in := w.stored()[0]; in.Phase != remedy.PhaseResolved || tries != 3 || len(in.Waiting) != 0 {
		t.Errorf("%s after %d tries, waiting for %v; want it healed after 3", in.Phase, tries, in.Waiting)
	}
}

// TestAClusterThatDoesNotAnswerIsNotAskedForEachOrder: a step has an order for each job on
// the node, and each call waits until its own deadline.
func TestAClusterThatDoesNotAnswerIsNotAskedForEachOrder(t *testing.T) {
	w := newWard(t, 1)
	for i := range 7 { // beside the one that is there
		ref := fleet.JobRef{Kind: "Job.sim", Namespace: "train", Name: fmt.Sprintf("more-%d", i)}
		w.site.jobs[ref] = fleet.Job{Ref: ref, UID: "uid-" + ref.Name, Version: 1, Workers: 1, Each: fleet.Resources{GPUs: 1}, Phase: fleet.JobRunning, Started: t0.Add(-time.Hour)}
		w.site.pods[ref.Name] = fleet.Pod{PodRef: fleet.PodRef{Namespace: "train", Name: ref.Name, UID: ref.Name, Node: nodeName(0)}, Job: ref, GPUs: 1, Running: true}
	}
	silent := false
	w.site.before = func(o remedy.Order) error {
		if silent = silent || o.Action == "stop"; silent {
			return errors.New("no answer within 30s")
		}
		return nil
	}
	w.ingest(lost(0, 3))
	for range 100 {
		had := len(w.site.starts)
		if w.ticks(1); silent {
			if n := len(w.site.starts) - had; n != 1 {
				t.Errorf("it was asked %d times in one tick, want once", n)
			}
			break
		}
	}
	w.site.before = nil
	w.settle()
	if in := w.stored()[0]; in.Phase != remedy.PhaseResolved {
		t.Errorf("%s: %s; want it healed when the cluster answers again", in.Phase, in.Reason)
	}
}
