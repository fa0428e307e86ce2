package dcgm

import (
	"regexp"
	"strconv"
	"strings"
	"time"

	"stoker.dev/stoker/internal/fleet"
)

// What does not change while groups stay: it is read once, and again from time to time
// where it was not there.
var (
	switchAddress = []Short{866, 867, 868, 869} // domain, bus, device and function
	factsOf       = map[FieldEntityGroup][]Short{FE_GPU_I: {fieldName, fieldUUID}, FE_GPU_CI: {fieldUUID}, FE_SWITCH: switchAddress}
	isProfile     = regexp.MustCompile(`^[0-9]+(c\.[0-9]+)?g\.[0-9]+gb`) // such as 1g.10gb
)

// factsEvery is how often it is tried.
const factsEvery = time.Minute

// readFacts reads what is missing of them.
func (r *reader) readFacts(w *watches) error {
	if r.at.Sub(w.askedFacts) < factsEvery {
		return nil
	}
	w.askedFacts = r.at
	for _, p := range w.parts {
		var missing []GroupEntityPair
		for _, e := range p.entities {
			for _, f := range p.facts {
				if _, ok := w.facts[fact{e, f}]; !ok {
					missing = append(missing, e)
					break
				}
			}
		}
		if len(missing) == 0 || len(p.facts) == 0 {
			continue
		}
		r.s.thread.During("asking for names")
		if err := r.engine.EntitiesGetLatestValues(missing, p.facts, &r.values); err != nil {
			return err
		}
		for i := range r.values.Len() {
			if v := r.values.At(i); v.Status == StOk && !v.Blank {
				w.facts[fact{v.Entity, v.FieldID}] = r.textOf(v)
			}
		}
	}
	return nil
}

// A fact is one field of one entity that does not change.
type fact struct {
	entity GroupEntityPair
	field  Short
}

// profile names the kind of a MIG instance, as far as it is known.
func (w *watches) profile(i instance) string {
	if name := w.facts[fact{GroupEntityPair{FE_GPU_I, i.id}, fieldName}]; isProfile.MatchString(name) {
		return name
	}
	return strconv.Itoa(int(i.slices)) + "g"
}

// address is where a switch is on the bus, empty where that is not known.
func (w *watches) address(id uint32) string {
	var n [4]uint64
	for k, f := range switchAddress {
		var err error
		if n[k], err = strconv.ParseUint(w.facts[fact{GroupEntityPair{FE_SWITCH, id}, f}], 10, 32); err != nil {
			return ""
		}
	}
	hex := func(x uint64, width int) string {
		s := strings.ToUpper(strconv.FormatUint(x, 16))
		return strings.Repeat("0", max(0, width-len(s))) + s
	}
	return hex(n[0], 8) + ":" + hex(n[1], 2) + ":" + hex(n[2], 2) + "." + hex(n[3], 1)
}

// devices are the MIG devices whose UUIDs the engine tells: that of each compute instance,
// or of an instance that has but one.
func (r *reader) devices() []fleet.MIGDevice {
	var out []fleet.MIGDevice
	w := r.w
	for _, i := range w.instances {
		g, known := r.who(i.gpu)
		if !known {
			continue
		}
		whole := GroupEntityPair{FE_GPU_I, i.id}
		found, computes := 0, 0
		for _, m := range w.tree {
			if m.Entity.EntityGroupId != FE_GPU_CI || m.Parent != whole {
				continue
			}
			computes++
			if uuid := w.facts[fact{m.Entity, fieldUUID}]; strings.HasPrefix(uuid, "MIG-") {
				found++
				out = append(out, fleet.MIGDevice{UUID: uuid, GPU: g.UUID, Instance: strconv.Itoa(int(i.number))})
			}
		}
		if uuid := w.facts[fact{whole, fieldUUID}]; found == 0 && computes < 2 && strings.HasPrefix(uuid, "MIG-") {
			out = append(out, fleet.MIGDevice{UUID: uuid, GPU: g.UUID, Instance: strconv.Itoa(int(i.number))})
		}
	}
	return out
}
