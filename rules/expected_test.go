package rules

import (
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

func TestLostTelemetryIsExpectedOfANodeThatWeBoot(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	boots := remedy.Incident{
		Name: "gpu-lost-n1", Occurrence: 1, Class: remedy.ClassGPULost, Phase: remedy.PhaseActing, Opened: now.Add(-time.Minute),
		Subject: remedy.Subject{Kind: remedy.SubjectGPU, Node: "n1", UUID: "GPU-1"},
		Steps:   []remedy.StepRecord{{Action: "reboot", Role: remedy.RoleRenew, Reserved: now.Add(-time.Minute)}},
	}
	has := boots
	has.Steps = []remedy.StepRecord{{Action: "reboot", Role: remedy.RoleRenew, Ending: remedy.Done}}
	lost := func(node string) []remedy.Evidence {
		return []remedy.Evidence{{Class: remedy.ClassTelemetryLost, Subject: remedy.Subject{Kind: remedy.SubjectNode, Node: node}, At: now, Source: "rules"}}
	}
	f := fleet.Snapshot{At: now, Nodes: map[string]fleet.Node{"n1": {Name: "n1"}, "n2": {Name: "n2"}}}
	for name, tc := range map[string]struct {
		incident remedy.Incident
		node     string
		opens    int
	}{
		"while the reboot runs, nothing is opened":     {boots, "n1", 0},
		"after it, silence is news":                    {has, "n1", 1},
		"another node's silence is news at every time": {boots, "n2", 1},
	} {
		t.Run(name, func(t *testing.T) {
			changed, notes := Correlate(now, f, []remedy.Incident{tc.incident}, lost(tc.node), Playbooks{MaxAge: time.Hour})
			if len(changed) != tc.opens {
				t.Errorf("%d incidents opened, want %d", len(changed), tc.opens)
			}
			if tc.opens == 0 && (len(notes) != 1 || !strings.Contains(notes[0].Reason, "gpu-lost-n1 boots the node")) {
				t.Errorf("notes %v, want one that names the incident that boots the node", notes)
			}
		})
	}
}
