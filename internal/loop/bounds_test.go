package loop

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// told is a witness that tells the same at all times, until it is told otherwise.
type told struct {
	ev  []remedy.Evidence
	err error
	n   int
}

func (w *told) Evidence(context.Context, time.Time) ([]remedy.Evidence, error) {
	w.n++
	return w.ev, w.err
}

func TestAStormStaysBoundedAndIsHealed(t *testing.T) {
	const nodes, n = 50, 50_000
	w := newWard(t, nodes)
	var ev []remedy.Evidence
	for i := range n {
		e := lost(i%nodes, i/nodes%2)
		e.At = e.At.Add(time.Duration(i*20/n-20) * time.Minute) // of each GPU, twenty events
		e.Source = []string{"rules", "collector", "kmsg"}[i%3]
		if i%7 == 6 {
			e.Class, e.Labels = remedy.ClassNone, map[string]string{"alertname": fmt.Sprint("Watchdog", i), "xid": "45"}
		}
		ev = append(ev, e)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	began := time.Now()
	w.ingest(ev...)
	taken := time.Since(began)
	began = time.Now()
	w.ticks(1)
	runtime.GC()
	runtime.ReadMemStats(&after)
	t.Logf("%d evidence over %d nodes: taken in in %v, first tick %v, %d writes, %d KiB more in memory",
		n, nodes, taken.Round(time.Millisecond), time.Since(began).Round(time.Millisecond), len(w.life.writes), (int64(after.HeapAlloc)-int64(before.HeapAlloc))>>10)
	for i := range nodes {
		if !w.site.nodes[nodeName(i)].Unschedulable {
			t.Errorf("%s is not cordoned after the first tick", nodeName(i))
		}
	}
	if got := len(w.life.writes); got != 2*2*nodes {
		t.Errorf("%d writes, want two for each of %d GPUs: opened, and its cordon reserved", got, 2*nodes)
	}
	if got := len(w.loop.Journal()); got > w.loop.opts.JournalLines {
		t.Errorf("%d lines are kept, %d is the limit", got, w.loop.opts.JournalLines)
	}
	if got := len(w.loop.noted); got > maxNoted || got == 0 {
		t.Errorf("%d notes are remembered, %d is the limit", got, maxNoted)
	}
	for _, in := range w.stored() {
		if len(in.Evidence) > remedy.MaxEvidence || in.EvidenceCount < 20 {
			t.Errorf("%s keeps %d of %d evidence", in.Name, len(in.Evidence), in.EvidenceCount)
		}
	}
	// The storm goes on: what is told again changes nothing and is not written.
	writes := len(w.life.writes)
	w.ingest(ev...)
	if got := len(w.life.writes); got != writes {
		t.Errorf("%d writes for what was told again", got-writes)
	}
	w.settle()
	for i := range nodes {
		if n := w.site.nodes[nodeName(i)]; n.Unschedulable || n.Hold.Any() {
			t.Errorf("%s is left held by %v", n.Name, n.Hold.Incidents)
		}
	}
}

func TestTheNumberOfHandsMakesNoDifference(t *testing.T) {
	var first *ward
	for _, hands := range []int{1, 2, 16} {
		w := newWard(t, 12)
		w.opts.Parallel = hands
		w.begin(0, false)
		w.site.ends = func(_ time.Time, o remedy.Order) (remedy.Outcome, bool) {
			if o.Action == "drain" && o.Node == nodeName(7) {
				return remedy.Outcome{Ending: remedy.Late, Note: "forlorn"}, true
			}
			return remedy.Outcome{}, false
		}
		for i := range 12 {
			w.ingest(lost(i, i%8))
		}
		w.settle()
		if first == nil {
			first = w
			continue
		}
		if d := cmp.Diff(first.stored(), w.stored(), cmpopts.IgnoreFields(remedy.Incident{}, "Version")); d != "" {
			t.Errorf("with %d hands the incidents differ (-one +more):\n%s", hands, d)
		}
		if d := cmp.Diff(first.site.state(), w.site.state()); d != "" {
			t.Errorf("with %d hands the cluster differs (-one +more):\n%s", hands, d)
		}
		a, b := first.lines(), w.lines()
		slices.Sort(a)
		slices.Sort(b)
		if d := cmp.Diff(a, b); d != "" {
			t.Errorf("with %d hands the journal differs (-one +more):\n%s", hands, d)
		}
	}
}

func TestNoMoreIncidentsAreOpenedThanCanBeCaredFor(t *testing.T) {
	w := newWard(t, 4)
	w.opts.MaxOpen, w.opts.MaxClosed = 2, 2
	w.begin(0, false)
	w.site.gate = func(remedy.Order) []remedy.GateResult { return []remedy.GateResult{{Gate: "mode", Reason: "dry-run"}} }
	w.ingest(lost(0, 0))
	more := lost(0, 0)
	more.At, more.Summary = more.At.Add(time.Second*10), "XID 119 on GPU 0"
	err := w.loop.Ingest(t.Context(), w.now, []remedy.Evidence{lost(1, 1), lost(2, 2), lost(3, 3), more})
	if !errors.Is(err, ErrPressure) || !strings.Contains(err.Error(), "too many open incidents: 2, and 2 is the limit") {
		t.Errorf("error %v, want that of too many with numbers", err)
	}
	all := w.stored()
	if len(all) != 2 || all[0].EvidenceCount != 2 || all[1].Subject.Node != nodeName(1) {
		t.Errorf("stored are %v, want the first two, and the first to have learned more", w.histories())
	}
	w.ticks(3)

	// Those that have closed a short while ago count too: they keep the same evidence
	// from opening anew.
	w.site.gate = nil
	w.settle()
	w.ingest(lost(2, 2), lost(3, 3))
	w.settle()
	late := lost(0, 5)
	late.At, late.BootID = w.now, "boot-1'"
	err = w.loop.Ingest(t.Context(), w.now, []remedy.Evidence{late})
	if !errors.Is(err, ErrPressure) || len(w.stored()) != 4 {
		t.Errorf("%v with %d stored, want no more than 4 in all", err, len(w.stored()))
	}
	w.now = w.now.Add(time.Hour)
	w.ticks(1)
	late.At = w.now
	w.ingest(late)
	if n := len(w.stored()); n != 3 {
		t.Errorf("%d are stored, want the two that closed last and the new one", n)
	}
}

func TestAWitnessOfTooManyFaultsDoesNotStopTheLoop(t *testing.T) {
	w := newWard(t, 4)
	w.opts.MaxOpen = 2
	w.witnesses = []Witness{&told{ev: []remedy.Evidence{lost(0, 0), lost(1, 1), lost(2, 2), lost(3, 3)}}}
	w.begin(0, false)
	for range 200 {
		if err := w.tick(); err != nil && !errors.Is(err, ErrPressure) {
			t.Fatal(err)
		}
	}
	for i := range 4 {
		if got := w.site.effects["reboot "+nodeName(i)]; got != 1 {
			t.Errorf("%s was rebooted %d times, want once, two nodes at a time", nodeName(i), got)
		}
	}
}

func TestClosedIncidentsAreSweptButNotThoseThatStillSpeak(t *testing.T) {
	base := t0.Add(30 * 24 * time.Hour)
	old := func(i int, ago time.Duration) remedy.Incident {
		e := lost(i, 0)
		return remedy.Incident{
			Name: remedy.IncidentName(e.Class, e.Subject, 1), Occurrence: 1, Subject: e.Subject, Class: e.Class, Phase: remedy.PhaseResolved,
			Opened: base.Add(-ago - time.Hour), Closed: base.Add(-ago), Evidence: []remedy.Evidence{e}, EvidenceCount: 1,
		}
	}
	day := 24 * time.Hour
	quiet := old(8, 20*day)
	quiet.Phase, quiet.Quiet = remedy.PhaseCancelled, base.Add(time.Hour)
	open := old(9, 20*day)
	open.Phase, open.Closed = remedy.PhaseHeld, time.Time{}
	for name, tc := range map[string]struct {
		opts Options
		in   []remedy.Incident
		want []int // nodes of those that stay
	}{
		"those that are too old go":                       {Options{}, []remedy.Incident{old(0, 8*day), old(1, 6*day), old(2, 10*day)}, []int{1}},
		"of too many the oldest go":                       {Options{MaxClosed: 2}, []remedy.Incident{old(0, 2*day), old(1, 4*day), old(2, 3*day), old(3, day)}, []int{0, 3}},
		"those that may be told of again stay":            {Options{MaxClosed: 1}, []remedy.Incident{old(0, 50*time.Minute), old(1, 40*time.Minute), old(2, 70*time.Minute)}, []int{0, 1}},
		"a person's veto stays as long as it is in force": {Options{}, []remedy.Incident{quiet, old(1, 20*day)}, []int{8}},
		"an open one is never too old":                    {Options{}, []remedy.Incident{open, old(1, 20*day)}, []int{9}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWard(t, 10)
			w.site.nodes[nodeName(9)] = fleet.Node{Name: nodeName(9), BootID: "boot-1"}
			w.opts = tc.opts
			w.begin(0, false)
			for _, in := range tc.in {
				if _, err := w.kept.Create(t.Context(), in); err != nil {
					t.Fatal(err)
				}
			}
			w.now = base
			w.ticks(2)
			var got []int
			for _, in := range w.stored() {
				var n int
				if _, err := fmt.Sscanf(in.Subject.Node, "gpu-%d", &n); err != nil {
					t.Fatal(err)
				}
				got = append(got, n)
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("others stay (-want +got):\n%s", d)
			}
			if n := len(w.loop.Incidents()); n != len(tc.want) {
				t.Errorf("the loop shows %d incidents, want %d", n, len(tc.want))
			}
		})
	}
	t.Run("no more than a hundred at once", func(t *testing.T) {
		w := newWard(t, 1)
		for i := range 250 {
			if _, err := w.kept.Create(t.Context(), old(i, 20*day)); err != nil {
				t.Fatal(err)
			}
		}
		w.now = base
		for _, want := range []int{150, 50, 0} {
			w.ticks(1)
			if n := len(w.stored()); n != want {
				t.Errorf("%d are left, want %d", n, want)
			}
		}
	})
	t.Run("and one that somebody else has touched is read again", func(t *testing.T) {
		w := newWard(t, 1)
		in, err := w.kept.Create(t.Context(), old(0, 20*day))
		if err != nil {
			t.Fatal(err)
		}
		w.ingest() // the loop has read it
		if in, err = w.kept.Update(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		w.now = base
		if err := w.tick(); err == nil {
			t.Error("the conflict is not told")
		}
		w.ticks(1)
		if n := len(w.stored()); n != 0 {
			t.Errorf("%d are left, want none", n)
		}
		if err := w.kept.Delete(t.Context(), in); err == nil {
			t.Error("it was not deleted")
		}
	})
}

func TestOneIncidentThatCannotBeStoredDoesNotStopTheOthers(t *testing.T) {
	for name, ending := range map[string]remedy.Ending{"since it is too long": remedy.Rejected, "since its name is taken": remedy.Conflict} {
		t.Run(name, func(t *testing.T) {
			w := newWard(t, 3)
			w.witnesses = []Witness{&told{ev: []remedy.Evidence{lost(0, 0), lost(1, 1), lost(2, 2)}}}
			w.begin(0, false)
			f := faultyStore(w)
			f.fail = func(call string, in remedy.Incident) error {
				if call == "create" && in.Subject.Node == nodeName(1) {
					return &remedy.Failure{Ending: ending, Err: errors.New("not this one")}
				}
				return nil
			}
			for range 200 {
				if err := w.tick(); err == nil || !strings.Contains(err.Error(), "not this one") {
					t.Fatalf("a tick says %v, want what could not be stored", err)
				}
			}
			for i, want := range []int{1, 0, 1} {
				if got := w.site.effects["release "+nodeName(i)]; got != want {
					t.Errorf("%s was healed %d times, want %d", nodeName(i), got, want)
				}
			}
			for what, n := range w.site.effects {
				if n != 1 {
					t.Errorf("%s was done %d times", what, n)
				}
			}
		})
	}
}

func TestADamagedIncidentDoesNotStopTheOthers(t *testing.T) {
	w := newWard(t, 2)
	f := faultyStore(w)
	bad := errors.New("stored incident x cannot be read")
	f.list = func(all []remedy.Incident) ([]remedy.Incident, error) {
		return append([]remedy.Incident{}, all...), bad
	}
	if err := w.loop.Ingest(t.Context(), w.now, []remedy.Evidence{lost(0, 0)}); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if err := w.tick(); !errors.Is(err, bad) {
			t.Fatalf("a tick says %v, want what cannot be read", err)
		}
	}
	if w.site.effects["release "+nodeName(0)] != 1 {
		t.Error("the other incident was not healed")
	}
	f.list = func([]remedy.Incident) ([]remedy.Incident, error) { return nil, bad }
	w.begin(0, false)
	w.life.Store = f
	if err := w.loop.Ingest(t.Context(), w.now, []remedy.Evidence{lost(1, 0)}); !errors.Is(err, bad) {
		t.Errorf("with nothing read, evidence was taken in: %v", err)
	}
}

