package collector

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/xid"
)

// totals returns the counters of a page that are not 0, as "gpu/xid n".
func totals(t *testing.T, c *Collector, now time.Time) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	for _, codes := range c.view.Load().xids {
		for _, k := range codes {
			if k.total > 0 {
				out[k.labels] = float64(k.total)
			}
		}
	}
	readPage(t, c.AppendPage(nil, now))
	return out
}

func key(g fleet.SampledGPU, code string) string {
	return fmt.Sprintf(`node="n",gpu="%d",UUID="%s",pci_bus_id="%s",xid="%s"`, g.Index, g.UUID, g.PCI, code)
}

func TestAnEventIsCountedOnce(t *testing.T) {
	at := func(ms int) time.Time { return t0.Add(time.Duration(ms) * time.Millisecond) }
	e := func(gpu, code, ms int) fleet.XIDEvent { return fleet.XIDEvent{GPU: gpu, XID: code, At: at(ms)} }
	for name, tc := range map[string]struct {
		first, second []fleet.XIDEvent // of two sources
		want          map[string]float64
	}{
		"told by both at the same time": {
			[]fleet.XIDEvent{e(0, 31, 0)}, []fleet.XIDEvent{e(0, 31, 0)}, map[string]float64{key(gpuA, "31"): 1},
		},
		"two of one code a moment apart are two": {
			[]fleet.XIDEvent{e(0, 31, 0), e(0, 31, 1)}, nil, map[string]float64{key(gpuA, "31"): 2},
		},
		"79 of the kernel log and of the driver, up to two seconds apart, is one": {
			[]fleet.XIDEvent{e(0, 79, 2000)}, []fleet.XIDEvent{e(0, 79, 0)}, map[string]float64{key(gpuA, "79"): 1},
		},
		"over two seconds apart they are two": {
			[]fleet.XIDEvent{e(0, 79, 2001)}, []fleet.XIDEvent{e(0, 79, 0)}, map[string]float64{key(gpuA, "79"): 2},
		},
		"the two seconds don't grow with each telling": {
			[]fleet.XIDEvent{e(0, 119, 0), e(0, 119, 1500), e(0, 119, 3000)}, nil, map[string]float64{key(gpuA, "119"): 2},
		},
		"79 and 119 are not one": {
			[]fleet.XIDEvent{e(0, 79, 0)}, []fleet.XIDEvent{e(0, 119, 0)}, map[string]float64{key(gpuA, "79"): 1, key(gpuA, "119"): 1},
		},
		"the same of two GPUs are two": {
			[]fleet.XIDEvent{e(0, 79, 0), e(1, 79, 0)}, nil, map[string]float64{key(gpuA, "79"): 1, key(gpuB, "79"): 1},
		},
		"an event of no GPU and a code that is none": {
			[]fleet.XIDEvent{e(2, 79, 0), e(-1, 79, 0), e(0, 0, 0), e(0, -3, 0)}, nil, map[string]float64{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			gpus := []fleet.SampledGPU{gpuA, gpuB}
			c := newCollector(t, Options{}, &script{"one", tell(fleet.Samples{GPUs: gpus, Events: tc.first})},
				&script{"two", tell(fleet.Samples{GPUs: gpus, Events: tc.second})})
			for i := range 3 {
				now := t0.Add(time.Duration(i) * time.Second)
				if err := c.Gather(t.Context(), now); err != nil {
					t.Fatal(err)
				}
				got := totals(t, c, now)
				if len(got) != len(tc.want) {
					t.Errorf("round %d: got %v, want %v", i, got, tc.want)
				}
				for k, want := range tc.want {
					if got[k] != want {
						t.Errorf("round %d: %s is %v, want %v", i, k, got[k], want)
					}
				}
			}
		})
	}
}

