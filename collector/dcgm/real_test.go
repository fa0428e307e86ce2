//go:build cgo && linux

package dcgm_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/collector/dcgm"
	"stoker.dev/stoker/internal/fleet"
)

// TestReal holds of any engine. It is asked of the one at DCGM_TEST_ADDRESS, through the
// libdcgm of the system, where that is set, else of the fake.
func TestReal(t *testing.T) {
	var s *dcgm.Source
	if address := os.Getenv("DCGM_TEST_ADDRESS"); address != "" {
		s = dcgm.New(quiet(t), dcgm.Options{Addresses: []string{address}})
		n := &node{source: s, t: t}
		t.Cleanup(func() { n.close(s) })
	} else {
		s = newNode(t, dcgm.Options{}).source
	}
	first, err := collect(t, s)
	if err != nil {
		t.Fatal(err)
	}
	if len(first.GPUs) == 0 {
		t.Fatal("the engine has no GPU")
	}
	time.Sleep(1500 * time.Millisecond) // rates need two samples
	got, err := collect(t, s)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for i, g := range got.GPUs {
		if g.Up == fleet.True && (g.UUID == "" || g.PCI == "" || g.Model == "") {
			t.Errorf("GPU %d is well and not known: %+v", g.Index, g)
		}
		if strings.Contains(g.UUID+g.PCI+g.Model, "<<<") {
			t.Errorf("GPU %d is called by a blank: %+v", g.Index, g)
		}
		if k := g.UUID + "/" + g.Instance; g.UUID != "" && seen[k] {
			t.Errorf("%s is listed twice", k)
		} else {
			seen[k] = true
		}
		if g.Instance != "" || g.Up != fleet.True {
			continue
		}
		values := 0
		for _, v := range got.Values {
			if v.GPU == i {
				values++
			}
		}
		if values == 0 {
			t.Errorf("GPU %d is well and has no value", g.Index)
		}
	}
	for _, v := range got.Values {
		if v.Value >= 1<<47 && !strings.Contains(v.Field, "ENERGY") || v.Value != v.Value {
			t.Errorf("%s of GPU %d is %v: a blank", v.Field, v.GPU, v.Value)
		}
		for _, l := range v.Labels {
			if strings.Contains(l.Value, "<<<") {
				t.Errorf("%s has the label %s=%s", v.Field, l.Name, l.Value)
			}
		}
	}
	wantLine(t, s, "stoker_dcgm_connects_total 1")
	wantLine(t, s, `stoker_dcgm_state{state="ok"} 1`)
	if err := s.CollectEvents(t.Context(), &fleet.Samples{At: time.Now()}); err != nil {
		t.Error(err)
	}
}

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
