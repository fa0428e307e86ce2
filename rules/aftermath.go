package rules

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// aftermathCodes are the XIDs that every GPU of a job logs when the job's processes end,
// whyever they do: channels that are reset (43) or removed (45). They say nothing of a
// GPU; another code that comes with them does, and is evidence of its own.
var aftermathCodes = []string{"43", "45"}

// An aftermath is what one job's end has left in the logs of its nodes.
type aftermath struct {
	first remedy.Evidence
	nodes map[string]map[string]bool // and GPUs of each
}

// endOfJob takes evidence that tells only of the end of a job, if it is known which: one
// job alone was on the node at that time. Of all such evidence of a job one note is made.
func (c *correlation) endOfJob(e remedy.Evidence) bool {
	if e.Class != remedy.ClassNone || e.Resolved || !slices.Contains(aftermathCodes, e.Labels["xid"]) {
		return false
	}
	var job fleet.JobRef
	for ref, j := range c.fleet.Jobs {
		if !j.WasOn(e.Subject.Node, e.At) {
			continue
		}
		if job != (fleet.JobRef{}) {
			return false // of two jobs nobody knows whose it is
		}
		job = ref
	}
	if job == (fleet.JobRef{}) {
		return false
	}
	if c.ended == nil {
		c.ended = map[fleet.JobRef]*aftermath{}
	}
	a := c.ended[job]
	if a == nil {
		a = &aftermath{first: e, nodes: map[string]map[string]bool{}}
		c.ended[job] = a
	}
	if a.nodes[e.Subject.Node] == nil {
		a.nodes[e.Subject.Node] = map[string]bool{}
	}
	a.nodes[e.Subject.Node][first(e.Labels, "gpu", "UUID", "pci_bus_id")] = true
	if e.At.Before(a.first.At) {
		a.first = e
	}
	return true
}

// noteEnded makes the notes.
func (c *correlation) noteEnded() {
	for _, ref := range slices.SortedFunc(maps.Keys(c.ended), fleet.JobRef.Compare) {
		a, gpus := c.ended[ref], 0
		for _, g := range a.nodes {
			gpus += len(g)
		}
		where := slices.Sorted(maps.Keys(a.nodes))
		if more := len(where) - 5; more > 0 {
			where = append(where[:5], fmt.Sprintf("%d more", more))
		}
		e := a.first
		e.Subject = remedy.Subject{Kind: remedy.SubjectJob, Namespace: ref.Namespace, Name: ref.Name}
		e.Labels = map[string]string{"xid": e.Labels["xid"]}
		e.Summary = fmt.Sprintf("%s has ended: XID %s on %d GPUs of %s", ref, e.Labels["xid"], gpus, strings.Join(where, ", "))
		c.note(e, "it is the aftermath of a job's end, and says nothing of a GPU or node")
	}
}
