// Package contract is the test that every store of incidents must pass. It imports
// testing, and is imported by tests alone.
package contract

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/internal/store"
)

// Store is what every store of incidents does; the loop states it in the same words.
type Store interface {
	List(ctx context.Context) ([]remedy.Incident, error)
	Create(ctx context.Context, in remedy.Incident) (remedy.Incident, error)
	Update(ctx context.Context, in remedy.Incident) (remedy.Incident, error)
	Delete(ctx context.Context, in remedy.Incident) error
}

// An Opener makes and opens one store.
type Opener struct {
	// Open returns a new, empty store. What it holds open is closed with the test.
	Open func(t *testing.T) Store
	// Reopen closes a store and opens it again, as after a crash. Nil where nothing outlives the process.
	Reopen func(t *testing.T, s Store) Store
	// Size returns the bytes that the stored incident of that name takes.
	Size func(t *testing.T, s Store, name string) int
}

// Test runs the contract.
func Test(t *testing.T, o Opener) {
	for name, f := range map[string]func(*testing.T, Opener){
		"what was created is listed":                        testCreate,
		"a name is taken once":                              testTaken,
		"of many who create one name, one succeeds":         testCreateRace,
		"an update needs the version that is stored":        testUpdate,
		"of many who update one version, one succeeds":      testUpdateRace,
		"an update leaves nothing of before":                testReplace,
		"a name that was used again has no version twice":   testReuse,
		"only closed incidents are deleted":                 testDelete,
		"what the caller changes later changes no store":    testAlias,
		"names that no store could keep are refused":        testNames,
		"a full incident is kept whole within the limit":    testFull,
		"an incident over the limit is refused":             testOversize,
		"what was written is there after a crash":           testDurable,
		"a context that has ended writes nothing":           testContext,
		"any JSON may be a parameter, and comes back":       testParams,
		"a hundred incidents are listed, each exactly once": testMany,
	} {
		t.Run(name, func(t *testing.T) { f(t, o) })
	}
}

// start is when the incidents of the contract were opened.
var start = time.Date(2026, 11, 30, 9, 0, 0, 123456789, time.UTC)

// Incident returns an incident with something in each of its parts.
func Incident(name string) remedy.Incident {
	node := remedy.Subject{Kind: remedy.SubjectGPU, Node: "gpu-a-02", UUID: "GPU-8f2b", PCI: "0000:1a:00", Index: "0"}
	ref := fleet.JobRef{Kind: "Job.batch", Namespace: "train", Name: "llm-2"}
	order := remedy.Order{
		Key: name + "-stop-1", Incident: name, Action: "stop", Effect: remedy.EffectHarm, Role: remedy.RoleStop,
		Target: remedy.Target{Job: ref, UID: "1b4e28ba-2fa1-11d2-883f-0016d3cca427"}, Node: "gpu-a-02", BootID: "b-1",
		Params: json.RawMessage(`{"grace":"30s"}`), Cause: "XID 79 on gpu-a-02/gpu-0, playbook gpu-lost", Actor: "stoker",
		Reserved: start.Add(time.Second), Deadline: start.Add(time.Minute),
	}
	return remedy.Incident{
		Name: name, Occurrence: 1, Subject: node, Class: remedy.ClassGPULost, Phase: remedy.PhaseActing,
		Playbook: "gpu-lost", Mode: "auto",
		Ladder: []remedy.Step{
			{Action: "cordon", Scope: remedy.ScopeNode, Effect: remedy.EffectHarm, Role: remedy.RoleHold, Within: remedy.Duration(time.Minute)},
			{Action: "stop", Scope: remedy.ScopeJobs, Effect: remedy.EffectHarm, Role: remedy.RoleStop, Within: remedy.Duration(5 * time.Minute), Optional: true, Params: json.RawMessage(`{"grace":"30s"}`)},
		},
		OnFailure: []string{"hold", "notify"}, Rung: 1,
		Steps: []remedy.StepRecord{
			{
				Rung: 0, Action: "cordon", Role: remedy.RoleHold, Reserved: start, Deadline: start.Add(time.Minute), Ended: start.Add(time.Second), Ending: remedy.Done,
				Gates: []remedy.GateResult{{Gate: "budget", Pass: true, Reason: "0 of 8 nodes are out, 1 may be"}},
			},
			{Rung: 1, Action: "stop", Role: remedy.RoleStop, Reserved: start.Add(time.Second), Deadline: start.Add(time.Minute), Orders: []remedy.OrderRecord{{
				Order: order, Tries: 1, NotTill: start.Add(3 * time.Second),
				Receipt: &remedy.Receipt{
					At: start.Add(2 * time.Second), Version: 4711, Note: "suspended",
					Pods: []fleet.PodRef{{Namespace: "train", Name: "llm-2-0-abcde", UID: "u-1", Node: "gpu-a-02", BootID: "b-1"}},
				},
				Outcome: &remedy.Outcome{Ending: remedy.Done, Note: "4 pods are gone"},
			}}},
		},
		Evidence: []remedy.Evidence{{
			Subject: node, Class: remedy.ClassGPULost, BootID: "b-1", At: start, Seen: start.Add(time.Second),
			Source: "collector", Summary: "XID 79", Labels: map[string]string{"xid": "79"},
		}},
		EvidenceCount: 1,
		Waiting:       []remedy.GateResult{{Gate: "window", Reason: "opens at 09:00"}},
		BootID:        "b-1", Opened: start, Quiet: start.Add(time.Hour), Reason: "stop 2/2 is running",
		Losses: []remedy.Loss{{Job: ref, GPUHours: 0.375, Cause: "unsaved work", Step: 12_000}},
	}
}

