package xid

import (
	"slices"
	"strings"
)

// Speaks reports whether one event of the code is evidence of a fault of its class, or
// of the job's own doing.
func (r Row) Speaks() bool { return r.Class != None && (r.Changes || r.Ladder[0] == App) }

// AlertName is what the alert about codes of a class is called, whoever raises it:
// GPUXid and the words of the class, as in GPUXidGpuLost.
func AlertName(c Class) string {
	name := "GPUXid"
	for w := range strings.SplitSeq(string(c), "-") {
		name += strings.ToUpper(w[:1]) + w[1:]
	}
	return name
}

// Severity is critical where the first thing to do stops jobs, warning where a person
// should know, else info.
func (l Ladder) Severity() string {
	switch l.Fallback() {
	case Reset, Reboot, Hold:
		return "critical"
	case App:
		if !slices.Contains(l, PendingReset) {
			return "info"
		}
	case Note:
		return "info"
	case Alert, PendingReset, Diag, Eval154:
	}
	return "warning"
}
