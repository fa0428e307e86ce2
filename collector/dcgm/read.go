package dcgm

import (
	"maps"
	"regexp"
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
	seen   int // values that were there
	blank  int // values that were blank, though the engine called them fine
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
	w := r.w
	if err := r.readEvents(); err != nil {
		return err
	}
	places := r.list(values, full)
	if !full {
		return nil
	}
	absent := map[absence]int{}
	for f, why := range w.refused {
		absent[absence{r.nameOf(f), "refused: " + why.String()}] = len(w.gpuEntities)
	}
	for _, f := range r.o.Fields {
		switch {
		case slices.Contains(notMade, f.Name):
			absent[absence{f.Name, "not made by this collector"}] = len(w.gpuEntities)
		case f.Name == peerStatus:
			if err := r.readPeers(); err != nil {
				return err
			}
			if r.peers.why != "" {
				absent[absence{f.Name, r.peers.why}] = len(w.gpuEntities)
			}
		}
		if f.Type != label {
			values.Fields = append(values.Fields, fleet.Field{Name: f.Name, Type: f.Type, Help: f.Help})
		}
	}
	r.s.thread.During("reading values")
	for _, part := range []struct {
		entities []GroupEntityPair
		fields   []Short
	}{{w.gpuEntities, r.withFabric()}, {w.partEntities, w.partFields}} {
		if err := r.engine.EntitiesGetLatestValues(part.entities, part.fields, &r.values); err != nil {
			return err
		}
		values.Dropped += r.values.Cut()
		r.take(values, places, absent)
		r.takeFabric(part.fields)
	}
	values.NVLinks = append(values.NVLinks, r.fabric.links...)
	r.judge(values, places)
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
	values.Dropped += r.cut
	r.cut = 0
	r.s.mu.Lock()
	r.s.self.absent = absent
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
		ids, err := r.engine.GetEntityGroupEntities(FE_GPU, false)
		if err != nil {
			return err
		}
		slices.Sort(ids)
		again = again || !slices.Equal(ids[:min(len(ids), maxGPUs)], w.gpus)
		tree, err := r.hierarchy()
		if err != nil {
			return err
		}
		again = again || !slices.Equal(tree, w.tree)
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
		r.log.Info("GPUs or MIG instances have changed, watches are made anew")
		r.forget()
	}
	return nil
}

// readEvents reads the XIDs since the last time, and what else has happened.
func (r *reader) readEvents() error {
	w := r.w
	if w.xids == 0 {
		return nil
	}
	r.s.thread.During("reading XIDs")
	next, err := r.engine.GetValuesSince(w.xidGroup, w.xids, r.tape.since(), &r.events)
	if err != nil {
		return err
	}
	r.takeEvents()
	if w.others != 0 {
		if _, err := r.engine.GetValuesSince(w.gpuGroup, w.others, r.tape.since(), &r.events); err != nil {
			return err
		}
		r.takeEvents()
	}
	if next.UnixMicro() > 0 {
		r.tape.advance(next)
	}
	return nil
}

func (r *reader) takeEvents() {
	r.cut += r.events.Cut()
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	begin := r.s.cursor.Begin.UnixMicro()
	for i := range r.events.Len() {
		v := r.events.At(i)
		fresh, ok := r.tape.fresh(sample{v.Entity, v.FieldID, v.Ts, v.Int64})
		if !ok {
			r.cut++
		}
		if !fresh {
			continue
		}
		if v.FieldID == fieldBind {
			if v.Ts >= begin {
				r.log.Info("driver was attached or detached", "event", v.Int64)
			}
			continue
		}
		if v.FieldID != fieldXID || v.Int64 <= 0 || v.Int64 > maxCode {
			continue
		}
		code := int(v.Int64)
		r.s.cursor.newest(v.Entity, code, v.Ts)
		r.window.add(v.Entity, code, v.Ts)
		if v.Ts < begin {
			continue // history: nobody knows whether it was counted before
		}
		gpu, ok := r.gpuOf(v.Entity)
		if !ok || len(r.s.pending) >= maxPending {
			r.cut++
			continue
		}
		g, _ := r.who(gpu)
		r.s.pending = append(r.s.pending, event{sampled(g, fleet.Unknown), code, time.UnixMicro(v.Ts)})
	}
}

// maxCode is above every XID that there will be.
const maxCode = 99_999

