package fleet

import "time"

// Samples is what one collection of one telemetry source brought. A source fills it;
// the collector shows it and forgets nothing of Events.
type Samples struct {
	GPUs   []SampledGPU
	Values []Sample
	Events []XIDEvent
	BootID string // of the node; empty where the source cannot tell
}

// A SampledGPU identifies one GPU or MIG instance of the node. A GPU that is lost
// stays in the list with Up False and the identity that it had.
type SampledGPU struct {
	Index  int
	UUID   string
	PCI    string // as the source spells it, such as 00000000:1A:00.0
	Device string // such as nvidia0
	Model  string
	Up     Truth
	// Instance and Profile name a MIG instance; both are empty for a whole GPU.
	Instance string
	Profile  string
}

// A Sample is one field of one GPU at one time.
type Sample struct {
	Field  string // DCGM's name, such as DCGM_FI_DEV_GPU_TEMP
	GPU    int    // place in Samples.GPUs
	Value  float64
	Labels []Label   // beside those of the GPU, such as the pod that held it
	At     time.Time // when it was measured
}

// A Label is one name and value.
type Label struct{ Name, Value string }

// An XIDEvent is one error that the driver told of.
type XIDEvent struct {
	GPU    int // place in Samples.GPUs
	XID    int
	At     time.Time // when it happened, not when it was read
	Source string
}
