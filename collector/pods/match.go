package pods

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"stoker.dev/stoker/internal/fleet"
)

// Seen is what is known of the node apart from its pods.
type Seen struct {
	Node string
	GPUs []fleet.SampledGPU // whole ones; Device, where it is known, is its file, such as nvidia0
	MIG  []fleet.MIGDevice
	// Near returns the CPUs that are near a GPU, ascending, by its PCI address as in GPUs;
	// nothing where that is not known.
	Near func(pci string) []int

	published map[place]publication
}

// Why it is not known which GPU a pod's device is.
const (
	whyID       = "unknown-id"
	whyMIG      = "unknown-mig"
	whyPlaced   = "mig-by-place"
	whyGPU      = "no-such-gpu"
	whyResource = "unlisted-resource"
	whyMany     = "too-many"
)

var whys = []string{whyPlaced, whyGPU, whyMany, whyID, whyMIG, whyResource}

// A row is one GPU or instance and a container that has it.
type row struct {
	gpu      int // place in Seen.GPUs
	instance string
	replica  string
	owner
}

// An owner is a container with the resource or claim by which it has a device.
type owner struct {
	pod       pod
	container string
	resource  string
	claim     claim
}

// A pod is one by name.
type pod struct{ namespace, name string }

// A claim is what DRA has given. It is empty for what a device plugin gave.
type claim struct {
	namespace, name, driver, pool, device string

	profile, mig string // of a MIG device, where the driver has published it
}

func (c claim) place() place { return place{c.driver, c.pool, c.device} }

// A hold is one device that a container has.
type hold struct {
	owner
	ids  []string // what names the device: the first that can be read; CDI names have "="
	cpus []int64  // that the container has for itself; shared with its other holds
}

// A miss is a device of which it is not known which GPU or instance it is.
type miss struct {
	owner
	id, why string
	gpu     int // that it is a part of; -1 where that is not known either
}

// An index finds GPUs in all the ways in which they are named.
type index struct {
	uuid   map[string]int
	number map[int]int
	mig    map[string]fleet.MIGDevice
}

func newIndex(s Seen) index {
	x := index{map[string]int{}, map[int]int{}, map[string]fleet.MIGDevice{}}
	for i, g := range s.GPUs {
		if g.UUID != "" {
			x.uuid[g.UUID] = i
		}
		n := g.Index
		if minor, ok := strings.CutPrefix(g.Device, "nvidia"); ok {
			if m, err := strconv.Atoi(minor); err == nil {
				n = m
			}
		}
		if _, twice := x.number[n]; !twice {
			x.number[n] = i
		}
	}
	for _, m := range s.MIG {
		x.mig[m.UUID] = m
	}
	return x
}

// find returns the place of a device's GPU, its instance, or why they are not known. Of a
// MIG device that nobody has told of the GPU may be: it is -1 where it is not.
func (x index) find(d device) (gpu int, instance, why string) {
	if d.mig != "" {
		m, ok := x.mig[d.mig]
		switch {
		case ok:
			d.uuid, d.instance = m.GPU, m.Instance
		case d.uuid == "":
			return -1, "", whyMIG
		default:
			why = whyMIG
		}
	}
	gpu, ok := x.number[d.number]
	if d.uuid != "" {
		gpu, ok = x.uuid[d.uuid]
	}
	switch {
	case !ok:
		return -1, "", cmp.Or(why, whyGPU)
	case d.placed:
		return gpu, "", whyPlaced
	}
	return gpu, d.instance, why
}

