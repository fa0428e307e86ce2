package fleet

import (
	"testing"
	"time"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func TestAHoldIsASetOfIncidents(t *testing.T) {
	one := Hold{Cordoned: true, Why: "XID 79"}.With("a", t0)
	two := one.With("b", t0)
	if one.Has("b") || !two.Has("a") || !two.Has("b") {
		t.Errorf("with b: %v, and before it %v; want both, and the first unchanged", two, one)
	}
	if left := two.Without("a"); left.Has("a") || !left.Has("b") || !left.Cordoned || !two.Has("a") {
		t.Errorf("without a: %+v, and before it %+v", left, two)
	}
	if left := two.Without("a").Without("b"); left.Any() || left.Cordoned || left.Why != "" {
		t.Errorf("the last hold leaves %+v, want nothing", left)
	}
}

func TestPodsAreLeftUntilTheirUIDOrTheirBootIsGone(t *testing.T) {
	f := Snapshot{
		Nodes: map[string]Node{"same": {BootID: "1"}, "booted": {BootID: "2"}, "silent": {}},
		Pods:  map[string]Pod{"a": {}, "b": {}, "c": {}, "d": {}},
	}
	for name, tc := range map[string]struct {
		pod  PodRef
		left bool
	}{
		"a pod whose uid is gone has ended":            {PodRef{UID: "x", Node: "same", BootID: "1"}, false},
		"a pod in the same boot may run":               {PodRef{UID: "a", Node: "same", BootID: "1"}, true},
		"a pod of an ended boot does not":              {PodRef{UID: "b", Node: "booted", BootID: "1"}, false},
		"a boot that was not known ends nothing":       {PodRef{UID: "b", Node: "booted"}, true},
		"a boot that is not known now ends nothing":    {PodRef{UID: "c", Node: "silent", BootID: "1"}, true},
		"a node that is gone from the API ends no pod": {PodRef{UID: "d", Node: "gone", BootID: "1"}, true},
	} {
		if got := len(f.Left([]PodRef{tc.pod})) == 1; got != tc.left {
			t.Errorf("%s: left %v, want %v", name, got, tc.left)
		}
	}
}

func TestASnapshotRemembersSinceWhenAndInWhichBoot(t *testing.T) {
	at := func(boot string, gpus int) *Facts {
		f := NewFacts()
		f.Nodes["n"] = Node{Name: "n", UID: "u", BootID: boot, Allocatable: Resources{GPUs: gpus}}
		f.Pods["p"] = Pod{PodRef: PodRef{UID: "p", Node: "n"}}
		return f
	}
	first := at("1", 8).Snapshot(t0, Snapshot{})
	same := at("1", 8).Snapshot(t0.Add(time.Minute), first)
	booted := at("2", 0).Snapshot(t0.Add(2*time.Minute), same)
	if got := same.Nodes["n"].AllocatableSince; !got.Equal(t0) {
		t.Errorf("GPUs that did not change are allocatable since %v, want %v", got, t0)
	}
	if got := booted.Nodes["n"].AllocatableSince; !got.Equal(t0.Add(2 * time.Minute)) {
		t.Errorf("GPUs that changed are allocatable since %v, want the change", got)
	}
	if got := booted.Pods["p"].BootID; got != "1" {
		t.Errorf("a pod that outlives a reboot in the API belongs to boot %q, want the one that it was seen in first", got)
	}
}

func TestUnsavedWorkIsWhatANewStartWouldLose(t *testing.T) {
	for name, tc := range map[string]struct {
		job  Job
		want time.Duration
	}{
		"since the start where nothing was saved":    {Job{Started: t0.Add(-time.Hour)}, time.Hour},
		"since the checkpoint":                       {Job{Started: t0.Add(-time.Hour), Checkpoint: Checkpoint{At: t0.Add(-time.Minute)}}, time.Minute},
		"an older attempt's checkpoint does not add": {Job{Started: t0.Add(-time.Minute), Checkpoint: Checkpoint{At: t0.Add(-time.Hour)}}, time.Minute},
		"a job that does not run loses nothing":      {Job{Checkpoint: Checkpoint{At: t0.Add(-time.Hour)}}, 0},
		"a clock behind the start loses nothing":     {Job{Started: t0.Add(time.Hour)}, 0},
	} {
		if got := tc.job.Unsaved(t0); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

func TestAConditionThatIsNotKnownHasNotHeld(t *testing.T) {
	for status, want := range map[Truth]bool{True: true, False: false, Unknown: false} {
		if got := (Condition{Status: status, Since: t0}).HeldFor(t0.Add(time.Minute), time.Minute); got != want {
			t.Errorf("%q held for a minute: %v, want %v", status, got, want)
		}
	}
	if (Condition{Status: True, Since: t0}).HeldFor(t0.Add(59*time.Second), time.Minute) {
		t.Error("59 s are a minute")
	}
}

func TestWhereAJobWasIsRemembered(t *testing.T) {
	ref := JobRef{Namespace: "train", Name: "llm"}
	var s Snapshot
	see := func(after time.Duration, nodes ...string) {
		f := NewFacts()
		f.Jobs[ref] = Job{Ref: ref}
		for _, n := range nodes {
			f.Pods[n] = Pod{PodRef: PodRef{UID: n, Node: n}, Job: ref}
		}
		s = f.Snapshot(t0.Add(after), s)
	}
	see(0, "b", "a")
	see(time.Minute, "a", "b")
	see(2 * time.Minute) // its pods are gone
	see(10*time.Minute, "c")
	for name, tc := range map[string]struct {
		node string
		at   time.Duration
		want bool
	}{
		"while it was there":         {"a", 30 * time.Second, true},
		"a short while after":        {"b", time.Minute + lastWords, true},
		"not long after":             {"a", 12 * time.Minute, false},
		"where it is now":            {"c", 10 * time.Minute, true},
		"not where it was not yet":   {"c", time.Minute, false},
		"not on a node of no pod":    {"d", 30 * time.Second, false},
		"nor before it was anywhere": {"a", -5 * time.Minute, false},
	} {
		if got := s.Jobs[ref].WasOn(tc.node, t0.Add(tc.at)); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
	for i := range 10 {
		see(time.Duration(20+i)*time.Minute, string(rune('k'+i)))
	}
	if got := len(s.Jobs[ref].Places); got != MaxPlaces {
		t.Errorf("%d places are remembered, want %d", got, MaxPlaces)
	}
}