func TestNothingIsDecidedAboutAFleetThatIsNotKnown(t *testing.T) {
	w := newWard(t, 1)
	witness := &told{ev: []remedy.Evidence{lost(0, 4)}}
	w.witnesses = []Witness{witness}
	w.begin(0, false)
	w.site.unknown = errors.New("caches are not in sync")
	if err := w.loop.Ingest(t.Context(), w.now, []remedy.Evidence{lost(0, 3)}); !errors.Is(err, w.site.unknown) {
		t.Errorf("evidence was taken in without a fleet: %v", err)
	}
	if err := w.tick(); !errors.Is(err, w.site.unknown) || witness.n > 0 {
		t.Errorf("a tick says %v and has asked the witness %d times", err, witness.n)
	}
	if n := len(w.stored()); n > 0 || !w.loop.Fleet().At.IsZero() {
		t.Errorf("%d incidents are stored, the fleet is of %v", n, w.loop.Fleet().At)
	}
	w.site.unknown = nil
	w.ingest(lost(0, 3)) // before the first tick
	if in := w.stored()[0]; in.Subject.UUID != "GPU-0-3" || in.BootID != "boot-1" {
		t.Errorf("incident about %+v in boot %q, want the names that telemetry knows", in.Subject, in.BootID)
	}
	w.ticks(1)
	w.site.unknown = errors.New("caches are not in sync")
	before := len(w.site.starts)
	for range 10 {
		if err := w.tick(); err == nil {
			t.Error("a tick without a fleet has no error")
		}
	}
	if n := len(w.site.starts) - before; n > 0 {
		t.Errorf("%d orders were started without a fleet", n)
	}
}

