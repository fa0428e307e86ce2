package app

import (
	"testing"
	"time"

	"stoker.dev/stoker/internal/sim"
)

// BenchmarkADayOfAThousandNodes is 24 hours of 1,000 nodes of 8 GPUs with 2,000 jobs, and
// Stoker at work; faults at their rates. `go test -bench Thousand -benchtime 1x` runs it.
func BenchmarkADayOfAThousandNodes(b *testing.B) {
	const day = 24 * time.Hour
	for b.Loop() {
		cfg, err := sim.Teams(1, 1000, 2000, day*3/4, day, 1, 1)
		if err != nil {
			b.Fatal(err)
		}
		r, err := trial{fleet: cfg, policy: policyStoker, horizon: day}.run(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		if r.report.WrongCordons != 0 || r.report.MissedFaults != 0 {
			b.Errorf("%d wrong cordons, %d missed faults", r.report.WrongCordons, r.report.MissedFaults)
		}
		b.ReportMetric(float64(len(r.incidents)), "incidents")
		b.ReportMetric(float64(r.report.JobsFinished), "jobs-finished")
	}
}

// TestALargeFleetIsTreatedAsWellAsASmallOne runs an hour of 1,600 GPUs, with faults fifty
// times as often as they are: none is missed, and nothing is done that is wrong.
func TestALargeFleetIsTreatedAsWellAsASmallOne(t *testing.T) {
	cfg, err := sim.Teams(1, 200, 200, time.Hour, time.Hour, 50, 1)
	if err != nil {
		t.Fatal(err)
	}
	r, err := trial{fleet: cfg, policy: policyStoker, horizon: time.Hour}.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if r.report.WrongCordons != 0 || r.report.MissedFaults != 0 || len(r.report.Mistakes) != 0 {
		t.Errorf("%d wrong cordons, %d missed faults, %q", r.report.WrongCordons, r.report.MissedFaults, r.report.Mistakes)
	}
}
