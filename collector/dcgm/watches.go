package dcgm

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// How the engine is to watch.
const (
	keepSamples = 2 // of a gauge: the newest is what is read
	keepEvents  = 10 * time.Minute
	eventPace   = time.Second // events are written when they happen; this is only for keeping them
)

// watches are what was made in an engine, and what is known of its GPUs.
type watches struct {
	gpus      []uint32 // by number
	status    map[uint32]EntityStatus
	inside    map[uint32]bool // in the groups
	named     map[uint32]bool // who it is was asked and answered
	instances []instance
	tree      []MigHierarchyInfo

	groups    []GroupHandle
	fields    []FieldHandle
	on        []watch
	gpuGroup  GroupHandle // whole GPUs
	partGroup GroupHandle // MIG instances
	xidGroup  GroupHandle // both, and compute instances
	xids      FieldHandle
	others    FieldHandle // events of whole GPUs; 0 where the engine has none
	clocks    FieldHandle // why clocks were held down; 0 where nobody wants to know
	policy    bool
	health    bool
	silent    map[uint32]bool // well, and without any value
	fabric    bool            // NVLink domains are watched

	gpuEntities, partEntities []GroupEntityPair
	gpuFields, partFields     []Short
	refused                   map[Short]Result
}

type watch struct {
	group  GroupHandle
	fields FieldHandle
}

// An instance is one GPU instance.
type instance struct {
	id, gpu uint32
	number  uint32 // as NVML counts on its GPU
	slices  uint32
}

// setup makes groups and watches in the engine. What it returns is to be removed, also
// on an error. A GPU that is lost and a field that is refused are left out.
func (r *reader) setup() (*watches, error) {
	w := &watches{
		status: map[uint32]EntityStatus{}, inside: map[uint32]bool{}, named: map[uint32]bool{}, refused: map[Short]Result{},
	}
	r.s.thread.During("listing GPUs")
	ids, err := r.engine.GetEntityGroupEntities(FE_GPU, false)
	if err != nil {
		return w, err
	}
	slices.Sort(ids)
	w.gpus = ids[:min(len(ids), maxGPUs)]
	if err := r.statuses(w); err != nil {
		return w, err
	}
	clear(r.here)
	for _, id := range w.gpus {
		if w.status[id] != EntityStatusOk && w.status[id] != EntityStatusFake {
			continue
		}
		if w.named[id], err = r.identify(id); err != nil && broken(err) {
			return w, err
		}
	}
	if w.tree, err = r.hierarchy(); err != nil {
		return w, err
	}
	for _, m := range w.tree {
		if m.Entity.EntityGroupId == FE_GPU_I && m.Parent.EntityGroupId == FE_GPU {
			w.instances = append(w.instances, instance{m.Entity.EntityId, m.Parent.EntityId, m.Instance, m.Slices})
		}
	}
	if err := r.groups(w); err != nil {
		return w, err
	}
	return w, r.watchAll(w)
}

// broken reports whether an error is of the engine or the connection, and not of what
// was asked for.
func broken(err error) bool {
	code := codeOf(err)
	return code.gone() || code == StTimeout || code == StNvmlNotLoaded || code == StNvmlDriverTimeout || code == StGpusDetached
}

// hierarchy returns the MIG instances; none where there is no MIG.
func (r *reader) hierarchy() ([]MigHierarchyInfo, error) {
	r.s.thread.During("listing MIG instances")
	tree, err := r.engine.GetGPUInstanceHierarchy()
	if err != nil && !broken(err) {
		return nil, nil // an engine without MIG says so in several ways
	}
	return tree, err
}

