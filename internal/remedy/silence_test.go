package remedy

import (
	"testing"
	"time"

	"stoker.dev/stoker/internal/fleet"
)

func TestSilenced(t *testing.T) {
	t0 := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	in := Incident{Class: ClassGPULost, Subject: Subject{Kind: SubjectGPU, Node: "a", Index: "3", UUID: "GPU-3"}, Evidence: []Evidence{
		{Labels: map[string]string{"alertname": "GPUXidGpuLost", "xid": "79"}},
		{Labels: map[string]string{"alertname": "GPUFell", "rack": "r1"}, Resolved: true},
	}}
	for name, tc := range map[string]struct {
		name, op, value string
		want            bool
	}{
		"its node":                          {"node", "=", "a", true},
		"another node":                      {"node", "=", "b", false},
		"its alert":                         {"alertname", "=", "GPUXidGpuLost", true},
		"an alert that is over":             {"alertname", "=", "GPUFell", false},
		"its class":                         {"class", "=~", "gpu-.+", true},
		"its GPU, though no label names it": {"UUID", "=", "GPU-3", true},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := fleet.NewMatcher(tc.name, tc.op, tc.value)
			if err != nil {
				t.Fatal(err)
			}
			silences := []fleet.Silence{{ID: "1"}, {ID: "2", Matchers: []fleet.Matcher{m}}}
			got, is := in.Silenced(t0, silences)
			if is != tc.want || is && got.ID != "2" {
				t.Errorf("Silenced = %v, %v; want %v", got, is, tc.want)
			}
		})
	}
}
