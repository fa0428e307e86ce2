package remedy

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func gpu(index, uuid, pci string) Subject {
	return Subject{Kind: SubjectGPU, Node: "gpu-a-02", Index: index, UUID: uuid, PCI: pci}
}

func TestSubjectsAreComparedByTheBestNameThatBothHave(t *testing.T) {
	for name, tc := range map[string]struct {
		a, b Subject
		want bool
	}{
		"one uuid":                             {gpu("3", "GPU-3", ""), gpu("4", "GPU-3", ""), true},
		"two uuids, though the index is one":   {gpu("3", "GPU-3", ""), gpu("3", "GPU-4", ""), false},
		"an address where one has no uuid":     {gpu("", "GPU-3", "0000:1a:00.0"), gpu("3", "", "0000:1A:00.0"), true},
		"an index where nothing better is had": {gpu("3", "", ""), gpu("3", "GPU-3", ""), true},
		"nothing in common":                    {gpu("", "GPU-3", ""), gpu("3", "", ""), false},
		"another node":                         {gpu("3", "", ""), Subject{Kind: SubjectGPU, Node: "x", Index: "3"}, false},
		"another kind":                         {gpu("3", "", ""), Subject{Kind: SubjectNode, Node: "gpu-a-02"}, false},
		"a job by namespace and name":          {Subject{Kind: SubjectJob, Namespace: "a", Name: "j"}, Subject{Kind: SubjectJob, Namespace: "b", Name: "j"}, false},
	} {
		if got, back := tc.a.Same(tc.b), tc.b.Same(tc.a); got != tc.want || back != tc.want {
			t.Errorf("%s: %v and %v the other way, want %v", name, got, back, tc.want)
		}
	}
}

func TestIncidentNamesAreKubernetesNames(t *testing.T) {
	valid := regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	seen := map[string]Subject{}
	for _, s := range []Subject{
		gpu("3", "GPU-3", ""), gpu("4", "GPU-4", ""),
		{Kind: SubjectNode, Node: strings.Repeat("Node.", 60)},
		{Kind: SubjectNode, Node: strings.Repeat("Node.", 60) + "x"},
		{Kind: SubjectJob, Namespace: "train", Name: "llm_2"},
		{Kind: SubjectQueue, Name: "ä"},
	} {
		for _, n := range []int{1, 2} {
			name := IncidentName(ClassTelemetryLost, s, n)
			if len(name) > 63 || !valid.MatchString(name) {
				t.Errorf("%v: %q is no Kubernetes name", s, name)
			}
			if other, twice := seen[name]; twice {
				t.Errorf("%v and %v are both called %s", s, other, name)
			}
			seen[name] = s
		}
	}
	if a, b := IncidentName(ClassGPULost, gpu("3", "GPU-3", ""), 1), IncidentName(ClassGPULost, gpu("3", "GPU-3", ""), 1); a != b {
		t.Errorf("one incident has two names: %s, %s", a, b)
	}
}

func TestEvidenceOfOneEventIsOneWhoeverTells(t *testing.T) {
	var in Incident
	e := Evidence{Subject: gpu("3", "GPU-3", ""), Class: ClassGPULost, At: t0, Source: "rules"}
	told := func(at time.Time, source string) bool { e.At, e.Source = at, source; return in.AddEvidence(e) }
	if !told(t0, "rules") || told(t0, "rules") || !told(t0.Add(time.Second), "alertmanager") || told(t0, "alertmanager") {
		t.Errorf("evidence %+v: want it new once from each source", in.Evidence)
	}
	if in.EvidenceCount != 1 || in.Evidence[0].Source != "rules, alertmanager" {
		t.Errorf("%d events, told by %q; want one, told by both", in.EvidenceCount, in.Evidence[0].Source)
	}
	for i := range 20 {
		told(t0.Add(time.Duration(i+1)*time.Minute), "rules")
	}
	if len(in.Evidence) > MaxEvidence || in.EvidenceCount != 21 || !in.Evidence[0].At.Equal(t0) {
		t.Errorf("%d of %d events are kept, the first of %v; want at most %d, the first among them", len(in.Evidence), in.EvidenceCount, in.Evidence[0].At, MaxEvidence)
	}
}

func TestDurationsAreWrittenAsPeopleWriteThem(t *testing.T) {
	for d, want := range map[time.Duration]string{
		10 * time.Minute: "10m", 90 * time.Minute: "1h30m", 2 * time.Hour: "2h", 90 * time.Second: "1m30s", 0: "0s", 30 * time.Second: "30s",
		time.Hour + 5*time.Second: "1h0m5s", -5 * time.Minute: "-5m", 1500 * time.Millisecond: "1.5s",
	} {
		if got := Duration(d).String(); got != want {
			t.Errorf("%d is written %s, want %s", d, got, want)
		}
		var back Duration
		if b, err := json.Marshal(Duration(d)); err != nil || json.Unmarshal(b, &back) != nil || time.Duration(back) != d {
			t.Errorf("%s comes back as %s", want, back)
		}
	}
}

func TestEndingsThatThisVersionDoesNotKnowAreNotRepeated(t *testing.T) {
	for e, want := range map[Ending][2]bool{
		Done: {false, true}, Gone: {false, true}, Conflict: {true, false}, Unclear: {true, false},
		Rejected: {false, false}, Late: {false, false}, Yielded: {false, false}, "newer": {false, false},
	} {
		if got := [2]bool{e.Retry(), e.Settled()}; got != want {
			t.Errorf("%q: retry and settled %v, want %v", e, got, want)
		}
	}
}

func TestAnIncidentComesBackFromJSONAsItWas(t *testing.T) {
	in := Incident{
		Name: "x", Class: ClassGPULost, Subject: gpu("3", "GPU-3", ""), Phase: PhaseActing, Opened: t0, Rung: 1,
		Ladder: []Step{{Action: "drain", Scope: ScopeNode, Effect: EffectHarm, Within: Duration(10 * time.Minute), Params: json.RawMessage(`{"a":1}`)}},
		Steps:  []StepRecord{{Action: "cordon", Role: RoleHold, Reserved: t0, Orders: []OrderRecord{{Order: Order{Key: "x/0-cordon"}, Receipt: &Receipt{At: t0, Version: 7}}}}},
	}
	b, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var back Incident
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(back, in); diff != "" {
		t.Error(diff)
	}
}
