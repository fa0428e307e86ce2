package scheduler

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

var t0 = time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)

func ref(name string) fleet.JobRef {
	return fleet.JobRef{Kind: "Job.sim", Namespace: "train", Name: name}
}

// A world is a fleet as the planner sees it, and what it has remembered so far.
type world struct {
	f fleet.Snapshot
	m Memory
	c Config
}

// newWorld is a fleet of nodes of 8 GPUs each.
func newWorld(nodes int) *world {
	w := &world{f: fleet.Snapshot{Nodes: map[string]fleet.Node{}, Pods: map[string]fleet.Pod{}, Jobs: map[fleet.JobRef]fleet.Job{}, Queues: map[string]fleet.Queue{}}}
	for i := range nodes {
		name := fmt.Sprintf("n%d", i)
		w.f.Nodes[name] = fleet.Node{Name: name, Ready: fleet.Condition{Status: fleet.True}, Allocatable: fleet.Resources{GPUs: 8}}
	}
	return w
}

// runs adds a job with one pod of so many GPUs on each of the nodes.
func (w *world) runs(name string, gpus int, since time.Time, nodes ...string) {
	w.job(name, gpus, len(nodes), fleet.JobRunning, since)
	for i, n := range nodes {
		uid := fmt.Sprintf("%s-%d", name, i)
		w.f.Pods[uid] = fleet.Pod{PodRef: fleet.PodRef{UID: uid, Node: n}, Job: ref(name), GPUs: gpus, Running: true}
	}
}

// waits adds a job with pods that have no place.
func (w *world) waits(name string, gpus, workers int, since time.Time) {
	w.job(name, gpus, workers, fleet.JobPending, time.Time{})
	j := w.f.Jobs[ref(name)]
	j.Submitted = since
	w.f.Jobs[ref(name)] = j
	for i := range workers {
		uid := fmt.Sprintf("%s-%d", name, i)
		w.f.Pods[uid] = fleet.Pod{PodRef: fleet.PodRef{UID: uid}, Job: ref(name), GPUs: gpus}
	}
}

func (w *world) job(name string, gpus, workers int, phase fleet.JobPhase, started time.Time) {
	w.f.Jobs[ref(name)] = fleet.Job{Ref: ref(name), UID: name, Queue: "q", Workers: workers, Each: fleet.Resources{GPUs: gpus}, Phase: phase, Started: started}
}

func (w *world) uses(name string, mean float64, at time.Time) {
	j := w.f.Jobs[ref(name)]
	j.Usage = fleet.Usage{Mean: mean, Over: 10 * time.Minute, At: at}
	w.f.Jobs[ref(name)] = j
}

func (w *world) saved(name string, at time.Time) {
	j := w.f.Jobs[ref(name)]
	j.Checkpoint = fleet.Checkpoint{Step: 100, At: at}
	w.f.Jobs[ref(name)] = j
}

// plan plans at a time and says what was asked for: "preempt a".
func (w *world) plan(at time.Time) string {
	w.f.At = at
	var orders []remedy.Order
	orders, w.m = Plan(at, w.f, w.m, w.c)
	var out []string
	for _, o := range orders {
		out = append(out, o.Action+" "+o.Target.Job.Name)
	}
	return strings.Join(out, ", ")
}

func TestPlanChargesWhatIsHeld(t *testing.T) {
	for name, tc := range map[string]struct {
		phase fleet.JobPhase
		gap   time.Duration
		want  time.Duration
	}{
		"a running gang is charged for every GPU":  {fleet.JobRunning, time.Minute, 32 * time.Minute},
		"a suspended job is not charged":           {fleet.JobSuspended, time.Minute, 0},
		"a phase that is not known is not charged": {"", time.Minute, 0},
		"time that nobody saw is not charged":      {fleet.JobRunning, time.Hour, 0},
		"a clock that went back charges nothing":   {fleet.JobRunning, -time.Minute, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(4)
			w.job("llm", 8, 4, tc.phase, t0)
			w.plan(t0)
			w.plan(t0.Add(tc.gap))
			if got := w.m.Accounts[ref("llm")].Held; got != tc.want {
				t.Errorf("held %v, want %v", got, tc.want)
			}
		})
	}
}

