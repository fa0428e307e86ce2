package loop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

func wantLines(t *testing.T, got []string, want ...string) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("lines differ (-want +got):\n%s", d)
	}
}

func TestALadderIsWalkedToItsEnd(t *testing.T) {
	w := newWard(t, 2)
	w.ingest(lost(0, 3))
	w.settle()
	wantLines(
		t, w.histories(),
		"gpu-00/gpu-3 #1",
		"  cordon gpu-00: done", "  checkpoint train/job-00: done", "  stop train/job-00: done", "  start train/job-00: done",
		"  drain gpu-00: done", "  reboot gpu-00: done", "  verify gpu-00: done", "  release gpu-00: done",
		"  resolved: healed: every step of gpu-lost is done",
		"  lost of train/job-00",
	)
	wantLines(
		t, w.site.state(),
		"checkpoint train/job-00: 1 times", "cordon gpu-00: 1 times", "drain gpu-00: 1 times",
		"gpu-00: boot boot-1', unschedulable false, held by []", "gpu-01: boot boot-1, unschedulable false, held by []",
		"reboot gpu-00: 1 times", "release gpu-00: 1 times", "start train/job-00: 1 times", "stop train/job-00: 1 times",
		"train/job-00: running, suspended false, attempt 1", "train/job-01: running, suspended false, attempt 0",
		"verify gpu-00: 1 times",
	)
	wantLines(
		t, w.lines(),
		"    2s opened   gpu-00/gpu-3  : XID 79 on GPU 3 of gpu-00",
		"   12s started  gpu-00/gpu-3 cordon gpu-00: may take 2m",
		"   22s ended    gpu-00/gpu-3 cordon gpu-00: done after 10s",
		"   22s started  gpu-00/gpu-3 checkpoint train/job-00: may take 2m",
		"   42s ended    gpu-00/gpu-3 checkpoint train/job-00: done after 20s",
		"   42s started  gpu-00/gpu-3 stop train/job-00: may take 10m",
		" 1m12s ended    gpu-00/gpu-3 stop train/job-00: done after 30s",
		" 1m12s started  gpu-00/gpu-3 start train/job-00: may take 10m",
		" 1m22s ended    gpu-00/gpu-3 start train/job-00: done after 10s",
		" 1m22s started  gpu-00/gpu-3 drain gpu-00: may take 10m",
		"  2m2s ended    gpu-00/gpu-3 drain gpu-00: done after 40s",
		"  2m2s started  gpu-00/gpu-3 reboot gpu-00: may take 20m",
		"  4m2s ended    gpu-00/gpu-3 reboot gpu-00: done after 2m",
		"  4m2s started  gpu-00/gpu-3 verify gpu-00: may take 30m",
		"  9m2s ended    gpu-00/gpu-3 verify gpu-00: done after 5m",
		"  9m2s started  gpu-00/gpu-3 release gpu-00: may take 10m",
		" 9m12s ended    gpu-00/gpu-3 release gpu-00: done after 10s",
		" 9m12s closed   gpu-00/gpu-3  : healed: every step of gpu-lost is done",
	)
	if got := w.loop.Journal(); !cmp.Equal(got, w.told) {
		t.Errorf("the journal is not what was told:\n%s", cmp.Diff(w.told, got))
	}
	// Opened, eight steps reserved of which each write also ends the one before, closed.
	if n := len(w.life.writes); n != 10 {
		t.Errorf("%d writes, want 10", n)
	}
	if got := w.loop.Fleet(); !got.At.Equal(w.now) {
		t.Errorf("the fleet is of %v, want %v", got.At, w.now)
	}
}

