//go:build !race

// Half a day of several fleets takes seconds, and minutes under the race detector.

package app

import (
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/internal/sim"
)

// TestStokerIsBetterThanNobody runs a few fleets: what must hold of every run does, and
// what holds in the mean does for these.
func TestStokerIsBetterThanNobody(t *testing.T) {
	_, r, _ := compare(t, CompareOptions{For: 8 * time.Hour, Seed: 1, Seeds: 4})
	if w := r.With; w.WrongCordons != 0 || w.MissedFaults != 0 || w.RanTwice != 0 || w.WrongStops != 0 || w.WrongReleases != 0 {
		t.Errorf("wrong cordons %d, missed %d, ran twice %d, wrong stops %d, wrong releases %d; want none\n%s",
			w.WrongCordons, w.MissedFaults, w.RanTwice, w.WrongStops, w.WrongReleases, strings.Join(w.Mistakes, "\n"))
	}
	if r.With.Goodput <= r.Without.Goodput || r.With.LostPerFault >= r.Wait.LostPerFault {
		t.Errorf("goodput %.3f and %.3f without; lost per fault %.2f and %.2f for who waits", r.With.Goodput, r.Without.Goodput, r.With.LostPerFault, r.Wait.LostPerFault)
	}
	if r.Without.Cordons != 0 || r.Wait.Resubmissions != 0 {
		t.Errorf("without %d cordons, and %d resubmissions by who waits; want 0", r.Without.Cordons, r.Wait.Resubmissions)
	}
}

// TestTheShortWayTellsWhatTheLongWayTells runs the demonstration's fleet both ways: the
// same incidents are opened, and they take the same steps.
func TestTheShortWayTellsWhatTheLongWayTells(t *testing.T) {
	_, r, _ := showWhole(t)
	run, err := trial{fleet: sim.Demo(whole.Seed), policy: policyStoker, horizon: whole.For}.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	told := func(list []IncidentReport) (out []string) {
		for _, in := range list {
			line := string(in.Class) + " " + in.Subject + " " + string(in.Phase)
			for _, s := range in.Steps {
				line += " " + s.Action + ":" + string(s.Ending)
			}
			out = append(out, line)
		}
		return out
	}
	got, want := told(incidentReports(run.incidents, run.start)), told(r.Incidents)
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("by the short way:\n%s\nby the long way:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if len(got) < 2 {
		t.Errorf("only %d incidents: the test shows nothing", len(got))
	}
}
