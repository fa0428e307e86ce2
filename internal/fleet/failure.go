package fleet

import (
	"cmp"
	"slices"
	"time"
)

// A Failure is how one pod of a job has ended badly: what the cluster tells of it, cut
// to what is needed to find the cause.
type Failure struct {
	Pod  PodRef
	GPUs int
	// At is when its container ended, else when the pod was told to go.
	At time.Time
	// Disruption is why somebody else ended the pod, in the cluster's word: the reason
	// of its condition DisruptionTarget, else of its status. Empty: nobody did.
	Disruption string
	Container  string // that ended badly first
	Reason     string // of the container's end, in the cluster's word, such as OOMKilled
	ExitCode   int
	Message    string // the container's termination message, at most MaxFailureText bytes of it
	Log        string // the end of the container's log, where a person has allowed to read it
}

// Bounds of what is kept of failures.
const (
	MaxFailures    = 16       // of one job
	MaxFailureText = 4 << 10  // bytes of a message
	MaxFailureLog  = 16 << 10 // bytes of a log

	// OneFailure is the longest time between two ends of pods that are of one failure of
	// the gang: peers of a worker that has died wait for it until their watchdog ends them.
	OneFailure = 15 * time.Minute
)

// Gangs splits the failures of a job by what they are part of: each of the returned
// lists is one failure of the gang, its first pod first, and the newest is the last.
func Gangs(list []Failure) [][]Failure {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b Failure) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Pod.Name, b.Pod.Name), cmp.Compare(a.Pod.UID, b.Pod.UID))
	})
	var out [][]Failure
	for i, f := range list {
		if i == 0 || f.At.Sub(list[i-1].At) > OneFailure {
			out = append(out, nil)
		}
		out[len(out)-1] = append(out[len(out)-1], f)
	}
	return out
}

// Few returns the failures that are worth keeping: of the newest two failures of the
// gang, the pods that ended first.
func Few(list []Failure) []Failure {
	gangs := Gangs(list)
	gangs = gangs[max(0, len(gangs)-2):]
	var out []Failure
	for _, g := range gangs {
		out = append(out, g[:min(len(g), MaxFailures/2)]...)
	}
	return out
}
