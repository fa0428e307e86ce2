package dcgm

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"stoker.dev/stoker/internal/fleet"
)

// othersEvery is how often it is looked for entities that are no GPUs: they change with
// the hardware, or when a service of theirs is started.
const othersEvery = time.Minute

// An other is an entity that is no GPU and no part of one.
type other struct {
	entity GroupEntityPair
	labels string // that its series have, as the page orders them; NUL between names and values
	hidden bool   // it is watched for its errors alone
}

// has reports whether a kind of entity has a field of a level, as dcgm-exporter sorts them.
func (kind FieldEntityGroup) has(level FieldEntityGroup) bool {
	switch kind {
	case FE_GPU:
		return level == FE_NONE || level == FE_GPU || level == FE_VGPU || level == FE_GPU_I || level == FE_GPU_CI
	case FE_GPU_I:
		return level == FE_GPU_I || level == FE_GPU_CI
	case FE_SWITCH, FE_LINK:
		return level == FE_LINK || level == kind
	case FE_CPU, FE_CPU_CORE:
		return level == FE_CPU_CORE || level == kind
	case FE_NONE, FE_VGPU, FE_GPU_CI:
	}
	return false
}

// fieldsOf returns the fields of the list that a kind of entity has, those of profiling
// apart: another program may hold it.
func (r *reader) fieldsOf(kind FieldEntityGroup) (plain, profiling []Short) {
	if !r.wants(kind) {
		return nil, nil // a label of nothing
	}
	for _, f := range r.o.Fields {
		if f.ID == 0 || f.ID == fieldXID || slices.Contains(plain, f.ID) || slices.Contains(profiling, f.ID) {
			continue
		}
		level := r.lib.FieldLevel(f.ID)
		switch {
		case !kind.has(level) && (level != FE_NONE || f.Type != label):
		case f.ID.profiling():
			profiling = append(profiling, f.ID)
		default:
			plain = append(plain, f.ID)
		}
	}
	return plain, profiling
}

// wants reports whether the list has a field of a kind that is more than a label of all.
func (r *reader) wants(kind FieldEntityGroup) bool {
	return slices.ContainsFunc(r.o.Fields, func(f Field) bool { return f.ID != 0 && kind.has(r.lib.FieldLevel(f.ID)) })
}

// others lists the entities that are no GPUs. Of a kind of which no field is wanted the
// engine is not asked, but for switches, which have errors.
func (r *reader) others(w *watches) ([]other, error) {
	r.s.thread.During("listing NVSwitches, NVLinks and CPUs")
	var out []other
	add := func(kind FieldEntityGroup, id uint32, shown bool, labels ...string) {
		if len(out) < maxEntities {
			out = append(out, other{GroupEntityPair{kind, id}, strings.Join(labels, "\x00"), !shown})
		}
	}
	list := func(kind FieldEntityGroup) ([]uint32, error) {
		ids, err := r.engine.GetEntityGroupEntities(kind, false)
		if err != nil && !broken(err) {
			return nil, nil // an engine that has none may say so in several ways
		}
		slices.Sort(ids)
		return ids, err
	}
	switches, err := list(FE_SWITCH)
	if err != nil {
		return nil, err
	}
	for _, id := range switches {
		add(FE_SWITCH, id, r.wants(FE_SWITCH) && r.o.SwitchDevices.whole(id), "nvswitch", switchName(id), host, "")
	}
	if r.wants(FE_LINK) {
		links, err := r.engine.GetNvLinkLinkStatus()
		if err != nil && broken(err) {
			return nil, err
		}
		number := map[uint32]int{} // of the links of each GPU that are up, from 1 on
		for _, l := range links {
			if !l.Up || !r.o.SwitchDevices.part(uint32(l.Index)) {
				continue
			}
			if l.Parent.EntityGroupId == FE_SWITCH {
				add(FE_LINK, l.id(), true, "nvlink", strconv.Itoa(int(l.Index)), "nvswitch", switchName(l.Parent.EntityId), host, "")
				continue
			}
			id := l.Parent.EntityId
			g, known := r.who(id)
			if !known || !w.inside[id] {
				continue
			}
			number[id]++
			add(FE_LINK, l.id(), true, "nvlink", strconv.Itoa(number[id]), "gpu", strconv.Itoa(int(id)), "gpu_uuid", g.UUID,
				"pci_bus_id", g.PCI, "device", "nvidia"+strconv.Itoa(int(id)), "model_name", g.Model, host, "")
		}
	}
	cpus, cores := r.wants(FE_CPU), r.wants(FE_CPU_CORE)
	if !cpus && !cores {
		return out, nil
	}
	tree, err := r.engine.GetCPUHierarchy()
	if err != nil && broken(err) {
		return nil, err
	}
	for _, c := range tree {
		if cpus && r.o.CPUDevices.whole(c.ID) {
			add(FE_CPU, c.ID, true, "cpu", strconv.Itoa(int(c.ID)), host, "")
		}
	}
	for _, c := range tree {
		for _, core := range c.Cores {
			if cores && r.o.CPUDevices.part(core) {
				add(FE_CPU_CORE, core, true, "cpucore", strconv.Itoa(int(core)), "cpu", strconv.Itoa(int(c.ID)), host, "")
			}
		}
	}
	return out, nil
}