func TestPlanForgetsJobsThatEnded(t *testing.T) {
	w := newWorld(1)
	w.runs("a", 1, t0, "n0")
	w.plan(t0)
	w.job("a", 1, 1, fleet.JobSucceeded, t0)
	w.plan(t0.Add(time.Minute))
	if len(w.m.Accounts) != 0 {
		t.Errorf("memory keeps %v of jobs that do not exist", w.m.Accounts)
	}
}

func TestBetweenTwoPlansNothingIsAsked(t *testing.T) {
	w := newWorld(1)
	w.runs("idle", 8, t0, "n0")
	w.uses("idle", 0, t0)
	if got := w.plan(t0); got != "tell idle" {
		t.Fatalf("asked %q", got)
	}
	before := w.m.At
	if got := w.plan(t0.Add(10 * time.Second)); got != "" || !w.m.At.Equal(before) {
		t.Errorf("10 s later %q was asked, and the memory is of %v", got, w.m.At)
	}
}

// TestIdleHoldersAreToldThenLoweredThenTaken walks the stages, with and without somebody
// who waits.
func TestIdleHoldersAreToldThenLoweredThenTaken(t *testing.T) {
	at := func(w *world, d time.Duration) string {
		w.uses("idle", 0.01, t0.Add(d))
		return w.plan(t0.Add(d))
	}
	w := newWorld(1)
	w.runs("idle", 8, t0, "n0")
	for _, step := range []struct {
		after time.Duration
		want  string
	}{
		{0, "tell idle"},
		{4 * time.Minute, ""},
		{5 * time.Minute, "prioritise idle"},
		{10 * time.Minute, ""}, // nobody waits
		{60 * time.Minute, ""},
	} {
		if got := at(w, step.after); got != step.want {
			t.Errorf("after %v: %q, want %q", step.after, got, step.want)
		}
	}
	w.waits("small", 4, 1, t0.Add(60*time.Minute))
	if got := at(w, 60*time.Minute+30*time.Second); got != "" {
		t.Errorf("for a job that has just come %q was asked", got)
	}
	if got := at(w, 62*time.Minute); got != "preempt idle" {
		t.Errorf("when somebody waits: %q, want the idle holder to go", got)
	}
}

func TestWhatIsNotKnownIsNotIdle(t *testing.T) {
	for name, set := range map[string]func(*world){
		"usage that was never told": func(*world) {},
		"usage that is old":         func(w *world) { w.uses("a", 0, t0.Add(-10*time.Minute)) },
		"a job that has only begun": func(w *world) {
			w.uses("a", 0, t0)
			j := w.f.Jobs[ref("a")]
			j.Usage.Over = time.Minute
			w.f.Jobs[ref("a")] = j
		},
		"a job that works":                 func(w *world) { w.uses("a", 0.6, t0) },
		"a job that a person keeps us off": func(w *world) { w.uses("a", 0, t0); j := w.f.Jobs[ref("a")]; j.OptOut = "mine"; w.f.Jobs[ref("a")] = j },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(1)
			w.runs("a", 8, t0.Add(-time.Hour), "n0")
			set(w)
			if got := w.plan(t0); got != "" {
				t.Errorf("asked %q, want nothing", got)
			}
		})
	}
}

func TestWhoWorksAgainIsLeftAlone(t *testing.T) {
	w := newWorld(1)
	w.runs("a", 8, t0, "n0")
	w.uses("a", 0, t0)
	w.plan(t0)
	w.uses("a", 0, t0.Add(6*time.Minute))
	if got := w.plan(t0.Add(6 * time.Minute)); got != "prioritise a" {
		t.Fatalf("lowered by %q", got)
	}
	j := w.f.Jobs[ref("a")]
	j.Priority = priorityIdle
	w.f.Jobs[ref("a")] = j
	w.uses("a", 0.1, t0.Add(10*time.Minute))
	if w.plan(t0.Add(10 * time.Minute)); w.m.Accounts[ref("a")].Stage != StageLowered {
		t.Error("between idle and busy the stage has changed")
	}
	w.uses("a", 0.5, t0.Add(20*time.Minute))
	if got := w.plan(t0.Add(20 * time.Minute)); got != "prioritise a" || w.m.Accounts[ref("a")].Stage != StageBusy {
		t.Errorf("asked %q, stage %q; want its priority back", got, w.m.Accounts[ref("a")].Stage)
	}
}