func must(t *testing.T) func(remedy.Incident, error) remedy.Incident {
	t.Helper()
	return func(in remedy.Incident, err error) remedy.Incident {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if in.Version == "" {
			t.Fatalf("incident %s has no version after it was written", in.Name)
		}
		return in
	}
}

func wantEnding(t *testing.T, err error, want remedy.Ending) {
	t.Helper()
	f, ok := errors.AsType[*remedy.Failure](err)
	if !ok {
		t.Fatalf("error = %v, want a failure with %s", err, want)
	}
	if f.Ending != want {
		t.Fatalf("error = %v with %s, want %s", err, f.Ending, want)
	}
}

func list(t *testing.T, s Store) map[string]remedy.Incident {
	t.Helper()
	all, err := s.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]remedy.Incident{}
	for _, in := range all {
		if _, twice := byName[in.Name]; twice {
			t.Errorf("%s is listed twice", in.Name)
		}
		byName[in.Name] = in
	}
	return byName
}

// text is all of the incidents; what JSON leaves out, their version, comes after.
func text(t *testing.T, all map[string]remedy.Incident) []byte {
	t.Helper()
	data, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		data = fmt.Append(data, "\n", name, " ", all[name].Version)
	}
	return data
}

// wantStored checks that the store holds exactly these incidents.
func wantStored(t *testing.T, s Store, want ...remedy.Incident) {
	t.Helper()
	byName := map[string]remedy.Incident{}
	for _, in := range want {
		byName[in.Name] = in
	}
	got := list(t, s)
	if string(text(t, byName)) == string(text(t, got)) {
		return // a thousand times faster than to look for differences, and a full incident is long
	}
	if d := cmp.Diff(byName, got); d != "" {
		t.Errorf("stored incidents differ (-want +got):\n%s", d)
	}
}

func testCreate(t *testing.T, o Opener) {
	t.Helper()
	s := o.Open(t)
	wantStored(t, s)
	a := must(t)(s.Create(t.Context(), Incident("a")))
	b := must(t)(s.Create(t.Context(), Incident("b")))
	wantStored(t, s, a, b)

	want := Incident("a")
	want.Version = a.Version
	if d := cmp.Diff(want, a); d != "" {
		t.Errorf("Create returned another incident (-want +got):\n%s", d)
	}
}

func testTaken(t *testing.T, o Opener) {
	t.Helper()
	s := o.Open(t)
	first := must(t)(s.Create(t.Context(), Incident("a")))
	other := Incident("a")
	other.Reason = "another one"
	_, err := s.Create(t.Context(), other)
	wantEnding(t, err, remedy.Conflict)
	wantStored(t, s, first)
}

