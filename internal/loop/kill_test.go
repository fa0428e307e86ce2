package loop

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"stoker.dev/stoker/internal/remedy"
)

// A story is what happens to a ward, beside that its loops die.
type story struct {
	name  string
	nodes int
	ev    []remedy.Evidence
	setUp func(w *ward)
}

var stories = []story{
	{"a ladder to its end", 1, []remedy.Evidence{lost(0, 3)}, nil},
	{"two GPUs of a node, one after the other", 1, []remedy.Evidence{lost(0, 3), lost(0, 4)}, func(w *ward) {
		w.site.gate = func(o remedy.Order) []remedy.GateResult {
			// What the gate "busy" does: the second waits until the first has given the node back.
			first := strings.Contains(o.Incident, "gpu-3-")
			return []remedy.GateResult{{Gate: "busy", Pass: first || w.site.effects["release "+nodeName(0)] > 0, Reason: "the other came first"}}
		}
	}},
	{"a drain that fails", 1, []remedy.Evidence{lost(0, 3)}, func(w *ward) {
		w.site.before = func(o remedy.Order) error {
			if o.Action == "drain" {
				return &remedy.Failure{Ending: remedy.Rejected, Err: errors.New("forlorn")}
			}
			return nil
		}
	}},
	{"a stop that fails", 1, []remedy.Evidence{lost(0, 3)}, func(w *ward) {
		w.site.ends = func(now time.Time, o remedy.Order) (remedy.Outcome, bool) {
			if o.Action != "stop" {
				return remedy.Outcome{}, false
			}
			out := remedy.Outcome{Ending: remedy.Late, Note: "1 pod is left"}
			return out, !now.Before(o.Deadline)
		}
	}},
	{"a person who uncordons the node during the drain", 1, []remedy.Evidence{lost(0, 3)}, func(w *ward) { overrule(w, "drain") }},
	{"a person who uncordons the node during the stop", 1, []remedy.Evidence{lost(0, 3)}, func(w *ward) { overrule(w, "stop") }},
	{"three nodes at once", 3, []remedy.Evidence{lost(0, 3), lost(1, 0), lost(2, 7)}, nil},
}

// overrule has a person uncordon the node once the action has begun.
func overrule(w *ward, action string) {
	done := false
	w.person = func() {
		if !done && w.site.started(action) {
			done = true
			w.site.uncordon(nodeName(0))
		}
	}
}

// play tells the story with a loop that dies at one call, and others after it that
// live. It returns the calls that the first one made.
func play(t rapid.TB, s story, dies int, after bool) (*ward, int) {
	t.Helper()
	w := newWard(t, s.nodes)
	if s.setUp != nil {
		s.setUp(w)
	}
	w.begin(dies, after)
	first := w.life
	reborn := func() {
		if w.life.dead {
			w.begin(0, false)
		}
	}
	for w.loop.Ingest(w.ctx, w.now, s.ev) != nil { // the sender sends it until it is taken in
		if !w.life.dead {
			t.Fatalf("evidence was not taken in")
		}
		reborn()
	}
	for range 400 {
		if err := w.tick(); err != nil && !w.life.dead {
			t.Fatalf("tick at %v: %v", w.now.Sub(t0), err)
		}
		reborn()
		if w.over() {
			break
		}
	}
	return w, first.calls
}

// endAt holds that every story comes to its end all the same if the process ends at one of
// its calls, for every so many of them.
func endAt(t *testing.T, every int) {
	t.Helper()
	for _, s := range stories {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			undisturbed, calls := play(t, s, 0, false)
			want := append(undisturbed.histories(), undisturbed.site.state()...)
			if calls < 10 {
				t.Fatalf("only %d calls; the story tells too little:\n%s", calls, strings.Join(want, "\n"))
			}
			for k := 1; k <= calls; k += every {
				for _, after := range []bool{false, true} {
					w, _ := play(t, s, k, after)
					if d := cmp.Diff(want, append(w.histories(), w.site.state()...)); d != "" {
						t.Fatalf("the process ended at call %d of %d (the call had its effect: %t) and left another state (-want +got):\n%s\n%s", k, calls, after, d, strings.Join(w.lines(), "\n"))
					}
				}
			}
			t.Logf("%d points, the effect done or not; at the end:\n%s", calls, strings.Join(want, "\n"))
		})
	}
}