func TestEventsOfAFailedReadingCount(t *testing.T) {
	s := &script{"s", func(into *fleet.Samples) error {
		into.GPUs = []fleet.SampledGPU{gpuA}
		into.Values = []fleet.Sample{{Field: "A", Value: 1}}
		into.Events = []fleet.XIDEvent{{XID: 79, At: t0}}
		return errors.New("half way")
	}}
	c := newCollector(t, Options{}, s)
	if err := c.Gather(t.Context(), t0); err == nil {
		t.Error("want the source's error")
	}
	page := readPage(t, c.AppendPage(nil, t0))
	if got := totals(t, c, t0); got[key(gpuA, "79")] != 1 {
		t.Errorf("got %v, want one 79", got)
	}
	if page["A"] != nil || page["stoker_gpu_up"] != nil {
		t.Errorf("values of a failed reading are shown: %v, %v", page["A"], page["stoker_gpu_up"])
	}
}

func TestCountersAreThereFromZero(t *testing.T) {
	c := newCollector(t, Options{}, &script{"s", tell(fleet.Samples{GPUs: []fleet.SampledGPU{gpuA}})})
	if err := c.Gather(t.Context(), t0); err != nil {
		t.Fatal(err)
	}
	series := readPage(t, c.AppendPage(nil, t0))["stoker_gpu_xid_errors_total"].Series
	codes := []string{"other"}
	for _, code := range xid.StateChanging() {
		codes = append(codes, strconv.Itoa(code))
	}
	if len(series) != len(codes) {
		t.Errorf("%d counters, want %d", len(series), len(codes))
	}
	for _, code := range codes {
		k := `{UUID="GPU-a", gpu="0", node="n", pci_bus_id="0:1", xid="` + code + `"}`
		if v, ok := series[k]; !ok || v != 0 {
			t.Errorf("XID %s: %v, %v; want 0", code, v, ok)
		}
	}
}

