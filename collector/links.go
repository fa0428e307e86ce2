package collector

import (
	"slices"
	"strconv"

	"stoker.dev/stoker/internal/fleet"
)

// maxPeers bounds the peers that are shown of one GPU.
const maxPeers = 64

// linksText is what the sources told last of how GPUs are linked, as text: each GPU as the
// first source that knows it says. It is made once for each view.
func linksText(sources []sourceView, known []fleet.SampledGPU, gpus []gpuView) []byte {
	of := map[string]*fleet.NVLinks{}
	for i := range sources {
		for k := range sources[i].links {
			if n := &sources[i].links[k]; n.GPU != "" && of[n.GPU] == nil {
				of[n.GPU] = n
			}
		}
	}
	if len(of) == 0 {
		return nil
	}
	places := map[string]int{}
	for i, g := range known {
		places[busID(g.PCI)] = i
	}
	begin := func(dst []byte, name string, i int) []byte {
		return append(append(append(append(dst, name...), '{'), gpus[i].labels...), ',')
	}
	dst := appendHead(nil, "stoker_gpu_nvlink_domain_info", "gauge",
		"Always 1; the NVLink domain that the GPU has joined, and its clique there. GPUs with the same two reach each other over NVLink.")
	rows := len(dst)
	for i, g := range known {
		if n := of[g.UUID]; n != nil && n.Domain != "" {
			dst = begin(dst, "stoker_gpu_nvlink_domain_info", i)
			dst = append(appendLabel(dst, "domain", n.Domain), ',')
			dst = append(appendLabel(dst, "clique", strconv.Itoa(n.Clique)), "} 1\n"...)
		}
	}
	dst = unlessEmpty(dst, 0, rows)

	head := len(dst)
	dst = appendHead(dst, "stoker_gpu_nvlink_links", "gauge",
		"Active NVLinks of the GPU, by what is at the other end; peer is the UUID of a GPU of this node.")
	rows = len(dst)
	for i, g := range known {
		n := of[g.UUID]
		if n == nil {
			continue
		}
		for _, p := range n.Peers[:min(len(n.Peers), maxPeers)] {
			dst = appendLabel(begin(dst, "stoker_gpu_nvlink_links", i), "peer_kind", p.Kind)
			if pci := busID(p.PCI); pci != "" {
				dst = appendLabel(append(dst, ','), "peer_pci_bus_id", pci)
				if at, ok := places[pci]; ok {
					dst = appendLabel(append(dst, ','), "peer", known[at].UUID)
				}
			}
			dst = append(strconv.AppendInt(append(dst, "} "...), int64(p.Links), 10), '\n')
		}
	}
	return slices.Clip(unlessEmpty(dst, head, rows))
}
