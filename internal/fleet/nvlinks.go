package fleet

// NVLinks is how one GPU is linked to others by NVLink.
type NVLinks struct {
	GPU string // UUID of the whole GPU
	// Domain is the UUID of the NVLink domain that the GPU has joined, and Clique the part of
	// it in which GPUs reach each other. Domain is empty where there is none.
	Domain string
	Clique int
	Peers  []NVLinkPeer
}

// An NVLinkPeer is what is at the other end of links.
type NVLinkPeer struct {
	Kind  string // gpu, switch, cpu or unknown
	PCI   string // address of a GPU, as the source spells it; empty for the others
	Links int    // that are active
}

// Add counts one link to a peer.
func (n *NVLinks) Add(to NVLinkPeer) {
	for i := range n.Peers {
		if p := &n.Peers[i]; p.Kind == to.Kind && p.PCI == to.PCI {
			p.Links++
			return
		}
	}
	to.Links = 1
	n.Peers = append(n.Peers, to)
}