func TestLostGPUKeepsWhoItWas(t *testing.T) {
	s := &script{"s", tell(fleet.Samples{GPUs: []fleet.SampledGPU{gpuA, gpuB}, Events: []fleet.XIDEvent{{GPU: 1, XID: 79, At: t0}}})}
	c := newCollector(t, Options{}, s)
	if err := c.Gather(t.Context(), t0); err != nil {
		t.Fatal(err)
	}
	lost := fleet.SampledGPU{UUID: "GPU-b", Up: fleet.False} // the driver has forgotten the rest
	s.tell = tell(fleet.Samples{GPUs: []fleet.SampledGPU{gpuA, lost}})
	if err := c.Gather(t.Context(), t0.Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	page := readPage(t, c.AppendPage(nil, t0.Add(time.Second)))
	b := `{UUID="GPU-b", gpu="1", node="n", pci_bus_id="0:2"}`
	if up, ok := page["stoker_gpu_up"].Series[b]; !ok || up != 0 {
		t.Errorf("stoker_gpu_up: %v, want 0 for %s", page["stoker_gpu_up"].Series, b)
	}
	if at := page["stoker_gpu_xid_last_event_timestamp_seconds"].Series[`{UUID="GPU-b", gpu="1", node="n", pci_bus_id="0:2", xid="79"}`]; at != float64(t0.UnixMilli())/1000 {
		t.Errorf("its last XID is at %v, want %v", at, t0)
	}
}

func TestAnInstanceSpeaksForItsGPU(t *testing.T) {
	one, two := gpuA, gpuA
	one.Instance, one.Profile, one.Up = "1", "3g", fleet.False
	two.Instance, two.Profile = "2", "3g"
	for name, gpus := range map[string][]fleet.SampledGPU{"the lost one first": {one, two}, "the lost one last": {two, one}} {
		t.Run(name, func(t *testing.T) {
			c := newCollector(t, Options{}, &script{"s", tell(fleet.Samples{GPUs: gpus})})
			for i := range 2 {
				now := t0.Add(time.Duration(i) * time.Second)
				if err := c.Gather(t.Context(), now); err != nil {
					t.Fatal(err)
				}
				up := readPage(t, c.AppendPage(nil, now))["stoker_gpu_up"].Series
				if len(up) != 1 || up[`{UUID="GPU-a", gpu="0", node="n", pci_bus_id="0:1"}`] != 1 {
					t.Errorf("got %v, want the GPU once and up", up)
				}
			}
		})
	}
}

func TestABootStartsAnew(t *testing.T) {
	boot := "one"
	s := &script{"s", func(into *fleet.Samples) error {
		into.GPUs, into.BootID = []fleet.SampledGPU{gpuA}, boot
		into.Events = []fleet.XIDEvent{{XID: 79, At: t0}}
		return nil
	}}
	c := newCollector(t, Options{}, s)
	for i, step := range []struct {
		boot string
		want float64
	}{{"one", 1}, {"one", 1}, {"", 1}, {"two", 1}} {
		boot = step.boot
		now := t0.Add(time.Duration(i) * time.Hour)
		if err := c.Gather(t.Context(), now); err != nil {
			t.Fatal(err)
		}
		if got := totals(t, c, now)[key(gpuA, "79")]; got != step.want {
			t.Errorf("step %d: 79 was counted %v times, want %v", i, got, step.want)
		}
	}
	info := readPage(t, c.AppendPage(nil, t0))["stoker_node_boot_info"].Series
	if len(info) != 1 || info[`{boot_id="two", node="n"}`] != 1 {
		t.Errorf("boot info %v, want that of the second boot", info)
	}
}

func TestATimeAheadOfUsIsNotShown(t *testing.T) {
	c := newCollector(t, Options{}, &script{"s", tell(fleet.Samples{
		GPUs: []fleet.SampledGPU{gpuA}, Events: []fleet.XIDEvent{{XID: 31, At: t0.Add(time.Hour)}},
	})})
	for i := range 3 {
		if err := c.Gather(t.Context(), t0.Add(time.Duration(i)*time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	page := readPage(t, c.AppendPage(nil, t0.Add(2*time.Second)))
	k := `{UUID="GPU-a", gpu="0", node="n", pci_bus_id="0:1", xid="31"}`
	if at := page["stoker_gpu_xid_last_event_timestamp_seconds"].Series[k]; at != float64(t0.UnixMilli())/1000 {
		t.Errorf("last event at %v, want when it was read first, %v", at, t0)
	}
	if n := page["stoker_gpu_xid_errors_total"].Series[k]; n != 1 {
		t.Errorf("counted %v times, want 1", n)
	}
}

// TestNothingIsLostAndNothingCountedTwice tells of events late, out of order and again
// and again, as a source does that reads with an overlap.
func TestNothingIsLostAndNothingCountedTwice(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		rnd := rand.New(rand.NewPCG(seed, 1))
		codes := []int{13, 31, 48, 63, 79, 119}
		b := newBook("n", 1)
		var all []fleet.XIDEvent
		want := map[int]uint64{}
		at := t0
		for range 150 {
			at = at.Add(time.Duration(1+rnd.IntN(400)) * time.Millisecond)
			code := codes[rnd.IntN(len(codes))]
			if toldTwice(code) {
				at = at.Add(2001 * time.Millisecond)
			}
			all = append(all, fleet.XIDEvent{XID: code, At: at})
			want[code]++
		}
		s := &fleet.Samples{GPUs: []fleet.SampledGPU{gpuA}}
		// Each reading tells of the last 20s, with what came up to 2s late, shuffled.
		for now := t0; now.Before(at.Add(time.Minute)); now = now.Add(time.Second) {
			s.At = now
			var told []fleet.XIDEvent
			for _, e := range all {
				late := time.Duration(e.At.UnixNano()%2000) * time.Millisecond
				if !e.At.Add(late).After(now) && now.Sub(e.At) < 20*time.Second {
					told = append(told, e)
				}
			}
			rnd.Shuffle(len(told), func(i, j int) { told[i], told[j] = told[j], told[i] })
			before := b.version
			for _, e := range told {
				if toldTwice(e.XID) {
					// The other source puts it up to a second aside.
					other := e
					other.At = other.At.Add(time.Duration(e.At.UnixNano()%1000) * time.Millisecond)
					b.count("s", s, other)
				}
				b.count("s", s, e)
			}
			if b.version < before {
				rt.Fatal("the version went back")
			}
		}
		for code, n := range want {
			if got := b.gpus[0].xids.counter(code).total; got != n {
				rt.Fatalf("XID %d was counted %d times, has happened %d times", code, got, n)
			}
		}
	})
}

// TestMemoryIsBounded: a storm of codes, events and GPUs stops at the limits, and what
// goes over them is counted, not lost without a word.
func TestMemoryIsBounded(t *testing.T) {
	var events []fleet.XIDEvent
	for code := range 1000 {
		events = append(events, fleet.XIDEvent{XID: 1 + code, At: t0.Add(time.Duration(code) * time.Millisecond)})
	}
	for i := range 5000 {
		events = append(events, fleet.XIDEvent{XID: 13, At: t0.Add(time.Duration(i) * time.Millisecond)})
	}
	s := &script{"s", tell(fleet.Samples{GPUs: []fleet.SampledGPU{gpuA}, Events: events})}
	c := newCollector(t, Options{}, s)
	for range 2 {
		if err := c.Gather(t.Context(), t0); err != nil {
			t.Fatal(err)
		}
		got := totals(t, c, t0)
		sum := 0.0
		for _, n := range got {
			sum += n
		}
		// One of the 5000 has the time of one of the 1000.
		if sum != 5999 || len(got) > maxCodes+1 {
			t.Errorf("%v events in %d counters, want 5999 in at most %d", sum, len(got), maxCodes+1)
		}
		if got[key(gpuA, "other")] == 0 {
			t.Errorf("no events over the limit of codes in %v", got)
		}
	}
	for _, k := range c.book.gpus[0].xids.codes {
		if len(k.marks) > maxMarks {
			t.Errorf("XID %d: %d marks, the limit is %d", k.code, len(k.marks), maxMarks)
		}
	}

	// More GPUs than there is room for, all at once and one after the other.
	many := func(from int) []fleet.SampledGPU {
		out := make([]fleet.SampledGPU, maxGPUs+5)
		for i := range out {
			out[i] = fleet.SampledGPU{Index: i, UUID: fmt.Sprintf("GPU-%d", from+i), Up: fleet.True}
		}
		return out
	}
	for i := range 3 {
		s.tell = tell(fleet.Samples{GPUs: many(i * 1000)})
		now := t0.Add(time.Duration(1+i) * time.Second)
		if err := c.Gather(t.Context(), now); err != nil {
			t.Fatal(err)
		}
		slots := map[int]bool{}
		for _, g := range c.book.gpus {
			slots[g.slot] = true
		}
		if len(c.book.gpus) != maxGPUs || len(slots) != maxGPUs {
			t.Errorf("round %d: %d GPUs in %d slots, want %d", i, len(c.book.gpus), len(slots), maxGPUs)
		}
		dropped := readPage(t, c.AppendPage(nil, now))["stoker_collector_samples_dropped_total"].Series[`{node="n", source="s"}`]
		if want := float64(5 * (i + 1)); dropped != want {
			t.Errorf("round %d: %v dropped, want %v", i, dropped, want)
		}
	}

	s.tell = tell(fleet.Samples{GPUs: many(0)[:1], Values: make([]fleet.Sample, maxValues+7)})
	if err := c.Gather(t.Context(), t0.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if got, want := c.told[0].dropped, uint64(15+maxValues+7); got != want {
		t.Errorf("%d dropped in all, want %d", got, want)
	}
}
