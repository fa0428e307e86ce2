package remedy

// A FailReason is why a job has failed, from one closed list; playbooks match it as
// the label reason.
type FailReason string

// The reasons. Each is described in [FailReasons].
const (
	FailMemory    FailReason = "out-of-memory"
	FailGPUMemory FailReason = "gpu-out-of-memory"
	FailNCCL      FailReason = "nccl"
	FailIO        FailReason = "io"
	FailGPU       FailReason = "gpu"
	FailEvicted   FailReason = "evicted"
	FailPreempted FailReason = "preempted"
	FailNodeLost  FailReason = "node-lost"
	FailUser      FailReason = "user-error"
	FailUnknown   FailReason = "unknown"
)

// FailReasons says of each reason what it means, for people.
var FailReasons = map[FailReason]string{
	FailMemory:    "out of memory of its node or of its limit",
	FailGPUMemory: "out of GPU memory",
	FailNCCL:      "communication between its workers failed",
	FailIO:        "its storage failed or is full",
	FailGPU:       "a GPU of its node has failed",
	FailEvicted:   "a pod was evicted",
	FailPreempted: "a pod was preempted",
	FailNodeLost:  "its node was lost",
	FailUser:      "its own program has an error",
	FailUnknown:   "for a reason that is not known",
}

// Cause reports whether the reason is one by itself. One that is not may be what the
// end of another worker has led to.
func (r FailReason) Cause() bool {
	switch r {
	case FailNCCL, FailUnknown:
		return false
	case FailMemory, FailGPUMemory, FailIO, FailGPU, FailEvicted, FailPreempted, FailNodeLost, FailUser:
		return true
	}
	return false
}
