package rules

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	"stoker.dev/stoker/internal/remedy"
)

// Repeats reports whether all that next has learned since was is more of the same: further
// events like one that is known, told by who told before. Nothing is decided by them, so
// they may be lost: a fault is there by its first event, is back by the first one of a
// verification, and what happens in another boot is news.
func Repeats(was, next remedy.Incident) bool {
	if !remedy.Classes[next.Class].Event || next.Subject.Kind == remedy.SubjectJob || next.Phase.Closed() {
		return false // of a state the end counts, of a job the newest failure
	}
	if v := reserved(next, remedy.RoleVerify); v != nil && (next.Phase == remedy.PhaseOpen || next.Phase == remedy.PhaseActing) {
		back := func(e remedy.Evidence) bool {
			return !e.Resolved && e.At.After(v.Reserved) && e.Seen.After(v.Reserved)
		}
		if !slices.ContainsFunc(was.Evidence, back) {
			return false
		}
	}
	for _, e := range next.Evidence {
		known := func(o remedy.Evidence) bool { return reflect.DeepEqual(o, e) }
		if slices.ContainsFunc(was.Evidence, known) {
			continue
		}
		like := func(o remedy.Evidence) bool {
			return !o.Resolved && o.Summary == e.Summary && maps.Equal(o.Labels, e.Labels)
		}
		if e.Resolved || e.BootID != "" && e.BootID != next.BootID || !slices.ContainsFunc(was.Evidence, like) {
			return false
		}
		for who := range strings.SplitSeq(e.Source, ", ") {
			if !slices.ContainsFunc(was.Evidence, func(o remedy.Evidence) bool { return slices.Contains(strings.Split(o.Source, ", "), who) }) {
				return false
			}
		}
	}
	return true
}