// TestRoomIsMadeForAGangWhenItIsWorthIt is the small job that keeps a whole node from a
// gang and could as well run elsewhere.
func TestRoomIsMadeForAGangWhenItIsWorthIt(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*world)
		at     time.Duration // since the gang came
		want   string
	}{
		"a small job moves, and is asked to save first": {func(*world) {}, 30 * time.Minute, "prioritise gang, checkpoint small"},
		"not for who has just come":                     {func(*world) {}, 4 * time.Minute, ""},
		"not when the small job has just begun":         {func(w *world) { w.runs("small", 1, t0.Add(25*time.Minute), "n0") }, 30 * time.Minute, ""},
		"not when it would find no other place":         {func(w *world) { w.runs("full", 8, t0.Add(-time.Hour), "n2") }, 30 * time.Minute, ""},
		"not when a person keeps us off it": {func(w *world) {
			j := w.f.Jobs[ref("small")]
			j.OptOut = "mine"
			w.f.Jobs[ref("small")] = j
		}, 30 * time.Minute, ""},
		"not for a gang that fits anyway": {func(w *world) { w.f.Nodes["n3"] = w.f.Nodes["n1"] }, 30 * time.Minute, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(3)
			w.runs("small", 1, t0.Add(-time.Hour), "n0")
			w.runs("half", 4, t0.Add(-time.Hour), "n2")
			w.saved("small", t0.Add(10*time.Minute))
			w.waits("gang", 8, 2, t0)
			half := w.f.Jobs[ref("half")]
			half.OptOut = "not this one"
			w.f.Jobs[ref("half")] = half
			tc.change(w)
			if j := w.f.Jobs[ref("small")]; j.Checkpoint.At.IsZero() {
				w.saved("small", t0.Add(10*time.Minute))
			}
			if got := w.plan(t0.Add(tc.at)); got != tc.want {
				t.Errorf("asked %q, want %q", got, tc.want)
			}
		})
	}
}

// TestARoomGoesFromTheRequestToItsEnd walks one room: save, then go, then start.
func TestARoomGoesFromTheRequestToItsEnd(t *testing.T) {
	w := newWorld(2)
	w.runs("small", 1, t0.Add(-time.Hour), "n0")
	w.runs("half", 4, t0.Add(-time.Hour), "n1")
	w.saved("small", t0)
	w.waits("gang", 8, 1, t0)
	at := t0.Add(30 * time.Minute)
	if got := w.plan(at); got != "prioritise gang, checkpoint small" {
		t.Fatalf("begins with %q", got)
	}
	if got := w.plan(at.Add(30 * time.Second)); got != "" {
		t.Errorf("while it saves: %q", got)
	}
	w.saved("small", at.Add(40*time.Second))
	if got := w.plan(at.Add(time.Minute)); got != "preempt small" {
		t.Errorf("once it has saved: %q", got)
	}
	if got := w.plan(at.Add(90 * time.Second)); got != "" {
		t.Errorf("while it goes: %q", got)
	}
	j := w.f.Jobs[ref("gang")]
	j.Phase, j.Priority = fleet.JobRunning, priorityRoom
	w.f.Jobs[ref("gang")] = j
	if got := w.plan(at.Add(2 * time.Minute)); got != "prioritise gang" || w.m.Room.For != (fleet.JobRef{}) {
		t.Errorf("once it runs: %q, room %+v; want its priority back and no room", got, w.m.Room)
	}
	if a := w.m.Accounts[ref("small")]; a.Times != 1 || a.Preempted.IsZero() {
		t.Errorf("the account of who went: %+v", a)
	}
}

