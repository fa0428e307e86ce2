package actuator

import (
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

func TestSilenceAndPathGates(t *testing.T) {
	t0 := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	m, err := fleet.NewMatcher("node", "=", "a")
	if err != nil {
		t.Fatal(err)
	}
	silence := []fleet.Silence{{ID: "s", By: "ann: new firmware", Matchers: []fleet.Matcher{m}, Until: t0.Add(time.Hour)}}
	harm := remedy.Order{Action: "drain", Effect: remedy.EffectHarm}
	ask := remedy.Order{Action: "checkpoint", Effect: remedy.EffectAsk}
	look := remedy.Order{Action: "verify", Effect: remedy.EffectAsk, Role: remedy.RoleVerify}
	late := fleet.Condition{Status: fleet.False}
	for name, tc := range map[string]struct {
		gate   Gate
		alerts fleet.Alerting
		order  remedy.Order
		pass   bool
		reason string
	}{
		"nobody is asked":                            {silenceGate{}, fleet.Alerting{Silences: silence}, harm, true, "no Alertmanager"},
		"nothing is silenced":                        {silenceGate{}, fleet.Alerting{Wanted: true, Told: t0}, harm, true, "none of 0 silences"},
		"a silence stops harm":                       {silenceGate{}, fleet.Alerting{Wanted: true, Told: t0, Silences: silence}, harm, false, "silenced until 2026-03-01T13:00:00Z by ann: new firmware"},
		"and what asks a job":                        {silenceGate{}, fleet.Alerting{Wanted: true, Told: t0, Silences: silence}, ask, false, "ann"},
		"and not what looks":                         {silenceGate{}, fleet.Alerting{Wanted: true, Told: t0, Silences: silence}, look, true, "only looks"},
		"no answer yet is no leave":                  {silenceGate{}, fleet.Alerting{Wanted: true}, harm, false, "not answered yet"},
		"an old answer is no leave":                  {silenceGate{}, fleet.Alerting{Wanted: true, Told: t0.Add(-2 * time.Minute)}, harm, false, "for 2m"},
		"no proof is awaited":                        {pathGate{}, fleet.Alerting{}, harm, true, "no proof"},
		"alerts arrive":                              {pathGate{}, fleet.Alerting{Path: fleet.Condition{Status: fleet.True}}, harm, true, "arrive"},
		"a Watchdog that is late stops harm":         {pathGate{}, fleet.Alerting{Path: late, Watchdog: t0.Add(-7 * time.Minute)}, harm, false, "7m ago"},
		"one that never came does too":               {pathGate{}, fleet.Alerting{Path: late}, harm, false, "never arrived"},
		"what takes nothing away need not be proved": {pathGate{}, fleet.Alerting{Path: late}, ask, true, "takes nothing away"},
	} {
		t.Run(name, func(t *testing.T) {
			q := Question{
				Now: t0, Fleet: fleet.Snapshot{At: t0, Alerts: tc.alerts}, Orders: []remedy.Order{tc.order},
				Incident: remedy.Incident{Class: remedy.ClassGPULost, Subject: remedy.Subject{Kind: remedy.SubjectGPU, Node: "a"}},
			}
			got := tc.gate.Ask(q)
			if got.Pass != tc.pass || !strings.Contains(got.Reason, tc.reason) {
				t.Errorf("%+v, want pass %v because of %q", got, tc.pass, tc.reason)
			}
		})
	}
}