func TestMetricsTellWhatTheLoopDoes(t *testing.T) {
	w := newWard(t, 2)
	w.ingest(lost(0, 3), lost(1, 0))
	w.site.ends = func(_ time.Time, o remedy.Order) (remedy.Outcome, bool) {
		if o.Node == nodeName(1) && o.Action == "drain" {
			return remedy.Outcome{Ending: remedy.Rejected, Note: "forlorn"}, true
		}
		return remedy.Outcome{}, false
	}
	w.settle()
	w.ingest(remedy.Evidence{Class: "made-up", Source: "rules", At: w.now})
	want := `
# HELP stoker_evidence_noted_total Evidence that changed no incident, by class.
# TYPE stoker_evidence_noted_total counter
stoker_evidence_noted_total{class="unknown"} 1
# HELP stoker_incident_steps_total Steps of ladders, by action and how they ended; started counts each once.
# TYPE stoker_incident_steps_total counter
stoker_incident_steps_total{action="checkpoint",ending="done"} 2
stoker_incident_steps_total{action="checkpoint",ending="started"} 2
stoker_incident_steps_total{action="cordon",ending="done"} 2
stoker_incident_steps_total{action="cordon",ending="started"} 2
stoker_incident_steps_total{action="drain",ending="done"} 1
stoker_incident_steps_total{action="drain",ending="rejected"} 1
stoker_incident_steps_total{action="drain",ending="started"} 2
stoker_incident_steps_total{action="reboot",ending="done"} 1
stoker_incident_steps_total{action="reboot",ending="started"} 1
stoker_incident_steps_total{action="release",ending="done"} 1
stoker_incident_steps_total{action="release",ending="started"} 1
stoker_incident_steps_total{action="start",ending="done"} 2
stoker_incident_steps_total{action="start",ending="started"} 2
stoker_incident_steps_total{action="stop",ending="done"} 2
stoker_incident_steps_total{action="stop",ending="started"} 2
stoker_incident_steps_total{action="verify",ending="done"} 1
stoker_incident_steps_total{action="verify",ending="started"} 1
# HELP stoker_incidents_lost_gpu_seconds Work lost on behalf of the incidents that are kept, in GPU-seconds.
# TYPE stoker_incidents_lost_gpu_seconds gauge
stoker_incidents_lost_gpu_seconds 29136
# HELP stoker_incidents_closed_total Incidents that were closed, by class and phase.
# TYPE stoker_incidents_closed_total counter
stoker_incidents_closed_total{class="gpu-lost",phase="resolved"} 1
# HELP stoker_incidents_open Open incidents, by class and phase.
# TYPE stoker_incidents_open gauge
stoker_incidents_open{class="gpu-lost",phase="held"} 1
# HELP stoker_incidents_opened_total Incidents that were opened, by class.
# TYPE stoker_incidents_opened_total counter
stoker_incidents_opened_total{class="gpu-lost"} 2
`
	if err := testutil.GatherAndCompare(w.reg, strings.NewReader(want), "stoker_evidence_noted_total", "stoker_incident_steps_total",
		"stoker_incidents_closed_total", "stoker_incidents_open", "stoker_incidents_opened_total", "stoker_incidents_lost_gpu_seconds"); err != nil {
		t.Error(err)
	}
	problems, err := testutil.GatherAndLint(w.reg)
	if err != nil || len(problems) > 0 {
		t.Errorf("metrics have problems %v, %v", problems, err)
	}
}

func TestWhatIsDoneIsWrittenBeforeItIsDone(t *testing.T) {
	w := newWard(t, 3)
	seen := 0
	w.site.before = func(o remedy.Order) error {
		seen++
		for _, in := range w.stored() {
			for _, s := range in.Steps {
				for _, rec := range s.Orders {
					if rec.Order.Key == o.Key {
						return nil
					}
				}
			}
		}
		t.Errorf("%s was started and the store does not know it", o.Key)
		return nil
	}
	w.ingest(lost(0, 3), lost(1, 0), lost(2, 0))
	w.settle()
	if seen != 3*8 {
		t.Errorf("%d orders were started, want %d", seen, 3*8)
	}
}

// faulty is a store some of whose calls fail.
type faulty struct {
	Store
	fail func(call string, in remedy.Incident) error // before it
	list func(all []remedy.Incident) ([]remedy.Incident, error)
}

func (f *faulty) failing(call string, in remedy.Incident) error {
	if f.fail == nil {
		return nil
	}
	return f.fail(call, in)
}

func (f *faulty) List(ctx context.Context) ([]remedy.Incident, error) {
	if err := f.failing("list", remedy.Incident{}); err != nil {
		return nil, err
	}
	all, err := f.Store.List(ctx)
	if f.list != nil && err == nil {
		return f.list(all)
	}
	return all, err
}

