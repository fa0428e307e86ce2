package remedy

import "strings"

// A SubjectKind says what kind of thing a fault befell.
type SubjectKind string

// The kinds of subject.
const (
	SubjectGPU   SubjectKind = "gpu"
	SubjectNode  SubjectKind = "node"
	SubjectJob   SubjectKind = "job"
	SubjectQueue SubjectKind = "queue"
	SubjectPool  SubjectKind = "pool"
)

// A Subject is what a fault befell. A GPU is named by its UUID; sources that do not
// know it name the bus address or the index.
type Subject struct {
	Kind      SubjectKind `json:"kind"`
	Node      string      `json:"node,omitempty"` // of a node or GPU
	UUID      string      `json:"uuid,omitempty"`
	PCI       string      `json:"pci,omitempty"`   // normalised: 0000:1a:00
	Index     string      `json:"index,omitempty"` // decimal; a string, since 0 is an index
	Namespace string      `json:"namespace,omitempty"`
	Name      string      `json:"name,omitempty"` // of a job, queue or pool
}

// String is how people call the subject: gpu-a-02/gpu-3, gpu-a-02 or train/llm-2.
func (s Subject) String() string {
	switch s.Kind {
	case SubjectGPU:
		switch {
		case s.Index != "":
			return s.Node + "/gpu-" + s.Index
		case s.PCI != "":
			return s.Node + "/" + s.PCI
		}
		return s.Node + "/" + s.UUID
	case SubjectNode:
		return s.Node
	case SubjectJob, SubjectQueue, SubjectPool:
		if s.Namespace != "" {
			return s.Namespace + "/" + s.Name
		}
	}
	return s.Name
}

// Same reports whether both name one thing. GPUs are compared by the best name that
// both have: UUID, bus address, then index.
func (s Subject) Same(o Subject) bool {
	if s.Kind != o.Kind || s.Node != o.Node {
		return false
	}
	if s.Kind != SubjectGPU {
		return s.Namespace == o.Namespace && s.Name == o.Name
	}
	switch {
	case s.UUID != "" && o.UUID != "":
		return s.UUID == o.UUID
	case s.PCI != "" && o.PCI != "":
		return strings.EqualFold(s.PCI, o.PCI)
	case s.Index != "" && o.Index != "":
		return s.Index == o.Index
	}
	return false
}

// id is the best name that the subject has, for keys and names.
func (s Subject) id() string {
	switch s.Kind {
	case SubjectGPU:
		for _, v := range []string{s.UUID, s.PCI, s.Index} {
			if v != "" {
				return s.Node + "/" + v
			}
		}
	case SubjectNode:
		return s.Node
	case SubjectJob, SubjectQueue, SubjectPool:
		return s.Namespace + "/" + s.Name
	}
	return string(s.Kind) + "/" + s.Node + "/" + s.Name
}