// TestWhoDoesNotAnswerGoesAfterItsTime holds that a job that does not save keeps nobody
// waiting.
func TestWhoDoesNotAnswerGoesAfterItsTime(t *testing.T) {
	w := newWorld(2)
	w.runs("small", 1, t0.Add(-time.Hour), "n0")
	w.runs("half", 4, t0.Add(-time.Hour), "n1")
	w.saved("small", t0)
	w.waits("gang", 8, 1, t0)
	at := t0.Add(30 * time.Minute)
	w.plan(at)
	if got := w.plan(at.Add(90 * time.Second)); got != "" {
		t.Errorf("before its time is over: %q", got)
	}
	if got := w.plan(at.Add(2 * time.Minute)); got != "preempt small" {
		t.Errorf("after its time: %q", got)
	}
}

// TestQuotaIsARight holds that a team within its quota takes back what another borrows,
// and that who borrows takes nothing from a team within its own.
func TestQuotaIsARight(t *testing.T) {
	for name, tc := range map[string]struct {
		quotas map[string]int
		want   string
	}{
		"who stays within his quota may":       {map[string]int{"mine": 8, "theirs": 8}, "prioritise gang"},
		"who would be over his quota may not":  {map[string]int{"mine": 4, "theirs": 32}, ""},
		"nor may he when both are over theirs": {map[string]int{"mine": 4, "theirs": 16}, "prioritise gang"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(3)
			w.runs("long", 8, t0.Add(-time.Hour), "n0", "n1", "n2")
			w.waits("gang", 8, 1, t0)
			for ref, queue := range map[fleet.JobRef]string{ref("long"): "theirs", ref("gang"): "mine"} {
				j := w.f.Jobs[ref]
				j.Queue = queue
				w.f.Jobs[ref] = j
			}
			for q, n := range tc.quotas {
				w.f.Queues[q] = fleet.Queue{Name: q, Quota: n}
			}
			w.m = Memory{At: t0.Add(2*time.Hour - time.Minute), Accounts: map[fleet.JobRef]Account{ref("long"): {Held: 100 * time.Hour}}}
			if got := w.plan(t0.Add(2 * time.Hour)); got != tc.want {
				t.Errorf("asked %q, want %q", got, tc.want)
			}
		})
	}
}

// TestALargeGangDoesNotGoForASmallJob holds that who makes room is no larger than who waits,
// where there is such a one: a large gang would not find its place again.
func TestALargeGangDoesNotGoForASmallJob(t *testing.T) {
	for name, tc := range map[string]struct {
		keeps string // away from us
		want  fleet.JobRef
	}{
		"one of its size goes, though it is dearer": {"", ref("even")},
		"the large one goes when there is no other": {"even", ref("large")},
	} {
		t.Run(name, func(t *testing.T) {
			now := t0.Add(2 * time.Hour)
			w := newWorld(3)
			w.runs("large", 8, t0.Add(-time.Hour), "n0", "n1")
			w.runs("even", 8, t0.Add(-time.Hour), "n2")
			w.saved("large", now) // so that it costs less for each GPU
			w.saved("even", now.Add(-time.Hour))
			w.waits("small", 8, 1, t0)
			if j, ok := w.f.Jobs[ref(tc.keeps)]; ok {
				j.OptOut = "not this one"
				w.f.Jobs[j.Ref] = j
			}
			w.m = Memory{At: now.Add(-time.Minute), Accounts: map[fleet.JobRef]Account{ref("large"): {Held: 200 * time.Hour}, ref("even"): {Held: 100 * time.Hour}}}
			w.plan(now)
			if got := w.m.Room.Victims; len(got) != 1 || got[0] != tc.want {
				t.Errorf("%v go, want %s", got, tc.want)
			}
		})
	}
}

