package loop

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/internal/store"
	"stoker.dev/stoker/rules"
)

// resting is a fleet with one job that has held a node for an hour and used none of it.
type resting struct{}

func (resting) Snapshot(_ context.Context, now time.Time) (fleet.Snapshot, error) {
	ref := fleet.JobRef{Kind: "Job.sim", Namespace: "train", Name: "notebook"}
	return fleet.Snapshot{
		At:    now,
		Nodes: map[string]fleet.Node{"n": {Name: "n", Ready: fleet.Condition{Status: fleet.True}, Allocatable: fleet.Resources{GPUs: 8}}},
		Pods:  map[string]fleet.Pod{"p": {PodRef: fleet.PodRef{UID: "p", Node: "n"}, Job: ref, GPUs: 8}},
		Jobs: map[fleet.JobRef]fleet.Job{ref: {
			Ref: ref, UID: "u", Workers: 1, Each: fleet.Resources{GPUs: 8}, Phase: fleet.JobRunning, Started: now.Add(-time.Hour),
			Usage: fleet.Usage{Over: 10 * time.Minute, At: now},
		}},
	}, nil
}

// hands is an actuator that writes down what it is asked.
type hands struct {
	refuses bool // by a gate
	asked   []remedy.Incident
	started []string
	ends    bool
}

func (h *hands) Start(_ context.Context, o remedy.Order) (remedy.Receipt, error) {
	h.started = append(h.started, o.Action)
	return remedy.Receipt{}, nil
}

func (h *hands) Check(time.Time, fleet.Snapshot, remedy.Order, remedy.Receipt) (remedy.Outcome, bool) {
	return remedy.Outcome{Ending: remedy.Done}, h.ends
}

func (h *hands) Admit(_ time.Time, _ fleet.Snapshot, _ []remedy.Incident, in remedy.Incident, _ []remedy.Order) []remedy.GateResult {
	h.asked = append(h.asked, in)
	return []remedy.GateResult{{Gate: "mode", Pass: !h.refuses}}
}

func planning(t *testing.T, h *hands, o Options) *Loop {
	t.Helper()
	return New(slog.New(slog.NewTextHandler(t.Output(), nil)), prometheus.NewPedanticRegistry(), &store.Memory{}, resting{}, nil, h, Config{Playbooks: rules.Playbooks{MaxAge: time.Hour}}, o)
}

func TestThePlanIsCarriedOutWhereItMayBeAndShownElsewhere(t *testing.T) {
	t0 := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		acts, refuses bool
		want          []string
	}{
		"where it may act it does":         {true, false, []string{"tell"}},
		"what a gate refuses is not begun": {true, true, nil},
		"elsewhere it is only shown":       {false, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			h := &hands{refuses: tc.refuses}
			var told []Entry
			l := planning(t, h, Options{Plans: tc.acts, Tell: func(e Entry) { told = append(told, e) }})
			if err := l.Tick(t.Context(), t0); err != nil {
				t.Fatal(err)
			}
			p := l.Plan()
			if len(p.Orders) != 1 || p.Orders[0].Action != "tell" || p.Acts != tc.acts || !p.At.Equal(t0) {
				t.Errorf("shown %+v, want the request to tell", p)
			}
			if !slices.Equal(h.started, tc.want) || len(told) != len(tc.want) {
				t.Errorf("started %v and told %v, want %v", h.started, told, tc.want)
			}
			for _, in := range h.asked {
				if !in.Opened.After(t0) {
					t.Error("before the gates the planner comes before incidents of now")
				}
			}
		})
	}
}

// TestOneOrderOfThePlannerAtAJob holds that the next one waits for the end of the last.
func TestOneOrderOfThePlannerAtAJob(t *testing.T) {
	t0 := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	h := &hands{}
	l := planning(t, h, Options{Plans: true})
	for _, step := range []struct {
		after time.Duration
		ends  bool
		want  []string
	}{
		{0, false, []string{"tell"}},
		{6 * time.Minute, false, []string{"tell"}}, // its end was not seen
		{20 * time.Minute, true, []string{"tell"}}, // the stage has gone on; nobody waits
	} {
		h.ends = step.ends
		if err := l.Tick(t.Context(), t0.Add(step.after)); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(h.started, step.want) {
			t.Errorf("after %v: started %v, want %v", step.after, h.started, step.want)
		}
	}
}
