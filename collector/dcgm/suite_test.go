//go:build cgo && linux

//nolint:thelper // each check is a test of its own, whose lines are to be named
package dcgm_test

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/collector/dcgm"
	"stoker.dev/stoker/collector/dcgm/fake"
	"stoker.dev/stoker/internal/fleet"
)

func checkVersions(t *testing.T, _ *subject, lib *dcgm.Library, e *dcgm.Engine) {
	ours, err := lib.Version()
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := e.Version()
	if err != nil {
		t.Fatal(err)
	}
	form := regexp.MustCompile(`^([0-9]+)\.[0-9]+\.[0-9]+`)
	a, b := form.FindStringSubmatch(ours), form.FindStringSubmatch(theirs)
	if a == nil || b == nil || a[1] != b[1] {
		t.Errorf("library %q, engine %q", ours, theirs)
	}
	t.Logf("library %s, engine %s", ours, theirs)
}

func checkEntities(t *testing.T, _ *subject, _ *dcgm.Library, e *dcgm.Engine) {
	all, err := e.GetEntityGroupEntities(dcgm.FE_GPU, false)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	if len(slices.Compact(slices.Clone(all))) != len(all) {
		t.Errorf("a GPU is listed twice: %v", all)
	}
	for _, id := range wells(t, e) {
		if !slices.Contains(all, id) {
			t.Errorf("GPU %d is supported and not there", id)
		}
		st, err := e.GetGpuStatus(id)
		if code := dcgm.CodeOf(err); code != dcgm.StOk && code != dcgm.StNoSymbol {
			t.Errorf("status of GPU %d: %v", id, err)
		}
		if err == nil && st != dcgm.EntityStatusOk && st != dcgm.EntityStatusFake {
			t.Errorf("GPU %d is supported and its status %d", id, st)
		}
	}
}

func checkAttributes(t *testing.T, _ *subject, _ *dcgm.Library, e *dcgm.Engine) {
	seen := map[string]uint32{}
	for _, id := range wells(t, e) {
		a, err := e.GetDeviceAttributes(id)
		if err != nil {
			t.Errorf("GPU %d: %v", id, err)
			continue
		}
		if a.UUID == "" || a.PCI == "" || a.Name == "" || strings.Contains(fmt.Sprint(a), "<<<") {
			t.Errorf("GPU %d is %+v", id, a)
		}
		if other, twice := seen[a.UUID]; twice {
			t.Errorf("GPUs %d and %d are both %s", other, id, a.UUID)
		}
		seen[a.UUID] = id
	}
	// One that does not exist is no error, and has no name.
	if a, err := e.GetDeviceAttributes(30); err == nil && seen[a.UUID] != 30 && a.UUID != "" {
		t.Errorf("GPU 30 is %+v", a)
	}
}

func checkHierarchy(t *testing.T, _ *subject, _ *dcgm.Library, e *dcgm.Engine) {
	tree, err := e.GetGPUInstanceHierarchy()
	if err != nil {
		if code := dcgm.CodeOf(err); code == dcgm.StVerMismatch || code == dcgm.StBadparam {
			t.Error(err)
		}
		t.Logf("no MIG: %v", err)
	}
	there := map[dcgm.GroupEntityPair]bool{}
	for _, id := range wells(t, e) {
		there[dcgm.GroupEntityPair{EntityGroupId: dcgm.FE_GPU, EntityId: id}] = true
	}
	for _, m := range tree {
		there[m.Entity] = true
	}
	for _, m := range tree {
		if m.Entity.EntityGroupId != dcgm.FE_GPU_I && m.Entity.EntityGroupId != dcgm.FE_GPU_CI || !there[m.Parent] {
			t.Errorf("%+v", m)
		}
	}
}

func checkGroups(t *testing.T, _ *subject, _ *dcgm.Library, e *dcgm.Engine) {
	id := wells(t, e)[0]
	g := group(t, e, id)
	entity := dcgm.GroupEntityPair{EntityGroupId: dcgm.FE_GPU, EntityId: id}
	wantCode(t, "a member twice", e.AddEntityToGroup(g, entity), dcgm.StBadparam)
	entity.EntityId = 31
	if err := e.AddEntityToGroup(g, entity); err == nil && !slices.Contains(wells(t, e), 31) {
		t.Error("a GPU that there is not was added")
	}
	other, err := e.CreateGroup(unique())
	if err != nil {
		t.Fatal(err)
	}
	if err := e.DestroyGroup(other); err != nil {
		t.Error(err)
	}
	if e.DestroyGroup(other) == nil {
		t.Error("a group was ended twice")
	}
}

