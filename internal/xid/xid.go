// Package xid owns what is known about NVIDIA XID errors: the catalogue, one
// [Row] per code with its symptom class and its ladder of steps, and the decoding
// of the kernel lines that carry them. It reads no files and no clock, keeps no
// state and decides nothing about nodes: it says what a code means, others act.
//
// A code without a row alerts and is counted; it never cordons a node by itself.
package xid

import (
	"iter"
	"slices"
	"strings"
)

// A Step is one word of a ladder: what to do about a code.
type Step string

// The words of a ladder, mildest first.
const (
	Note         Step = "NOTE"          // count it, nothing else
	App          Step = "APP"           // the job restarts, the node is not touched
	Alert        Step = "ALERT"         // tell a person, do nothing
	Eval154      Step = "EVAL154"       // wait a few seconds for XID 154 or the recovery-action field and obey it; without one, go on
	PendingReset Step = "PENDING-RESET" // mark the GPU, reset it when its job ends
	Diag         Step = "DIAG"          // hold the GPU and run an active test
	Reset        Step = "RESET"         // hold, save and stop the jobs, reset the GPU, verify
	Reboot       Step = "REBOOT"        // the same with a reboot of the node
	Hold         Step = "HOLD"          // cordon and leave it to a person
)

// Acts reports whether the step does something to a GPU or to its node. A step
// that this version doesn't know does not act.
func (s Step) Acts() bool {
	switch s {
	case Eval154, PendingReset, Diag, Reset, Reboot, Hold:
		return true
	case Note, App, Alert:
		return false
	}
	return false
}

// A Ladder is the ordered list of steps for a code: each next one is for when the
// one before did not help, or the fault came back. It is never empty.
type Ladder []Step

// String returns the words joined by commas, as they stand in alert labels.
func (l Ladder) String() string {
	words := make([]string, len(l))
	for i, s := range l {
		words[i] = string(s)
	}
	return strings.Join(words, ",")
}

// Fallback is the first step that can be taken without a recovery action from
// the driver: the first that is not [Eval154].
func (l Ladder) Fallback() Step {
	for _, s := range l {
		if s != Eval154 {
			return s
		}
	}
	return Alert
}

// A Class is the symptom that a code is evidence of. The words are those of the
// incident classes; gpu-hot is not among them, no XID says that a GPU is hot.
type Class string

// The classes that XIDs speak for.
const (
	GPULost   Class = "gpu-lost"   // the GPU can't be reached over its bus
	GPUECC    Class = "gpu-ecc"    // its memory has errors that were not corrected, or is being repaired
	GPUNVLink Class = "gpu-nvlink" // its links to other GPUs or to the CPU fail
	GPUDriver Class = "gpu-driver" // the GPU, its firmware or its driver has stopped working
	GPUApp    Class = "gpu-app"    // most likely the job's own doing; the GPU is well
	None      Class = "none"       // no symptom by itself
)

// A Source is where a row's meaning and action were taken from.
type Source string

// The sources of the rows.
const (
	// FromCatalogue is NVIDIA's XID catalogue, codes 1 to 172, state of 2025-10-29.
	FromCatalogue Source = "nvidia-xid-catalogue"
	// FromUnused is a code that the catalogue calls unused and that older
	// documents or the driver still define. Such a row never acts on a node.
	FromUnused Source = "nvidia-xid-catalogue-unused"
	// FromDriver is the list in the driver's own sources, release 595.45.04, for
	// codes newer than the catalogue.
	FromDriver Source = "nvidia-driver-595.45.04"
)

// A Row is what the catalogue says of one code.
type Row struct {
	Code  int
	Class Class
	// Changes says that the code changes the state of a GPU or its node. Counters
	// of these codes exist from 0 on, so that the first event is an increase.
	Changes bool
	Ladder  Ladder
	// Recovery is the driver branch (565 for R565) from which on an XID 154 with
	// the recovery action comes along; 0 where none does, or where it isn't known.
	Recovery int
	Source   Source
	Date     string // of the last change of this row, yyyy-mm-dd
	Meaning  string // a few words, lower case
	// Why says how we chose where the sources disagree; empty where they agree.
	Why string
}

// NeedsRecovery reports whether the code acts on a node only if the driver asks
// for it: its ladder waits for a recovery action and without one merely alerts.
func (r Row) NeedsRecovery() bool {
	return r.Changes && len(r.Ladder) > 0 && r.Ladder[0] == Eval154 && !r.Ladder.Fallback().Acts()
}

// Lookup returns the row of a code. For a code without one it returns false and a
// row of class none whose ladder is ALERT, so that a caller that doesn't look at
// the second result is safe too.
func Lookup(code int) (Row, bool) {
	i, ok := slices.BinarySearchFunc(rows, code, func(r Row, c int) int { return r.Code - c })
	if !ok {
		return Row{Code: code, Class: None, Ladder: Ladder{Alert}, Meaning: "code without a row in the catalogue"}, false
	}
	r := rows[i]
	r.Ladder = slices.Clone(r.Ladder)
	return r, true
}

// All yields every row, by ascending code.
func All() iter.Seq[Row] {
	return func(yield func(Row) bool) {
		for _, r := range rows {
			r.Ladder = slices.Clone(r.Ladder)
			if !yield(r) {
				return
			}
		}
	}
}

// StateChanging returns the codes that change the state of a GPU or its node,
// ascending.
func StateChanging() []int {
	var codes []int
	for _, r := range rows {
		if r.Changes {
			codes = append(codes, r.Code)
		}
	}
	return codes
}
