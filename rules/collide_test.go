package rules

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// namesakes are two nodes whose incidents would have one name: what is readable of it is
// cut, and the rest is a short sum.
func namesakes(t *testing.T) (a, b remedy.Subject) {
	t.Helper()
	seen := map[string]remedy.Subject{}
	for i := range 100_000 {
		s := remedy.Subject{Kind: remedy.SubjectNode, Node: fmt.Sprintf("gke-%s-%d", strings.Repeat("training-", 5), i)}
		name := remedy.IncidentName(remedy.ClassNodeNotice, s, 1)
		if other, taken := seen[name]; taken {
			return other, s
		}
		seen[name] = s
	}
	t.Fatal("no two names of 100,000 are one")
	return a, b
}

func TestTwoFaultsWhoseNamesWouldBeOneAreTwoIncidents(t *testing.T) {
	a, b := namesakes(t)
	told := func(s remedy.Subject) remedy.Evidence {
		return remedy.Evidence{Subject: s, Class: remedy.ClassNodeNotice, At: t0, Source: "rules"}
	}
	names := func(ins []remedy.Incident) map[string]remedy.Subject {
		out := map[string]remedy.Subject{}
		for _, in := range ins {
			out[in.Name] = in.Subject
		}
		return out
	}
	both, notes := Correlate(t0, fleet.Snapshot{}, nil, []remedy.Evidence{told(a), told(b)}, Playbooks{MaxAge: DefaultMaxAge})
	if len(both) != 2 || len(names(both)) != 2 {
		t.Errorf("told at once: %v, notes %v; want two incidents", names(both), notes)
	}
	first, _ := Correlate(t0, fleet.Snapshot{}, nil, []remedy.Evidence{told(a)}, Playbooks{MaxAge: DefaultMaxAge})
	first[0].Version = "1"
	second, _ := Correlate(t0, fleet.Snapshot{}, first, []remedy.Evidence{told(b)}, Playbooks{MaxAge: DefaultMaxAge})
	if len(second) != 1 || second[0].Name == first[0].Name || second[0].Subject != b {
		t.Errorf("told one after the other: %v beside %v; want another name", names(second), names(first))
	}
	// The same fault told again joins its own.
	again := told(b)
	again.At = t0.Add(time.Minute)
	joined, _ := Correlate(t0.Add(time.Minute), fleet.Snapshot{}, append(first, second...), []remedy.Evidence{again}, Playbooks{MaxAge: DefaultMaxAge})
	if len(joined) != 1 || joined[0].Name != second[0].Name {
		t.Errorf("told again: %v, want %s", names(joined), second[0].Name)
	}
}
