package rules

import (
	"cmp"
	"slices"
	"strings"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// resetAlone are the GPUs that can be reset while others of the node are in use, by a
// word in the names of their products: they have no NVLink, or their links are those of
// Hopper and later, whose fabric takes one GPU out and in. Of every other one it is
// assumed that its neighbours have to be idle too.
var resetAlone = []string{
	"H100", "H200", "H800", "H20", "GH200", "B100", "B200", "B300", "GB200", "GB300",
	"A2", "A10", "L4", "L40", "L40S", "T4",
}

// labelProduct is where GPU feature discovery names the product of a node's GPUs.
const labelProduct = "nvidia.com/gpu.product"

// alone reports whether the incident's GPU can be reset while others of the node work.
func (w *walk) alone() bool {
	n := w.fleet.Nodes[w.in.Subject.Node]
	g, known := n.GPU(w.in.Subject.UUID)
	if !known {
		return false
	}
	words := strings.FieldsFunc(cmp.Or(g.Model, n.Labels[labelProduct]), func(r rune) bool { return r == ' ' || r == '-' || r == '_' })
	return slices.ContainsFunc(words, func(word string) bool { return slices.Contains(resetAlone, word) })
}

// concerned returns the jobs on the node that a step is about: those that may hold the
// incident's GPU when it is about the GPU and the others are not touched by what is done
// to it, else all.
func (w *walk) concerned(of remedy.Extent) []fleet.JobRef {
	on := w.fleet.JobsOn(w.in.Subject.Node)
	if of != remedy.OfGPU || w.in.Subject.Kind != remedy.SubjectGPU || !w.alone() {
		return on
	}
	holders := w.fleet.Holders(w.in.Subject.Node, w.in.Subject.UUID)
	return slices.DeleteFunc(on, func(j fleet.JobRef) bool {
		return !slices.ContainsFunc(holders, func(p fleet.Pod) bool { return p.Job == j })
	})
}

// spared returns the pods with GPUs on the node that a step about the GPU leaves alone.
func (w *walk) spared() []fleet.PodRef {
	if !w.alone() {
		return nil
	}
	concerned := w.concerned(remedy.OfGPU)
	holders := w.fleet.Holders(w.in.Subject.Node, w.in.Subject.UUID)
	var out []fleet.PodRef
	for _, p := range w.fleet.PodsOn(w.in.Subject.Node) {
		holds := slices.ContainsFunc(holders, func(h fleet.Pod) bool { return h.UID == p.UID })
		if p.GPUs > 0 && !p.Resident && !holds && !slices.Contains(concerned, p.Job) {
			out = append(out, p.PodRef)
		}
	}
	return out
}

// done reports whether an earlier step of the action is done.
func (w *walk) done(action string) bool {
	return action != "" && slices.ContainsFunc(w.in.Steps, func(s remedy.StepRecord) bool {
		return s.Action == action && !s.Skipped && s.Ending == remedy.Done
	})
}