func checkFieldGroups(t *testing.T, _ *subject, _ *dcgm.Library, e *dcgm.Engine) {
	name := unique()
	f, err := e.FieldGroupCreate(name, []dcgm.Short{150, 155})
	if err != nil {
		t.Fatal(err)
	}
	_, err = e.FieldGroupCreate(name, []dcgm.Short{150})
	wantCode(t, "a name twice", err, dcgm.StDuplicateKey)
	if err := e.FieldGroupDestroy(f); err != nil {
		t.Error(err)
	}
	_, err = e.FieldGroupCreate(unique(), []dcgm.Short{9999})
	wantCode(t, "a field that there is not", err, dcgm.StBadparam)
}

func checkLatest(t *testing.T, s *subject, _ *dcgm.Library, e *dcgm.Engine) {
	ids := wells(t, e)
	g := group(t, e, ids...)
	fields := []dcgm.Short{1, 54, 100, 150, 155, 156}
	watched(t, e, g, fields...)
	var entities []dcgm.GroupEntityPair
	for _, id := range ids {
		entities = append(entities, dcgm.GroupEntityPair{EntityGroupId: dcgm.FE_GPU, EntityId: id})
	}
	var v dcgm.Values
	defer v.Free()
	for range 3 { // the room is used again
		if err := e.EntitiesGetLatestValues(entities, fields, &v); err != nil {
			t.Fatal(err)
		}
		type key struct {
			entity dcgm.GroupEntityPair
			field  dcgm.Short
		}
		seen := map[key]int{}
		for i := range v.Len() {
			x := v.At(i)
			seen[key{x.Entity, x.FieldID}]++
			if x.Status != dcgm.StOk || x.Blank {
				if strings.HasPrefix(x.Status.String(), "result ") {
					t.Errorf("field %d has a status without a name: %d", x.FieldID, x.Status)
				}
				continue
			}
			if x.Ts <= 0 || time.Since(time.UnixMicro(x.Ts)).Abs() > time.Hour {
				t.Errorf("field %d is of %v", x.FieldID, time.UnixMicro(x.Ts))
			}
			switch x.Type {
			case 'i', 't':
				if x.Int64 >= math.MaxInt64-15 {
					t.Errorf("field %d is %d, a blank", x.FieldID, x.Int64)
				}
			case 'd':
				if !(x.Float64 < 1<<47) {
					t.Errorf("field %d is %v, a blank", x.FieldID, x.Float64)
				}
			case 's':
				if text := v.Text(x); text == "" || strings.Contains(text, "<<<") {
					t.Errorf("field %d is %q", x.FieldID, text)
				}
			default:
				t.Errorf("field %d is of type %q", x.FieldID, x.Type)
			}
		}
		if len(seen) != len(ids)*len(fields) || v.Len() != len(seen) || v.Cut() != 0 {
			t.Errorf("%d values of %d entities and fields, want %d; %d cut", v.Len(), len(seen), len(ids)*len(fields), v.Cut())
		}
	}
	// A field that this engine does not watch has a status, or, where somebody else
	// watches it, a value: never a nought.
	if err := e.EntitiesGetLatestValues(entities, []dcgm.Short{158}, &v); err != nil {
		t.Fatal(err)
	}
	for i := range v.Len() {
		if x := v.At(i); x.Status == dcgm.StOk && !x.Blank && x.Int64 == 0 {
			t.Error("a field that nobody watches is 0")
		} else if s.fake != nil && x.Status != dcgm.StNotWatched {
			t.Errorf("a field that nobody watches has the status %v", x.Status)
		}
	}
}

// checkRefused: a watch is refused whole, with a result that has a name, or taken whole.
func checkRefused(t *testing.T, s *subject, _ *dcgm.Library, e *dcgm.Engine) {
	if s.fake != nil {
		s.fake.Do(t, "refuse 1001 -33")
		defer s.fake.Do(t, "accept")
	}
	ids := wells(t, e)
	g := group(t, e, ids...)
	f, err := e.FieldGroupCreate(unique(), []dcgm.Short{203, 1001})
	if err != nil {
		t.Fatal(err)
	}
	err = e.WatchFields(g, f, time.Second, time.Minute, 0)
	code := dcgm.CodeOf(err)
	t.Logf("profiling: %v", err)
	if strings.HasPrefix(code.String(), "result ") {
		t.Errorf("refused for a reason without a name: %v", err)
	}
	if s.fake != nil && code != dcgm.StModuleNotLoaded {
		t.Errorf("err = %v, want that the module is not loaded", err)
	}
	if err == nil {
		if err := e.UnwatchFields(g, f); err != nil {
			t.Error(err)
		}
	}
	if err := e.FieldGroupDestroy(f); err != nil {
		t.Error(err)
	}
}