func (f *faulty) Create(ctx context.Context, in remedy.Incident) (remedy.Incident, error) {
	if err := f.failing("create", in); err != nil {
		return in, err
	}
	return f.Store.Create(ctx, in)
}

func (f *faulty) Update(ctx context.Context, in remedy.Incident) (remedy.Incident, error) {
	if err := f.failing("update", in); err != nil {
		return in, err
	}
	return f.Store.Update(ctx, in)
}

func (f *faulty) Delete(ctx context.Context, in remedy.Incident) error {
	if err := f.failing("delete", in); err != nil {
		return err
	}
	return f.Store.Delete(ctx, in)
}

// faultyStore puts a store that can fail between the ward's store and its loop.
func faultyStore(w *ward) *faulty {
	f := &faulty{Store: w.kept}
	w.life.Store = f
	return f
}

var errDisk = errors.New("no space left on device")

func TestWhatCannotBeWrittenIsNotDone(t *testing.T) {
	w := newWard(t, 1)
	disk := faultyStore(w)
	full := func(string, remedy.Incident) error { return errDisk }

	disk.fail = full
	if err := w.loop.Ingest(t.Context(), w.now, []remedy.Evidence{lost(0, 3)}); !errors.Is(err, errDisk) {
		t.Errorf("evidence that could not be stored was taken in: %v", err)
	}
	disk.fail = nil
	w.ingest(lost(0, 3)) // the sender sends it again
	for _, action := range []string{"cordon", "checkpoint", "stop", "start", "drain", "reboot", "verify", "release"} {
		disk.fail = full
		before := len(w.site.starts)
		for range 40 {
			if err := w.tick(); !errors.Is(err, errDisk) {
				t.Fatalf("before %s a tick says %v, want that the disk is full", action, err)
			}
		}
		if got := w.site.starts[before:]; len(got) > 0 {
			t.Fatalf("%v was started and not written", got)
		}
		disk.fail = nil
		for !w.site.started(action) {
			w.ticks(1)
		}
		w.now = w.now.Add(took[action]) // the step has ended, but for the writing of it
	}
	w.settle()
	if in := w.stored()[0]; in.Phase != remedy.PhaseResolved {
		t.Errorf("%s: %s; want it healed", in.Phase, in.Reason)
	}
	for what, n := range w.site.effects {
		if n != 1 {
			t.Errorf("%s was done %d times", what, n)
		}
	}
}

func TestCase_R6_TheFullDiskIsToldOnce(t *testing.T) {
	w := newWard(t, 1)
	disk := faultyStore(w)
	w.ingest(lost(0, 3))
	disk.fail = func(string, remedy.Incident) error { return errDisk }
	for range 100 {
		if err := w.tick(); err == nil {
			t.Fatal("the tick has no error")
		}
	}
	const want = "trouble    : store incident gpu-lost-gpu-00-gpu-3-"
	got := w.lines(EntryOpened)
	if len(got) != 1 || !strings.Contains(got[0], want) || !strings.Contains(got[0], errDisk.Error()) {
		t.Errorf("%d lines, want one trouble with the disk: %v", len(got), got)
	}
	w.every = time.Hour
	if err := w.tick(); err == nil || len(w.lines(EntryOpened)) != 2 {
		t.Errorf("after an hour it was not told again: %v", w.lines(EntryOpened))
	}
	disk.fail = nil
	w.ticks(1)
	disk.fail = func(string, remedy.Incident) error { return errDisk }
	if err := w.tick(); err == nil || len(w.lines(EntryOpened, EntryStarted)) != 3 {
		t.Errorf("when it came back it was not told again: %v", w.lines(EntryOpened, EntryStarted))
	}
}

