package rules

import (
	"slices"
	"strings"
	"testing"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// replace puts another machine in the place of the ill node, under its name, on which a
// job of somebody else runs.
func (p *patient) replace(other fleet.JobRef) {
	p.change(func(s *fleet.Snapshot) {
		for uid, pod := range s.Pods {
			if pod.Node == ill {
				delete(s.Pods, uid)
			}
		}
		s.Pods["pod-new"] = fleet.Pod{PodRef: fleet.PodRef{Namespace: other.Namespace, Name: "pod-new", UID: "pod-new", Node: ill, BootID: "boot-9"}, Job: other, GPUs: 8, Running: true, Controlled: true}
		s.Jobs[other] = fleet.Job{Ref: other, UID: "uid-other", Version: 30, Workers: 1, Each: fleet.Resources{GPUs: 8}, Phase: fleet.JobRunning, Started: p.now}
	})
	p.node(func(n *fleet.Node) {
		n.UID, n.BootID, n.Unschedulable, n.Hold = "uid-new", "boot-9", false, fleet.Hold{}
	})
}

// TestAnotherNodeUnderTheNameIsLeftAlone: spot nodes come back under the name of the one
// that was taken away, within minutes.
func TestAnotherNodeUnderTheNameIsLeftAlone(t *testing.T) {
	other := fleet.JobRef{Kind: "Job.batch", Namespace: "b", Name: "other"}
	for name, tc := range map[string]struct {
		e    remedy.Evidence
		at   string // replaced while this step runs; empty: before the first
		owed []fleet.JobRef
	}{
		"a state, before anything was done": {unready(), "", nil},
		"before the jobs were stopped":      {unready(), "checkpoint", nil},
		"when the jobs were stopped":        {unready(), "stop", []fleet.JobRef{eval, llm}},
		"before it was drained":             {xid79(), "start", nil},
		"before it was booted":              {xid79(), "drain", nil},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPatient(t, tc.e)
			if tc.at != "" {
				p.do(tc.at)
				p.end(remedy.Done, "")
			}
			p.replace(other)
			p.advance()
			for range 5 {
				var jobs []fleet.JobRef
				for _, o := range p.orders {
					if o.Role != remedy.RoleStart || o.Target.Job == other {
						t.Fatalf("%s of %s is ordered", o.Action, o.Target)
					}
					jobs = append(jobs, o.Target.Job)
				}
				if len(jobs) == 0 {
					break
				}
				if !slices.Equal(jobs, tc.owed) {
					t.Errorf("%v are started, want %v", jobs, tc.owed)
				}
				tc.owed = nil
				p.reserve()
				p.end(remedy.Done, "")
				p.advance()
			}
			if p.in.Phase != remedy.PhaseResolved || !strings.Contains(p.in.Reason, "another node has taken the place") || len(tc.owed) > 0 {
				t.Errorf("%s: %s, and %v were not started\n%s", p.in.Phase, p.in.Reason, tc.owed, strings.Join(history(p.in), "\n"))
			}
		})
	}
}

// TestANodeThatHasOnlyRegisteredAnewIsTheSame: a person has deleted it from the API, and its
// machine is in the same boot.
func TestANodeThatHasOnlyRegisteredAnewIsTheSame(t *testing.T) {
	p := newPatient(t, unready())
	p.node(func(n *fleet.Node) { n.UID = "uid-new" })
	p.advance()
	if len(p.orders) != 1 || p.orders[0].Action != "cordon" || p.orders[0].Target.UID != "uid-new" {
		t.Errorf("%s: %s; orders %v, want it cordoned", p.in.Phase, p.in.Reason, p.orders)
	}
}
