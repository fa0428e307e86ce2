package collector

import (
	"cmp"
	"hash/maphash"
	"slices"
	"strconv"
	"strings"

	"stoker.dev/stoker/internal/fleet"
)

// maxValues bounds the series that one source may show of one node.
const maxValues = 50_000

// ours begins the names of our own families; no source may use it.
const ours = "stoker_"

// A shown is what one source told, as text, with what is not fit for a page left out.
// It is never changed after it was made.
type shown struct {
	text     []byte
	families []family // in the order of the page
	dropped  int      // samples that were left out
}

// A family is a part of the text of one source.
type family struct {
	name       string
	head       int // where # HELP and # TYPE begin
	rows, end  int // where the series begin and end
	partitions []partition
}

// A partition is a run of series of one GPU, from the end of the one before.
type partition struct {
	slot int // -1: of no GPU
	end  int
}

// A screen turns samples into text. It keeps what one turn leaves to the next, so
// that a collection makes little garbage, and is not safe for concurrent use.
type screen struct {
	spell Spelling
	seed  maphash.Seed
	seen  map[uint64]struct{} // series of this turn, by hash
	rank  map[string]int      // place of each family
	ends  []span              // of each family
	next  []int               // place of the next sample of the same family, -1 at the end
	heads []heading           // of each GPU
}

func newScreen(spell Spelling) *screen {
	return &screen{spell: spell, seed: maphash.MakeSeed(), seen: map[uint64]struct{}{}, rank: map[string]int{}}
}

type span struct{ first, last int } // places of a family's samples

// A heading is the part of a series' labels that all series of a GPU share.
type heading struct {
	before string // up to the host's label
	hash   uint64
}

// show renders what a source told. Slots are those of its GPUs, -1 for one that is
// left out; size is how long the text may become.
//
// A series is left out where the page would not be valid with it: a name that can't
// be one, a family of our own, labels that another series has already.
func (sc *screen) show(node string, s *fleet.Samples, slots []int, size int) shown {
	out := shown{text: make([]byte, 0, size+size/16)}
	values := s.Values
	if len(values) > maxValues {
		out.dropped += len(values) - maxValues
		values = values[:maxValues]
	}
	fields := sc.sort(s.Fields, values, &out)
	sc.identify(s.GPUs)
	clear(sc.seen)
	for f, field := range fields {
		fam := family{name: field.Name, head: len(out.text)}
		out.text = appendHead(out.text, field.Name, field.Type, field.Help)
		fam.rows = len(out.text)
		for at := sc.ends[f].first; at >= 0; at = sc.next[at] {
			v := &values[at]
			slot := -1
			if v.GPU != fleet.NoGPU {
				if v.GPU < 0 || v.GPU >= len(s.GPUs) || slots[v.GPU] < 0 {
					out.dropped++
					continue
				}
				slot = slots[v.GPU]
			}
			if !sc.validLabels(v.Labels, slot >= 0) || !sc.fresh(v) {
				out.dropped++
				continue
			}
			out.text = sc.appendSeries(out.text, node, v)
			if n := len(fam.partitions); n > 0 && fam.partitions[n-1].slot == slot {
				fam.partitions[n-1].end = len(out.text)
			} else {
				fam.partitions = append(fam.partitions, partition{slot, len(out.text)})
			}
		}
		fam.end = len(out.text)
		if fam.end == fam.rows {
			out.text = out.text[:fam.head]
			continue
		}
		out.families = append(out.families, fam)
	}
	return out
}

// sort chains the samples of each family, in the order in which they came, and
// returns the families in the order of the page: the declared ones first, then by name.
func (sc *screen) sort(declared []fleet.Field, values []fleet.Sample, out *shown) []fleet.Field {
	clear(sc.rank)
	sc.ends = sc.ends[:0]
	fields := make([]fleet.Field, 0, len(declared))
	add := func(f fleet.Field) {
		sc.rank[f.Name] = len(fields)
		fields = append(fields, f)
		sc.ends = append(sc.ends, span{-1, -1})
	}
	for _, f := range declared {
		if _, twice := sc.rank[f.Name]; !twice && validFamily(f.Name) {
			add(f)
		}
	}
	var more []string
	for i := range values {
		if _, known := sc.rank[values[i].Field]; !known && validFamily(values[i].Field) {
			sc.rank[values[i].Field] = -1
			more = append(more, values[i].Field)
		}
	}
	slices.Sort(more)
	for _, name := range more {
		add(fleet.Field{Name: name})
	}
	sc.next = slices.Grow(sc.next[:0], len(values))[:len(values)]
	for i := range values {
		sc.next[i] = -1
		f, ok := sc.rank[values[i].Field]
		if !ok {
			out.dropped++
			continue
		}
		if sc.ends[f].first < 0 {
			sc.ends[f] = span{i, i}
			continue
		}
		sc.next[sc.ends[f].last] = i
		sc.ends[f].last = i
	}
	return fields
}