func TestAWitnessThatFailsTellsWhatItKnows(t *testing.T) {
	w := newWard(t, 2)
	broken := errors.New("rule Broken: many matches")
	w.witnesses = []Witness{&told{ev: []remedy.Evidence{lost(0, 0)}, err: broken}, &told{ev: []remedy.Evidence{lost(1, 0)}}}
	w.begin(0, false)
	if err := w.tick(); !errors.Is(err, broken) || len(w.stored()) != 2 {
		t.Errorf("%v with %d incidents, want both and the error", err, len(w.stored()))
	}
}

func TestEvidenceThatChangesNothingIsToldOnceAnHour(t *testing.T) {
	w := newWard(t, 1)
	noise := remedy.Evidence{Subject: remedy.Subject{Kind: remedy.SubjectNode, Node: nodeName(0)}, Class: remedy.ClassNone, Source: "rules", Labels: map[string]string{"alertname": "Watchdog"}}
	w.witnesses = []Witness{&told{ev: []remedy.Evidence{noise}}}
	w.begin(0, false)
	w.ticks(50)
	wantLines(t, w.lines(), "   12s noted    gpu-00  : none on gpu-00: it changes no GPU's or node's state")
	w.now = w.now.Add(2 * time.Hour)
	w.ticks(1)
	if n := len(w.lines()); n != 2 {
		t.Errorf("%d lines, want one more when it comes back", n)
	}
	var many []remedy.Evidence
	for i := range 3 * maxNoted {
		e := noise
		e.Labels = map[string]string{"alertname": fmt.Sprint("Alert", i)}
		many = append(many, e)
	}
	w.ingest(many...)
	if n := len(w.loop.noted); n > maxNoted {
		t.Errorf("%d notes are remembered, %d is the limit", n, maxNoted)
	}
	if n := len(w.loop.Journal()); n != 2000 {
		t.Errorf("%d lines are kept, want 2000", n)
	}
	if got, want := w.loop.Journal()[1999].Subject, nodeName(0); got != want {
		t.Errorf("the newest line is about %q", got)
	}
}

