package rules

import (
	"testing"
	"time"

	"stoker.dev/stoker/internal/remedy"
)

func TestWhatIsMoreOfTheSame(t *testing.T) {
	step := func(role remedy.Role, at time.Duration) remedy.StepRecord {
		return remedy.StepRecord{Role: role, Reserved: t0.Add(at), Orders: []remedy.OrderRecord{{}}}
	}
	for name, tc := range map[string]struct {
		was  func(*remedy.Incident)
		told func(*remedy.Evidence)
		want bool
	}{
		"the same once more":                  {nil, nil, true},
		"of a boot that is not known":         {nil, func(e *remedy.Evidence) { e.BootID = "" }, true},
		"in another boot it is news":          {nil, func(e *remedy.Evidence) { e.BootID = "boot-2" }, false},
		"another code is news":                {nil, func(e *remedy.Evidence) { e.Labels = map[string]string{"xid": "119"} }, false},
		"another who tells is news":           {nil, func(e *remedy.Evidence) { e.Source = "collector" }, false},
		"the end of it is news":               {nil, func(e *remedy.Evidence) { e.Resolved = true }, false},
		"of a state everything is news":       {func(in *remedy.Incident) { in.Class = remedy.ClassGPUHot }, nil, false},
		"of a job the newest failure is news": {func(in *remedy.Incident) { in.Class, in.Subject.Kind = remedy.ClassJobFailed, remedy.SubjectJob }, nil, false},
		"while the ladder is walked":          {func(in *remedy.Incident) { in.Steps = append(in.Steps, step(remedy.RoleStop, time.Second)) }, nil, true},
		"during a verification the first is":  {func(in *remedy.Incident) { in.Steps = append(in.Steps, step(remedy.RoleVerify, time.Second)) }, nil, false},
		"during a verification the second isn't": {func(in *remedy.Incident) {
			in.Steps = append(in.Steps, step(remedy.RoleVerify, time.Second))
			e := in.Evidence[0]
			e.At, e.Seen = t0.Add(5*time.Second), t0.Add(6*time.Second)
			in.AddEvidence(e)
		}, nil, true},
		"held, nobody waits for it any more": {func(in *remedy.Incident) {
			in.Phase, in.Steps = remedy.PhaseHeld, append(in.Steps, step(remedy.RoleVerify, time.Second))
		}, nil, true},
		"one that is closed learns nothing by it": {func(in *remedy.Incident) { in.Phase = remedy.PhaseResolved }, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			e := xid79()
			e.BootID = "boot-1"
			was := remedy.Incident{Subject: e.Subject, Class: e.Class, BootID: "boot-1", Phase: remedy.PhaseActing}
			was.AddEvidence(e)
			if tc.was != nil {
				tc.was(&was)
			}
			e.At, e.Seen = e.At.Add(time.Minute), e.Seen.Add(time.Minute)
			if tc.told != nil {
				tc.told(&e)
			}
			e.Class, e.Subject = was.Class, was.Evidence[0].Subject
			next := was.Clone()
			for i := range next.Evidence {
				next.Evidence[i].Class = was.Class
			}
			was.Evidence = next.Clone().Evidence
			if !next.AddEvidence(e) {
				t.Fatal("it has learned nothing")
			}
			if got := Repeats(was, next); got != tc.want {
				t.Errorf("Repeats = %v, want %v", got, tc.want)
			}
		})
	}
}
