package scheduler

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"stoker.dev/stoker/internal/fleet"
)

func TestRoomForPartsOfGPUs(t *testing.T) {
	for name, tc := range map[string]struct {
		gpus  int
		parts []int
		each  fleet.Resources
		want  int
	}{
		"whole GPUs, nothing in parts":        {8, nil, fleet.Resources{GPUs: 3}, 2},
		"a GPU that is cut is not whole":      {2, []int{250}, fleet.Resources{GPUs: 1}, 1},
		"two halves are one GPU":              {2, []int{500, 500}, fleet.Resources{GPUs: 1}, 1},
		"what does not fit takes another one": {2, []int{700, 500}, fleet.Resources{GPUs: 1}, 0},
		"parts of whole and of cut ones":      {2, []int{250}, fleet.Resources{GPUs: 1, Share: 500}, 3},
		"a rest that is too small is none":    {1, []int{700}, fleet.Resources{GPUs: 1, Share: 500}, 0},
		"thirds":                              {1, nil, fleet.Resources{GPUs: 1, Share: 333}, 3},
		"more than there is was promised":     {0, []int{500}, fleet.Resources{GPUs: 1}, 0},
	} {
		s := space{gpus: tc.gpus}
		for _, p := range tc.parts {
			s = s.less(piece{gpus: 1, share: p})
		}
		if got := s.places(tc.each); got != tc.want {
			t.Errorf("%s: room for %d, want %d", name, got, tc.want)
		}
	}
}

// TestWhatIsTakenAndGivenBackIsAsItWas holds that looking at who could go changes nothing.
func TestWhatIsTakenAndGivenBackIsAsItWas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := space{gpus: rapid.IntRange(1, 8).Draw(t, "gpus")}
		var pieces []piece
		for range rapid.IntRange(1, 8).Draw(t, "pieces") {
			p := piece{gpus: 1, share: rapid.SampledFrom([]int{0, 250, 333, 500}).Draw(t, "share")}
			s, pieces = s.less(p), append(pieces, p)
		}
		gone := rapid.SampledFrom(pieces).Draw(t, "gone")
		was := slices.Clone(s.parts)
		again := s.more(gone).less(gone)
		if again.gpus != s.gpus || !slices.Equal(again.parts, s.parts) || !slices.Equal(s.parts, was) {
			t.Fatalf("%+v became %+v", s, again)
		}
		if s.free()+gone.amount() != s.more(gone).free() {
			t.Fatalf("%+v has %d free, and without %+v %d", s, s.free(), gone, s.more(gone).free())
		}
	})
}

func (p piece) amount() int { return fleet.Resources{GPUs: p.gpus, Share: p.share}.MilliGPUs() }

// share makes a job of the world one on parts of GPUs.
func (w *world) share(name string, share int) {
	j := w.f.Jobs[ref(name)]
	j.Each.Share = share
	w.f.Jobs[ref(name)] = j
	for uid, p := range w.f.Pods {
		if p.Job == j.Ref {
			p.Share = share
			w.f.Pods[uid] = p
		}
	}
}

func TestAPartIsChargedAsAPart(t *testing.T) {
	w := newWorld(1)
	w.runs("part", 1, t0, "n0")
	w.share("part", 250)
	w.plan(t0)
	w.plan(t0.Add(4 * time.Minute))
	if got := w.m.Accounts[ref("part")].Held; got != time.Minute {
		t.Errorf("a quarter of a GPU for four minutes is %v, want one minute", got)
	}
}

// TestAnIdlePartIsTakenForOneThatFitsThere holds that who waits for half a GPU is helped by
// an idle half, and who waits for a whole one by both halves together or not at all.
func TestAnIdlePartIsTakenForOneThatFitsThere(t *testing.T) {
	for name, tc := range map[string]struct {
		share int
		want  bool
	}{
		"half a GPU":        {500, true},
		"a whole GPU":       {0, false},
		"more than is idle": {700, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(1)
			n := w.f.Nodes["n0"]
			n.Allocatable.GPUs = 1
			w.f.Nodes["n0"] = n
			w.runs("works", 1, t0, "n0")
			w.runs("rests", 1, t0, "n0")
			w.share("works", 500)
			w.share("rests", 500)
			w.waits("wants", 1, 1, t0)
			w.share("wants", tc.share)
			taken := false
			for at := t0; at.Before(t0.Add(40 * time.Minute)); at = at.Add(time.Minute) {
				w.uses("works", 0.9, at)
				w.uses("rests", 0, at)
				w.plan(at)
				taken = taken || !w.m.Accounts[ref("rests")].Preempted.IsZero()
				if !w.m.Accounts[ref("works")].Preempted.IsZero() {
					t.Fatal("who works was taken")
				}
			}
			if taken != tc.want {
				t.Errorf("the idle half was taken: %t, want %t", taken, tc.want)
			}
		})
	}
}

// TestANewLeaderBeginsWithWhatTheJobsTell holds that a change of leader is no amnesty: who
// has run for long still has, and who was just preempted is left alone.
func TestANewLeaderBeginsWithWhatTheJobsTell(t *testing.T) {
	w := newWorld(2)
	w.runs("old", 8, t0, "n0")
	w.runs("back", 8, t0.Add(50*time.Minute), "n1")
	p := plan{now: t0.Add(45 * time.Minute), fleet: w.f, next: Memory{Accounts: map[fleet.JobRef]Account{}}}
	p.preempt(w.f.Jobs[ref("back")], "to see its key")
	key := p.orders[0].Key
	j := w.f.Jobs[ref("back")]
	j.PreemptedBy = key
	w.f.Jobs[j.Ref] = j
	w.waits("again", 8, 1, t0)
	a := w.f.Jobs[ref("again")]
	a.PreemptedBy = key
	w.f.Jobs[a.Ref] = a

	now := t0.Add(time.Hour)
	_, fresh := Plan(now, w.f, Memory{}, Config{})
	if got := fresh.Accounts[ref("old")].Held; got != 8*time.Hour {
		t.Errorf("8 GPUs for an hour are %v for a new leader, want 8h", got)
	}
	if got := fresh.Accounts[ref("back")]; got.Held != 80*time.Minute || got.Times != 1 || !got.Preempted.Equal(p.now) {
		t.Errorf("who was preempted and runs again: %+v", got)
	}
	if got := fresh.Accounts[ref("again")]; !got.Waits.Equal(p.now) || got.Times != 1 {
		t.Errorf("who was preempted and waits: %+v, want since it was", got)
	}
	_, next := Plan(now.Add(30*time.Second), w.f, fresh, Config{})
	if got := next.Accounts[ref("old")].Held; got != 8*time.Hour+4*time.Minute {
		t.Errorf("half a minute later %v, want 8h4m", got)
	}
	for _, foreign := range []string{"", "plan/", "plan/x", "other/1-preempt", "gpu-lost-1/3"} {
		if at, ok := plannedAt(foreign); ok {
			t.Errorf("key %q was of a plan of %v", foreign, at)
		}
	}
}