func TestTheJournalSaysWhatWasLearned(t *testing.T) {
	w := newWard(t, 1)
	w.site.gate = func(remedy.Order) []remedy.GateResult { return []remedy.GateResult{{Gate: "mode", Reason: "dry-run"}} }
	w.ingest(lost(0, 3))
	again := lost(0, 3)
	again.Source = "collector"
	later := lost(0, 3)
	later.At, later.Summary = t0.Add(time.Minute), "XID 119 on GPU 3 of gpu-00"
	w.ingest(later)
	w.ingest(again) // the older one of the two
	w.ingest(again, later)
	wantLines(
		t, w.lines(),
		"    2s opened   gpu-00/gpu-3  : XID 79 on GPU 3 of gpu-00",
		"    2s evidence gpu-00/gpu-3  : told by rules: XID 119 on GPU 3 of gpu-00",
		"    2s evidence gpu-00/gpu-3  : told by rules, collector: XID 79 on GPU 3 of gpu-00",
	)
}

func TestTheJournalKeepsTheNewestLines(t *testing.T) {
	j := journal{most: 3}
	for i := range 8 {
		j.add(Entry{Text: fmt.Sprint(i)})
		var got []string
		for _, e := range j.entries() {
			got = append(got, e.Text)
		}
		var want []string
		for k := max(0, i-2); k <= i; k++ {
			want = append(want, fmt.Sprint(k))
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("after %d lines (-want +got):\n%s", i+1, d)
		}
	}
}