// match says which GPUs the containers have, each once, and of which devices that is not
// known. Devices of resources that are no GPUs are in neither. Replicas of one device are
// told apart if asked for.
func match(holds []hold, s Seen, isGPU func(resource string) bool, replicas bool) (rows []row, missed []miss) {
	x := newIndex(s)
	taken := map[row]bool{}
	for _, h := range holds {
		said, read := s.published[h.claim.place()]
		var d device
		if read {
			d, read = said.device()
			h.claim.profile = said.profile
			h.claim.mig = d.mig
		}
		for _, id := range h.ids {
			if read {
				break
			}
			d, read = readAny(id)
		}
		listed := isGPU(cmp.Or(h.claim.driver, h.resource))
		switch {
		case !read && listed:
			missed = append(missed, miss{h.owner, firstOf(h.ids), whyID, -1})
			continue
		case !read:
			continue
		}
		gpu, instance, why := x.find(d)
		switch {
		case why == "" && !listed && !d.unique():
			// nvidia0 may be anybody's name for anything.
			gpu, why = -1, whyResource
		case why != "" && !listed:
			continue
		}
		if why != "" {
			missed = append(missed, miss{h.owner, firstOf(h.ids), why, gpu})
			continue
		}
		r := row{gpu: gpu, instance: instance, owner: h.owner}
		if replicas {
			r.replica = d.replica
		}
		if !taken[r] {
			taken[r] = true
			rows = append(rows, r)
		}
	}
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(s.GPUs[a.gpu].Index, s.GPUs[b.gpu].Index), cmp.Compare(a.gpu, b.gpu), cmp.Compare(a.instance, b.instance),
			a.compare(b.owner), cmp.Compare(a.replica, b.replica))
	})
	slices.SortStableFunc(missed, func(a, b miss) int {
		return cmp.Or(a.compare(b.owner), cmp.Compare(a.id, b.id))
	})
	return rows, missed
}

func (a owner) compare(b owner) int {
	return cmp.Or(cmp.Compare(a.pod.namespace, b.pod.namespace), cmp.Compare(a.pod.name, b.pod.name),
		cmp.Compare(a.container, b.container), cmp.Compare(a.resource, b.resource),
		cmp.Compare(a.claim.namespace, b.claim.namespace), cmp.Compare(a.claim.name, b.claim.name),
		cmp.Compare(a.claim.pool, b.claim.pool), cmp.Compare(a.claim.device, b.claim.device))
}

func readAny(id string) (device, bool) {
	if strings.Contains(id, "=") {
		return readCDI(id)
	}
	return read(id)
}

func firstOf(ids []string) string {
	if len(ids) == 0 {
		return ""
	}
	return ids[0]
}

// A part is a GPU or an instance of it.
type part struct {
	gpu      int
	instance string
}

// holders counts the pods that have each part of a GPU.
func holders(rows []row) map[part]int {
	type one struct {
		part
		pod pod
	}
	seen := map[one]bool{}
	out := map[part]int{}
	for _, r := range rows {
		k := one{part{r.gpu, r.instance}, r.pod}
		if !seen[k] {
			seen[k] = true
			out[k.part]++
		}
	}
	return out
}

// A near is which part of a container's own CPUs is near a GPU that it has.
type near struct {
	gpu       int
	pod       pod
	container string
	part      float64 // 0 to 1
}

// nearness says of each container with CPUs of its own how near they are to its GPUs.
// Where nobody knows which CPUs are near a GPU, it says nothing.
func nearness(holds []hold, rows []row, s Seen) []near {
	type place struct {
		pod       pod
		container string
	}
	cpus := map[place][]int64{}
	for _, h := range holds {
		if len(h.cpus) > 0 {
			cpus[place{h.pod, h.container}] = h.cpus
		}
	}
	if s.Near == nil || len(cpus) == 0 {
		return nil
	}
	var out []near
	for _, r := range rows {
		own := cpus[place{r.pod, r.container}]
		local := s.Near(s.GPUs[r.gpu].PCI)
		if len(own) == 0 || len(local) == 0 {
			continue
		}
		n := 0
		for _, c := range own {
			if _, is := slices.BinarySearch(local, int(c)); is {
				n++
			}
		}
		one := near{r.gpu, r.pod, r.container, float64(n) / float64(len(own))}
		if !slices.Contains(out, one) { // a few: who has CPUs of its own is no crowd
			out = append(out, one)
		}
	}
	return out
}
