package sim

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/sim/truth"
)

// A GPU may be held in parts, as time slicing or MIG give them: each pod has its share of
// it in thousandths, and its part of the memory. Who has a GPU whole shares it with nobody.

// usableMiB is what pods can have of a GPU's memory.
const usableMiB = 76_000

// share is how much the job has of each of its GPUs, in thousandths.
func (j JobSpec) share() int { return cmp.Or(j.Share, truth.Whole) }

// each is what one pod of the job has, in thousandths of a GPU.
func (j JobSpec) each() int { return j.GPUs * j.share() }

// resources is what one pod of the job asks for, as the cluster tells of it.
func (j JobSpec) resources() fleet.Resources {
	r := resources(j.GPUs)
	if j.Share > 0 {
		r = fleet.Resources{GPUs: j.GPUs, Share: j.Share, MilliCPU: j.MilliCPU, MemoryBytes: j.MemoryBytes}
	}
	return r
}

// rest is what nobody holds of these GPUs, in thousandths of one.
func (n *node) rest(gpus uint64) int {
	rest := truth.Whole * bits.OnesCount64(gpus&^n.held)
	for mask := gpus & n.cut; mask != 0; mask &= mask - 1 {
		rest += truth.Whole - n.gpus[bits.TrailingZeros64(mask)].used
	}
	return rest
}

// fitPart finds a node for a job on a part of a GPU: one that has a GPU which is cut
// already and of which enough is left, with the least left over; of those the first. Nil
// when a GPU has to be cut anew.
func (s *Simulation) fitPart(j *job) *node {
	var best *node
	least := truth.Whole + 1
	for _, n := range s.nodes {
		if n.cut == 0 || !n.takes() || !n.carries(j.spec) || slices.Contains(j.avoid, n.name) {
			continue
		}
		if g := n.partFor(j.spec); g >= 0 && truth.Whole-n.gpus[g].used < least {
			best, least = n, truth.Whole-n.gpus[g].used
		}
	}
	return best
}

// partFor is the GPU of the node with the least left that is enough for a part; negative
// when there is none.
func (n *node) partFor(j JobSpec) int {
	best := -1
	for mask := n.cut &^ n.lost; mask != 0; mask &= mask - 1 {
		g := bits.TrailingZeros64(mask)
		on := &n.gpus[g]
		if on.used+j.Share <= truth.Whole && on.memory+j.GPUMemory <= usableMiB && (best < 0 || on.used > n.gpus[best].used) {
			best = g
		}
	}
	return best
}

// give lets the pod have GPUs of the node: its part of one, or whole ones that are free.
func (n *node) give(p *pod) {
	j := p.job.spec
	take := func(g int) {
		on := &n.gpus[g]
		p.gpus |= 1 << g
		n.held |= 1 << g
		on.holders, on.used, on.memory = append(on.holders, p), on.used+j.share(), on.memory+j.GPUMemory
	}
	if j.Share > 0 {
		if g := n.partFor(j); g >= 0 {
			take(g)
			return
		}
	}
	for g := 0; bits.OnesCount64(p.gpus) < j.GPUs; g++ {
		if (n.lost|n.held)&(1<<g) == 0 {
			take(g)
			if j.Share > 0 {
				n.cut |= 1 << g
			}
		}
	}
}

// giveBack takes from the pod what it has of the node's GPUs.
func (n *node) giveBack(p *pod) {
	for mask := p.gpus; mask != 0; mask &= mask - 1 {
		g := bits.TrailingZeros64(mask)
		on := &n.gpus[g]
		on.holders = slices.DeleteFunc(on.holders, func(o *pod) bool { return o == p })
		on.used, on.memory = on.used-p.job.spec.share(), on.memory-p.job.spec.GPUMemory
		if len(on.holders) == 0 {
			n.held &^= 1 << g
			n.cut &^= 1 << g
		}
	}
}

// trains are the jobs that train on the GPU: whatever happens to it happens to each.
func (g *gpu) trains() []*job {
	var out []*job
	for _, p := range g.holders {
		if p.job != nil && p.gang == p.job.gang && p.job.state == training {
			out = append(out, p.job)
		}
	}
	return out
}

// parseGPUs reads a number of GPUs, or a part of one such as 0.25.
func parseGPUs(text string) (gpus, share int, err error) {
	if gpus, err = strconv.Atoi(text); err == nil {
		return gpus, 0, nil
	}
	part, err := strconv.ParseFloat(text, 64)
	share = int(math.Round(part * truth.Whole))
	if err != nil || share <= 0 || share >= truth.Whole {
		return 0, 0, fmt.Errorf("%q is neither a number of GPUs nor a part of one, such as 0.25", text)
	}
	return 1, share, nil
}
