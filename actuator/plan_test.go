package actuator

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// line is one queue with one job in it.
type line struct {
	job   fleet.Job
	calls []string
	err   error
}

func (l *line) Job(_ context.Context, ref fleet.JobRef) (fleet.Job, error) {
	if ref != l.job.Ref {
		return fleet.Job{}, failf(remedy.Gone, "there is no job %s", ref)
	}
	return l.job, nil
}

func (l *line) wrote(call string) (fleet.Job, error) {
	l.calls = append(l.calls, call)
	if l.err != nil {
		return fleet.Job{}, l.err
	}
	l.job.Version++
	return l.job, nil
}

func (l *line) Prioritise(_ context.Context, _ fleet.Job, _ string, priority int) (fleet.Job, error) {
	l.job.Priority = priority
	return l.wrote("prioritise")
}

func (l *line) Preempt(_ context.Context, _ fleet.Job, key string) (fleet.Job, error) {
	l.job.PreemptedBy = key
	return l.wrote("preempt")
}

func (l *line) Tell(_ context.Context, _ fleet.Job, _, text string) (fleet.Job, error) {
	return l.wrote("tell " + text)
}

func plannedOrder(action string, ref fleet.JobRef, p PlanParams) remedy.Order {
	raw, _ := json.Marshal(p)
	return remedy.Order{Key: "plan/1-" + action, Action: action, Target: remedy.Target{Job: ref, UID: "u"}, Params: raw}
}

// TestThePlannersActionsDoOnceWhatTheySay starts each of them twice: the second time it is
// found done, where the job shows it.
func TestThePlannersActionsDoOnceWhatTheySay(t *testing.T) {
	ref := fleet.JobRef{Kind: "Job.sim", Namespace: "t", Name: "j"}
	for action, tc := range map[string]struct {
		params PlanParams
		want   []string // written by two starts
	}{
		"prioritise": {PlanParams{Priority: 5}, []string{"prioritise"}},
		"preempt":    {PlanParams{}, []string{"preempt"}},
		"tell":       {PlanParams{Text: "idle"}, []string{"tell idle", "tell idle"}},
	} {
		t.Run(action, func(t *testing.T) {
			l := &line{job: fleet.Job{Ref: ref, UID: "u", Version: 7}}
			specs := Planned(l)
			var a Action
			for _, s := range specs {
				if s.Info.Name == action {
					a = s.New(Deps{})
				}
			}
			o := plannedOrder(action, ref, tc.params)
			first, err := a.Start(t.Context(), o)
			if err != nil || first.Version != 8 || first.Found {
				t.Fatalf("receipt %+v, %v; want the version of the write", first, err)
			}
			if _, err := a.Start(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			if len(l.calls) != len(tc.want) || l.calls[0] != tc.want[0] {
				t.Errorf("written %q, want %q", l.calls, tc.want)
			}
			t0 := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
			first.At = t0
			see := func(version fleet.Version, pods ...fleet.Pod) (remedy.Outcome, bool) {
				f := fleet.Snapshot{At: t0.Add(time.Second), Jobs: map[fleet.JobRef]fleet.Job{ref: {Ref: ref, UID: "u", Version: version}}, Pods: map[string]fleet.Pod{}}
				for _, p := range pods {
					f.Pods[p.UID] = p
				}
				return a.Check(f.At, f, o, first)
			}
			if _, done := see(7); done {
				t.Error("a snapshot that is older than the write ends it")
			}
			if out, done := see(8); !done || out.Ending != remedy.Done {
				t.Errorf("once it is seen: %+v, %t", out, done)
			}
			if _, done := see(8, fleet.Pod{PodRef: fleet.PodRef{UID: "p"}, Job: ref, Terminating: true}); done == (action == "preempt") {
				t.Errorf("while a pod is on its way out the order has ended: %t", done)
			}
			o.Target.UID = "another"
			if _, err := a.Start(t.Context(), o); endingOf(err) != remedy.Gone {
				t.Errorf("for another job of that name: %v, want gone", err)
			}
		})
	}
}

func TestThePlannersErrorsKeepTheirEnding(t *testing.T) {
	ref := fleet.JobRef{Namespace: "t", Name: "j"}
	l := &line{job: fleet.Job{Ref: ref, UID: "u"}, err: failf(remedy.Conflict, "changed")}
	for _, s := range Planned(l) {
		o := plannedOrder(s.Info.Name, ref, PlanParams{Priority: 9, Text: "x"})
		l.job.Priority, l.job.PreemptedBy = 0, ""
		if _, err := s.New(Deps{}).Start(t.Context(), o); endingOf(err) != remedy.Conflict {
			t.Errorf("%s: %v, want a conflict", s.Info.Name, err)
		}
		o.Target.Job.Name = "other"
		if _, err := s.New(Deps{}).Start(t.Context(), o); endingOf(err) != remedy.Gone {
			t.Errorf("%s of a job that is not there: %v, want gone", s.Info.Name, err)
		}
	}
	if _, err := (prioritise{l}).Start(t.Context(), remedy.Order{Params: json.RawMessage("{")}); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("parameters that cannot be read: %v", err)
	}
}