func TestAFaultThatComesBackDuringTheReleaseIsHealedAnew(t *testing.T) {
	w := newWard(t, 1)
	w.ingest(lost(0, 3))
	for !w.site.started("release") {
		w.ticks(1)
	}
	back := lost(0, 3)
	back.At, back.Seen, back.BootID = w.now.Add(time.Second), w.now.Add(2*time.Second), "boot-1'"
	w.now = w.now.Add(2 * time.Second)
	w.ingest(back) // it joins the incident, which is about to close, and is never told again
	w.settle()
	w.settle()
	all := w.stored()
	if len(all) != 2 || all[1].Occurrence != 2 || all[1].Phase != remedy.PhaseResolved || w.site.effects["reboot "+nodeName(0)] != 2 {
		t.Errorf("%s\nwant the fault that came back healed too", strings.Join(w.histories(), "\n"))
	}
	n := len(w.life.writes)
	w.ticks(20)
	if len(w.life.writes) != n {
		t.Errorf("%d writes after all was over", len(w.life.writes)-n)
	}
}

func TestAnOrderThatWasLeftAloneForLongIsNotStarted(t *testing.T) {
	for name, tc := range map[string]struct {
		action string
		asleep time.Duration
		want   remedy.Phase
	}{
		"harm within its time is":             {"drain", 5 * time.Minute, remedy.PhaseResolved},
		"harm after it is, with a new time":   {"drain", 40 * time.Minute, remedy.PhaseResolved},
		"harm long after it is not":           {"drain", 3 * time.Hour, remedy.PhaseHeld},
		"what gives back is, however late":    {"release", 3 * time.Hour, remedy.PhaseResolved},
		"a job that we stopped is, in a year": {"start", 365 * 24 * time.Hour, remedy.PhaseResolved},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWard(t, 1)
			var died bool
			w.site.before = func(o remedy.Order) error {
				if o.Action == tc.action && !died {
					died = true
					w.life.dead = true
					return errDead
				}
				return nil
			}
			w.ingest(lost(0, 3))
			for !died {
				w.ticks(1)
			}
			w.now = w.now.Add(tc.asleep)
			w.begin(0, false)
			w.settle()
			in := w.stored()[0]
			if in.Phase != tc.want {
				t.Errorf("%s: %s; want %s", in.Phase, in.Reason, tc.want)
			}
			if tc.want == remedy.PhaseHeld && w.site.started(tc.action) {
				t.Errorf("%s was started %v late", tc.action, tc.asleep)
			}
		})
	}
}

func TestAnActionThatNeverAnswersIsNotWaitedForForEver(t *testing.T) {
	w := newWard(t, 1)
	w.site.ends = func(_ time.Time, o remedy.Order) (remedy.Outcome, bool) {
		if o.Action == "drain" {
			return remedy.Outcome{Ending: "pending"}, false
		}
		return remedy.Outcome{}, false
	}
	w.ingest(lost(0, 3))
	w.settle()
	in := w.stored()[0]
	if want := "needs a person: drain of gpu-00 ended late: for 10m0s after its time nobody could tell what became of it"; in.Reason != want {
		t.Errorf("%s, want %s", in.Reason, want)
	}
}

func TestTextsOfOthersAreBounded(t *testing.T) {
	w := newWard(t, 1)
	w.site.before = func(o remedy.Order) error {
		if o.Action == "drain" {
			return &remedy.Failure{Ending: remedy.Rejected, Err: errors.New(strings.Repeat("é", 100_000))}
		}
		return nil
	}
	w.ingest(lost(0, 3))
	w.settle()
	if n := len(w.stored()[0].Reason); n > 1200 || n < 900 {
		t.Errorf("a reason of %d bytes is kept", n)
	}
}

func TestConfigurationIsInForceFromTheNextTick(t *testing.T) {
	w := newWard(t, 2)
	w.ingest(lost(0, 3))
	cfg := w.cfg
	cfg.Playbooks.List = nil
	w.loop.Configure(cfg)
	w.ingest(lost(1, 3))
	w.settle()
	got := w.histories()
	if got[len(got)-1] != "  resolved: told; no playbook has steps for it" || w.site.effects["reboot "+nodeName(0)] != 1 {
		t.Errorf("%s\nwant the first healed by the ladder that it was opened with, and the second told", strings.Join(got, "\n"))
	}
}
