//go:build cgo && linux

package dcgm_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/collector/dcgm"
	"stoker.dev/stoker/collector/dcgm/fake"
	"stoker.dev/stoker/internal/fleet"
)

func quiet(t testing.TB) *slog.Logger {
	t.Helper()
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// A node is a source over a fake library, and what it said last.
type node struct {
	*fake.Library
	source *dcgm.Source
	t      testing.TB
}

func newNode(t testing.TB, o dcgm.Options) *node {
	t.Helper()
	n := &node{Library: fake.New(t), t: t}
	n.source = n.open(o)
	return n
}

// open returns another source over the same library, as after a restart of the collector.
func (n *node) open(o dcgm.Options) *dcgm.Source {
	n.t.Helper()
	o.Libraries = []string{n.Path}
	if len(o.Addresses) == 0 {
		o.Addresses = []string{"localhost:5555"}
	}
	if o.FirstRetry == 0 {
		o.FirstRetry = time.Nanosecond
	}
	s := dcgm.New(quiet(n.t), o)
	n.t.Cleanup(func() { n.close(s) })
	return s
}

func (n *node) close(s *dcgm.Source) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		n.t.Errorf("close: %v", err)
	}
}

func (n *node) do(format string, args ...any) int {
	n.t.Helper()
	return n.Do(n.t, format, args...)
}

func collect(t testing.TB, s *dcgm.Source) (*fleet.Samples, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	into := &fleet.Samples{At: time.Now()}
	err := s.Collect(ctx, into)
	return into, err
}

func (n *node) collect() *fleet.Samples {
	n.t.Helper()
	got, err := collect(n.t, n.source)
	if err != nil {
		n.t.Fatalf("collect: %v", err)
	}
	return got
}

// value returns a field of a GPU or, with an instance, of that.
func value(s *fleet.Samples, gpu int, instance, field string) (float64, bool) {
	for _, v := range s.Values {
		if v.Field == field && v.GPU >= 0 && s.GPUs[v.GPU].Index == gpu && s.GPUs[v.GPU].Instance == instance {
			return v.Value, true
		}
	}
	return 0, false
}

func gpu(t testing.TB, s *fleet.Samples, index int) fleet.SampledGPU {
	t.Helper()
	for _, g := range s.GPUs {
		if g.Index == index && g.Instance == "" {
			return g
		}
	}
	t.Fatalf("GPU %d is not listed", index)
	return fleet.SampledGPU{}
}

// xids returns what was told of a GPU, in order.
func xids(s *fleet.Samples, gpu int) []int {
	var out []int
	for _, e := range s.Events {
		if s.GPUs[e.GPU].Index == gpu {
			out = append(out, e.XID)
		}
	}
	slices.Sort(out)
	return out
}

func wantLine(t testing.TB, s *dcgm.Source, line string) {
	t.Helper()
	if page := string(s.AppendPage(nil)); !strings.Contains(page, line+"\n") {
		t.Errorf("no line %q in\n%s", line, page)
	}
}

func TestReadsWhatTheEngineHas(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	n.do("set 1 2 100 i 1980")
	n.do("set 1 2 155 d 302.014")
	got := n.collect()
	if len(got.GPUs) != 8 {
		t.Fatalf("%d GPUs, want 8", len(got.GPUs))
	}
	want := fleet.SampledGPU{
		Index: 2, UUID: "GPU-00000002-1111-2222-3333-444444440002", PCI: "00000000:3A:00.0",
		Device: "nvidia2", Model: "NVIDIA H100 80GB HBM3", Up: fleet.True,
	}
	if g := gpu(t, got, 2); g != want {
		t.Errorf("GPU 2 is %+v, want %+v", g, want)
	}
	if v, ok := value(got, 2, "", "DCGM_FI_DEV_SM_CLOCK"); !ok || v != 1980 {
		t.Errorf("clock %v %v, want 1980", v, ok)
	}
	if v, ok := value(got, 2, "", "DCGM_FI_DEV_POWER_USAGE"); !ok || v != 302.014 {
		t.Errorf("power %v %v, want 302.014", v, ok)
	}
	for _, v := range got.Values {
		if v.Field == "DCGM_FI_DEV_SM_CLOCK" && (len(v.Labels) != 1 || v.Labels[0] != (fleet.Label{Name: "DCGM_FI_DRIVER_VERSION", Value: "570.124.06"})) {
			t.Errorf("labels %v, want the driver's version alone", v.Labels)
		}
	}
	wantLine(t, n.source, `stoker_dcgm_state{state="ok"} 1`)
	wantLine(t, n.source, `stoker_dcgm_gpus{status="ok"} 8`)
	wantLine(t, n.source, `stoker_dcgm_version_info{engine="4.6.0",library="4.6.0"} 1`)
	n.collect()
	n.collect()
	if calls := n.do("latest-calls"); calls != 3 {
		t.Errorf("%d readings of values for 3 collections, want one each", calls)
	}
	if n.do("live-reads") != 0 {
		t.Error("values were read live")
	}
	n.close(n.source)
	if held := n.do("held"); held != 0 {
		t.Errorf("after the end the engine holds %d things of ours", held)
	}
}
