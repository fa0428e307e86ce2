//go:build cgo && linux

package dcgm_test

import (
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	"stoker.dev/stoker/collector/dcgm"
	"stoker.dev/stoker/internal/fleet"
)

// TestComplaint_09_WhatAReadingCosts: the same calls for a node full of MIG instances as
// for one without, but for the instances' own values, and none at a scrape.
func TestComplaint_09_WhatAReadingCosts(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	n.collect()
	before := n.do("calls")
	n.collect()
	plain := n.do("calls") - before
	for gpu := range 8 {
		for i := range 7 {
			n.do("mig %d %d %d 1", gpu, 10*gpu+i, i)
		}
	}
	n.collect()
	asked := n.do("attribute-calls")
	n.collect()
	before = n.do("calls")
	got := n.collect()
	full := n.do("calls") - before
	if len(got.GPUs) != 8+56 {
		t.Errorf("%d GPUs and instances, want 64", len(got.GPUs))
	}
	if full > plain+2 || plain > 8 {
		t.Errorf("%d calls for 8 GPUs and %d with 56 instances", plain, full)
	}
	if more := n.do("attribute-calls") - asked; more != 0 {
		t.Errorf("who they are was asked %d times more", more)
	}
	before = n.do("calls")
	n.source.AppendPage(nil)
	if n.do("calls") != before {
		t.Error("a scrape asks the engine")
	}
}

// TestComplaint_13_LabelsStayTheSame: over XIDs, a loss and a return a GPU's series keep
// their labels, and each GPU has one series of a field.
func TestComplaint_13_LabelsStayTheSame(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	labels := func(s *fleet.Samples) string {
		out := ""
		for _, v := range s.Values {
			if v.Field == "DCGM_FI_DEV_GPU_TEMP" && s.GPUs[v.GPU].Index == 2 {
				g := s.GPUs[v.GPU]
				out += strings.TrimSpace(g.UUID+g.PCI+g.Model+g.Device) + "|"
				for _, l := range v.Labels {
					out += l.Name + "=" + l.Value + ","
				}
			}
		}
		return out
	}
	was := labels(n.collect())
	if strings.Count(was, "|") != 1 {
		t.Fatalf("labels %q, want one series", was)
	}
	for _, step := range []string{"xid 2 79 0 0", "lose 2", "return 2", "cut", "xid 2 31 0 0"} {
		n.do("%s", step)
		if now := labels(n.collect()); now != was && now != "" {
			t.Errorf("after %q the labels are %q, before %q", step, now, was)
		}
	}
}

// TestComplaint_10_MemoryStaysTheSame: of this process over a thousand readings, with
// everything that there may be; and the engine keeps two samples of a value, not minutes of it.
func TestComplaint_10_MemoryStaysTheSame(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	machine(n)
	for gpu := range 8 {
		for i := range 7 {
			n.do("mig %d %d %d 1", gpu, 10*gpu+i, i)
		}
	}
	resident := func() int {
		runtime.GC()
		debug.FreeOSMemory()
		text, err := os.ReadFile("/proc/self/statm")
		if err != nil {
			t.Fatal(err)
		}
		pages, err := strconv.Atoi(strings.Fields(string(text))[1])
		if err != nil {
			t.Fatal(err)
		}
		return pages * os.Getpagesize()
	}
	read := func(times int) {
		for range times {
			n.collect()
		}
	}
	read(100)
	before := resident()
	read(1000)
	if more := resident() - before; more > 4<<20 {
		t.Errorf("%d KiB more after 1000 readings", more>>10)
	}
	for _, field := range []int{150, 1001} {
		if ms, samples := n.do("kept-ms %d", field), n.do("kept-samples %d", field); ms != 0 || samples != 2 {
			t.Errorf("field %d is kept for %dms and %d samples, want 2 samples", field, ms, samples)
		}
	}
}