func TestWhoWasPreemptedOftenIsHarderToTake(t *testing.T) {
	for times, want := range map[int]bool{0: true, 1: true, 2: false} {
		w := newWorld(1)
		w.runs("long", 8, t0.Add(-time.Hour), "n0")
		w.waits("gang", 8, 1, t0)
		w.m = Memory{At: t0.Add(2*time.Hour - time.Minute), Accounts: map[fleet.JobRef]Account{ref("long"): {Held: 200 * time.Hour, Times: times}}}
		if got := w.plan(t0.Add(2*time.Hour)) != ""; got != want {
			t.Errorf("after %d times it is taken: %t, want %t", times, got, want)
		}
	}
}

// TestWhateverTheFleetPlansKeepTheirPromises draws fleets and plans over a while.
func TestWhateverTheFleetPlansKeepTheirPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(rapid.IntRange(1, 4).Draw(t, "nodes"))
		free := map[string]int{}
		for n := range w.f.Nodes {
			free[n] = 8
		}
		for i := range rapid.IntRange(0, 12).Draw(t, "jobs") {
			name := fmt.Sprintf("j%02d", i)
			gpus := rapid.IntRange(1, 8).Draw(t, "gpus")
			node := fmt.Sprintf("n%d", rapid.IntRange(0, len(w.f.Nodes)-1).Draw(t, "node"))
			if free[node] < gpus {
				w.waits(name, gpus, rapid.IntRange(1, 3).Draw(t, "workers"), t0.Add(-time.Duration(rapid.IntRange(0, 300).Draw(t, "waited"))*time.Minute))
				continue
			}
			free[node] -= gpus
			w.runs(name, gpus, t0.Add(-time.Duration(rapid.IntRange(0, 300).Draw(t, "ran"))*time.Minute), node)
			if rapid.Bool().Draw(t, "told") {
				w.uses(name, rapid.Float64Range(0, 1).Draw(t, "usage"), t0)
			}
			if rapid.Bool().Draw(t, "opt-out") {
				j := w.f.Jobs[ref(name)]
				j.OptOut = "mine"
				w.f.Jobs[ref(name)] = j
			}
		}
		keys := map[string]bool{}
		for at := t0; at.Before(t0.Add(time.Hour)); at = at.Add(time.Minute) {
			for r, j := range w.f.Jobs {
				if !j.Usage.At.IsZero() {
					j.Usage.At = at
					w.f.Jobs[r] = j
				}
			}
			w.f.At = at
			before := fmt.Sprint(w.m)
			orders, next := Plan(at, w.f, w.m, Config{})
			again, _ := Plan(at, w.f, w.m, Config{})
			if fmt.Sprint(orders) != fmt.Sprint(again) || before != fmt.Sprint(w.m) {
				t.Fatalf("the same question has two answers, or the memory was changed")
			}
			seen := map[fleet.JobRef]bool{}
			waiting := len((&plan{now: at, fleet: w.f, next: next, refs: keysOf(next)}).waiting())
			for _, o := range orders {
				j := w.f.Jobs[o.Target.Job]
				switch {
				case seen[j.Ref] || keys[o.Key]:
					t.Fatalf("two orders for %s, or one key twice: %s", j.Ref, o.Key)
				case j.OptOut != "":
					t.Fatalf("%s of %s, which a person keeps us off", o.Action, j.Ref)
				case o.Action == "preempt" && waiting == 0:
					t.Fatalf("%s goes and nobody waits", j.Ref)
				case o.Action == "preempt" && next.Accounts[j.Ref].Stage == StageBusy && at.Sub(j.Started) < 15*time.Minute:
					t.Fatalf("%s goes after %v", j.Ref, at.Sub(j.Started))
				}
				seen[j.Ref], keys[o.Key] = true, true
			}
			if len(next.Accounts) > len(w.f.Jobs) {
				t.Fatalf("%d accounts of %d jobs", len(next.Accounts), len(w.f.Jobs))
			}
			w.m = next
		}
	})
}

func keysOf(m Memory) []fleet.JobRef {
	var out []fleet.JobRef
	for r := range m.Accounts {
		out = append(out, r)
	}
	return out
}
