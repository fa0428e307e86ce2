package dcgm

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"stoker.dev/stoker/internal/fleet"
)

// peersEvery is how often it is asked which GPUs reach each other: the engine asks the
// driver for each pair, and what is told changes with hardware and configuration only.
const peersEvery = time.Minute

// linkStatuses are what NVLink between two GPUs may be, by number, as dcgm-exporter names them.
var linkStatuses = [...]string{
	"OK", "ChipsetNotSupported", "GPUNotSupported", "TopologyNotSupported", "DisabledByRegKey", "NotSupported", "Unknown",
}

// peers is what was last told of which GPUs reach each other over NVLink.
type peers struct {
	asked time.Time
	links []NvLinkPeers
	why   string // there are none
}

// readPeers asks anew from time to time. What the engine can't tell is no reason to do
// without all the rest.
func (r *reader) readPeers() error {
	if !r.peers.asked.IsZero() && r.at.Sub(r.peers.asked) < peersEvery {
		return nil
	}
	r.s.thread.During("asking which GPUs reach each other")
	links, err := r.engine.GetNvLinkP2PStatus()
	if err != nil && broken(err) {
		return err
	}
	r.peers = peers{asked: r.at, links: links}
	if err == nil {
		err = understood(links, r.w.gpus)
	}
	if err != nil {
		r.peers.links, r.peers.why = nil, err.Error()
		if code := codeOf(err); code != StOk {
			r.peers.why = code.String()
		}
		r.log.Info("which GPUs reach each other is not known", "err", err)
	}
	return nil
}

// understood refuses an answer of GPUs that there are not: the layout of the struct was
// not measured, but follows from its size and the names of its members.
func understood(links []NvLinkPeers, gpus []uint32) error {
	seen := map[uint32]bool{}
	for _, l := range links {
		if seen[l.GPU] || !slices.Contains(gpus, l.GPU) {
			return fmt.Errorf("an answer that is not understood: GPU %d", l.GPU)
		}
		seen[l.GPU] = true
	}
	return nil
}

// addPeers shows of each pair of GPUs whether the first reaches the second. Nothing is
// known of one that is lost.
func (r *reader) addPeers(into *fleet.Samples, places []place) {
	at := map[uint32]int{}
	for i, p := range places {
		if p.entity.EntityGroupId == FE_GPU && into.GPUs[i].Up == fleet.True {
			at[p.gpu] = i
		}
	}
	for _, from := range r.peers.links {
		place, ok := at[from.GPU]
		if !ok {
			continue
		}
		base := r.labels[places[place].entity]
		for k, to := range r.peers.links {
			if _, ok := at[to.GPU]; !ok || to.GPU == from.GPU {
				continue
			}
			status := from.Status[k]
			name := linkStatuses[min(int(status), len(linkStatuses)-1)]
			into.Values = append(into.Values, fleet.Sample{
				Field: peerStatus, GPU: place, Value: float64(status),
				Labels: append(slices.Clone(base), fleet.Label{Name: "link_status", Value: name},
					fleet.Label{Name: "peer_gpu", Value: strconv.FormatUint(uint64(to.GPU), 10)}),
			})
		}
	}
}
