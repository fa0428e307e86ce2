package scene

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Ladder is what the tests' playbook does, in order.
var Ladder = []string{"cordon", "checkpoint", "stop", "start", "drain", "reboot", "verify", "release"}

var incidentsResource = schema.GroupVersionResource{Group: "stoker.dev", Version: "v1alpha1", Resource: "incidents"}

// An Incident is what the custom resource's status and the API say of one.
type Incident struct {
	Name       string `json:"name"`
	Occurrence int    `json:"occurrence"`
	Subject    struct {
		Kind, Node, UUID, Index, Namespace, Name string
	} `json:"subject"`
	Class    string `json:"class"`
	Phase    string `json:"phase"`
	Playbook string `json:"playbook"`
	Steps    []Step `json:"steps"`
	Evidence []struct {
		Source string            `json:"source"`
		Labels map[string]string `json:"labels"`
	} `json:"evidence"`
	EvidenceCount int `json:"evidenceCount"`
	Waiting       []struct {
		Gate, Reason string
	} `json:"waiting"`
	Opened time.Time `json:"opened"`
	Closed time.Time `json:"closed"`
	Quiet  time.Time `json:"quiet"`
	Reason string    `json:"reason"`
	Losses []struct {
		GPUHours float64 `json:"gpuHours"`
		Step     int64   `json:"step"`
	} `json:"losses"`
}

// A Step is what became of one rung.
type Step struct {
	Action   string    `json:"action"`
	Reserved time.Time `json:"reserved"`
	Ended    time.Time `json:"ended"`
	Ending   string    `json:"ending"`
	Skipped  bool      `json:"skipped"`
	Note     string    `json:"note"`
}

// Over reports whether the incident is closed.
func (in Incident) Over() bool { return in.Phase == "resolved" || in.Phase == "cancelled" }

// runs reports whether the step of that action was reserved and has not ended.
func (in Incident) runs(action string) bool {
	return slices.ContainsFunc(in.Steps, func(s Step) bool { return s.Action == action && s.Ending == "" && !s.Skipped })
}

// Rung returns the newest step of that action; the zero step when there is none.
func (in Incident) Rung(action string) Step {
	for _, s := range slices.Backward(in.Steps) {
		if s.Action == action {
			return s
		}
	}
	return Step{}
}

// String is the incident in a few lines, for messages.
func (in Incident) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s (%s)", in.Name, in.Phase, in.Reason)
	for _, s := range in.Steps {
		how := s.Ending
		if s.Skipped {
			how = "skipped"
		}
		fmt.Fprintf(&b, "\n  %s %-10s %-8s %s", s.Reserved.Format(time.TimeOnly), s.Action, how, s.Note)
	}
	for _, g := range in.Waiting {
		fmt.Fprintf(&b, "\n  waits for %s: %s", g.Gate, g.Reason)
	}
	return b.String()
}

// Stored returns the incidents of a class about a node, as the custom resources have
// them, oldest first.
func (f *Fixture) Stored(ctx context.Context, class, node string) ([]Incident, error) {
	return f.storedIf(ctx, func(in Incident) bool { return in.Class == class && in.Subject.Node == node })
}

// StoredAbout returns those about a job.
func (f *Fixture) StoredAbout(ctx context.Context, class, namespace, name string) ([]Incident, error) {
	return f.storedIf(ctx, func(in Incident) bool {
		return in.Class == class && in.Subject.Namespace == namespace && in.Subject.Name == name
	})
}

func (f *Fixture) storedIf(ctx context.Context, want func(Incident) bool) ([]Incident, error) {
	list, err := f.Dynamic.Resource(incidentsResource).Namespace(f.System).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var out []Incident
	for _, o := range list.Items {
		b, err := json.Marshal(o.Object["status"])
		if err != nil {
			return nil, err
		}
		var in Incident
		if err := json.Unmarshal(b, &in); err != nil {
			return nil, fmt.Errorf("status of incident %s: %w", o.GetName(), err)
		}
		if want(in) {
			out = append(out, in)
		}
	}
	slices.SortFunc(out, func(a, b Incident) int { return a.Opened.Compare(b.Opened) })
	return out, nil
}

// AwaitIncident waits until the newest gpu-lost incident of a node is as wanted.
func (f *Fixture) AwaitIncident(t *testing.T, node, what string, within time.Duration, want func(Incident) bool) Incident {
	t.Helper()
	var last Incident
	f.Await(t, "the incident of "+node+" "+what, within, func(ctx context.Context) (bool, string, error) {
		all, err := f.Stored(ctx, "gpu-lost", node)
		if err != nil || len(all) == 0 {
			return false, "no incident", err
		}
		last = all[len(all)-1]
		return want(last), last.String(), nil
	})
	return last
}

// AwaitStep waits until a step has begun. A short one may have ended by then.
func (f *Fixture) AwaitStep(t *testing.T, node, action string) Incident {
	t.Helper()
	return f.AwaitIncident(t, node, "to be at "+action, Soon, func(in Incident) bool {
		if in.Over() {
			t.Fatalf("the incident ended before it came to %s: %s", action, in)
		}
		st := in.Rung(action)
		return !st.Reserved.IsZero() && !st.Skipped
	})
}

// AwaitHealed waits until the incident is resolved, and checks that each rung of the
// ladder was climbed once, in order.
func (f *Fixture) AwaitHealed(t *testing.T, node string, within time.Duration) Incident {
	t.Helper()
	in := f.AwaitIncident(t, node, "to be over", within, Incident.Over)
	t.Logf("%s after %.1f s", in, in.Closed.Sub(in.Opened).Seconds())
	if in.Phase != "resolved" || in.Occurrence != 1 {
		t.Errorf("the incident is %s, occurrence %d; want resolved, 1", in.Phase, in.Occurrence)
	}
	var did []string
	for _, s := range in.Steps {
		did = append(did, s.Action)
		if s.Ending != "done" {
			t.Errorf("step %s ended %q (skipped: %v): %s; want done", s.Action, s.Ending, s.Skipped, s.Note)
		}
	}
	if !slices.Equal(did, Ladder) {
		t.Errorf("steps %v, want %v", did, Ladder)
	}
	return in
}

// CheckOne checks that there has been one gpu-lost incident of a node.
func (f *Fixture) CheckOne(t *testing.T, node string) {
	t.Helper()
	all, err := f.Stored(t.Context(), "gpu-lost", node)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 1 {
		t.Errorf("%d incidents of %s, want 1: %v", len(all), node, all)
	}
}

// LoseIncidents deletes every incident of the service, as a store that is lost.
func (f *Fixture) LoseIncidents(t *testing.T) {
	t.Helper()
	if err := f.Dynamic.Resource(incidentsResource).Namespace(f.System).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
}
