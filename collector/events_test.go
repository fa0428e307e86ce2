package collector

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"stoker.dev/stoker/internal/fleet"
)

// An eventful is a source with events of its own.
type eventful struct {
	agent
	events func(ctx context.Context, into *fleet.Samples) error
	wake   chan struct{}
	closed int
}

func (t *eventful) CollectEvents(ctx context.Context, into *fleet.Samples) error {
	return t.events(ctx, into)
}

func (t *eventful) Wake() <-chan struct{} { return t.wake }

func (t *eventful) Close(context.Context) error {
	t.closed++
	return nil
}

// TestEventsAreLookedForApart: values at the interval, events every second and at once
// when the source says so, and what was told of values stays.
func TestEventsAreLookedForApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		collections, looks := 0, 0
		var pending []int
		take := func(into *fleet.Samples) {
			into.GPUs = []fleet.SampledGPU{gpuA}
			for _, code := range pending {
				into.Events = append(into.Events, fleet.XIDEvent{XID: code, At: into.At})
			}
			pending = nil
		}
		var failing atomic.Bool // a sleep of fake time orders nothing for the race detector
		answer := func() error {
			if failing.Load() {
				return errors.New("no driver")
			}
			return nil
		}
		src := &eventful{wake: make(chan struct{}, 1)}
		src.agent = agent{"s", func(_ context.Context, into *fleet.Samples) error {
			collections++
			into.Values = []fleet.Sample{{Field: "A", Value: 1}}
			take(into)
			return answer()
		}}
		src.events = func(_ context.Context, into *fleet.Samples) error {
			looks++
			into.Values = []fleet.Sample{{Field: "B", Value: 1}}
			into.Dropped = 1
			take(into)
			return answer()
		}
		var seen []Sighting
		c := newCollector(t, Options{Interval: 10 * time.Second, See: func(s []Sighting) { seen = append(seen, s...) }}, src)
		done := make(chan error)
		go func() { done <- c.Run(ctx) }()
		time.Sleep(9*time.Second + time.Millisecond)
		synctest.Wait()
		if collections != 1 || looks != 9 {
			t.Errorf("after 9s %d collections and %d looks for events, want 1 and 9", collections, looks)
		}
		if page := readPage(t, c.AppendPage(nil, time.Now())); page["stoker_collector_samples_dropped_total"].Series[`{node="n", source="s"}`] != 9 {
			t.Errorf("9 looks each dropped one sample, and the page has %v", page["stoker_collector_samples_dropped_total"])
		}
		pending = []int{79}
		src.wake <- struct{}{}
		synctest.Wait()
		if len(seen) != 1 || seen[0].XID != 79 {
			t.Errorf("at the wake-up %v was told, want the 79", seen)
		}
		page := readPage(t, c.AppendPage(nil, time.Now()))
		if page["A"] == nil || page["B"] != nil {
			t.Errorf("the page has A %v and B %v, want the values of the collection alone", page["A"], page["B"])
		}
		if n := totals(t, c, time.Now())[key(gpuA, "79")]; n != 1 {
			t.Errorf("79 counted %v times, want once", n)
		}

		// Of a source that is down only collections are asked.
		failing.Store(true)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		before := looks
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if looks != before {
			t.Errorf("a source that is down was asked %d times for events", looks-before)
		}
		stop()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		if src.closed != 1 {
			t.Errorf("the source was closed %d times, want once", src.closed)
		}
	})
}

// TestAStormIsNotToldWhole: what one collection may tell at once is bounded, the rest is
// counted, and so is that it was not told. A lost GPU is always told.
func TestAStormIsNotToldWhole(t *testing.T) {
	told := fleet.Samples{GPUs: []fleet.SampledGPU{gpuA}}
	told.GPUs[0].Up = fleet.False
	for i := range maxSighted {
		told.Events = append(told.Events, fleet.XIDEvent{XID: 13, At: t0.Add(time.Duration(i) * time.Second)})
	}
	for i := range 40 {
		told.NVLinkErrors = append(told.NVLinkErrors, fleet.NVLinkEvent{Error: fleet.NVLinkFatal, At: t0.Add(time.Duration(i) * time.Second)})
	}
	var seen []Sighting
	c := newCollector(t, Options{See: func(s []Sighting) { seen = append(seen, s...) }}, &script{"s", tell(told)})
	if err := c.Gather(t.Context(), t0.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if len(seen) != maxSighted+1 || !seen[maxSighted].Lost {
		t.Errorf("%d were told, the last %+v, want %d and that the GPU is lost", len(seen), seen[len(seen)-1], maxSighted)
	}
	page := readPage(t, c.AppendPage(nil, t0.Add(time.Hour)))
	if n := page["stoker_collector_untold_events_total"].Series[`{node="n"}`]; n != 40 {
		t.Errorf("%v events were not told, want 40", n)
	}
	if n := totals(t, c, t0.Add(time.Hour))[key(gpuA, "13")]; n != maxSighted {
		t.Errorf("%v XIDs counted, want %d", n, maxSighted)
	}
}