// gpuOf returns the whole GPU that an entity is or is part of.
func (r *reader) gpuOf(e GroupEntityPair) (uint32, bool) {
	for range 3 {
		if e.EntityGroupId == FE_GPU {
			return e.EntityId, true
		}
		i := slices.IndexFunc(r.w.tree, func(m MigHierarchyInfo) bool { return m.Entity == e })
		if i < 0 {
			return 0, false
		}
		e = r.w.tree[i].Parent
	}
	return 0, false
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
	for _, id := range r.w.gpus {
		g, known := r.who(id)
		if known {
			taken[g.UUID] = true
		}
		st := r.w.status[id]
		count[st]++
		up := upOf(st)
		if !full && up == fleet.True && r.w.silent[id] {
			up = fleet.Unknown // only values can tell otherwise
		}
		into.GPUs = append(into.GPUs, sampled(g, up))
		places = append(places, place{entity: GroupEntityPair{FE_GPU, id}, gpu: id})
		for _, i := range r.w.instances {
			if i.gpu != id {
				continue
			}
			part := sampled(g, up)
			part.Instance, part.Profile = strconv.Itoa(int(i.number)), r.profile(i)
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

var isProfile = regexp.MustCompile(`^[0-9]+(c\.[0-9]+)?g\.[0-9]+gb`)

// profile names the kind of a MIG instance, as far as it is known.
func (r *reader) profile(i instance) string {
	for _, l := range r.labels[GroupEntityPair{FE_GPU_I, i.id}] {
		if l.Name == profileLabel {
			return l.Value
		}
	}
	return strconv.Itoa(int(i.slices)) + "g"
}

// profileLabel is where the profile is kept among the labels; no page may have it.
const profileLabel = "\x00profile"

func (r *reader) nameOf(id Short) string {
	for _, f := range r.o.Fields {
		if f.ID == id {
			return f.Name
		}
	}
	if id == fieldClocks {
		return clockCount
	}
	return strconv.Itoa(int(id))
}

// take makes samples of what was read.
func (r *reader) take(into *fleet.Samples, places []place, absent map[absence]int) {
	at := map[GroupEntityPair]int{}
	for i, p := range places {
		at[p.entity] = i
	}
	config := map[Short]*Field{}
	for i := range r.o.Fields {
		config[r.o.Fields[i].ID] = &r.o.Fields[i]
	}
	// The labels first: they are part of every other sample of the entity.
	found := map[GroupEntityPair]labels{}
	for i := range r.values.Len() {
		v := r.values.At(i)
		f := config[v.FieldID]
		if v.Status != StOk || v.Blank {
			continue
		}
		switch {
		case v.FieldID == 50 && v.Entity.EntityGroupId == FE_GPU_I:
			if name := r.values.Text(v); isProfile.MatchString(name) {
				found[v.Entity] = append(found[v.Entity], fleet.Label{Name: profileLabel, Value: name})
			}
		case f != nil && f.Type == label:
			found[v.Entity] = append(found[v.Entity], fleet.Label{Name: f.Name, Value: r.textOf(v)})
		}
	}
	for e, l := range found {
		slices.SortFunc(l, func(x, y fleet.Label) int { return compare(x.Name, y.Name) })
		r.labels[e] = l // and kept: what the GPU is called must not change when it is lost
		if i, ok := at[e]; ok && l[0].Name == profileLabel {
			into.GPUs[i].Profile = l[0].Value // known from the first page on
		}
	}
	into.Values = slices.Grow(into.Values, r.values.Len())
	for i := range r.values.Len() {
		v := r.values.At(i)
		f := config[v.FieldID]
		p, ok := at[v.Entity]
		if f == nil || f.Type == label || !ok {
			continue
		}
		switch {
		case v.Status != StOk:
			absent[absence{f.Name, v.Status.String()}]++
		case v.Blank:
			places[p].blank++
			absent[absence{f.Name, "blank"}]++
		case v.Type == 'i' || v.Type == 't' || v.Type == 'd':
			places[p].seen++
			if r.w.status[places[p].gpu] == EntityStatusLost {
				continue // of before
			}
			x := v.Float64
			if v.Type != 'd' {
				x = float64(v.Int64)
			}
			into.Values = append(into.Values, fleet.Sample{Field: f.Name, GPU: p, Value: x, Labels: shown(r.labels[v.Entity])})
		default:
			absent[absence{f.Name, "not a number"}]++
		}
	}
}

// shown leaves out what is kept among the labels and is none.
func shown(l labels) []fleet.Label {
	if len(l) > 0 && l[0].Name == profileLabel {
		return l[1:]
	}
	return l
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
		if p.seen > 0 || p.blank == 0 {
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
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	for _, l := range r.s.cursor.Last {
		if last == "" {
			break
		}
		e := GroupEntityPair{l.Group, l.ID}
		at := slices.IndexFunc(places, func(p place) bool { return p.entity == e })
		if at < 0 {
			gpu, ok := r.gpuOf(e)
			if at = slices.IndexFunc(places, func(p place) bool { return p.entity == GroupEntityPair{FE_GPU, gpu} }); !ok || at < 0 {
				continue
			}
		}
		if r.o.XIDFor > 0 && into.At.Sub(time.UnixMicro(l.At)) > r.o.XIDFor {
			continue
		}
		code := strconv.Itoa(l.Code)
		into.Values = append(into.Values, fleet.Sample{
			Field: last, GPU: at, Value: float64(l.Code),
			Labels: append(slices.Clone(shown(r.labels[places[at].entity])),
				fleet.Label{Name: "err_code", Value: code}, fleet.Label{Name: "err_msg", Value: message(l.Code)}),
		})
	}
	if counts == "" {
		return
	}
	for at, p := range places {
		base := slices.Clone(shown(r.labels[p.entity]))
		base = append(base, fleet.Label{Name: "window_size_in_ms", Value: strconv.FormatInt(r.o.XIDWindow.Milliseconds(), 10)})
		sums := r.window.counts(p.entity, into.At)
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