func switchName(id uint32) string { return "nvswitch" + strconv.Itoa(int(id)) }

// host is the label that the page fills with the node's name.
const host = "hostname"

// identity returns the labels of an entity, those without a value left out.
func (o other) identity() []fleet.Label {
	var out []fleet.Label
	parts := strings.Split(o.labels, "\x00")
	for i := 0; i+1 < len(parts); i += 2 {
		if parts[i+1] != "" || parts[i] == host {
			out = append(out, fleet.Label{Name: parts[i], Value: parts[i+1]})
		}
	}
	return out
}

// A NvLink is one link of a GPU or NVSwitch.
type NvLink struct {
	Parent GroupEntityPair
	Index  uint16 // of the link at its parent
	Up     bool
}

// id is the link's number as an entity: kind of the parent, link and parent in one word.
func (l NvLink) id() uint32 {
	return uint32(l.Parent.EntityGroupId)&0xff | uint32(l.Index)<<8 | l.Parent.EntityId<<24
}

// A CPU is one CPU of the engine's own machine, as on Grace.
type CPU struct {
	ID    uint32
	Cores []uint32
}

// A Selection says which devices of two kinds are shown: GPUs and MIG instances, switches
// and links, CPUs and cores. The zero value is dcgm-exporter's default, f.
type Selection struct {
	text          string
	wholes, parts *numbers // nil: none of them
}

// String returns what was read, or f.
func (s Selection) String() string { return cmp.Or(s.text, "f") }

// numbers is a set of devices; empty: all.
type numbers []uint32

// ParseSelection reads f, g[:numbers] and i[:numbers], and g and i with a + between them.
// Numbers are such as 0,2-4.
func ParseSelection(text string) (Selection, error) {
	s := Selection{text: text}
	if text == "f" || text == "" {
		return s, nil
	}
	for part := range strings.SplitSeq(text, "+") {
		letter, list, ranged := strings.Cut(part, ":")
		set := &numbers{}
		if ranged {
			for item := range strings.SplitSeq(list, ",") {
				first, last, isRange := strings.Cut(item, "-")
				a, err1 := strconv.ParseUint(strings.TrimSpace(first), 10, 16)
				b, err2 := a, error(nil)
				if isRange {
					b, err2 = strconv.ParseUint(strings.TrimSpace(last), 10, 16)
				}
				if cmp.Or(err1, err2) != nil || b < a || b-a > maxEntities {
					return Selection{}, fmt.Errorf("%q: %q is no number and no range such as 2-4", text, item)
				}
				for n := a; n <= b; n++ {
					*set = append(*set, uint32(n))
				}
			}
		}
		switch {
		case letter == "g" && s.wholes == nil:
			s.wholes = set
		case letter == "i" && s.parts == nil:
			s.parts = set
		default:
			return Selection{}, fmt.Errorf("%q is none of f, g[:numbers], i[:numbers] and both of them with a +", text)
		}
	}
	return s, nil
}

func (s Selection) flexible() bool { return s.wholes == nil && s.parts == nil }

func (s Selection) whole(id uint32) bool { return s.flexible() || s.wholes.has(id) }

func (s Selection) part(id uint32) bool { return s.flexible() || s.parts.has(id) }

func (n *numbers) has(id uint32) bool {
	return n != nil && (len(*n) == 0 || slices.Contains(*n, id))
}
