package fleet

// A PodName is a pod as telemetry names it: who has the name may change with time.
type PodName struct {
	Namespace string
	Name      string
}

// Holders returns the pods on the node that may hold that GPU, by namespace and name.
// One is left out only when telemetry tells which GPUs it holds, all of them, and none is
// this one. Of what is not known, each pod with GPUs may.
func (s Snapshot) Holders(node, uuid string) []Pod {
	n := s.Nodes[node]
	g, known := n.GPU(uuid)
	known = known && uuid != ""
	elsewhere := map[PodName]int{}
	for _, o := range n.GPUs {
		for _, p := range o.Pods {
			if o.UUID != uuid {
				elsewhere[p]++
			}
		}
	}
	for _, p := range g.Pods {
		delete(elsewhere, p)
	}
	var out []Pod
	for _, p := range s.PodsOn(node) {
		if p.GPUs > 0 && (!known || elsewhere[PodName{p.Namespace, p.Name}] < p.GPUs) {
			out = append(out, p)
		}
	}
	return out
}
