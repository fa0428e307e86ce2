package dcgm

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/xid"
)

// labels are those fields of one entity that are shown as labels of all others.
type labels []fleet.Label

// A place is one GPU or MIG instance of what is returned.
type place struct {
	entity GroupEntityPair
	gpu    uint32
	seen   int   // values that were there
	blank  int   // values that were blank, though the engine called them fine
	stale  int   // values that the engine has not read for too long
	newest int64 // us since 1970, of all values

	profiled int     // values of profiling that were there
	paused   bool    // one is missing because another program has the hardware
	idle     bool    // profiling says that the engines did nothing
	busy     float64 // %, as the driver says
}

// read fills in what was asked for.
func (r *reader) read(values *fleet.Samples, full bool) error {
	if err := r.changes(full); err != nil {
		return err
	}
	if r.w == nil {
		if err := r.ready(); err != nil {
			return err
		}
	}
	if err := r.readEvents(); err != nil {
		return err
	}
	if r.rebind {
		// The driver went and came back between two readings: nobody knows what became of the watches.
		r.log.Info("driver was attached, watches are made anew")
		r.forget()
		if err := r.ready(); err != nil {
			return err
		}
		r.rebind = false
	}
	w := r.w
	if full {
		for _, step := range []func() error{r.watchProfilingAnew, func() error { return r.readFacts(w) }} {
			if err := step(); err != nil {
				return err
			}
		}
	}
	places := r.list(values, full)
	if !full {
		return nil
	}
	absent := map[absence]int{}
	for f, why := range w.refused {
		if name, wanted := r.nameOf(f); wanted {
			absent[absence{name, "refused: " + why.String()}] = len(w.whole.entities)
		}
	}
	for _, f := range r.o.Fields {
		switch {
		case slices.Contains(notMade, f.Name):
			absent[absence{f.Name, "not made by this collector"}] = len(w.whole.entities)
		case f.Name == peerStatus:
			if err := r.readPeers(); err != nil {
				return err
			}
			if r.peers.why != "" {
				absent[absence{f.Name, r.peers.why}] = len(w.whole.entities)
			}
		}
		if f.Type != label {
			values.Fields = append(values.Fields, fleet.Field{Name: f.Name, Type: f.Type, Help: f.Help})
		}
	}
	r.s.thread.During("reading values")
	for _, p := range w.parts {
		fields := slices.Concat(p.fields, p.profiled)
		if p == w.whole {
			fields = r.withFabric(fields)
		}
		if err := r.engine.EntitiesGetLatestValues(p.entities, fields, &r.values); err != nil {
			return err
		}
		r.s.drop(r.values.Cut())
		r.take(values, places, absent)
		if p == w.whole {
			r.takeFabric(fields)
		}
	}
	values.NVLinks = append(values.NVLinks, r.fabric.links...)
	r.judge(values, places)
	r.profile(values, places)
	r.choose(values, places)
	r.addXIDs(values, places)
	if err := r.readClocks(); err != nil {
		return err
	}
	if r.lists(clockCount) {
		r.addClocks(values, places)
	}
	r.addPeers(values, places)
	if w.health {
		if err := r.addHealth(values, places); err != nil {
			return err
		}
	}
	values.Values = slices.DeleteFunc(values.Values, func(v fleet.Sample) bool { return v.GPU >= 0 && !r.selected(places[v.GPU]) })
	ages := map[uint32]time.Duration{}
	for _, p := range places {
		if p.entity.EntityGroupId == FE_GPU && p.newest > 0 {
			ages[p.gpu] = max(0, time.Duration(r.now-p.newest)*time.Microsecond)
		}
	}
	r.s.mu.Lock()
	r.s.self.absent, r.s.self.ages = absent, ages
	r.s.mu.Unlock()
	return nil
}

