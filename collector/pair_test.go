package collector

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/internal/fleet"
)

// blurred is a source that dates events late.
type blurred struct {
	agent
	late time.Duration
}

func (b *blurred) Late() time.Duration { return b.late }

// TestTwoSourcesOfOneEvent: what two sources tell of the same XID is one event that both
// have seen; what each tells by itself is not lost for it.
func TestTwoSourcesOfOneEvent(t *testing.T) {
	type told struct {
		source string
		xid    int
		at     time.Duration
		kernel time.Duration // the same by the kernel's clock; 0: not told
	}
	for name, tc := range map[string]struct {
		events []told
		late   time.Duration // of a
		want   map[int]float64
	}{
		"a second apart":               {[]told{{"a", 31, 0, 0}, {"b", 31, time.Second, 0}}, 0, map[int]float64{31: 1}},
		"three seconds apart":          {[]told{{"a", 31, 0, 0}, {"b", 31, 3 * time.Second, 0}}, 0, map[int]float64{31: 2}},
		"two codes":                    {[]told{{"a", 31, 0, 0}, {"b", 43, 0, 0}}, 0, map[int]float64{31: 1, 43: 1}},
		"twice each, in another order": {[]told{{"a", 31, 0, 0}, {"a", 31, 300, 0}, {"b", 31, 310, 0}, {"b", 31, 5, 0}}, 0, map[int]float64{31: 2}},
		"a storm that one has missed a part of": {
			[]told{{"a", 31, 0, 0}, {"a", 31, 1, 0}, {"a", 31, 2, 0}, {"b", 31, 3, 0}, {"b", 31, 4, 0}}, 0, map[int]float64{31: 3},
		},
		"one alone, twice":                   {[]told{{"a", 31, 0, 0}, {"a", 31, time.Second, 0}}, 0, map[int]float64{31: 2}},
		"again by the one that told of it":   {[]told{{"a", 31, 0, 0}, {"b", 31, 1, 0}, {"b", 31, 1, 0}}, 0, map[int]float64{31: 1}},
		"one that dates late, and told late": {[]told{{"b", 31, 0, 0}, {"a", 31, 9 * time.Second, 0}}, 10 * time.Second, map[int]float64{31: 1}},
		"one that dates late, and told first": {
			[]told{{"a", 31, 9 * time.Second, 0}, {"b", 31, 0, 0}}, 10 * time.Second, map[int]float64{31: 1},
		},
		"the kernel's clock is behind, and the other has its date": {
			[]told{{"a", 79, 2 * time.Minute, time.Minute}, {"b", 79, time.Minute, 0}}, 0, map[int]float64{79: 1},
		},
		"the same, told first by the other": {
			[]told{{"b", 79, time.Minute, 0}, {"a", 79, 2 * time.Minute, time.Minute}}, 0, map[int]float64{79: 1},
		},
		"the kernel's clock is fast, and the other has its own date": {
			[]told{{"a", 31, time.Minute, 2 * time.Minute}, {"b", 31, time.Minute, 0}}, 0, map[int]float64{31: 1},
		},
		"between the two dates is another event": {
			[]told{{"a", 31, 2 * time.Minute, time.Minute}, {"b", 31, 90 * time.Second, 0}}, 0, map[int]float64{31: 2},
		},
		"later than one that dates late": {[]told{{"a", 31, 0, 0}, {"b", 31, 9 * time.Second, 0}}, 10 * time.Second, map[int]float64{31: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			var next *told
			collect := func(name string) func(context.Context, *fleet.Samples) error {
				return func(_ context.Context, into *fleet.Samples) error {
					into.GPUs = []fleet.SampledGPU{gpuA}
					if next != nil && next.source == name {
						e := fleet.XIDEvent{XID: next.xid, At: t0.Add(next.at)}
						if next.kernel != 0 {
							e.Kernel = t0.Add(next.kernel)
						}
						into.Events = []fleet.XIDEvent{e}
					}
					return nil
				}
			}
			a := &blurred{agent{"a", collect("a")}, tc.late}
			c := newCollector(t, Options{}, a, &agent{"b", collect("b")})
			now := t0.Add(time.Hour)
			for i := range tc.events {
				next = &tc.events[i]
				if err := c.Gather(t.Context(), now); err != nil {
					t.Fatal(err)
				}
			}
			got := totals(t, c, now)
			for code, n := range tc.want {
				if g := got[key(gpuA, strconv.Itoa(code))]; g != n {
					t.Errorf("XID %d counted %v times, want %v", code, g, n)
				}
			}
		})
	}
}

// TestASourceThatKnowsAnAddressAlone: its events are of the GPU that another source has
// named, whichever comes first.
func TestASourceThatKnowsAnAddressAlone(t *testing.T) {
	byAddress := fleet.SampledGPU{Index: 5, PCI: "0000:1a:00.0"}
	named := fleet.SampledGPU{Index: 3, UUID: "GPU-x", PCI: "00000000:1A:00.0", Up: fleet.True}
	for name, first := range map[string]bool{"that one first": true, "the other first": false} {
		t.Run(name, func(t *testing.T) {
			kernel := &agent{"kernel", func(_ context.Context, into *fleet.Samples) error {
				into.GPUs, into.Events = []fleet.SampledGPU{byAddress}, []fleet.XIDEvent{{XID: 79, At: t0}}
				return nil
			}}
			driver := &agent{"driver", func(_ context.Context, into *fleet.Samples) error {
				into.GPUs, into.Events = []fleet.SampledGPU{named}, []fleet.XIDEvent{{XID: 79, At: t0.Add(time.Second)}}
				return nil
			}}
			sources := []Source{driver, kernel}
			if first {
				sources = []Source{kernel, driver}
			}
			c := newCollector(t, Options{}, sources...)
			for range 2 {
				if err := c.Gather(t.Context(), t0.Add(time.Minute)); err != nil {
					t.Fatal(err)
				}
			}
			page := string(c.AppendPage(nil, t0.Add(time.Minute)))
			const labels = `{node="n",gpu="3",UUID="GPU-x",pci_bus_id="00000000:1A:00.0"`
			for _, want := range []string{
				"stoker_gpu_xid_errors_total" + labels + `,xid="79"} 1`,
				"stoker_gpu_xid_seen_total" + labels + `,xid="79",source="driver"} 1`,
				"stoker_gpu_xid_seen_total" + labels + `,xid="79",source="kernel"} 1`,
				"stoker_gpu_up" + labels + "} 1",
			} {
				if !strings.Contains(page, want+"\n") {
					t.Errorf("no %q in\n%s", want, page)
				}
			}
			if n := strings.Count(page, "stoker_gpu_xid_errors_total{") - strings.Count(page, "stoker_gpu_xid_errors_total"+labels); n != 0 {
				t.Errorf("%d counters of another GPU", n)
			}
		})
	}
}
