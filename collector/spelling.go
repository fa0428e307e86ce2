package collector

import "strings"

// A Spelling is how labels are called on the series of sources, for dashboards that were
// made for one release of dcgm-exporter. Our own families are always the same.
type Spelling struct {
	// Old is that of exporters before 2.0: uuid, pod_name, pod_namespace and container_name.
	Old bool
	// Host is the label of the node's name, hostname or Hostname. When empty it is the one
	// that the source has, and hostname where it has none.
	Host string
	// JoinModel puts - between the words of a GPU's model.
	JoinModel bool
}

// oldNames are the labels that exporters before 2.0 called otherwise.
var oldNames = map[string]string{
	"UUID": "uuid", "pod": "pod_name", "namespace": "pod_namespace", "container": "container_name",
}

// label returns what a label is called.
func (s *Spelling) label(name string) string {
	if s.Old {
		if old, ok := oldNames[name]; ok {
			return old
		}
	}
	return name
}

// model returns how a GPU's model is written.
func (s *Spelling) model(name string) string {
	if s.JoinModel {
		return strings.Join(strings.Fields(name), "-")
	}
	return name
}
