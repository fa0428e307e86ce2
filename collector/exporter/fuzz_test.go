package exporter

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/internal/fleet"
)

// FuzzParse holds what must be true of any page: it is read or refused, what is read
// is within the page, and the same page brings its events once.
func FuzzParse(f *testing.F) {
	f.Add([]byte(sample(f)[:3500]))
	f.Add([]byte(strings.Join(strings.SplitAfter(sample(f), "\n")[:5], "")))
	f.Add([]byte(xidPage("0 79 79:1", "1 0")))
	f.Add([]byte("# TYPE DCGM_FI_A summary\nDCGM_FI_A_count{" + gpu0 + "} 1\nDCGM_FI_A{quantile=\"2\"} 3 4\n{\"DCGM_FI_A\"} 1\n"))
	f.Add([]byte("DCGM_FI_A{" + gpu0 + ",x=\"\xff\"} +Inf -1\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		before := bytes.Clone(text)
		p, err := Parse(text)
		if !bytes.Equal(before, text) {
			t.Fatal("Parse changed its input")
		}
		if err != nil {
			return
		}
		if len(p.Values) > bytes.Count(text, []byte{'\n'}) {
			t.Fatalf("%d values of %d lines", len(p.Values), bytes.Count(text, []byte{'\n'}))
		}
		fields := map[string]bool{}
		for _, field := range p.Fields {
			if fields[field.Name] {
				t.Fatalf("family %s is there twice", field.Name)
			}
			fields[field.Name] = true
		}
		for _, v := range p.Values {
			if !fields[v.Field] || v.GPU < fleet.NoGPU || v.GPU >= len(p.GPUs) {
				t.Fatalf("value of field %q and GPU %d, of %d", v.Field, v.GPU, len(p.GPUs))
			}
		}
		h := history{}
		rises, _ := h.advance(t0, &p)
		for _, r := range rises {
			if r.n <= 0 || r.xid <= 0 || r.uuid == "" {
				t.Fatalf("rise %+v", r)
			}
		}
		if again, _ := h.advance(t0.Add(time.Second), &p); len(again) > 0 {
			t.Fatalf("the same page again: %+v", again)
		}
	})
}