// statuses asks which GPUs can be asked.
func (r *reader) statuses(w *watches) error {
	r.s.thread.During("asking which GPUs are there")
	well, err := r.engine.GetEntityGroupEntities(FE_GPU, true)
	if err != nil {
		return err
	}
	for _, id := range w.gpus {
		if slices.Contains(well, id) {
			w.status[id] = EntityStatusOk
			continue
		}
		st, err := r.engine.GetGpuStatus(id)
		switch {
		case codeOf(err) == StNoSymbol:
			st = EntityStatusLost // older engines list what they support and what they have lost
		case err != nil && broken(err):
			return err
		case err != nil:
			st = EntityStatusUnknown
		}
		w.status[id] = st
	}
	return nil
}

// groups makes the groups of entities.
func (r *reader) groups(w *watches) error {
	r.s.thread.During("making groups")
	for _, g := range []*GroupHandle{&w.gpuGroup, &w.partGroup, &w.xidGroup} {
		h, err := r.engine.CreateGroup(r.groupName())
		if err != nil {
			return err
		}
		*g = h
		w.groups = append(w.groups, h)
	}
	add := func(e GroupEntityPair, to ...GroupHandle) (bool, error) {
		for _, g := range to {
			if err := r.engine.AddEntityToGroup(g, e); err != nil {
				if broken(err) {
					return false, err
				}
				r.log.Debug("entity can't be watched", "entity", e.EntityId, "kind", int(e.EntityGroupId), "err", err)
				return false, nil
			}
		}
		return true, nil
	}
	for _, id := range w.gpus {
		if st := w.status[id]; st == EntityStatusLost || st == EntityStatusDetached {
			continue
		}
		e := GroupEntityPair{FE_GPU, id}
		ok, err := add(e, w.gpuGroup, w.xidGroup)
		if err != nil {
			return err
		}
		if ok {
			w.inside[id] = true
			w.gpuEntities = append(w.gpuEntities, e)
		}
	}
	for _, i := range w.instances {
		if !w.inside[i.gpu] {
			continue
		}
		e := GroupEntityPair{FE_GPU_I, i.id}
		ok, err := add(e, w.partGroup, w.xidGroup)
		if err != nil {
			return err
		}
		if ok {
			w.partEntities = append(w.partEntities, e)
		}
	}
	for _, m := range w.tree {
		if m.Entity.EntityGroupId != FE_GPU_CI {
			continue
		}
		if _, err := add(m.Entity, w.xidGroup); err != nil {
			return err
		}
	}
	return nil
}

// watchAll has the engine read the fields. Profiling is in groups of its own: another
// program may hold it.
func (r *reader) watchAll(w *watches) error {
	if len(w.gpuEntities) == 0 {
		return nil
	}
	r.s.thread.During("starting watches")
	// The events first: what else there is room for is worth less.
	var err error
	if w.xids, err = r.watchEvents(w, w.xidGroup, fieldXID); err != nil {
		return err
	}
	if w.xids == 0 {
		return fmt.Errorf("the engine does not watch XIDs: %v", w.refused[fieldXID])
	}
	if w.others, err = r.watchEvents(w, w.gpuGroup, fieldBind); err != nil {
		return err
	}
	if r.lists(clockCount) {
		if w.clocks, err = r.watchEvents(w, w.gpuGroup, fieldClocks); err != nil {
			return err
		}
	}
	var plain, profiling, parts, partsProfiling []Short
	seen := map[Short]bool{}
	for _, f := range r.o.Fields {
		if f.ID == 0 || f.ID == fieldXID || seen[f.ID] {
			continue
		}
		seen[f.ID] = true
		if f.ID.profiling() {
			profiling = append(profiling, f.ID)
		} else {
			plain = append(plain, f.ID)
		}
		if f.ID.ofInstance() {
			if f.ID.profiling() {
				partsProfiling = append(partsProfiling, f.ID)
			} else {
				parts = append(parts, f.ID)
			}
		}
	}
	type set struct {
		group  GroupHandle
		fields []Short
		into   *[]Short
	}
	sets := []set{{w.gpuGroup, plain, &w.gpuFields}, {w.gpuGroup, profiling, &w.gpuFields}}
	if len(w.partEntities) > 0 {
		if !slices.Contains(parts, 50) {
			parts = append(parts, 50) // the profile's name
		}
		sets = append(sets, set{w.partGroup, parts, &w.partFields}, set{w.partGroup, partsProfiling, &w.partFields})
	}
	for _, s := range sets {
		for part := range slices.Chunk(s.fields, 128) {
			on, err := r.watch(w, s.group, part, r.o.Watch, 0, keepSamples)
			if err != nil {
				return err
			}
			*s.into = append(*s.into, on...)
		}
	}
	if err := r.watchFabric(w); err != nil {
		return err
	}
	// Both only add to what is read anyway.
	w.policy = r.engine.PolicyXID(w.gpuGroup) == nil
	if r.lists(healthStatus) {
		w.health = r.engine.HealthSet(w.gpuGroup, HealthAll) == nil
	}
	return nil
}

