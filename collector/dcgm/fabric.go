package dcgm

import (
	"slices"
	"strings"
	"time"

	"stoker.dev/stoker/internal/fleet"
)

// fabricEvery is how often the engine reads which NVLink domain a GPU has joined, and how
// often it is asked. That changes when a fabric manager starts.
const fabricEvery = time.Minute

// A fabric is what was last told of the NVLink domains of GPUs.
type fabric struct {
	asked time.Time
	links []fleet.NVLinks
}

// watchFabric watches it. Nobody has asked for it: where the engine does not have it,
// nothing is missing.
func (r *reader) watchFabric(w *watches) error {
	fields := []Short{fieldCluster, fieldClique}
	on, err := r.watch(w, w.gpuGroup, fields, fabricEvery, 0, keepSamples)
	w.fabric = len(on) == len(fields)
	return err
}

// withFabric adds to the fields of GPUs that are to be read the domain where it is
// time for that: it costs no call of its own.
func (r *reader) withFabric(fields []Short) []Short {
	if old := r.at.Sub(r.fabric.asked); !r.w.fabric || 0 <= old && old < fabricEvery {
		return fields
	}
	for _, f := range []Short{fieldCluster, fieldClique} {
		if !slices.Contains(fields, f) {
			fields = append(fields, f)
		}
	}
	return fields
}

// takeFabric makes domains of what was read, if they were. Those of which the engine has no
// value yet are asked for again.
func (r *reader) takeFabric(fields []Short) {
	if !slices.Contains(fields, fieldCluster) || !slices.Contains(fields, fieldClique) {
		return
	}
	r.fabric = fabric{asked: r.at}
	domain, clique := map[uint32]string{}, map[uint32]int{}
	for i := range r.values.Len() {
		v := r.values.At(i)
		if v.FieldID != fieldCluster && v.FieldID != fieldClique {
			continue
		}
		switch {
		case v.Status == StNoData:
			r.fabric.asked = time.Time{}
		case v.Status != StOk || v.Blank:
		case v.Type == 's':
			domain[v.Entity.EntityId] = r.values.Text(v)
		case v.Type == 'i':
			clique[v.Entity.EntityId] = int(v.Int64)
		}
	}
	for _, e := range r.w.whole.entities {
		g, known := r.who(e.EntityId)
		c, ok := clique[e.EntityId]
		// All zeros is what a GPU has that is in none.
		if known && ok && strings.Trim(domain[e.EntityId], "0-") != "" && r.w.status[e.EntityId] == EntityStatusOk {
			r.fabric.links = append(r.fabric.links, fleet.NVLinks{GPU: g.UUID, Domain: domain[e.EntityId], Clique: c})
		}
	}
}