// race calls f from many goroutines at once and returns what those that had no error returned.
func race(t *testing.T, f func(i int) (remedy.Incident, error)) []remedy.Incident {
	t.Helper()
	const n = 8
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		won  []remedy.Incident
		errs []error
	)
	for i := range n {
		wg.Go(func() {
			in, err := f(i)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
				return
			}
			won = append(won, in)
		})
	}
	wg.Wait()
	for _, err := range errs {
		wantEnding(t, err, remedy.Conflict)
	}
	return won
}

func testCreateRace(t *testing.T, o Opener) {
	t.Helper()
	s := o.Open(t)
	won := race(t, func(i int) (remedy.Incident, error) {
		in := Incident("a")
		in.Reason = fmt.Sprint("number ", i)
		return s.Create(t.Context(), in)
	})
	if len(won) != 1 {
		t.Fatalf("%d creations succeeded, want 1", len(won))
	}
	wantStored(t, s, won...)
}

func testUpdate(t *testing.T, o Opener) {
	t.Helper()
	s := o.Open(t)
	_, err := s.Update(t.Context(), Incident("a"))
	wantEnding(t, err, remedy.Gone)

	first := must(t)(s.Create(t.Context(), Incident("a")))
	second := first.Clone()
	second.Phase, second.Reason = remedy.PhaseHeld, "the drain was late"
	second = must(t)(s.Update(t.Context(), second))
	if second.Version == first.Version {
		t.Errorf("the version is %q before and after an update", first.Version)
	}
	wantStored(t, s, second)

	_, err = s.Update(t.Context(), first)
	wantEnding(t, err, remedy.Conflict)
	unversioned := second
	unversioned.Version = ""
	_, err = s.Update(t.Context(), unversioned)
	wantEnding(t, err, remedy.Conflict)
	wantStored(t, s, second)
}

func testUpdateRace(t *testing.T, o Opener) {
	t.Helper()
	s := o.Open(t)
	first := must(t)(s.Create(t.Context(), Incident("a")))
	won := race(t, func(i int) (remedy.Incident, error) {
		in := first.Clone()
		in.Reason = fmt.Sprint("number ", i)
		return s.Update(t.Context(), in)
	})
	if len(won) != 1 {
		t.Fatalf("%d updates succeeded, want 1", len(won))
	}
	wantStored(t, s, won...)
}

func testReplace(t *testing.T, o Opener) {
	t.Helper()
	s := o.Open(t)
	in := must(t)(s.Create(t.Context(), Incident("a")))
	bare := remedy.Incident{Name: in.Name, Version: in.Version, Occurrence: 1, Subject: in.Subject, Class: in.Class, Phase: remedy.PhaseOpen, Opened: in.Opened}
	wantStored(t, s, must(t)(s.Update(t.Context(), bare)))
}