// changes looks for what makes the groups wrong: a GPU that has come back or is new,
// other MIG instances, a driver that was attached. They are then made anew.
func (r *reader) changes(full bool) error {
	w := r.w
	was := maps.Clone(w.status)
	if err := r.statuses(w); err != nil {
		return err
	}
	again := false
	for _, id := range w.gpus {
		if w.status[id] == was[id] {
			continue
		}
		r.log.Info("GPU changed its state", "gpu", id, "from", int(was[id]), "to", int(w.status[id]))
		if w.status[id] == EntityStatusOk {
			again = again || !w.inside[id] || was[id] == EntityStatusDetached
		}
	}
	if full {
		ids, err := r.gpus()
		if err != nil {
			return err
		}
		again = again || !slices.Equal(ids, w.gpus)
		tree, err := r.hierarchy()
		if err != nil {
			return err
		}
		again = again || !slices.Equal(tree, w.tree)
		if r.at.Sub(w.listed) >= othersEvery {
			w.listed = r.at
			others, err := r.others(w)
			if err != nil {
				return err
			}
			again = again || !slices.Equal(others, w.others)
		}
		for _, id := range w.gpus {
			if w.named[id] || w.status[id] != EntityStatusOk {
				continue
			}
			if w.named[id], err = r.identify(id); err != nil && broken(err) {
				return err
			}
		}
	}
	if again {
		r.log.Info("GPUs, MIG instances, switches, links or CPUs have changed, watches are made anew")
		r.forget()
	}
	return nil
}

func sampled(g knownGPU, up fleet.Truth) fleet.SampledGPU {
	return fleet.SampledGPU{
		Index: int(g.ID), UUID: g.UUID, PCI: g.PCI, Model: g.Model, Device: "nvidia" + strconv.Itoa(int(g.ID)), Up: up,
	}
}

// upOf is what a status says of whether the driver reaches a GPU.
func upOf(st EntityStatus) fleet.Truth {
	switch st {
	case EntityStatusOk, EntityStatusFake, EntityStatusUnsupported:
		return fleet.True
	case EntityStatusLost, EntityStatusInaccessible:
		return fleet.False
	case EntityStatusUnknown, EntityStatusDisabled, EntityStatusDetached:
	}
	return fleet.Unknown
}

// list fills in the GPUs: those that the engine has, their instances, and those that were
// there before and that it does not even list.
func (r *reader) list(into *fleet.Samples, full bool) []place {
	var places []place
	count := map[EntityStatus]int{}
	taken := map[string]bool{}
	into.TellsNVLink = r.w.tellsLink
	if full {
		into.MIG = r.devices()
	}
	for _, id := range r.w.gpus {
		g, known := r.who(id)
		if known {
			taken[g.UUID] = true
		}
		st := r.w.status[id]
		count[st]++
		up := upOf(st)
		if up == fleet.True && (!r.w.inside[id] || !full && r.w.silent[id]) {
			up = fleet.Unknown // nothing is read of it, or only values can tell otherwise
		}
		into.GPUs = append(into.GPUs, sampled(g, up))
		places = append(places, place{entity: GroupEntityPair{FE_GPU, id}, gpu: id})
		for _, i := range r.w.instances {
			if i.gpu != id {
				continue
			}
			part := sampled(g, up)
			part.Instance, part.Profile = strconv.Itoa(int(i.number)), r.w.profile(i)
			into.GPUs = append(into.GPUs, part)
			places = append(places, place{entity: GroupEntityPair{FE_GPU_I, i.id}, gpu: id})
		}
	}
	for _, g := range r.known {
		if !taken[g.UUID] {
			count[EntityStatusLost]++
			into.GPUs = append(into.GPUs, sampled(g, fleet.False))
			places = append(places, place{entity: GroupEntityPair{FE_NONE, 0}, gpu: g.ID})
		}
	}
	r.s.mu.Lock()
	r.s.self.gpus = count
	r.s.mu.Unlock()
	return places
}

// nameOf returns what a field is called, if somebody wants it.
func (r *reader) nameOf(id Short) (string, bool) {
	for _, f := range r.o.Fields {
		if f.ID == id {
			return f.Name, true
		}
	}
	return clockCount, id == fieldClocks && r.lists(clockCount)
}

