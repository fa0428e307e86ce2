package rules

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"stoker.dev/stoker/internal/remedy"
)

func TestAnAlertSpeaksForAFault(t *testing.T) {
	type want struct {
		class   remedy.Class
		subject remedy.Subject
		at      time.Time
	}
	gpu := func(s remedy.Subject) remedy.Subject { s.Kind = remedy.SubjectGPU; return s }
	at := func(n string) remedy.Subject { return remedy.Subject{Kind: remedy.SubjectNode, Node: n} }
	began := t0.Add(30 * time.Second)
	for name, tc := range map[string]struct {
		labels, annotations map[string]string
		want                want
	}{
		"the class is that of its label": {
			map[string]string{"class": "gpu-ecc", "node": ill, "gpu": "0", "xid": "79"},
			nil,
			want{remedy.ClassGPUECC, gpu(remedy.Subject{Node: ill, Index: "0"}), began},
		},
		"else that of its XID": {
			map[string]string{"Hostname": ill, "UUID": uuid, "xid": "79"}, nil, want{remedy.ClassGPULost, gpu(remedy.Subject{Node: ill, UUID: uuid}), began},
		},
		"also as dcgm-exporter writes it": {
			map[string]string{"Hostname": ill, "UUID": uuid, "gpu": "3", "pci_bus_id": "00000000:1A:00.0", "err_code": "48"},
			nil,
			want{remedy.ClassGPUECC, gpu3, began},
		},
		"an XID of the job's own doing is the program's": {
			map[string]string{"node": ill, "gpu": "0", "xid": "31"}, nil, want{remedy.ClassGPUApp, gpu(remedy.Subject{Node: ill, Index: "0"}), began},
		},
		"an XID that follows others is no fault": {map[string]string{"node": ill, "gpu": "0", "xid": "45"}, nil, want{remedy.ClassNone, at(ill), began}},
		"an XID that nobody knows is no fault":   {map[string]string{"node": ill, "gpu": "0", "xid": "9999"}, nil, want{remedy.ClassNone, at(ill), began}},
		"a number that is none is no XID":        {map[string]string{"node": ill, "xid": "seventy-nine"}, nil, want{remedy.ClassNone, at(ill), began}},
		"neither is no fault":                    {map[string]string{"alertname": "Watchdog"}, nil, want{remedy.ClassNone, at(""), began}},
		"the event time is that of the annotation": {
			map[string]string{"class": "node-unready", "node": ill},
			map[string]string{"event_time": "1796047327.25"},
			want{remedy.ClassNodeUnready, at(ill), t0.Add(250 * time.Millisecond)},
		},
		"as Go writes large numbers too": {
			map[string]string{"class": "node-unready", "node": ill},
			map[string]string{"event_time": "1.796047327e+09"},
			want{remedy.ClassNodeUnready, at(ill), t0},
		},
		"a node by its name in the collector": {map[string]string{"class": "node-unready", "hostname": ill}, nil, want{remedy.ClassNodeUnready, at(ill), began}},
		"by the first of its names":           {map[string]string{"class": "node-unready", "node": ill, "Hostname": well}, nil, want{remedy.ClassNodeUnready, at(ill), began}},
		"a job": {
			map[string]string{"class": "job-stalled", "exported_namespace": "train", "namespace": "monitoring", "job_name": "llm", "job": "prometheus"},
			nil,
			want{remedy.ClassJobStalled, remedy.Subject{Kind: remedy.SubjectJob, Namespace: "train", Name: "llm"}, began},
		},
		"an address that is none is kept as a name": {
			map[string]string{"class": "gpu-lost", "node": ill, "pci_bus_id": "slot 3"},
			nil,
			want{remedy.ClassGPULost, gpu(remedy.Subject{Node: ill, PCI: "slot 3"}), began},
		},
		"a class of a newer version": {map[string]string{"class": "gpu-molten", "node": ill}, nil, want{"gpu-molten", at(ill), began}},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := alert{Labels: tc.labels, Annotations: tc.annotations, StartsAt: began}.evidence("rules", t0.Add(time.Minute))
			if err != nil {
				t.Fatal(err)
			}
			got := want{e.Class, e.Subject, e.At}
			if d := cmp.Diff(tc.want, got, cmp.AllowUnexported(want{})); d != "" {
				t.Errorf("evidence differs (-want +got):\n%s", d)
			}
			if e.Source != "rules" || !e.Seen.Equal(t0.Add(time.Minute)) {
				t.Errorf("told by %q, seen at %v", e.Source, e.Seen)
			}
		})
	}
}

func TestEventTimesThatAreNoneAreTheStartsTime(t *testing.T) {
	for _, text := range []string{"", "soon", "NaN", "+Inf", "-1", "0", "1e12", "0x10p400", "1796047327,25"} {
		e, err := alert{Labels: map[string]string{"class": "node-unready", "node": ill}, Annotations: map[string]string{"event_time": text}, StartsAt: t0}.evidence("rules", t0)
		if err != nil || !e.At.Equal(t0) {
			t.Errorf("event_time %q: %v, %v; want the start", text, e.At, err)
		}
	}
}

func TestAlertsThatNameNothingAreErrors(t *testing.T) {
	for name, tc := range map[string]struct {
		labels map[string]string
		starts time.Time
		want   error
	}{
		"a GPU fault without a node":  {map[string]string{"alertname": "A", "class": "gpu-lost", "UUID": uuid}, t0, errNoSubject},
		"a GPU fault without a GPU":   {map[string]string{"alertname": "A", "class": "gpu-lost", "node": ill}, t0, errNoSubject},
		"a node fault without a node": {map[string]string{"alertname": "A", "class": "node-unready", "instance": "10.0.0.7:9400"}, t0, errNoSubject},
		"a job fault without a job":   {map[string]string{"alertname": "A", "class": "job-stalled", "namespace": "train"}, t0, errNoSubject},
		"a fault that never began":    {map[string]string{"alertname": "A", "class": "node-unready", "node": ill}, time.Time{}, errNoStart},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := alert{Labels: tc.labels, StartsAt: tc.starts}.evidence("rules", t0)
			if !errors.Is(err, tc.want) || !strings.HasPrefix(err.Error(), `alert "A": `) {
				t.Errorf("error %v, want that of alert A that %v", err, tc.want)
			}
		})
	}
}

func TestWhatIsKeptOfAnAlertIsBounded(t *testing.T) {
	labels := map[string]string{"class": "gpu-lost", "node": ill, "gpu": "3", "UUID": strings.Repeat("é", 1000), "odd": "a\xffb"}
	for i := range 100 {
		labels[fmt.Sprintf("x%03d", i)] = strings.Repeat("v", 5000)
	}
	given := len(labels["x000"])
	e, err := alert{Labels: labels, Annotations: map[string]string{"summary": strings.Repeat("日本", 1000)}, StartsAt: t0}.evidence("rules", t0)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(e.Labels); n != remedy.MaxLabels {
		t.Errorf("%d labels are kept, want %d", n, remedy.MaxLabels)
	}
	for _, s := range []string{e.Summary, e.Subject.UUID, e.Labels["odd"], e.Labels["x000"]} {
		if len(s) > maxSummary || !utf8.ValidString(s) {
			t.Errorf("%d bytes of text are kept, valid = %t", len(s), utf8.ValidString(s))
		}
	}
	if len(e.Summary) < maxSummary-3 || e.Labels["odd"] != "ab" {
		t.Errorf("summary of %d bytes and label %q, want no more cut than need be", len(e.Summary), e.Labels["odd"])
	}
	if len(labels["x000"]) != given {
		t.Error("the alert's own labels have changed")
	}
}
