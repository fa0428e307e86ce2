package app

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/observe"
)

type oneFailure struct{ at time.Time }

func (o oneFailure) Fill(_ context.Context, now time.Time, into *fleet.Facts) error {
	llm := fleet.JobRef{Kind: "Job.batch", Namespace: "train", Name: "llm"}
	into.Jobs[llm] = fleet.Job{Ref: llm, Phase: fleet.JobPending}
	into.Failures[llm] = []fleet.Failure{{Pod: fleet.PodRef{Name: "llm-0", UID: "a"}, At: o.at, Reason: "OOMKilled", ExitCode: 137}}
	into.Sources["kubernetes"] = now
	return nil
}

func TestAFailedJobIsToldOfTheFleetThatWasJustSeen(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	world := observe.NewWorld(slog.New(slog.NewTextHandler(t.Output(), nil)), observe.Source{Name: "kubernetes", Filler: oneFailure{at}, Needed: true})
	w := failures{world, time.Hour}
	now := at.Add(time.Minute)
	if ev, err := w.Evidence(t.Context(), now); err != nil || len(ev) > 0 {
		t.Fatalf("before any fleet was seen: %v, %v", ev, err)
	}
	if _, err := world.Snapshot(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	ev, err := w.Evidence(t.Context(), now)
	if err != nil || len(ev) != 1 || ev[0].Labels["reason"] != "out-of-memory" || !ev[0].At.Equal(at) {
		t.Errorf("evidence %v, %v; want one of a job out of memory, of the time of its end", ev, err)
	}
}
