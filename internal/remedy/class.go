// Package remedy is the vocabulary of healing: evidence, incidents, steps, orders,
// outcomes and gate results, as plain data that can be stored, shown and compared.
//
// It imports the standard library and internal/fleet, reads no clock and does
// nothing: rules decides with it, the actuator acts on it, the loop walks it.
package remedy

import (
	"maps"
	"slices"
)

// A Class is the symptom of a fault, from one closed list.
type Class string

// The classes. Each is described in [Classes].
const (
	ClassNone          Class = "none"
	ClassGPULost       Class = "gpu-lost"
	ClassGPUECC        Class = "gpu-ecc"
	ClassGPUNVLink     Class = "gpu-nvlink"
	ClassGPUHot        Class = "gpu-hot"
	ClassGPUDriver     Class = "gpu-driver"
	ClassGPUApp        Class = "gpu-app"
	ClassNodeNotice    Class = "node-notice"
	ClassNodeUnready   Class = "node-unready"
	ClassJobStalled    Class = "job-stalled"
	ClassJobFailed     Class = "job-failed"
	ClassTelemetryLost Class = "telemetry-lost"
)

// A ClassInfo says what holds for every fault of a class.
type ClassInfo struct {
	Doc     string      // one sentence
	Subject SubjectKind // what it befalls
	// Event says that the evidence tells of something that happened, not of a state:
	// that its alert resolves means that time has passed, not that the fault is gone.
	Event bool
	// Telemetry says that the class means only that we do not know.
	Telemetry bool
	// Dead says that a program on the GPU is dead or hangs, and with it its gang: it can
	// be asked for nothing any more.
	Dead bool
}

// Classes describes each class that an incident may have.
var Classes = map[Class]ClassInfo{
	ClassGPULost:       {Doc: "The GPU no longer answers on the bus.", Subject: SubjectGPU, Event: true, Dead: true},
	ClassGPUECC:        {Doc: "GPU memory has errors that could not be corrected.", Subject: SubjectGPU, Event: true},
	ClassGPUNVLink:     {Doc: "An NVLink or NVSwitch link is down or failing.", Subject: SubjectGPU, Event: true},
	ClassGPUHot:        {Doc: "The GPU is above its slowdown temperature.", Subject: SubjectGPU},
	ClassGPUDriver:     {Doc: "Driver or firmware of the GPU has stopped.", Subject: SubjectGPU, Event: true},
	ClassGPUApp:        {Doc: "The program on the GPU has failed; the GPU has not.", Subject: SubjectGPU, Event: true},
	ClassNodeNotice:    {Doc: "The node is announced to go away.", Subject: SubjectNode},
	ClassNodeUnready:   {Doc: "The node does not answer the cluster.", Subject: SubjectNode},
	ClassJobStalled:    {Doc: "The job makes no progress.", Subject: SubjectJob},
	ClassJobFailed:     {Doc: "The job has failed.", Subject: SubjectJob, Event: true},
	ClassTelemetryLost: {Doc: "Nothing is known of the node's GPUs at present.", Subject: SubjectNode, Telemetry: true},
}

// Known reports whether incidents may have the class.
func (c Class) Known() bool { _, ok := Classes[c]; return ok }

// ClassNames returns the classes that incidents may have, in order.
func ClassNames() []Class { return slices.Sorted(maps.Keys(Classes)) }
