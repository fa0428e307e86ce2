package rules

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/internal/xid"
)

// An alert is what both Alertmanager and rules that are evaluated in the process tell.
type alert struct {
	Labels      map[string]string
	Annotations map[string]string
	StartsAt    time.Time
	Resolved    bool
}

var (
	errNoSubject = errors.New("its labels name no node, GPU or job that it is about")
	errNoStart   = errors.New("it says nowhere when it began")
)

// Bounds of what is kept of an alert's texts, in bytes. Names in Kubernetes are
// shorter.
const (
	maxSummary = 300
	maxValue   = 256
)

// Watchdog is the alert that always fires. It proves the path that alerts take, and is
// evidence of nothing.
const Watchdog = "Watchdog"

// Who tells, as the sources of evidence are called.
const (
	FromAlertmanager = "alertmanager"
	FromRules        = "rules" // evaluated in the process
	FromCollector    = "collector"
)

// evidence reads an alert. The class is that of its label `class`, else that of its
// XID; an alert with neither is evidence of nothing, class none. The event time is
// that of the annotation event_time (unix seconds), else the alert's start. One that
// has neither is an error: told again, it would be another event.
func (a alert) evidence(source string, now time.Time) (remedy.Evidence, error) {
	a.Labels = boundedLabels(a.Labels)
	e := remedy.Evidence{
		Class:    remedy.Class(a.Labels["class"]),
		BootID:   a.Labels["boot_id"],
		At:       a.StartsAt,
		Seen:     now,
		Source:   source,
		Summary:  bounded(a.Annotations["summary"], maxSummary),
		Labels:   a.Labels,
		Resolved: a.Resolved,
	}
	if code, ok := a.xid(); ok && e.Class == "" {
		row, _ := xid.Lookup(code)
		e.Class = remedy.Class(row.Class)
	}
	if e.Class == "" {
		e.Class = remedy.ClassNone
	}
	if t, ok := eventTime(a.Annotations["event_time"]); ok {
		e.At = t
	}
	kind := remedy.SubjectNode
	if info, ok := remedy.Classes[e.Class]; ok {
		kind = info.Subject
	}
	e.Subject = remedy.Subject{Kind: kind}
	switch kind {
	case remedy.SubjectGPU, remedy.SubjectNode:
		e.Subject.Node = first(a.Labels, "node", "hostname", "Hostname", "exported_hostname", "kubernetes_node")
		if kind == remedy.SubjectGPU {
			e.Subject.UUID = first(a.Labels, "UUID", "uuid")
			e.Subject.Index = a.Labels["gpu"]
			e.Subject.PCI = normalPCI(a.Labels["pci_bus_id"])
		}
	case remedy.SubjectJob:
		e.Subject.Namespace, e.Subject.Name = first(a.Labels, "exported_namespace", "namespace"), first(a.Labels, "job_name", "exported_job")
	case remedy.SubjectQueue:
		e.Subject.Name = a.Labels["queue"]
	case remedy.SubjectPool:
		e.Subject.Name = a.Labels["pool"]
	}
	if e.Class != remedy.ClassNone && !complete(e.Subject) {
		return e, fmt.Errorf("alert %q: %w", a.Labels["alertname"], errNoSubject)
	}
	if e.At.IsZero() {
		return e, fmt.Errorf("alert %q: %w", a.Labels["alertname"], errNoStart)
	}
	e, _ = e.Bounded()
	return e, nil
}

// xid is the error code that the alert's labels name.
func (a alert) xid() (int, bool) {
	code, err := strconv.Atoi(first(a.Labels, "xid", "err_code"))
	return code, err == nil
}

func complete(s remedy.Subject) bool {
	switch s.Kind {
	case remedy.SubjectGPU:
		return s.Node != "" && (s.UUID != "" || s.PCI != "" || s.Index != "")
	case remedy.SubjectNode:
		return s.Node != ""
	case remedy.SubjectJob, remedy.SubjectQueue, remedy.SubjectPool:
		return s.Name != ""
	}
	return false
}

// gpuSubject names a GPU by all that telemetry knows of it.
func gpuSubject(node string, g fleet.GPU) remedy.Subject {
	return remedy.Subject{Kind: remedy.SubjectGPU, Node: node, UUID: g.UUID, PCI: normalPCI(g.PCI), Index: strconv.Itoa(g.Index)}
}

// normalPCI writes an address in one way, or as it was when it is none.
func normalPCI(s string) string {
	if s == "" {
		return ""
	}
	p, err := xid.ParsePCI(s)
	if err != nil {
		return bounded(s, 64)
	}
	return p.String()
}

// eventTime reads unix seconds with a fraction.
func eventTime(s string) (time.Time, bool) {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(v) || v <= 0 || v > 1e11 {
		return time.Time{}, false
	}
	return time.UnixMilli(int64(math.Round(v * 1000))).UTC(), true
}

func first(m map[string]string, names ...string) string {
	for _, n := range names {
		if v := m[n]; v != "" {
			return v
		}
	}
	return ""
}

// boundedLabels are the labels with none longer than what is kept. The map that was
// given is not changed.
func boundedLabels(m map[string]string) map[string]string {
	out := make(map[string]string, len(m))
	for k, v := range m {
		out[bounded(k, maxValue)] = bounded(v, maxValue)
	}
	return out
}

// bounded cuts a text between two characters, and drops what is not UTF-8: it would
// come back from the store as something else.
func bounded(s string, most int) string {
	if len(s) > most {
		s = s[:most]
	}
	return strings.ToValidUTF8(s, "")
}
