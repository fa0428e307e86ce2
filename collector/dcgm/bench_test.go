//go:build cgo && linux

package dcgm_test

import (
	"fmt"
	"testing"
	"time"

	"stoker.dev/stoker/collector"
	"stoker.dev/stoker/collector/dcgm"
	"stoker.dev/stoker/internal/fleet"
)

// BenchmarkPoll reads 8 GPUs from the library to the finished view, and says how many of
// the library's functions that calls. The fake engine's own work is in the time.
func BenchmarkPoll(b *testing.B) {
	fields := dcgm.DefaultFields()[:26]
	for id := dcgm.Short(300); len(fields) < 60; id++ {
		fields = append(fields, dcgm.Field{ID: id, Name: fmt.Sprintf("DCGM_FI_DEV_%d", id), Type: "gauge"})
	}
	for _, n := range []int{26, 60} {
		b.Run(fmt.Sprintf("fields=%d", n), func(b *testing.B) {
			lib := newNode(b, dcgm.Options{Fields: fields[:n]})
			c := newCollector(b, collector.Options{}, lib.source)
			poll := func() {
				if err := c.Gather(b.Context(), time.Now()); err != nil {
					b.Fatal(err)
				}
			}
			poll()
			before, polls := lib.do("calls"), 0
			b.ReportAllocs()
			for b.Loop() {
				poll()
				polls++
			}
			b.ReportMetric(float64(lib.do("calls")-before)/float64(polls), "calls/op")
		})
	}
	b.Run("events", func(b *testing.B) { // between two of them, every second
		lib := newNode(b, dcgm.Options{})
		lib.collect()
		before, looks := lib.do("calls"), 0
		b.ReportAllocs()
		for b.Loop() {
			if err := lib.source.CollectEvents(b.Context(), &fleet.Samples{At: time.Now()}); err != nil {
				b.Fatal(err)
			}
			looks++
		}
		b.ReportMetric(float64(lib.do("calls")-before)/float64(looks), "calls/op")
	})
}
