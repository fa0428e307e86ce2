package scheduler

import (
	"maps"
	"slices"

	"stoker.dev/stoker/internal/fleet"
)

// whole is one GPU. What is held and free is counted in thousandths of one.
const whole = 1000

// freeGPUs is what is free on each node that takes work, and what each job has there.
//
// Of parts of GPUs the fleet tells which node they are on, and not of which GPU they are
// parts: they are taken to be packed into as few as they fit into, as whoever places them
// means to.
type freeGPUs struct {
	on    map[string]space
	nodes []string
	held  map[fleet.JobRef][]piece // shared by all copies
}

// A space is what is free on one node.
type space struct {
	gpus  int   // that nobody has, or has a part of only
	parts []int // thousandths that are held of single GPUs, the largest first
}

// A piece is what one pod holds.
type piece struct {
	node  string
	gpus  int
	share int // of each of them, in thousandths; zero: they are whole
}

func newFree(f fleet.Snapshot) *freeGPUs {
	free := &freeGPUs{on: map[string]space{}, held: map[fleet.JobRef][]piece{}}
	for name, n := range f.Nodes {
		if n.Available() && n.Allocatable.GPUs > 0 {
			free.on[name] = space{gpus: n.Allocatable.GPUs}
		}
	}
	for _, p := range f.Pods {
		if _, ok := free.on[p.Node]; ok && p.GPUs > 0 {
			of := piece{p.Node, p.GPUs, p.Share}
			free.on[p.Node] = free.on[p.Node].less(of)
			free.held[p.Job] = append(free.held[p.Job], of)
		}
	}
	free.nodes = slices.Sorted(maps.Keys(free.on))
	return free
}

// less is the space without what a pod holds, more the space with it. They share nothing
// with s that is changed later.
func (s space) less(p piece) space {
	if p.share == 0 {
		s.gpus -= p.gpus
		return s
	}
	s.parts = slices.Clone(s.parts)
	for range p.gpus {
		i, _ := slices.BinarySearchFunc(s.parts, p.share, func(a, b int) int { return b - a })
		s.parts = slices.Insert(s.parts, i, p.share)
	}
	return s
}

func (s space) more(p piece) space {
	if p.share == 0 {
		s.gpus += p.gpus
		return s
	}
	s.parts = slices.Clone(s.parts)
	for range p.gpus {
		if i := slices.Index(s.parts, p.share); i >= 0 {
			s.parts = slices.Delete(s.parts, i, i+1)
		}
	}
	return s
}

// packed returns what is free of the GPUs that are held in parts, one by one, each part
// on the first that has room for it.
func (s space) packed() []int {
	var left []int
	for _, part := range s.parts {
		i := slices.IndexFunc(left, func(l int) bool { return l >= part })
		if i < 0 {
			i, left = len(left), append(left, whole)
		}
		left[i] -= part
	}
	return left
}

// places is for how many workers there is room, of so many GPUs each or of parts of them.
func (s space) places(each fleet.Resources) int {
	cut := s.packed()
	uncut := max(0, s.gpus-len(cut))
	if each.Share == 0 {
		return uncut / each.GPUs
	}
	n := uncut * (whole / each.Share)
	for _, left := range cut {
		n += left / each.Share
	}
	return n / each.GPUs
}

// free is what is free in all, in thousandths.
func (s space) free() int {
	sum := s.gpus * whole
	for _, part := range s.parts {
		sum -= part
	}
	return sum
}

// copy returns what is free, to be changed apart.
func (g *freeGPUs) copy() *freeGPUs {
	return &freeGPUs{on: maps.Clone(g.on), nodes: g.nodes, held: g.held}
}

// give adds what the job holds, take takes it back.
func (g *freeGPUs) give(job fleet.JobRef) {
	for _, p := range g.held[job] {
		g.on[p.node] = g.on[p.node].more(p)
	}
}

func (g *freeGPUs) take(job fleet.JobRef) {
	for _, p := range g.held[job] {
		g.on[p.node] = g.on[p.node].less(p)
	}
}

// places is for how many workers of the job there is room.
func (g *freeGPUs) places(w fleet.Job) int {
	if w.Each.GPUs == 0 {
		return w.Workers
	}
	n := 0
	for _, node := range g.nodes {
		if !slices.Contains(w.Avoid, node) {
			n += g.on[node].places(w.Each)
		}
	}
	return n
}

// fits reports whether the whole gang finds room.
func (g *freeGPUs) fits(w fleet.Job) bool { return g.places(w) >= w.Workers }

// place takes room for the whole gang, on the nodes on which least is left free, and
// reports whether there was enough.
func (g *freeGPUs) place(w fleet.Job) bool {
	if !g.fits(w) {
		return false
	}
	if w.Each.GPUs == 0 {
		return true
	}
	for range w.Workers {
		best := ""
		for _, node := range g.nodes {
			if g.on[node].places(w.Each) > 0 && !slices.Contains(w.Avoid, node) && (best == "" || g.on[node].free() < g.on[best].free()) {
				best = node
			}
		}
		g.on[best] = g.on[best].less(piece{best, w.Each.GPUs, w.Each.Share})
	}
	return true
}

// helps reports whether the job's GPUs are on nodes that could be of use: of those
// nodes, at least one could hold a worker if all on it went.
func (g *freeGPUs) helps(f fleet.Snapshot, job fleet.JobRef, w fleet.Job) bool {
	return slices.ContainsFunc(g.held[job], func(p piece) bool {
		return !slices.Contains(w.Avoid, p.node) && f.Nodes[p.node].Allocatable.GPUs >= w.Each.GPUs
	})
}