// lists reports whether a family is wanted.
func (r *reader) lists(name string) bool {
	return slices.ContainsFunc(r.o.Fields, func(f Field) bool { return f.Name == name })
}

// watchEvents watches one field whose samples are events; 0 when the engine refuses.
func (r *reader) watchEvents(w *watches, group GroupHandle, field Short) (FieldHandle, error) {
	on, err := r.watch(w, group, []Short{field}, eventPace, keepEvents, 0)
	if err != nil || len(on) == 0 {
		return 0, err
	}
	return w.fields[len(w.fields)-1], nil
}

// watch starts a watch of as many of the fields as the engine takes, which are returned.
// It takes all or none, so what is refused is halved until it is one field.
func (r *reader) watch(w *watches, group GroupHandle, fields []Short, every, keep time.Duration, samples int) ([]Short, error) {
	if len(fields) == 0 {
		return nil, nil
	}
	h, err := r.engine.FieldGroupCreate(r.groupName(), fields)
	if err == nil {
		if err = r.engine.WatchFields(group, h, every, keep, samples); err == nil {
			w.fields = append(w.fields, h)
			w.on = append(w.on, watch{group, h})
			return fields, nil
		}
		if broken(err) {
			return nil, errors.Join(err, r.engine.FieldGroupDestroy(h))
		}
		if gone := r.engine.FieldGroupDestroy(h); gone != nil {
			return nil, gone
		}
	}
	if broken(err) {
		return nil, err
	}
	if len(fields) == 1 || codeOf(err) == StMaxLimit {
		for _, f := range fields {
			w.refused[f] = codeOf(err)
		}
		r.log.Info("fields can't be watched", "fields", fields, "err", err)
		return nil, nil
	}
	half := len(fields) / 2
	first, err := r.watch(w, group, fields[:half], every, keep, samples)
	if err != nil {
		return nil, err
	}
	second, err := r.watch(w, group, fields[half:], every, keep, samples)
	if err != nil {
		return nil, err
	}
	return append(slices.Clone(first), second...), nil
}

// remove takes everything out of the engine again. It stops at the first sign that the
// engine does not answer.
func (w *watches) remove(r *reader) {
	if w == nil || r.engine == nil {
		return
	}
	r.s.thread.During("ending watches")
	var steps []func() error
	if w.policy {
		steps = append(steps, func() error { return r.engine.PolicyNone(w.gpuGroup) })
	}
	for _, x := range w.on {
		steps = append(steps, func() error { return r.engine.UnwatchFields(x.group, x.fields) })
	}
	for _, f := range w.fields {
		steps = append(steps, func() error { return r.engine.FieldGroupDestroy(f) })
	}
	for _, g := range w.groups {
		steps = append(steps, func() error { return r.engine.DestroyGroup(g) })
	}
	for _, step := range steps {
		if code := codeOf(step()); code == StConnectionNotValid || code == StTimeout || code == StUninitialized {
			return
		}
	}
}
