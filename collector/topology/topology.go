// Package topology says where the GPUs of a node sit: on which NUMA node, near which CPUs,
// behind which PCIe link and under which file's name. It reads the kernel's own files, in
// the background, since a device that is sick may make them slow.
package topology

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"stoker.dev/stoker/collector/series"
	"stoker.dev/stoker/internal/fleet"
)

// Times.
const (
	look  = time.Second      // between two looks at which GPUs there are
	every = 30 * time.Second // between two readings
	limit = 10 * time.Second // after which a reading is said to hang
)

// A Reader reads where GPUs sit and remembers it. Run does all the work; everything else
// reads what it has finished.
type Reader struct {
	log  *slog.Logger
	root string
	read func(root, pci string) (place, error)

	finished atomic.Pointer[finished]
}

// finished is never changed.
type finished struct {
	page   []byte
	places map[string]place // by address as the GPU has it
}

// New returns a reader of the files below root, which is / when empty, that has read nothing.
func New(log *slog.Logger, root string) *Reader {
	r := &Reader{log: log, root: cmp.Or(root, "/"), read: read}
	r.finished.Store(&finished{})
	return r
}

// Near returns the CPUs that are near a GPU, ascending, by its PCI address as it was read;
// nothing where that is not known. The slice must not be changed.
func (r *Reader) Near(pci string) []int { return r.finished.Load().places[pci].cpus }

// Name sets Device of the GPUs whose file is known, in a copy.
func (r *Reader) Name(gpus []fleet.SampledGPU) []fleet.SampledGPU {
	places := r.finished.Load().places
	out := slices.Clone(gpus)
	for i, g := range out {
		out[i].Device = cmp.Or(places[g.PCI].device, g.Device)
	}
	return out
}

// AppendPage appends what is known in Prometheus' text format. It waits for nobody.
func (r *Reader) AppendPage(dst []byte) []byte { return append(dst, r.finished.Load().page...) }

// A reading is what came of one round over all GPUs.
type reading struct {
	gpus   []fleet.SampledGPU
	places map[string]place
	errs   map[string]error
}

// Run reads at once, when GPUs come or go, and every half minute, until ctx ends. A reading
// that hangs is left to itself; until it returns there is no other one, and what may have
// changed since the last one is not shown any more.
func (r *Reader) Run(ctx context.Context, node string, gpus func() []fleet.SampledGPU) {
	tick := time.NewTicker(look)
	defer tick.Stop()
	answer := make(chan reading, 1)
	busy, hangs := false, false
	var last []fleet.SampledGPU
	var began time.Time
	var shown reading
	said := map[string]string{}
	for {
		now := time.Now()
		if is := gpus(); !busy && (now.Sub(began) >= every || !slices.Equal(is, last)) {
			busy, began, last = true, now, is
			go func() { answer <- r.round(is) }()
		}
		if busy && !hangs && now.Sub(began) >= limit {
			hangs = true
			r.log.Warn("files of GPUs can't be read", "root", r.root, "err", "no answer", "since", began)
			r.publish(node, shown.gpus, settled(shown.places), hangs)
		}
		select {
		case a := <-answer:
			busy, hangs = false, false
			said, shown = r.say(a, said), a
			r.publish(node, a.gpus, a.places, false)
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// settled leaves out what changes while a node runs.
func settled(places map[string]place) map[string]place {
	out := map[string]place{}
	for pci, p := range places {
		p.now = Link{}
		out[pci] = p
	}
	return out
}

func (r *Reader) round(gpus []fleet.SampledGPU) reading {
	out := reading{gpus, map[string]place{}, map[string]error{}}
	for _, g := range gpus {
		if g.PCI == "" {
			continue
		}
		p, err := r.read(r.root, g.PCI)
		out.places[g.PCI] = p
		if err != nil {
			out.errs[g.PCI] = err
		}
	}
	return out
}

// say logs what could not be read, when that has changed.
func (r *Reader) say(a reading, said map[string]string) map[string]string {
	texts := map[string]string{}
	for _, pci := range slices.Sorted(maps.Keys(a.errs)) {
		texts[pci] = a.errs[pci].Error()
		if said[pci] != texts[pci] {
			r.log.Info("where a GPU sits is not known", "pci", pci, "err", a.errs[pci])
		}
	}
	return texts
}

func (r *Reader) publish(node string, gpus []fleet.SampledGPU, places map[string]place, hangs bool) {
	w := series.Writer{}
	each := func(f func(g fleet.SampledGPU, p place)) {
		for _, g := range gpus {
			p, ok := places[g.PCI]
			if !ok {
				p.numa = -1
			}
			f(g, p)
		}
	}
	begin := func(g fleet.SampledGPU) {
		w.Begin()
		w.Label("node", node)
		w.Label("gpu", strconv.Itoa(g.Index))
		w.Label("UUID", g.UUID)
		w.Label("pci_bus_id", g.PCI)
	}
	for _, f := range []struct {
		name, help string
		get        func(place) int
	}{
		{"stoker_gpu_pcie_link_generation", "Generation of the GPU's PCIe link at present. It falls while the GPU is idle.", func(p place) int { return p.now.Generation }},
		{"stoker_gpu_pcie_link_generation_max", "Generation of which the GPU and what it is plugged into are capable.", func(p place) int { return p.most.Generation }},
		{"stoker_gpu_pcie_link_width", "Lanes of the GPU's PCIe link at present.", func(p place) int { return p.now.Width }},
		{"stoker_gpu_pcie_link_width_max", "Lanes of which the GPU and what it is plugged into are capable.", func(p place) int { return p.most.Width }},
	} {
		w.Family(f.name, f.help)
		each(func(g fleet.SampledGPU, p place) {
			if n := f.get(p); n > 0 {
				begin(g)
				w.Value(strconv.Itoa(n))
			}
		})
	}
	w.Family("stoker_gpu_topology_info", "Always 1; the NUMA node that the GPU is on and the CPUs near it. Without numa_node it is not known which.")
	unknown := 0
	each(func(g fleet.SampledGPU, p place) {
		begin(g)
		if p.numa >= 0 {
			w.Label("numa_node", strconv.Itoa(p.numa))
		} else {
			unknown++
		}
		w.Some("cpus", p.list)
		w.Some("device", p.device)
		w.Value("1")
	})
	w.Family("stoker_topology_unknown_gpus", "GPUs of which it is not known on which NUMA node they are.")
	w.Begin()
	w.Value(strconv.Itoa(unknown))
	w.Family("stoker_topology_up", "Whether the kernel's files about GPUs can be read; 0 while that hangs.")
	w.Begin()
	if hangs {
		w.Value("0")
	} else {
		w.Value("1")
	}
	r.finished.Store(&finished{w.Page(), places})
}
