package dcgm

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// How the engine is to watch.
const (
	keepSamples = 2 // of a gauge: the newest is what is read
	keepEvents  = 10 * time.Minute
	eventPace   = time.Second // events are written when they happen; this is only for keeping them
)

// watches are what was made in an engine, and what is known of its entities.
type watches struct {
	gpus      []uint32 // by number
	status    map[uint32]EntityStatus
	inside    map[uint32]bool // in the groups
	named     map[uint32]bool // who it is was asked and answered
	instances []instance
	tree      []MigHierarchyInfo
	others    []other // that are no GPUs
	listed    time.Time

	groups    []GroupHandle
	on        []watch
	parts     []*part
	whole     *part // the GPUs; never nil
	gpuGroup  GroupHandle
	events    []watch // of fields whose samples are events
	tellsLink bool
	clocks    FieldHandle // why clocks were held down; 0 where nobody wants to know
	policy    bool
	health    bool
	silent    map[uint32]bool // well, and without any value
	fabric    bool            // NVLink domains are watched
	refused   map[Short]Result

	facts      map[fact]string
	askedFacts time.Time

	doubts    map[uint32]int // readings in a row in which a GPU's profiling told nothing that can be believed
	rewatch   bool           // profiling is to be watched anew
	rewatched time.Time
}

// A part is a group of entities of one kind, which are watched and read alike.
type part struct {
	kind        FieldEntityGroup
	group       GroupHandle
	entities    []GroupEntityPair
	fields      []Short // that are watched, but for those of profiling
	profiling   []Short // that are wanted of profiling
	profiled    []Short // that are watched of them
	profilingOn []watch
	why         Result  // why one of them is refused
	facts       []Short // that are read once
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
		whole: &part{kind: FE_GPU}, facts: map[fact]string{}, doubts: map[uint32]int{}, listed: r.at,
	}
	r.s.thread.During("listing GPUs")
	var err error
	if w.gpus, err = r.gpus(); err != nil {
		return w, err
	}
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
	if err := r.makeGroups(w); err != nil {
		return w, err
	}
	if err := r.watchAll(w); err != nil {
		return w, err
	}
	return w, r.readFacts(w)
}