func testReuse(t *testing.T, o Opener) {
	t.Helper()
	s := o.Open(t)
	in := Incident("a")
	in.Phase = remedy.PhaseResolved
	old := must(t)(s.Create(t.Context(), in))
	if err := s.Delete(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	again := must(t)(s.Create(t.Context(), in))
	_, err := s.Update(t.Context(), old)
	wantEnding(t, err, remedy.Conflict)
	wantEnding(t, s.Delete(t.Context(), old), remedy.Conflict)
	wantStored(t, s, again)
}

func testDelete(t *testing.T, o Opener) {
	t.Helper()
	s := o.Open(t)
	open := must(t)(s.Create(t.Context(), Incident("a")))
	wantEnding(t, s.Delete(t.Context(), open), remedy.Rejected)
	wantStored(t, s, open)

	closed := open.Clone()
	closed.Phase, closed.Closed = remedy.PhaseCancelled, start.Add(time.Hour)
	closed = must(t)(s.Update(t.Context(), closed))
	stale := closed
	stale.Version = open.Version
	wantEnding(t, s.Delete(t.Context(), stale), remedy.Conflict)
	wantStored(t, s, closed)

	if err := s.Delete(t.Context(), closed); err != nil {
		t.Fatal(err)
	}
	wantStored(t, s)
	wantEnding(t, s.Delete(t.Context(), closed), remedy.Gone)
}

func testAlias(t *testing.T, o Opener) {
	t.Helper()
	s := o.Open(t)
	in := Incident("a")
	created := must(t)(s.Create(t.Context(), in))
	want := created.Clone()
	want.Evidence[0].Labels = map[string]string{"xid": "79"}
	for _, mine := range []remedy.Incident{in, list(t, s)["a"]} {
		mine.Evidence[0].Labels["xid"] = "48"
		mine.Steps[1].Orders[0].Receipt.Note = "changed"
		mine.Ladder[0].Action = "changed"
	}
	got := list(t, s)["a"]
	if got.Evidence[0].Labels["xid"] != "79" || got.Steps[1].Orders[0].Receipt.Note != "suspended" || got.Ladder[0].Action != "cordon" {
		t.Errorf("what the caller changed has changed the store: %+v", got)
	}
}

func testNames(t *testing.T, o Opener) {
	t.Helper()
	s := o.Open(t)
	for _, name := range []string{"", "Upper", "a/b", "a b", "-a"} {
		_, err := s.Create(t.Context(), Incident(name))
		wantEnding(t, err, remedy.Rejected)
	}
	wantStored(t, s)
	for _, sub := range []remedy.Subject{
		{Kind: remedy.SubjectGPU, Node: "ip-10-0-1-2.eu-west-1.compute.internal", UUID: "GPU-8F2B_x", Index: "7"},
		{Kind: remedy.SubjectJob, Namespace: "Team_A", Name: "llm.2"},
	} {
		must(t)(s.Create(t.Context(), Incident(remedy.IncidentName(remedy.ClassGPULost, sub, 12))))
	}
}

// Full returns an incident that is as long as one of a node with 56 jobs may become:
// all the evidence with all its labels, a history that is full, and each step about
// jobs with an order for each of them.
func Full(name string) remedy.Incident {
	const jobs = 56 // a node of 8 GPUs in 7 instances each
	in := Incident(name)
	proto := in.Steps[1].Orders[0]
	in.Evidence = nil
	for e := range remedy.MaxEvidence {
		ev := remedy.Evidence{
			Subject: in.Subject, Class: in.Class, BootID: "b-1", At: start.Add(time.Duration(e) * time.Minute), Seen: start, Source: "alertmanager",
			Summary: "GPU 0 of gpu-a-02 does not answer on the bus since the driver reported XID 79", Labels: map[string]string{},
		}
		for l := range remedy.MaxLabels {
			ev.Labels[fmt.Sprintf("label_with_a_long_name_%02d", l)] = fmt.Sprintf("value-%x", l*7919*(e+1))
		}
		in.Evidence = append(in.Evidence, ev)
	}
	in.EvidenceCount = 4711
	in.Steps, in.Losses = nil, nil
	for i := range remedy.MaxSteps {
		step := remedy.StepRecord{
			Rung: i % 10, Action: "cordon", Reserved: start, Ended: start.Add(time.Minute), Ending: remedy.Done,
			Gates: []remedy.GateResult{{Gate: "budget", Pass: true, Reason: "0 of 8 nodes are out, 1 may be"}, {Gate: "freeze", Pass: true, Reason: "1 of 8 nodes has gpu-lost"}},
		}
		n := 1
		if i%10 < 3 { // save, stop, start
			n = jobs
		}
		for j := range n {
			rec := proto
			rec.Order.Key = fmt.Sprintf("%s-%d-%08x", name, i, uint32(j*2654435761+i))
			rec.Order.Target.Job.Name = fmt.Sprint("job-", j)
			rec.Order.Target.UID = fmt.Sprintf("%08x-2fa1-11d2-883f-%012x", uint32(j*2654435761), j*40503)
			receipt := *proto.Receipt
			receipt.Pods = []fleet.PodRef{{Namespace: "train", Name: fmt.Sprintf("job-%d-0-abcde", j), UID: fmt.Sprintf("%08x-2fa1-11d2-883f-%012x", uint32(j*40503), j), Node: "gpu-a-02", BootID: "b-1"}}
			rec.Receipt = &receipt
			step.Orders = append(step.Orders, rec)
		}
		in.Steps = append(in.Steps, step)
	}
	for j := range jobs {
		in.Losses = append(in.Losses, remedy.Loss{Job: fleet.JobRef{Kind: "Job.batch", Namespace: "train", Name: fmt.Sprint("job-", j)}, GPUHours: float64(j) / 7, Cause: "unsaved work"})
	}
	return in
}

func testFull(t *testing.T, o Opener) {
	t.Helper()
	s := o.Open(t)
	in := must(t)(s.Create(t.Context(), Full("full")))
	wantStored(t, s, in)
	if n := o.Size(t, s, "full"); n > store.MaxBytes {
		t.Errorf("a full incident takes %d bytes, over %d", n, store.MaxBytes)
	} else {
		t.Logf("a full incident takes %d bytes", n)
	}
	in.Reason = "changed"
	wantStored(t, s, must(t)(s.Update(t.Context(), in)))
	usual := must(t)(s.Create(t.Context(), Incident("usual")))
	t.Logf("a usual incident takes %d bytes", o.Size(t, s, usual.Name))
}

func testOversize(t *testing.T, o Opener) {
	t.Helper()
	s := o.Open(t)
	small := must(t)(s.Create(t.Context(), Incident("a")))
	big := small.Clone()
	sum := uint64(1)
	for range 40_000 { // so random that nothing can compress it
		sum = sum*6364136223846793005 + 1442695040888963407
		big.OnFailure = append(big.OnFailure, fmt.Sprintf("%016x", sum))
	}
	_, err := s.Update(t.Context(), big)
	wantEnding(t, err, remedy.Rejected)
	wantStored(t, s, small)
	big.Name = "b"
	_, err = s.Create(t.Context(), big)
	wantEnding(t, err, remedy.Rejected)
	wantStored(t, s, small)
}

func testDurable(t *testing.T, o Opener) {
	t.Helper()
	s := o.Open(t)
	a := must(t)(s.Create(t.Context(), Incident("a")))
	b := must(t)(s.Create(t.Context(), Full("b")))
	a.Rung++
	a = must(t)(s.Update(t.Context(), a))
	if o.Reopen == nil {
		return // nothing outlives the process, as the store says of itself
	}
	s = o.Reopen(t, s)
	wantStored(t, s, a, b)
	a.Rung++
	wantStored(t, s, must(t)(s.Update(t.Context(), a)), b)
}

func testContext(t *testing.T, o Opener) {
	t.Helper()
	s := o.Open(t)
	in := must(t)(s.Create(t.Context(), Incident("a")))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.List(ctx); err == nil {
		t.Error("List with a context that has ended had no error")
	}
	if _, err := s.Create(ctx, Incident("b")); err == nil {
		t.Error("Create with a context that has ended had no error")
	}
	changed := in.Clone()
	changed.Rung++
	if _, err := s.Update(ctx, changed); err == nil {
		t.Error("Update with a context that has ended had no error")
	}
	wantStored(t, s, in)
}

func testParams(t *testing.T, o Opener) {
	t.Helper()
	s := o.Open(t)
	in := Incident("a")
	in.Ladder = nil
	for _, p := range []string{`{}`, `[]`, `"text"`, `12`, `0.25`, `true`, `{"a":{"b":[1,2,{"c":null}]},"":"<&>"}`} {
		in.Ladder = append(in.Ladder, remedy.Step{Action: "x", Params: json.RawMessage(p)})
	}
	must(t)(s.Create(t.Context(), in))
	got := list(t, s)["a"]
	for i, step := range in.Ladder {
		var want, have any
		if err := json.Unmarshal(step.Params, &want); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(got.Ladder[i].Params, &have); err != nil {
			t.Fatalf("%q came back as %q: %v", step.Params, got.Ladder[i].Params, err)
		}
		if d := cmp.Diff(want, have); d != "" {
			t.Errorf("%s came back changed (-want +got):\n%s", step.Params, d)
		}
	}
}

func testMany(t *testing.T, o Opener) {
	t.Helper()
	s := o.Open(t)
	var want []remedy.Incident
	for i := range 100 {
		want = append(want, must(t)(s.Create(t.Context(), Incident(fmt.Sprintf("in-%03d", i)))))
	}
	wantStored(t, s, want...)
}
