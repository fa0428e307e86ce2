package scheduler

import (
	"testing"
	"time"

	"stoker.dev/stoker/internal/fleet"
)

func TestPlanChargesWhatIsHeld(t *testing.T) {
	t0 := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	ref := fleet.JobRef{Kind: "Job.sim", Namespace: "train", Name: "llm"}
	snap := func(p fleet.JobPhase) fleet.Snapshot {
		return fleet.Snapshot{Jobs: map[fleet.JobRef]fleet.Job{ref: {Ref: ref, Workers: 4, Each: fleet.Resources{GPUs: 8}, Phase: p}}}
	}
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
			_, m := Plan(t0, snap(tc.phase), Memory{}, Config{})
			_, m = Plan(t0.Add(tc.gap), snap(tc.phase), m, Config{})
			if got := m.Held[ref]; got != tc.want {
				t.Errorf("held %v, want %v", got, tc.want)
			}
		})
	}
}

func TestPlanForgetsJobsThatEnded(t *testing.T) {
	t0 := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	ref := fleet.JobRef{Name: "gone"}
	_, m := Plan(t0, fleet.Snapshot{}, Memory{At: t0, Held: map[fleet.JobRef]time.Duration{ref: time.Hour}}, Config{})
	if len(m.Held) != 0 {
		t.Errorf("memory keeps %v of jobs that do not exist", m.Held)
	}
}