// gpus returns the numbers of the GPUs, also of those that are lost, each once and in order.
func (r *reader) gpus() ([]uint32, error) {
	ids, err := r.engine.GetEntityGroupEntities(FE_GPU, false)
	slices.Sort(ids)
	ids = slices.Compact(ids)
	return ids[:min(len(ids), maxGPUs)], err
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

// groupRoom is how many entities a group may have: 64 in DCGM 3.
func (r *reader) groupRoom() int {
	if strings.HasPrefix(r.version, "3.") {
		return 64
	}
	return maxEntities
}

// makeGroups makes the groups of entities.
func (r *reader) makeGroups(w *watches) error {
	r.s.thread.During("making groups")
	var gpus []GroupEntityPair
	for _, id := range w.gpus {
		if st := w.status[id]; st != EntityStatusLost && st != EntityStatusDetached {
			gpus = append(gpus, GroupEntityPair{FE_GPU, id})
		}
	}
	whole, err := r.part(w, FE_GPU, gpus)
	if err != nil {
		return err
	}
	if whole != nil {
		w.whole, w.gpuGroup = whole, whole.group
		for _, e := range whole.entities {
			w.inside[e.EntityId] = true
		}
	}
	sets := map[FieldEntityGroup][]GroupEntityPair{}
	add := func(e GroupEntityPair) { sets[e.EntityGroupId] = append(sets[e.EntityGroupId], e) }
	for _, i := range w.instances {
		if w.inside[i.gpu] {
			add(GroupEntityPair{FE_GPU_I, i.id})
		}
	}
	for _, m := range w.tree {
		if m.Entity.EntityGroupId == FE_GPU_CI {
			add(m.Entity)
		}
	}
	if w.others, err = r.others(w); err != nil {
		return err
	}
	for _, o := range w.others {
		delete(r.labels, o.entity) // it may be another one now
		add(o.entity)
	}
	for _, kind := range []FieldEntityGroup{FE_GPU_I, FE_GPU_CI, FE_SWITCH, FE_LINK, FE_CPU, FE_CPU_CORE} {
		for some := range slices.Chunk(sets[kind], r.groupRoom()) {
			if _, err := r.part(w, kind, some); err != nil {
				return err
			}
		}
	}
	return nil
}

// part makes the group of a part; nil where none of its entities can be watched.
func (r *reader) part(w *watches, kind FieldEntityGroup, entities []GroupEntityPair) (*part, error) {
	if len(entities) == 0 {
		return nil, nil
	}
	group, in, err := r.group(w, entities)
	if err != nil || len(in) == 0 {
		return nil, err
	}
	p := &part{kind: kind, group: group, entities: in}
	w.parts = append(w.parts, p)
	return p, nil
}

// group makes a group and returns which entities the engine has taken into it.
func (r *reader) group(w *watches, entities []GroupEntityPair) (GroupHandle, []GroupEntityPair, error) {
	g, err := r.engine.CreateGroup(r.groupName())
	if err != nil {
		return 0, nil, err
	}
	w.groups = append(w.groups, g)
	var in []GroupEntityPair
	for _, e := range entities {
		err := r.engine.AddEntityToGroup(g, e)
		switch {
		case err == nil:
			in = append(in, e)
		case broken(err):
			return 0, nil, err
		default:
			r.log.Info("entity can't be watched", "entity", e.EntityId, "kind", int(e.EntityGroupId), "err", err)
		}
	}
	return g, in, nil
}

// watchAll has the engine read the fields. Profiling is in groups of its own: another
// program may hold it.
func (r *reader) watchAll(w *watches) error {
	r.s.thread.During("starting watches")
	// The events first: what else there is room for is worth less.
	if err := r.watchEvents(w); err != nil {
		return err
	}
	for _, p := range w.parts {
		var plain []Short
		plain, p.profiling = r.fieldsOf(p.kind)
		p.facts = factsOf[p.kind]
		for some := range slices.Chunk(plain, 128) {
			on, err := r.watch(w, p.group, some, r.o.Watch, 0, keepSamples)
			if err != nil {
				return err
			}
			p.fields = append(p.fields, on...)
		}
		if err := r.watchProfiling(w, p); err != nil {
			return err
		}
		if _, err := r.watch(w, p.group, p.facts, factsEvery, 0, keepSamples); err != nil {
			return err
		}
	}
	if len(w.whole.entities) == 0 {
		return nil
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

// watchEvents watches the fields whose samples are events.
func (r *reader) watchEvents(w *watches) error {
	begin := func(group GroupHandle, fields ...Short) ([]Short, error) {
		before := len(w.on)
		on, err := r.watch(w, group, fields, eventPace, keepEvents, 0)
		w.events = append(w.events, w.on[before:]...)
		return on, err
	}
	// XIDs are told of GPUs, instances and compute instances, in one call where there is room.
	var all []GroupEntityPair
	for _, p := range w.parts {
		switch p.kind {
		case FE_GPU, FE_GPU_I, FE_GPU_CI:
			all = append(all, p.entities...)
		case FE_SWITCH:
			if _, err := begin(p.group, fieldFatalSXID, fieldSXID); err != nil {
				return err
			}
		case FE_NONE, FE_VGPU, FE_LINK, FE_CPU, FE_CPU_CORE:
		}
	}
	for some := range slices.Chunk(all, r.groupRoom()) {
		group, _, err := r.group(w, some)
		if err != nil {
			return err
		}
		on, err := begin(group, fieldXID)
		if err != nil {
			return err
		}
		if len(on) == 0 {
			return fmt.Errorf("the engine does not watch XIDs: %v", w.refused[fieldXID])
		}
	}
	if len(w.whole.entities) == 0 {
		return nil
	}
	on, err := begin(w.gpuGroup, fieldNVLink, fieldBind)
	if err != nil {
		return err
	}
	w.tellsLink = slices.Contains(on, fieldNVLink)
	if !r.lists(clockCount) {
		return nil
	}
	before := len(w.on)
	if on, err = r.watch(w, w.gpuGroup, []Short{fieldClocks}, eventPace, keepEvents, 0); len(on) > 0 {
		w.clocks = w.on[before].fields
	}
	return err
}

// lists reports whether a family is wanted.
func (r *reader) lists(name string) bool {
	return slices.ContainsFunc(r.o.Fields, func(f Field) bool { return f.Name == name })
}

// watch starts a watch of as many of the fields as the engine takes, which are returned.
// It takes all or none, so what is refused is halved until it is one field.
func (r *reader) watch(w *watches, group GroupHandle, fields []Short, every, keep time.Duration, samples int) ([]Short, error) {
	if len(fields) == 0 {
		return nil, nil
	}
	h, err := r.engine.FieldGroupCreate(r.groupName(), fields)
	if err == nil {
		err = r.engine.WatchFields(group, h, every, keep, samples)
		// The engine reads all fields once before it answers. A GPU whose driver calls hang
		// makes that take longer than the library waits, and the watch is there nevertheless.
		if err == nil || codeOf(err) == StTimeout {
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

// remove takes everything out of the engine again and reports whether it is out. It stops at
// the first sign that the engine does not answer.
func (w *watches) remove(r *reader) (out bool) {
	if w == nil || r.engine == nil {
		return true
	}
	r.s.thread.During("ending watches")
	var steps []func() error
	if w.policy {
		steps = append(steps, func() error { return r.engine.PolicyNone(w.gpuGroup) })
	}
	for _, x := range w.on {
		steps = append(steps, func() error { return r.engine.UnwatchFields(x.group, x.fields) })
	}
	for _, x := range w.on {
		steps = append(steps, func() error { return r.engine.FieldGroupDestroy(x.fields) })
	}
	for _, g := range w.groups {
		steps = append(steps, func() error { return r.engine.DestroyGroup(g) })
	}
	for _, step := range steps {
		if code := codeOf(step()); code == StConnectionNotValid || code == StTimeout || code == StUninitialized {
			return false
		}
	}
	return true
}