func TestAnyMixOfEndsAndErrorsEndsInTheSameState(t *testing.T) {
	undisturbed, _ := play(t, stories[0], 0, false)
	want := append(undisturbed.histories(), undisturbed.site.state()...)
	rapid.Check(t, func(rt *rapid.T) {
		w := newWard(rt, 1)
		disk := &faulty{Store: w.kept}
		d := &dice{drawn: rapid.SliceOfN(rapid.IntRange(0, 5), 0, 300).Draw(rt, "troubles")}
		ends := &dice{drawn: rapid.SliceOfN(rapid.IntRange(0, 24), 0, 20).Draw(rt, "ends")}
		life := func() {
			n := ends.throw() // of a life: at which call, and whether it has its effect
			w.begin(n/2, n%2 == 0)
			w.life.Store = disk
		}
		life()
		disk.fail = func(string, remedy.Incident) error {
			if d.throw() == 1 {
				return errDisk
			}
			return nil
		}
		w.site.before = func(remedy.Order) error {
			if d.throw() == 1 {
				return &remedy.Failure{Ending: remedy.Conflict, Err: errors.New("changed since")}
			}
			return nil
		}
		w.site.after = func(remedy.Order) error {
			if d.throw() == 1 {
				return errors.New("EOF")
			}
			return nil
		}
		taken := false
		for range 500 {
			if w.life.dead {
				life()
			}
			if !taken {
				taken = w.loop.Ingest(w.ctx, w.now, []remedy.Evidence{lost(0, 3)}) == nil
			}
			left := len(d.drawn)
			if err := w.tick(); err != nil && left == 0 && !w.life.dead {
				rt.Fatalf("tick without trouble: %v", err)
			}
			if w.over() {
				break
			}
		}
		if d := cmp.Diff(want, append(w.histories(), w.site.state()...)); d != "" {
			rt.Fatalf("another state (-want +got):\n%s\n%s", d, strings.Join(w.lines(), "\n"))
		}
	})
}

func TestCase_R8_TwoLoopsOverOneStoreDoNothingTwice(t *testing.T) {
	want, _ := play(t, stories[0], 0, false)
	// The old leader is asleep for a while and does not know that it leads no more.
	for asleep := 1; asleep <= 40; asleep++ {
		w := newWard(t, 1)
		w.ingest(lost(0, 3))
		w.ticks(asleep % 7)
		old := w.loop
		w.begin(0, false)
		conflicts := 0
		for i := range 200 {
			w.ticks(1)
			if i < asleep {
				continue
			}
			if err := old.Tick(w.ctx, w.now); err != nil {
				f, ok := errors.AsType[*remedy.Failure](err)
				if !ok || f.Ending != remedy.Conflict {
					t.Fatalf("the old leader's tick says %v, want a conflict or nothing", err)
				}
				conflicts++
			}
		}
		if d := cmp.Diff(append(want.histories(), want.site.state()...), append(w.histories(), w.site.state()...)); d != "" {
			t.Fatalf("with the old leader asleep for %d ticks it ended in another state (-want +got):\n%s", asleep, d)
		}
		if a, b := old.Incidents(), w.loop.Incidents(); len(a) != 1 || a[0].Phase != b[0].Phase {
			t.Fatalf("the old leader shows %v, the new one %v", a, b)
		}
		if conflicts > 20 {
			t.Errorf("%d conflicts: the old leader does not read again", conflicts)
		}
	}
}

func TestANewLeaderForgetsWhatItKnew(t *testing.T) {
	w := newWard(t, 1)
	w.ingest(lost(0, 3))
	w.ticks(5)
	// Another one leads meanwhile, until the incident is over and the node is in another boot.
	stale := w.loop
	w.begin(0, false)
	w.settle()
	stale.Forget()
	again := lost(0, 3)
	again.At, again.Seen, again.BootID = w.now, w.now, ""
	if err := stale.Ingest(t.Context(), w.now, []remedy.Evidence{again}); err != nil {
		t.Fatal(err)
	}
	if got := w.histories(); got[len(got)-1] != "  open: opened: XID 79 on GPU 3 of gpu-00" || got[len(got)-2] != "gpu-00/gpu-3 #2" {
		t.Errorf("%v, want the next occurrence", got)
	}
	if in := w.stored()[1]; in.BootID != "boot-1'" {
		t.Errorf("it is about boot %s, want that of the fleet as it is now", in.BootID)
	}
}

func TestWhatComesBackFromTheStoreIsNotWrittenAgain(t *testing.T) {
	w := newWard(t, 1)
	shut := true
	w.site.gate = func(remedy.Order) []remedy.GateResult {
		return []remedy.GateResult{{Gate: "window", Pass: !shut, Reason: "opens at 09:00"}}
	}
	still := func(when string) {
		t.Helper()
		w.begin(0, false)
		every := w.every
		w.every = time.Millisecond // so that nothing ends meanwhile
		w.ticks(5)
		w.every = every
		if n := len(w.life.writes); n > 0 {
			t.Errorf("%s a new loop has written %d times and nothing has changed", when, n)
		}
	}
	w.ingest(lost(0, 3), lost(0, 4))
	w.ticks(1)
	still("while a gate waits")
	shut = false
	for _, action := range []string{"cordon", "checkpoint", "stop", "start", "drain", "reboot", "verify", "release"} {
		for !w.site.started(action) {
			w.ticks(1)
		}
		still("while " + action + " runs")
	}
	w.settle()
	still("when all is over")
}

// A dice gives what was drawn before, also to several goroutines at once, and zero
// when that is used up.
type dice struct {
	mu    sync.Mutex
	drawn []int
}

func (d *dice) throw() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.drawn) == 0 {
		return 0
	}
	n := d.drawn[0]
	d.drawn = d.drawn[1:]
	return n
}