// take makes samples of what was read.
func (r *reader) take(into *fleet.Samples, places []place, absent map[absence]int) {
	at := map[GroupEntityPair]int{}
	for i, p := range places {
		at[p.entity] = i
	}
	others := map[GroupEntityPair]*other{}
	for i := range r.w.others {
		others[r.w.others[i].entity] = &r.w.others[i]
	}
	config := map[Short]*Field{}
	for i := range r.o.Fields {
		config[r.o.Fields[i].ID] = &r.o.Fields[i]
	}
	// The labels first: they are part of every other sample of the entity.
	found := map[GroupEntityPair]labels{}
	for i := range r.values.Len() {
		v := r.values.At(i)
		if f := config[v.FieldID]; f != nil && f.Type == label && v.Status == StOk && !v.Blank {
			found[v.Entity] = append(found[v.Entity], fleet.Label{Name: f.Name, Value: r.textOf(v)})
		}
	}
	for e, l := range found {
		slices.SortFunc(l, func(x, y fleet.Label) int { return compare(x.Name, y.Name) })
		if o := others[e]; o != nil {
			l = append(o.identity(), l...)
		}
		r.labels[e] = l // and kept: what the GPU is called must not change when it is lost
	}
	oldest := r.now - r.o.ValuesFor.Microseconds()
	into.Values = slices.Grow(into.Values, r.values.Len())
	for i := range r.values.Len() {
		v := r.values.At(i)
		f, o := config[v.FieldID], others[v.Entity]
		n, ok := at[v.Entity]
		if f == nil || f.Type == label || !ok && (o == nil || o.hidden) {
			continue
		}
		p := &place{}
		if ok {
			p = &places[n]
		} else {
			n = fleet.NoGPU
			if r.labels[v.Entity] == nil {
				r.labels[v.Entity] = o.identity()
			}
		}
		if v.Status == StOk {
			p.newest = max(p.newest, v.Ts)
		}
		switch {
		case v.Status != StOk:
			p.paused = p.paused || v.FieldID.profiling() && v.Status.paused()
			absent[absence{f.Name, v.Status.String()}]++
		case v.Blank:
			p.blank++
			absent[absence{f.Name, "blank"}]++
		case v.Ts < oldest:
			p.stale++
			absent[absence{f.Name, "stale"}]++
		case v.Type == 'i' || v.Type == 't' || v.Type == 'd':
			p.seen++
			if ok && r.w.status[p.gpu] == EntityStatusLost {
				continue // of before
			}
			x := v.Float64
			if v.Type != 'd' {
				x = float64(v.Int64)
			}
			switch {
			case v.FieldID == fieldGPUUtil:
				p.busy = x
			case v.FieldID.profiling():
				p.profiled++
				p.idle = p.idle || v.FieldID == fieldEngineActive && x == 0
			}
			into.Values = append(into.Values, fleet.Sample{Field: f.Name, GPU: n, Value: x, Labels: r.labels[v.Entity]})
		default:
			absent[absence{f.Name, "not a number"}]++
		}
	}
}

// choose leaves a field of a whole GPU out where its MIG instances have it, unless the
// command line says otherwise: a sum over both would count twice.
func (r *reader) choose(into *fleet.Samples, places []place) {
	if !r.o.Devices.flexible() || len(r.w.instances) == 0 {
		return
	}
	type field struct {
		gpu  uint32
		name string
	}
	split := map[field]bool{}
	for _, v := range into.Values {
		if v.GPU >= 0 && places[v.GPU].entity.EntityGroupId == FE_GPU_I {
			split[field{places[v.GPU].gpu, v.Field}] = true
		}
	}
	into.Values = slices.DeleteFunc(into.Values, func(v fleet.Sample) bool {
		return v.GPU >= 0 && places[v.GPU].entity.EntityGroupId == FE_GPU && split[field{places[v.GPU].gpu, v.Field}]
	})
}

// selected reports whether values of a GPU or instance are shown.
func (r *reader) selected(p place) bool {
	if p.entity.EntityGroupId == FE_GPU_I {
		return r.o.Devices.part(p.entity.EntityId)
	}
	return r.o.Devices.whole(p.gpu)
}