func TestAnAnswerThatIsLostIsLookedUp(t *testing.T) {
	for _, lostOn := range []string{"cordon", "checkpoint", "stop", "start", "drain", "reboot", "verify", "release"} {
		t.Run(lostOn, func(t *testing.T) {
			w := newWard(t, 1)
			n := 0
			w.site.after = func(o remedy.Order) error {
				if o.Action == lostOn {
					if n++; n <= 3 {
						return errors.New("EOF")
					}
				}
				return nil
			}
			w.ingest(lost(0, 3))
			w.settle()
			if in := w.stored()[0]; in.Phase != remedy.PhaseResolved {
				t.Fatalf("%s: %s; want it healed", in.Phase, in.Reason)
			}
			if n != 4 {
				t.Errorf("it was started %d times, want 4: three without an answer and one that looks", n)
			}
			for what, n := range w.site.effects {
				if n != 1 {
					t.Errorf("%s was done %d times", what, n)
				}
			}
			retries := slices.DeleteFunc(slices.Clone(w.told), func(e Entry) bool { return e.Kind != EntryRetry })
			if len(retries) != 1 || retries[0].Step != lostOn || retries[0].Text != "EOF" {
				t.Errorf("retries told are %v, want the first", retries)
			}
		})
	}
}

func TestAConflictIsTriedAgainUntilTheDeadline(t *testing.T) {
	w := newWard(t, 1)
	w.every = time.Second
	var at []time.Duration
	var first time.Time
	w.site.before = func(o remedy.Order) error {
		if o.Action != "drain" {
			return nil
		}
		if first.IsZero() {
			first = w.now
		}
		at = append(at, w.now.Sub(first))
		return &remedy.Failure{Ending: remedy.Conflict, Err: errors.New("a disruption budget refuses")}
	}
	w.ingest(lost(0, 3))
	for range 2000 {
		w.ticks(1)
		if w.loop.Incidents()[0].Phase == remedy.PhaseHeld {
			break
		}
	}
	var want []time.Duration
	for sum, pause := time.Duration(0), time.Second; sum < 10*time.Minute; {
		want = append(want, sum)
		sum += pause
		pause = min(2*pause, time.Minute)
	}
	if d := cmp.Diff(want, at); d != "" {
		t.Errorf("it was tried at other times (-want +got):\n%s", d)
	}
	in := w.stored()[0]
	if want := "needs a person: drain of gpu-00 ended late: not done within its time, after 15 tries: a disruption budget refuses"; in.Reason != want || w.now.Sub(first) < 10*time.Minute || w.now.Sub(first) > 10*time.Minute+time.Second {
		t.Errorf("after %v: %s; want after 10m: %s", w.now.Sub(first), in.Reason, want)
	}
	retries := slices.DeleteFunc(slices.Clone(w.told), func(e Entry) bool { return e.Kind != EntryRetry })
	if len(retries) != 2 {
		t.Errorf("%d retries were told, want the first and the tenth", len(retries))
	}
}

func TestATryThatConflictsInItsCheckIsStartedAgain(t *testing.T) {
	w := newWard(t, 1)
	n := 0
	w.site.ends = func(_ time.Time, o remedy.Order) (remedy.Outcome, bool) {
		if o.Action == "drain" {
			if n++; n <= 2 {
				return remedy.Outcome{Ending: remedy.Conflict, Note: "2 pods are left"}, true
			}
		}
		return remedy.Outcome{}, false
	}
	w.ingest(lost(0, 3))
	w.settle()
	starts := 0
	for _, o := range w.site.starts {
		if o.Action == "drain" {
			starts++
		}
	}
	if in := w.stored()[0]; in.Phase != remedy.PhaseResolved || starts != 3 {
		t.Errorf("%s with %d starts, want it healed after 3", in.Phase, starts)
	}
}

func TestAnErrorThatIsSortedEndsAtOnce(t *testing.T) {
	for ending, want := range map[remedy.Ending]string{
		remedy.Rejected: "held: needs a person: drain of gpu-00 ended rejected: forbidden",
		remedy.Gone:     "resolved: healed: every step of gpu-lost is done",
		remedy.Yielded:  "cancelled: cancelled: drain of gpu-00: forbidden",
		"sideways":      "held: needs a person: drain of gpu-00 ended sideways: forbidden",
	} {
		t.Run(string(ending), func(t *testing.T) {
			w := newWard(t, 1)
			w.site.before = func(o remedy.Order) error {
				if o.Action == "drain" {
					return fmt.Errorf("drain: %w", &remedy.Failure{Ending: ending, Err: errors.New("forbidden")})
				}
				return nil
			}
			w.ingest(lost(0, 3))
			w.settle()
			in := w.stored()[0]
			if got := strings.ReplaceAll(string(in.Phase)+": "+in.Reason, "drain: ", ""); got != want {
				t.Errorf("%s, want %s", got, want)
			}
		})
	}
}

