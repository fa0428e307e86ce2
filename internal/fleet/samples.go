package fleet

import "time"

// Samples is what one collection of one telemetry source brought. A source fills it;
// the collector shows it and forgets nothing of Events.
type Samples struct {
	// At is when the collection began. The collector sets it, so that a source needs
	// no clock of its own; it is the time of what the source cannot date itself.
	At     time.Time
	GPUs   []SampledGPU
	Values []Sample
	Events []XIDEvent
	// NVLinkErrors are those of GPUs' NVLinks. TellsNVLink says that the source would tell of
	// them: none told is then none.
	NVLinkErrors []NVLinkEvent
	TellsNVLink  bool
	Switches     []SXIDEvent
	BootID       string // of the node; empty where the source cannot tell
	// Fields says what the fields of Values are, in the order in which they are to be
	// shown. Those that are missing here follow by name, without type and help.
	Fields []Field
	// MIG says of which GPU and instance the MIG devices are. Device plugins name them by
	// UUIDs that say nothing of that.
	MIG []MIGDevice
	// NVLinks says how the GPUs are linked, as far as the source knows.
	NVLinks []NVLinks
	// Dropped counts what the source was shown and could not use: lines that can't be
	// read, entries over a limit.
	Dropped int
}

// A Field is what is known of one field for all GPUs.
type Field struct {
	Name string // DCGM's name, such as DCGM_FI_DEV_GPU_TEMP
	Type string // counter, gauge or untyped; empty where the source cannot tell
	Help string
}

// A MIGDevice is one compute instance of a GPU instance: what a container gets on a GPU
// with MIG.
type MIGDevice struct {
	UUID     string // begins with MIG-
	GPU      string // UUID of the whole GPU
	Instance string // of the GPU, as [SampledGPU.Instance] and GPU_I_ID count them
}

// NoGPU is the place of a [Sample] that belongs to no GPU, such as one of an NVSwitch.
const NoGPU = -1

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
	GPU    int    // place in Samples.GPUs, or NoGPU
	Value  float64
	Labels []Label   // beside those of the GPU, such as the pod that held it
	At     time.Time // when it was measured; zero: when the collection began
}

// A Label is one name and value.
type Label struct{ Name, Value string }

// An XIDEvent is one error that the driver told of.
type XIDEvent struct {
	GPU int // place in Samples.GPUs
	XID int
	At  time.Time // when it happened, not when it was read; zero where the source cannot tell
	// Kernel is the same by the clock that dates the kernel's log, which nobody keeps in step.
	// Others that read that log have this one; zero where the source has no such date.
	Kernel time.Time
	Source string
}

// A NVLinkError is a kind of error of an NVLink, one of a closed list.
type NVLinkError string

// The kinds.
const (
	NVLinkRecovery NVLinkError = "recovery" // the link failed and needs to recover
	NVLinkFatal    NVLinkError = "fatal"
)

// A NVLinkEvent is one error of an NVLink of a GPU that the driver told of.
type NVLinkEvent struct {
	GPU    int // place in Samples.GPUs
	Error  NVLinkError
	At     time.Time // as [XIDEvent.At]
	Source string
}

// A SXIDEvent is one error of an NVSwitch.
type SXIDEvent struct {
	PCI      string // address of the switch; empty where the source does not know it
	Switch   int    // its number in the source; -1 where it has none
	SXID     int
	Severity string    // fatal, nonfatal, or empty: the source can't tell
	At       time.Time // as [XIDEvent.At]
	Source   string
}