func (r *reader) textOf(v FieldValue) string {
	switch v.Type {
	case 's':
		return r.values.Text(v)
	case 'd':
		return strconv.FormatFloat(v.Float64, 'f', -1, 64)
	}
	return strconv.FormatInt(v.Int64, 10)
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// judge tells GPUs of which the engine says that they are well and has no single value:
// nothing is known of them. When that is so of all, the engine has stopped asking the
// driver, as it does after XID 119 of any of them.
func (r *reader) judge(into *fleet.Samples, places []place) {
	well := 0
	r.w.silent = map[uint32]bool{}
	for i := range places {
		p := &places[i]
		if p.entity.EntityGroupId != FE_GPU || into.GPUs[i].Up != fleet.True {
			continue
		}
		well++
		if p.seen > 0 || p.blank+p.stale == 0 {
			continue
		}
		r.w.silent[p.gpu] = true
		for k := range places {
			if places[k].gpu == p.gpu && into.GPUs[k].Up == fleet.True {
				into.GPUs[k].Up = fleet.Unknown
			}
		}
	}
	st := stateOK
	if well > 0 && len(r.w.silent) == well {
		st = stateSilent
	}
	r.state(st)
}

// addXIDs shows the last XID of each entity as dcgm-exporter does, and how many of each
// there were lately.
func (r *reader) addXIDs(into *fleet.Samples, places []place) {
	last, counts := "", ""
	for _, f := range r.o.Fields {
		switch {
		case f.ID == fieldXID:
			last = f.Name
		case f.Name == xidCount:
			counts = f.Name
		}
	}
	now := time.UnixMicro(r.now) // by the engine's clock, as all their times
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	for _, l := range r.s.cursor.Last {
		if last == "" {
			break
		}
		at := r.placeOf(l, into.GPUs, places)
		if at < 0 {
			continue
		}
		if r.o.XIDFor > 0 && now.Sub(time.UnixMicro(l.At)) > r.o.XIDFor {
			continue
		}
		code := strconv.Itoa(l.Code)
		into.Values = append(into.Values, fleet.Sample{
			Field: last, GPU: at, Value: float64(l.Code),
			Labels: append(slices.Clone(r.labels[places[at].entity]),
				fleet.Label{Name: "err_code", Value: code}, fleet.Label{Name: "err_msg", Value: message(l.Code)}),
		})
	}
	if counts == "" {
		return
	}
	for at, p := range places {
		base := slices.Clone(r.labels[p.entity])
		base = append(base, fleet.Label{Name: "window_size_in_ms", Value: strconv.FormatInt(r.o.XIDWindow.Milliseconds(), 10)})
		sums := r.window.counts(p.entity, now)
		if len(sums) == 0 {
			into.Values = append(into.Values, fleet.Sample{Field: counts, GPU: at, Labels: base})
		}
		for _, code := range slices.Sorted(maps.Keys(sums)) {
			into.Values = append(into.Values, fleet.Sample{
				Field: counts, GPU: at, Value: float64(sums[code]),
				Labels: append(slices.Clone(base), fleet.Label{Name: "xid", Value: strconv.Itoa(code)}),
			})
		}
	}
}

// placeOf returns where the last XID of an entity is shown: there, or at the whole GPU where
// the entity is no place or has gone; -1 for nowhere.
func (r *reader) placeOf(l lastXIDView, gpus []fleet.SampledGPU, places []place) int {
	e := GroupEntityPair{l.Group, l.ID}
	at := slices.IndexFunc(places, func(p place) bool { return p.entity == e })
	if at >= 0 && (l.UUID == "" || gpus[at].UUID == l.UUID) {
		return at
	}
	if l.UUID != "" {
		return slices.IndexFunc(gpus, func(g fleet.SampledGPU) bool { return g.UUID == l.UUID && g.Instance == "" })
	}
	gpu, ok := r.gpuOf(e)
	if !ok {
		return -1
	}
	return slices.IndexFunc(places, func(p place) bool { return p.entity == GroupEntityPair{FE_GPU, gpu} })
}

// message says what a code means, in NVIDIA's words where its list has some.
func message(code int) string {
	if m, ok := messages[code]; ok {
		return m
	}
	if row, ok := xid.Lookup(code); ok {
		return row.Meaning
	}
	return "Unknown Error"
}

var messages = map[int]string{
	13: "Graphics Engine Exception", 31: "GPU memory page fault", 32: "Invalid or corrupted push buffer stream",
	43: "GPU stopped processing", 45: "Preemptive cleanup, due to previous errors", 48: "Double Bit ECC Error",
	74: "NVLINK Error", 79: "GPU has fallen off the bus", 92: "High single-bit ECC error rate",
	94: "Contained ECC error", 95: "Uncontained ECC error",
}
