package loop

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"stoker.dev/stoker/internal/remedy"
)

// storm is the fault of GPU 3 of node 0 once more, n times, from the time on.
func storm(n int, from time.Time) []remedy.Evidence {
	out := make([]remedy.Evidence, n)
	for i := range out {
		out[i] = lost(0, 3)
		out[i].At, out[i].Seen = from.Add(time.Duration(i)*3*time.Second), time.Time{}
	}
	return out
}

// TestCase_F8_AStormOfOneFaultIsFewWrites: the same fault of a GPU is told a thousand
// times. It is one incident, which is written once in a while.
func TestCase_F8_AStormOfOneFaultIsFewWrites(t *testing.T) {
	w := newWard(t, 1)
	w.every = time.Second
	w.site.gate = func(remedy.Order) []remedy.GateResult { return []remedy.GateResult{{Gate: "mode", Reason: "approve"}} }
	w.ingest(lost(0, 3))
	w.ticks(1)
	before := len(w.life.writes)
	for i, e := range storm(1000, t0.Add(3*time.Second)) {
		w.ingest(e)
		if i%100 == 0 {
			w.ticks(1)
		}
	}
	if n := len(w.life.writes) - before; n > 1 {
		t.Errorf("%d writes for a thousand events in ten seconds", n)
	}
	if in := w.loop.Incidents(); len(in) != 1 || in[0].EvidenceCount != 1001 {
		t.Errorf("%d incidents, the first of %d events; want one of 1001", len(in), in[0].EvidenceCount)
	}
	w.ticks(31)
	if n := len(w.life.writes) - before; n != 1 {
		t.Errorf("%d writes half a minute later, want 1", n)
	}
	if in := w.stored()[0]; in.EvidenceCount != 1001 || len(in.Evidence) > remedy.MaxEvidence {
		t.Errorf("%d events are stored, %d of them whole", in.EvidenceCount, len(in.Evidence))
	}
	told := 0
	for _, l := range w.lines() {
		if strings.Contains(l, "evidence") {
			told++
		}
	}
	if told != 2 || !strings.Contains(w.lines()[len(w.lines())-1], "told 999 times more") {
		t.Errorf("%d lines tell of it:\n%s", told, strings.Join(w.lines(), "\n"))
	}
}

// TestWhatIsOnlyHeardIsNotMissedAfterAnEnd kills the loop while it has events that are not
// written yet: what it had to decide by them is decided the same.
func TestWhatIsOnlyHeardIsNotMissedAfterAnEnd(t *testing.T) {
	end := func(kill bool) []string {
		w := newWard(t, 1)
		w.ingest(lost(0, 3))
		for range 20 {
			if w.ticks(1); w.site.started("drain") {
				break
			}
		}
		w.ingest(storm(20, t0.Add(10*time.Second))...)
		if kill {
			w.begin(0, false)
		}
		w.settle()
		return append(w.histories(), w.site.state()...)
	}
	if got, want := strings.Join(end(true), "\n"), strings.Join(end(false), "\n"); got != want || !strings.Contains(want, "resolved: healed") {
		t.Errorf("killed:\n%s\nwithout:\n%s", got, want)
	}
}

// TestAFaultThatComesBackIsDurableAtOnce: during a verification the same event once more
// is news, and what a new leader must know.
func TestAFaultThatComesBackIsDurableAtOnce(t *testing.T) {
	w := newWard(t, 1)
	w.ingest(lost(0, 3))
	for range 100 {
		if w.ticks(1); w.site.started("verify") {
			break
		}
	}
	back := lost(0, 3)
	back.At, back.Seen, back.BootID = w.now.Add(time.Second), time.Time{}, ""
	w.now = w.now.Add(2 * time.Second)
	w.ingest(back)
	w.begin(0, false) // the process ends
	w.settle()
	if in := w.stored()[0]; in.Phase != remedy.PhaseHeld || !strings.Contains(in.Reason, "came back") {
		t.Errorf("%s: %s; want it held, as the fault came back", in.Phase, in.Reason)
	}
	// And what follows is a storm like any other.
	before := len(w.life.writes)
	w.ingest(storm(100, w.now)...)
	for _, e := range storm(100, w.now.Add(10*time.Minute)) {
		e.BootID = ""
		w.ingest(e)
	}
	if n := len(w.life.writes) - before; n > 2 {
		t.Errorf("%d writes for two hundred events of a held incident", n)
	}
}

// TestWhoBringsEvidenceIsNotKeptWaitingForEver has a tick that hangs in the cluster.
func TestWhoBringsEvidenceIsNotKeptWaitingForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWard(t, 1)
		hangs := make(chan struct{})
		w.site.before = func(remedy.Order) error { <-hangs; return nil }
		w.ingest(lost(0, 3))
		go func() { _ = w.loop.Tick(context.Background(), w.now.Add(time.Second)) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeoutCause(context.Background(), 10*time.Second, errors.New("not durable within its time"))
		defer cancel()
		began := time.Now()
		err := w.loop.Ingest(ctx, w.now, []remedy.Evidence{lost(0, 4)})
		if took := time.Since(began); err == nil || took != 10*time.Second || !strings.Contains(err.Error(), "not durable within its time") {
			t.Errorf("after %v: %v; want it given up after 10s, with the reason", took, err)
		}
		close(hangs)
		synctest.Wait()
	})
}
