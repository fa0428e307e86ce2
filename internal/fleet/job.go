package fleet

import (
	"cmp"
	"slices"
	"time"
)

// A JobRef names a training job of any framework.
type JobRef struct {
	Kind      string `json:"kind,omitempty"` // framework and kind, such as "Job.batch"
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

// String returns namespace/name, which is how people call a job.
func (r JobRef) String() string { return r.Namespace + "/" + r.Name }

// Compare orders jobs by namespace, name and kind.
func (r JobRef) Compare(o JobRef) int {
	return cmp.Or(cmp.Compare(r.Namespace, o.Namespace), cmp.Compare(r.Name, o.Name), cmp.Compare(r.Kind, o.Kind))
}

// A JobPhase says where a job is in its life.
type JobPhase string

// The phases of a job. The zero value is a phase that is not known.
const (
	JobPending   JobPhase = "pending"   // wants to run and has not all of its pods
	JobRunning   JobPhase = "running"   // its gang is whole
	JobSuspended JobPhase = "suspended" // told not to run, by us or somebody else
	JobSucceeded JobPhase = "succeeded"
	JobFailed    JobPhase = "failed"
)

// Ended reports whether the job will not run again.
func (p JobPhase) Ended() bool { return p == JobSucceeded || p == JobFailed }

// A Job is one training job, gang and all.
type Job struct {
	Ref     JobRef
	UID     string
	Version Version
	Queue   string
	Team    string
	Workers int       // pods of the whole gang
	Each    Resources // demand of one worker
	Phase   JobPhase
	// Suspended is what the job's object asks for; Phase follows later.
	Suspended bool
	Started   time.Time // of this attempt; zero when it does not run
	Attempt   int       // how often Stoker has started it anew
	// ReadLogs says that its owner lets the end of its logs be read when it has failed.
	ReadLogs bool
	// Failures are how pods of it have ended badly lately, the first first; at most [MaxFailures].
	Failures []Failure
	// Places are where its pods were, the newest last, as far as this process has seen; at
	// most [MaxPlaces].
	Places []Place
	// Ended is when it ended for good, and EndReason why, in the cluster's word.
	Ended     time.Time
	EndReason string

	Checkpoint Checkpoint // newest complete one; zero when none is known
	// CheckpointAsked and CheckpointAnswered are the keys of the newest request and answer.
	CheckpointAsked    string
	CheckpointAnswered string

	// StoppedBy and StartedBy are the keys of our newest orders that took effect.
	StoppedBy string
	StartedBy string
	// Resume is what the next start resumes from, as the pods see it.
	Resume string
	Avoid  []string // nodes that its pods may not land on
	// Recipes are what the job's owner would have changed of its environment, by what has
	// happened, such as oom: NAME=VALUE, comma separated.
	Recipes map[string]string
	// Env is what recipes have given its pods to read, and RecipeBy the key of the order
	// that was the last to.
	Env      map[string]string
	RecipeBy string
	OptOut   string // why a person keeps Stoker away; empty: nobody does
	Seen     time.Time

	Submitted   time.Time // zero where not known
	Priority    int       // in its queue; higher is served first
	PreemptedBy string    // the key of our newest order that took it off its nodes to wait again
	Usage       Usage     // of the GPUs that it holds
}

// A Usage is how much of its GPUs a job has used lately. One whose At is zero is not
// known, which is not the same as none.
type Usage struct {
	Mean float64       // 0 to 1, over Over
	Over time.Duration // up to At, for which the job has run and was looked at
	At   time.Time
}

// A Queue is where the jobs of a team wait.
type Queue struct {
	Name  string
	Quota int // GPUs that are its own; zero: everything
}

// MaxPlaces bounds the places of a job that are remembered.
const MaxPlaces = 3

// A Place is one placement of a job's pods.
type Place struct {
	Nodes       []string // in order
	Since, Till time.Time
}

// How far from its time in a place what a job did there may be said to be: snapshots are
// seconds apart and clocks of nodes differ, and drivers go on for minutes to log the end
// of a job.
const (
	placeLag  = 30 * time.Second
	lastWords = 10 * time.Minute
)

// WasOn reports whether what happened on the node at that time may be of the job: a pod
// of it was there, or had been until a short while before.
func (j Job) WasOn(node string, at time.Time) bool {
	return slices.ContainsFunc(j.Places, func(p Place) bool {
		return !at.Before(p.Since.Add(-placeLag)) && !at.After(p.Till.Add(lastWords)) && slices.Contains(p.Nodes, node)
	}) || slices.ContainsFunc(j.Failures, func(f Failure) bool {
		return f.Pod.Node == node && at.Sub(f.At) >= -placeLag && at.Sub(f.At) <= lastWords
	})
}

// placed returns the places with what is seen of the job's nodes at now.
func placed(places []Place, nodes []string, now time.Time) []Place {
	if len(nodes) == 0 {
		return places
	}
	places = slices.Clone(places)
	if n := len(places) - 1; n >= 0 && slices.Equal(places[n].Nodes, nodes) {
		places[n].Till = now
		return places
	}
	places = append(places, Place{Nodes: nodes, Since: now, Till: now})
	return places[max(0, len(places)-MaxPlaces):]
}

// GPUs is how many GPUs the whole gang has when it runs, whole or in part.
func (j Job) GPUs() int { return j.Workers * j.Each.GPUs }

// MilliGPUs is what the whole gang holds when it runs, in thousandths of a GPU.
func (j Job) MilliGPUs() int { return j.Workers * j.Each.MilliGPUs() }

// GPUTime is what the whole gang holds in d, in the time of one GPU.
func (j Job) GPUTime(d time.Duration) time.Duration {
	if j.Each.Share > 0 {
		d = d * time.Duration(j.Each.Share) / 1000 // first, so that no gang is too large
	}
	return d * time.Duration(j.GPUs())
}

// Unsaved is the work that would be lost if the job ended at now: the time since
// its newest complete checkpoint, or since its start. Zero when it does not run.
func (j Job) Unsaved(now time.Time) time.Duration {
	if j.Started.IsZero() {
		return 0
	}
	since := j.Started
	if j.Checkpoint.At.After(since) {
		since = j.Checkpoint.At
	}
	return max(0, now.Sub(since))
}

// A Checkpoint is a complete saved state of a job.
type Checkpoint struct {
	Step int64     `json:"step,omitempty"` // training iterations done
	URI  string    `json:"uri,omitempty"`  // where it lies; empty when the job finds it by itself
	At   time.Time `json:"at,omitzero"`    // when it was complete
}

// Known reports whether there is one.
func (c Checkpoint) Known() bool { return c != Checkpoint{} }