func TestAGateThatWaitsIsWrittenOnce(t *testing.T) {
	w := newWard(t, 1)
	gate, n := "budget", 0
	w.site.gate = func(remedy.Order) []remedy.GateResult {
		n++
		return []remedy.GateResult{
			{Gate: "mode", Pass: true, Reason: "auto"},
			{Gate: gate, Pass: gate == "", Reason: fmt.Sprintf("%d of 8 nodes are out, 1 may be", n)},
		}
	}
	w.ingest(lost(0, 3))
	w.ticks(50)
	if len(w.life.writes) != 2 || len(w.site.starts) > 0 {
		t.Errorf("%d writes and %d starts, want two writes: opened, and waiting", len(w.life.writes), len(w.site.starts))
	}
	in := w.loop.Incidents()[0]
	want := []remedy.GateResult{{Gate: "budget", Reason: "50 of 8 nodes are out, 1 may be"}}
	if d := cmp.Diff(want, in.Waiting); d != "" {
		t.Errorf("what it waits for is not the newest answer (-want +got):\n%s", d)
	}
	gate = "window"
	w.ticks(50)
	if len(w.life.writes) != 3 {
		t.Errorf("%d writes, want one more when another gate waits", len(w.life.writes))
	}
	wantLines(
		t, w.lines(),
		"    2s opened   gpu-00/gpu-3  : XID 79 on GPU 3 of gpu-00",
		"   12s waiting  gpu-00/gpu-3 cordon 1/8 : budget: 1 of 8 nodes are out, 1 may be",
		" 8m32s waiting  gpu-00/gpu-3 cordon 1/8 : window: 51 of 8 nodes are out, 1 may be",
	)
	gate = ""
	w.ticks(1)
	cur := w.loop.Incidents()[0].Current()
	if cur == nil || len(cur.Gates) != 2 || len(w.loop.Incidents()[0].Waiting) > 0 {
		t.Errorf("step %+v, want the cordon with the answers that let it pass", cur)
	}
}

func TestGatesAreAskedAboutEachStepOnce(t *testing.T) {
	w := newWard(t, 1)
	w.ingest(lost(0, 3))
	w.settle()
	var got []string
	for _, o := range w.site.admits {
		got = append(got, fmt.Sprintf("%s %s %s", o.Effect, o.Action, o.Target))
	}
	wantLines(
		t, got, "harm cordon gpu-00", "ask checkpoint train/job-00", "harm stop train/job-00", "recovery start train/job-00",
		"harm drain gpu-00", "harm reboot gpu-00", "ask verify gpu-00", "recovery release gpu-00",
	)
}

func TestWhatGivesBackPassesWhileHarmWaits(t *testing.T) {
	w := newWard(t, 1)
	closed := false
	w.site.gate = func(o remedy.Order) []remedy.GateResult {
		return []remedy.GateResult{{Gate: "budget", Pass: !closed || o.Effect != remedy.EffectHarm, Reason: "used up"}}
	}
	w.ingest(lost(0, 3))
	for !w.site.started("stop") {
		w.ticks(1)
	}
	closed = true
	w.ticks(20)
	if j := w.site.jobs[fleet.JobRef{Kind: "Job.sim", Namespace: "train", Name: "job-00"}]; j.Suspended {
		t.Error("the job that we stopped is not started again")
	}
	if w.site.started("drain") {
		t.Error("the drain has passed")
	}
	w.site.uncordon(nodeName(0))
	w.settle()
	if in := w.stored()[0]; in.Phase != remedy.PhaseCancelled || w.site.nodes[nodeName(0)].Hold.Any() {
		t.Errorf("%s: %s; want it cancelled and the node given back", in.Phase, in.Reason)
	}
	if got := w.lines(EntryOpened, EntryStarted, EntryEnded, EntryWaiting); len(got) != 2 || !strings.Contains(got[0], "undoing  gpu-00/gpu-3  : cancelled: a person has uncordoned gpu-00") || !strings.Contains(got[1], " closed ") {
		t.Errorf("lines %v, want that it is undone and closed", got)
	}
}
