package sim

import (
	"fmt"
	"testing"
	"time"

	"stoker.dev/stoker/internal/fleet"
)

// BenchmarkDay is a day of fleets of two sizes: the simulation alone, and with a
// snapshot for every 10 s of it.
func BenchmarkDay(b *testing.B) {
	for _, size := range []struct{ nodes, jobs int }{{8, 30}, {1000, 2000}} {
		for _, looks := range []bool{false, true} {
			b.Run(fmt.Sprintf("nodes=%d/jobs=%d/snapshots=%t", size.nodes, size.jobs, looks), func(b *testing.B) {
				const hours = 24
				cfg := Crowd(1, size.nodes, size.jobs, hours*time.Hour)
				for i, j := range cfg.Jobs {
					if i%10 == 0 {
						cfg.Faults = append(cfg.Faults, Fault{At: j.At + time.Hour, Kind: GPULost, Job: j.Ref().String()})
					}
				}
				finished := 0
				for b.Loop() {
					s, err := New(cfg)
					if err != nil {
						b.Fatal(err)
					}
					var prev fleet.Snapshot
					for at := time.Duration(0); at <= hours*time.Hour; at += 10 * time.Second {
						if err := s.Step(s.cfg.Start.Add(at)); err != nil {
							b.Fatal(err)
						}
						if looks {
							if prev, err = s.cluster.Snapshot(b.Context(), s.Now(), prev); err != nil {
								b.Fatal(err)
							}
						}
					}
					finished = s.Report().JobsFinished
				}
				b.ReportMetric(hours*float64(b.N)/b.Elapsed().Seconds(), "virtual-h/s")
				b.ReportMetric(float64(finished), "jobs-finished")
			})
		}
	}
}
