package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/observe"
)

type oneFailure struct{ at time.Time }

// silent is a job of many workers of which nothing says why they ended.
type silent struct {
	at      time.Time
	workers int
	asks    bool
	runs    bool // again, in its pod
}

func (o silent) Fill(_ context.Context, now time.Time, into *fleet.Facts) error {
	for i := range o.workers {
		ref := fleet.JobRef{Kind: "Job.batch", Namespace: "train", Name: fmt.Sprintf("llm-%d", i)}
		pod := fleet.PodRef{Namespace: "train", Name: ref.Name + "-0", UID: ref.Name}
		into.Jobs[ref] = fleet.Job{Ref: ref, Phase: fleet.JobPending, ReadLogs: o.asks}
		into.Failures[ref] = []fleet.Failure{{Pod: pod, At: o.at, Container: "train", Reason: "Error", ExitCode: 1}}
		if o.runs {
			into.Pods[pod.UID] = fleet.Pod{PodRef: pod, Job: ref, Running: true}
		}
	}
	into.Sources["kubernetes"] = now
	return nil
}

// A shelf has the logs of containers.
type shelf struct {
	text     string
	err      error
	read     int
	previous bool
}

func (s *shelf) LogTail(_ context.Context, _ fleet.PodRef, container string, previous bool) (string, error) {
	s.read++
	s.previous = previous
	if container != "train" {
		return "", errors.New("another container was asked for")
	}
	return s.text, s.err
}

func TestLogsAreReadOnlyWhereThatWasChosen(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	errNo := errors.New("may not")
	for name, tc := range map[string]struct {
		logs   string
		job    silent
		err    error
		reason string
		reads  int // after three ticks a second apart
		before bool
	}{
		"never by itself":                        {logsNone, silent{workers: 1, asks: true}, nil, "unknown", 0, false},
		"not of a job that has not asked":        {logsAsked, silent{workers: 1}, nil, "unknown", 0, false},
		"of one that has, once":                  {logsAsked, silent{workers: 1, asks: true}, nil, "io", 1, false},
		"of all":                                 {logsAll, silent{workers: 1}, nil, "io", 1, false},
		"of the run before, where it runs again": {logsAll, silent{workers: 1, runs: true}, nil, "io", 1, true},
		"of a few in one tick":                   {logsAll, silent{workers: 9}, nil, "io", 9, false},
		"and without it the rest is told":        {logsAll, silent{workers: 1}, errNo, "unknown", 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			tc.job.at = at
			world := observe.NewWorld(slog.New(slog.NewTextHandler(t.Output(), nil)), observe.Source{Name: "kubernetes", Filler: tc.job, Needed: true})
			s := &shelf{text: "step 7\nOSError: No space left on device", err: tc.err}
			if tc.err != nil {
				s.text = ""
			}
			w := newFailures(world, time.Hour, tc.logs, s)
			now := at.Add(time.Minute)
			for i := range 3 {
				now = now.Add(time.Second)
				if _, err := world.Snapshot(t.Context(), now); err != nil {
					t.Fatal(err)
				}
				before := s.read
				ev, err := w.Evidence(t.Context(), now)
				if !errors.Is(err, tc.err) || s.read-before > logsATick {
					t.Errorf("%v after %d reads, want %v and %d reads at most", err, s.read-before, tc.err, logsATick)
				}
				if len(ev) != tc.job.workers || i == 2 && ev[len(ev)-1].Labels["reason"] != tc.reason {
					t.Errorf("evidence %v, want reason %s of %d jobs", ev, tc.reason, tc.job.workers)
				}
			}
			if s.read != tc.reads || s.previous != tc.before {
				t.Errorf("%d reads, the last of the run before: %v; want %d and %v", s.read, s.previous, tc.reads, tc.before)
			}
		})
	}
}

func TestTheRightToReadLogsIsGivenOnRequestOnly(t *testing.T) {
	for readLogs, want := range map[bool]int{false: 0, true: 1} {
		if got := strings.Count(string(Manifests("stoker-system", "stoker", readLogs)), "pods/log"); got != want {
			t.Errorf("with readLogs %v, pods/log is there %d times, want %d", readLogs, got, want)
		}
	}
}

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
	w := newFailures(world, time.Hour, logsNone, nil)
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