func checkSince(t *testing.T, _ *subject, _ *dcgm.Library, e *dcgm.Engine) {
	g := group(t, e, wells(t, e)...)
	f := watched(t, e, g, 230)
	var v dcgm.Values
	defer v.Free()
	since := time.Now().Add(-time.Minute)
	next, err := e.GetValuesSince(g, f, since, &v)
	if err != nil {
		t.Fatal(err)
	}
	if d := time.Since(next).Abs(); d > time.Minute {
		t.Errorf("the engine's clock is at %v, %v from ours", next, d)
	}
	for i := range v.Len() {
		if x := v.At(i); x.Ts < since.UnixMicro() || x.Int64 >= math.MaxInt64-15 || x.FieldID != 230 {
			t.Errorf("since %v: %+v", since, x)
		}
	}
	// From the end on there is nothing, and of nothing no blank is made.
	if next, err = e.GetValuesSince(g, f, next, &v); err != nil || v.Len() > 0 && v.At(0).Ts < since.UnixMicro() {
		t.Errorf("then %d values, until %v, %v", v.Len(), next, err)
	}
}

func checkHealth(t *testing.T, s *subject, _ *dcgm.Library, e *dcgm.Engine) {
	ids := wells(t, e)
	if s.fake != nil {
		s.fake.Do(t, "health %d 16 20 101", ids[0])
		defer s.fake.Do(t, "health-none")
	}
	g := group(t, e, ids...)
	if err := e.HealthSet(g, dcgm.HealthAll); err != nil {
		t.Fatal(err)
	}
	found, err := e.HealthCheck(g)
	if err != nil {
		t.Fatal(err)
	}
	if s.fake != nil && len(found) != 1 {
		t.Errorf("%d findings, want the one", len(found))
	}
	for _, x := range found {
		if x.Health != 10 && x.Health != 20 || x.System == 0 || x.System&(x.System-1) != 0 {
			t.Errorf("%+v", x)
		}
	}
}

func checkPolicy(t *testing.T, s *subject, _ *dcgm.Library, e *dcgm.Engine) {
	g := group(t, e, wells(t, e)...)
	err := e.PolicyXID(g)
	if code := dcgm.CodeOf(err); code == dcgm.StVerMismatch || code == dcgm.StBadparam {
		t.Errorf("register: %v", err)
	}
	t.Logf("register: %v", err)
	if err != nil && s.fake != nil {
		t.Errorf("register: %v", err)
	}
	if err == nil {
		if err := e.PolicyNone(g); err != nil {
			t.Errorf("unregister: %v", err)
		}
	}
}

// inject has an XID happen at a time, or says that this library can't.
func (s *subject) inject(t *testing.T, lib *dcgm.Library, e *dcgm.Engine, gpu uint32, at time.Time, code int64) bool {
	t.Helper()
	r, ok := fake.Inject(lib.Path(), e.Handle(), gpu, 230, at, code)
	if !ok {
		t.Logf("not asked: %s does not export dcgmInjectFieldValue", lib.Path())
		return false
	}
	if r != 0 {
		t.Fatalf("dcgmInjectFieldValue: %v", dcgm.Result(r))
	}
	return true
}

func checkInjected(t *testing.T, s *subject, lib *dcgm.Library, e *dcgm.Engine) {
	id := wells(t, e)[0]
	g := group(t, e, id)
	f := watched(t, e, g, 230)
	at := time.Now().Add(-20 * time.Millisecond).Truncate(time.Microsecond)
	for k, code := range []int64{31, 43, 43} { // one hidden by the next, and the same again
		if !s.inject(t, lib, e, id, at.Add(time.Duration(k)*time.Millisecond), code) {
			return
		}
	}
	var v dcgm.Values
	defer v.Free()
	// What else happens to the GPU, happens later.
	since := func(from time.Time) (got string) {
		if _, err := e.GetValuesSince(g, f, from, &v); err != nil {
			t.Fatal(err)
		}
		for i := range v.Len() {
			if x := v.At(i); time.UnixMicro(x.Ts).Before(at.Add(3 * time.Millisecond)) {
				got += fmt.Sprintf("%d of GPU %d after %v; ", x.Int64, x.Entity.EntityId, time.UnixMicro(x.Ts).Sub(at))
			}
		}
		return got
	}
	second := fmt.Sprintf("43 of GPU %d after 1ms; 43 of GPU %d after 2ms; ", id, id)
	if got, want := since(at), fmt.Sprintf("31 of GPU %d after 0s; ", id)+second; got != want {
		t.Errorf("since then %q, want %q", got, want)
	}
	if got := since(at.Add(time.Millisecond)); got != second {
		t.Errorf("from the second on %q, want %q", got, second)
	}
}