// identify renders what all series of a GPU begin with.
func (sc *screen) identify(gpus []fleet.SampledGPU) {
	sc.heads = sc.heads[:0]
	for _, g := range gpus {
		dst := appendLabel(nil, "gpu", strconv.Itoa(g.Index))
		for _, l := range [...]fleet.Label{
			{Name: sc.spell.label("UUID"), Value: g.UUID},
			{Name: "pci_bus_id", Value: g.PCI},
			{Name: "device", Value: g.Device},
			{Name: "modelName", Value: sc.spell.model(g.Model)},
			{Name: "GPU_I_PROFILE", Value: g.Profile},
			{Name: "GPU_I_ID", Value: g.Instance},
		} {
			if l.Value != "" {
				dst = appendLabel(append(dst, ','), l.Name, l.Value)
			}
		}
		dst = append(dst, ',')
		sc.heads = append(sc.heads, heading{string(dst), maphash.Bytes(sc.seed, dst)})
	}
}

// fresh reports whether no series with the same name and labels was seen, in
// whatever order its labels stand. The host's label is not compared: all series get
// the same.
func (sc *screen) fresh(v *fleet.Sample) bool {
	sum := maphash.String(sc.seed, v.Field)
	if v.GPU != fleet.NoGPU {
		sum += sc.heads[v.GPU].hash
	}
	var h maphash.Hash
	h.SetSeed(sc.seed)
	for _, l := range v.Labels {
		if isHost(l.Name) {
			continue
		}
		h.Reset()
		h.WriteString(l.Name)
		h.WriteByte('=')
		h.WriteString(l.Value)
		sum += h.Sum64()
	}
	if _, twice := sc.seen[sum]; twice {
		return false
	}
	sc.seen[sum] = struct{}{}
	return true
}

// appendSeries writes one line, with the labels in dcgm-exporter's order: who the GPU
// is, the host under the name that the source has for it, the rest as it came. What
// belongs to no GPU keeps its labels where they are.
func (sc *screen) appendSeries(dst []byte, node string, v *fleet.Sample) []byte {
	dst = append(append(dst, v.Field...), '{')
	hosted := false
	if v.GPU != fleet.NoGPU {
		host := cmp.Or(sc.spell.Host, "hostname")
		if i := slices.IndexFunc(v.Labels, func(l fleet.Label) bool { return isHost(l.Name) }); i >= 0 && sc.spell.Host == "" {
			host = v.Labels[i].Name
		}
		dst = append(dst, sc.heads[v.GPU].before...)
		dst = appendLabel(dst, host, node)
		hosted = true
	}
	start := len(dst)
	for _, l := range v.Labels {
		if isHost(l.Name) {
			if hosted {
				continue
			}
			hosted = true
			l = fleet.Label{Name: cmp.Or(sc.spell.Host, l.Name), Value: node}
		}
		if len(dst) > start || v.GPU != fleet.NoGPU {
			dst = append(dst, ',')
		}
		dst = appendLabel(dst, sc.spell.label(l.Name), l.Value)
	}
	if !hosted {
		if len(dst) > start {
			dst = append(dst, ',')
		}
		dst = appendLabel(dst, cmp.Or(sc.spell.Host, "hostname"), node)
	}
	dst = append(dst, "} "...)
	return append(appendValue(dst, v.Value), '\n')
}

func isHost(label string) bool { return label == "hostname" || label == "Hostname" }

func validFamily(name string) bool {
	return validName(name, true) && !strings.HasPrefix(name, ours)
}

// validLabels reports whether each label has a name that can be one, none is there
// twice, and none of a GPU's series is one that the GPU itself has.
func (sc *screen) validLabels(labels []fleet.Label, ofGPU bool) bool {
	for i, l := range labels {
		name := sc.spell.label(l.Name)
		if !validName(name, false) || strings.HasPrefix(name, "__") {
			return false
		}
		if ofGPU {
			switch name {
			case "gpu", sc.spell.label("UUID"), "pci_bus_id", "device", "modelName", "GPU_I_PROFILE", "GPU_I_ID":
				return false
			}
		}
		for _, earlier := range labels[:i] {
			if sc.spell.label(earlier.Name) == name {
				return false
			}
		}
	}
	return true
}

func validName(name string, metric bool) bool {
	for i := range len(name) {
		c := name[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', c == '_':
		case c == ':' && metric:
		case '0' <= c && c <= '9' && i > 0:
		default:
			return false
		}
	}
	return name != ""
}