func checkDisconnect(t *testing.T, s *subject, lib *dcgm.Library, _ *dcgm.Engine) {
	e, err := lib.Connect(s.address, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	g, err := e.CreateGroup(unique())
	if err != nil {
		t.Fatal(err)
	}
	if err := e.DestroyGroup(g); err != nil {
		t.Fatal(err)
	}
	if err := e.Disconnect(); err != nil {
		t.Fatal(err)
	}
	_, err = e.Version()
	wantCode(t, "a call over a connection that has ended", err, dcgm.StConnectionNotValid)
	again := s.connect(t, lib)
	ids := wells(t, again)
	watched(t, again, group(t, again, ids...), 150) // all is made anew
}

func checkTwo(t *testing.T, s *subject, lib *dcgm.Library, e *dcgm.Engine) {
	ids := wells(t, e)
	watched(t, e, group(t, e, ids...), 150)
	other, err := lib.Connect(s.address, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if got := wells(t, other); !slices.Equal(got, ids) {
		t.Errorf("the second has the GPUs %v, the first %v", got, ids)
	}
	if err := other.Disconnect(); err != nil {
		t.Fatal(err)
	}
	var v dcgm.Values
	defer v.Free()
	pairs := []dcgm.GroupEntityPair{{EntityGroupId: dcgm.FE_GPU, EntityId: ids[0]}}
	if err := e.EntitiesGetLatestValues(pairs, []dcgm.Short{150}, &v); err != nil || v.Len() != 1 || v.At(0).Status == dcgm.StNotWatched {
		t.Errorf("after the second has gone: %d values, %v", v.Len(), err)
	}
}

func checkSource(t *testing.T, s *subject, _ *dcgm.Library, _ *dcgm.Engine) {
	src := s.source(t)
	first, err := collect(t, src)
	if err != nil {
		t.Fatal(err)
	}
	if len(first.GPUs) == 0 {
		t.Fatal("the engine has no GPU")
	}
	if s.fake == nil {
		time.Sleep(1500 * time.Millisecond) // rates need two samples
	}
	got, err := collect(t, src)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for i, g := range got.GPUs {
		if g.Up == fleet.True && (g.UUID == "" || g.PCI == "" || g.Model == "") {
			t.Errorf("GPU %d is well and not known: %+v", g.Index, g)
		}
		if strings.Contains(g.UUID+g.PCI+g.Model, "<<<") {
			t.Errorf("GPU %d is called by a blank: %+v", g.Index, g)
		}
		if k := g.UUID + "/" + g.Instance; g.UUID != "" && seen[k] {
			t.Errorf("%s is listed twice", k)
		} else {
			seen[k] = true
		}
		if g.Instance == "" && g.Up == fleet.True && !slices.ContainsFunc(got.Values, func(v fleet.Sample) bool { return v.GPU == i }) {
			t.Errorf("GPU %d is well and has no value", g.Index)
		}
	}
	for _, v := range got.Values {
		if v.Value >= 1<<47 && !strings.Contains(v.Field, "ENERGY") || v.Value != v.Value {
			t.Errorf("%s of GPU %d is %v: a blank", v.Field, v.GPU, v.Value)
		}
		for _, l := range v.Labels {
			if strings.Contains(l.Value, "<<<") {
				t.Errorf("%s has the label %s=%s", v.Field, l.Name, l.Value)
			}
		}
	}
	wantLine(t, src, "stoker_dcgm_connects_total 1")
	wantLine(t, src, `stoker_dcgm_state{state="ok"} 1`)
	if err := src.CollectEvents(t.Context(), &fleet.Samples{At: time.Now()}); err != nil {
		t.Error(err)
	}
}

// checkSources: what a source has made in the engine goes with it. There is room for 62
// groups.
func checkSources(t *testing.T, s *subject, _ *dcgm.Library, _ *dcgm.Engine) {
	for range 25 {
		src := s.source(t)
		if _, err := collect(t, src); err != nil {
			t.Fatal(err)
		}
		(&node{t: t}).close(src)
	}
}

func checkSourceXID(t *testing.T, s *subject, lib *dcgm.Library, e *dcgm.Engine) {
	src := s.source(t)
	if _, err := collect(t, src); err != nil {
		t.Fatal(err)
	}
	id := wells(t, e)[0]
	if !s.inject(t, lib, e, id, time.Now(), 45) {
		return
	}
	into := &fleet.Samples{At: time.Now()}
	if err := src.CollectEvents(t.Context(), into); err != nil {
		t.Fatal(err)
	}
	if got := xids(into, int(id)); !slices.Contains(got, 45) {
		t.Errorf("told of %v, want the 45", got)
	}
}
