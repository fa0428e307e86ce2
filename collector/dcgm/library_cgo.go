//go:build cgo && linux

package dcgm

// #cgo CFLAGS: -D_GNU_SOURCE -O2
// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "binding.h"
import "C"

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
	"unsafe"
)

// Bounds of one reading's room.
const (
	maxRaw     = 4 << 20 // bytes; the engine is asked in several parts over that
	maxSamples = 1 << 18
	rawSize    = int(unsafe.Sizeof(C.struct_abi_value_v2{}))
)

// A Library is a libdcgm that was opened. It is used by one goroutine at a time, which
// should keep to one thread: every call may block for a minute, or for ever.
type Library struct {
	d    *C.struct_dcgm
	path string
}

// Open opens the first of the libraries that there is, those of [Libraries] if none is
// named. The error says of each why it can't be opened.
func Open(paths ...string) (*Library, error) {
	if len(paths) == 0 {
		paths = Libraries
	}
	var errs []error
	for _, path := range paths {
		p := C.CString(path)
		var why *C.char
		d := C.dcgm_open(p, &why)
		C.free(unsafe.Pointer(p))
		if d != nil {
			return &Library{d, path}, nil
		}
		errs = append(errs, errors.New(C.GoString(why)))
		C.free(unsafe.Pointer(why))
	}
	return nil, fmt.Errorf("open libdcgm: %w", errors.Join(errs...))
}

// Path returns the name under which the library was found.
func (l *Library) Path() string { return l.path }

// Close gives back what the binding holds. The library itself stays loaded.
func (l *Library) Close() { C.dcgm_close(l.d) }

// Init must be called once before anything else.
func (l *Library) Init() error { return result("dcgmInit", int32(C.dcgm_init(l.d))) }

// Version returns the library's version, such as 4.6.0.
func (l *Library) Version() (string, error) {
	var info C.struct_abi_version_info
	if err := result("dcgmVersionInfo", int32(C.dcgm_library_version(l.d, &info))); err != nil {
		return "", err
	}
	return versionIn(text(&info.text[0], len(info.text))), nil
}

// Wake returns a file that can be read, 8 bytes at a time, whenever an engine has told
// of an XID after [Engine.PolicyXID]. The caller closes it.
func (l *Library) Wake() *os.File {
	return os.NewFile(uintptr(C.dcgm_wake_fd(l.d)), "dcgm wake-up")
}

// Connect connects to an engine at host, host:port or the path of a unix socket.
func (l *Library) Connect(address string, timeout time.Duration) (*Engine, error) {
	a := C.CString(strings.TrimPrefix(address, "unix://"))
	defer C.free(unsafe.Pointer(a))
	unix := C.int(0)
	if isSocket(address) {
		unix = 1
	}
	var h C.uintptr_t
	err := result("dcgmConnect_v2", int32(C.dcgm_connect(l.d, a, unix, C.uint32_t(timeout.Milliseconds()), &h)))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	return &Engine{l: l, h: h}, nil
}

// Embed starts an engine in this process.
func (l *Library) Embed() (*Engine, error) {
	var h C.uintptr_t
	if err := result("dcgmStartEmbedded_v2", int32(C.dcgm_embed(l.d, &h))); err != nil {
		return nil, err
	}
	return &Engine{l: l, h: h, embedded: true}, nil
}

// An Engine is a connection to an engine, or the one in this process.
type Engine struct {
	l        *Library
	h        C.uintptr_t
	embedded bool
}

// Embedded reports whether the engine is in this process.
func (e *Engine) Embedded() bool { return e.embedded }

// Disconnect ends the connection, or the engine in this process. Groups and watches end with it.
func (e *Engine) Disconnect() error {
	if e.embedded {
		return result("dcgmStopEmbedded", int32(C.dcgm_unembed(e.l.d, e.h)))
	}
	return result("dcgmDisconnect", int32(C.dcgm_disconnect(e.l.d, e.h)))
}

// Version returns the engine's version, such as 4.6.0.
func (e *Engine) Version() (string, error) {
	var info C.struct_abi_version_info
	if err := result("dcgmHostengineVersionInfo", int32(C.dcgm_version(e.l.d, e.h, &info))); err != nil {
		return "", err
	}
	return versionIn(text(&info.text[0], len(info.text))), nil
}

// GetEntityGroupEntities returns the entities of a kind; with supported only those that
// can be asked now.
func (e *Engine) GetEntityGroupEntities(group FieldEntityGroup, supported bool) ([]uint32, error) {
	ids := make([]uint32, 64)
	flags := C.uint32_t(0)
	if supported {
		flags = 1
	}
	for {
		n := C.int(len(ids))
		err := result("dcgmGetEntityGroupEntities", int32(C.dcgm_entities(e.l.d, e.h, C.uint32_t(group), (*C.uint32_t)(&ids[0]), &n, flags)))
		if codeOf(err) == StInsufficientSize && int(n) > len(ids) && n <= C.ABI_MAX_ENTITIES {
			ids = make([]uint32, n)
			continue
		}
		if err != nil {
			return nil, err
		}
		if n < 0 || int(n) > len(ids) {
			return nil, fmt.Errorf("dcgmGetEntityGroupEntities: %d entities", n)
		}
		return ids[:n], nil
	}
}

// GetGpuStatus returns what the engine says of a GPU. Older libraries can't tell.
func (e *Engine) GetGpuStatus(gpu uint32) (EntityStatus, error) {
	var s C.uint32_t
	err := result("dcgmGetGpuStatus", int32(C.dcgm_gpu_status(e.l.d, e.h, C.uint32_t(gpu), &s)))
	return EntityStatus(s), err
}

// GetDeviceAttributes asks the driver who a GPU is. It may block on a sick one, and
// texts of a lost one are empty.
func (e *Engine) GetDeviceAttributes(gpu uint32) (DeviceAttributes, error) {
	a := (*C.struct_abi_attributes)(C.malloc(C.sizeof_struct_abi_attributes))
	defer C.free(unsafe.Pointer(a))
	if err := result("dcgmGetDeviceAttributes", int32(C.dcgm_attributes(e.l.d, e.h, C.uint32_t(gpu), a))); err != nil {
		return DeviceAttributes{}, err
	}
	known := func(s *[256]C.char) string {
		if v := text(&s[0], len(s)); !isBlankText(v) {
			return v
		}
		return ""
	}
	return DeviceAttributes{UUID: known(&a.uuid), PCI: known(&a.pci), Name: known(&a.name), Serial: known(&a.serial), Driver: known(&a.driver)}, nil
}

// GetGPUInstanceHierarchy returns all MIG instances.
func (e *Engine) GetGPUInstanceHierarchy() ([]MigHierarchyInfo, error) {
	m := (*C.struct_abi_mig_hierarchy)(C.malloc(C.sizeof_struct_abi_mig_hierarchy))
	defer C.free(unsafe.Pointer(m))
	if err := result("dcgmGetGpuInstanceHierarchy", int32(C.dcgm_hierarchy(e.l.d, e.h, m))); err != nil {
		return nil, err
	}
	var out []MigHierarchyInfo
	for i := range min(int(m.count), len(m.entities)) {
		x := &m.entities[i]
		out = append(out, MigHierarchyInfo{
			Entity:   GroupEntityPair{FieldEntityGroup(x.entity.group), uint32(x.entity.id)},
			Parent:   GroupEntityPair{FieldEntityGroup(x.parent.group), uint32(x.parent.id)},
			GPUUUID:  text(&x.gpu_uuid[0], len(x.gpu_uuid)),
			Instance: uint32(x.instance), ComputeInstance: uint32(x.compute_instance),
			Profile: uint32(x.profile), Slices: uint32(x.slices),
		})
	}
	return out, nil
}

// FieldLevel returns the smallest kind of entity that has a field.
func (l *Library) FieldLevel(field Short) FieldEntityGroup {
	return FieldEntityGroup(C.dcgm_level(l.d, C.uint16_t(field)))
}

// maxLinks bounds the links of a node.
const maxLinks = 4096

// GetNvLinkLinkStatus returns the links of all GPUs and NVSwitches.
func (e *Engine) GetNvLinkLinkStatus() ([]NvLink, error) {
	room := make([]C.struct_dcgm_link, maxLinks)
	var n C.uint32_t
	if err := result("dcgmGetNvLinkLinkStatus", int32(C.dcgm_links(e.l.d, e.h, &room[0], maxLinks, &n))); err != nil {
		return nil, err
	}
	out := make([]NvLink, min(int(n), maxLinks))
	for i := range out {
		x := &room[i]
		out[i] = NvLink{GroupEntityPair{FieldEntityGroup(x.group), uint32(x.parent)}, uint16(x.index), x.up != 0}
	}
	return out, nil
}

// GetCPUHierarchy returns the CPUs that the engine can read, and their cores.
func (e *Engine) GetCPUHierarchy() ([]CPU, error) {
	var all C.struct_abi_cpus
	if err := result("dcgmGetCpuHierarchy", int32(C.dcgm_cpus(e.l.d, e.h, &all))); err != nil {
		return nil, err
	}
	out := make([]CPU, min(int(all.count), len(all.cpus)))
	for i := range out {
		x := &all.cpus[i]
		out[i].ID = uint32(x.id)
		for core := range uint32(len(x.cores.mask) * 64) {
			if x.cores.mask[core/64]&(1<<(core%64)) != 0 {
				out[i].Cores = append(out[i].Cores, core)
			}
		}
	}
	return out, nil
}

// CreateGroup makes an empty group of entities.
func (e *Engine) CreateGroup(name string) (GroupHandle, error) {
	n := C.CString(name)
	defer C.free(unsafe.Pointer(n))
	var g C.uintptr_t
	err := result("dcgmGroupCreate", int32(C.dcgm_group_create(e.l.d, e.h, n, &g)))
	return GroupHandle(g), err
}

// AddEntityToGroup adds an entity; a lost GPU can't be added.
func (e *Engine) AddEntityToGroup(group GroupHandle, entity GroupEntityPair) error {
	return result("dcgmGroupAddEntity", int32(C.dcgm_group_add(e.l.d, e.h, C.uintptr_t(group), C.uint32_t(entity.EntityGroupId), C.uint32_t(entity.EntityId))))
}

// DestroyGroup ends a group of entities.
func (e *Engine) DestroyGroup(group GroupHandle) error {
	return result("dcgmGroupDestroy", int32(C.dcgm_group_destroy(e.l.d, e.h, C.uintptr_t(group))))
}

// FieldGroupCreate makes a group of 1 to 128 fields. Its name must be new to the engine.
func (e *Engine) FieldGroupCreate(name string, fields []Short) (FieldHandle, error) {
	n := C.CString(name)
	defer C.free(unsafe.Pointer(n))
	var f C.uintptr_t
	err := result("dcgmFieldGroupCreate", int32(C.dcgm_fields_create(e.l.d, e.h, C.int(len(fields)), (*C.uint16_t)(unsafe.Pointer(unsafe.SliceData(fields))), n, &f)))
	return FieldHandle(f), err
}

// FieldGroupDestroy ends a group of fields.
func (e *Engine) FieldGroupDestroy(fields FieldHandle) error {
	return result("dcgmFieldGroupDestroy", int32(C.dcgm_fields_destroy(e.l.d, e.h, C.uintptr_t(fields))))
}

// WatchFields has the engine read fields of a group, all or none of them.
func (e *Engine) WatchFields(group GroupHandle, fields FieldHandle, every, keep time.Duration, samples int) error {
	return result("dcgmWatchFields", int32(C.dcgm_watch(e.l.d, e.h, C.uintptr_t(group), C.uintptr_t(fields),
		C.int64_t(every.Microseconds()), C.double(keep.Seconds()), C.int(samples))))
}

// UnwatchFields ends a watch.
func (e *Engine) UnwatchFields(group GroupHandle, fields FieldHandle) error {
	return result("dcgmUnwatchFields", int32(C.dcgm_unwatch(e.l.d, e.h, C.uintptr_t(group), C.uintptr_t(fields))))
}

// HealthSet switches the engine's health checks on.
func (e *Engine) HealthSet(group GroupHandle, systems uint32) error {
	return result("dcgmHealthSet", int32(C.dcgm_health_set(e.l.d, e.h, C.uintptr_t(group), C.uint32_t(systems))))
}

// HealthCheck returns what the health checks have found. Of a lost GPU they find nothing.
func (e *Engine) HealthCheck(group GroupHandle) ([]Incident, error) {
	room := make([]C.struct_dcgm_incident, 256)
	var n C.uint32_t
	if err := result("dcgmHealthCheck", int32(C.dcgm_health(e.l.d, e.h, C.uintptr_t(group), &room[0], C.uint32_t(len(room)), &n))); err != nil {
		return nil, err
	}
	out := make([]Incident, 0, min(int(n), len(room)))
	for _, x := range room[:min(int(n), len(room))] {
		out = append(out, Incident{
			Entity: GroupEntityPair{FieldEntityGroup(x.entity.group), uint32(x.entity.id)},
			System: uint32(x.system), Health: uint32(x.health), Code: uint32(x.code),
		})
	}
	return out, nil
}

// GetNvLinkP2PStatus returns which GPUs reach each other over NVLink. The engine asks the
// driver; one before 4.4 can't tell.
func (e *Engine) GetNvLinkP2PStatus() ([]NvLinkPeers, error) {
	p := (*C.struct_abi_peers)(C.malloc(C.sizeof_struct_abi_peers))
	defer C.free(unsafe.Pointer(p))
	if err := result("dcgmGetNvLinkP2PStatus", int32(C.dcgm_peers(e.l.d, e.h, p))); err != nil {
		return nil, err
	}
	out := make([]NvLinkPeers, min(int(p.count), len(p.gpus)))
	for i := range out {
		x := &p.gpus[i]
		out[i] = NvLinkPeers{GPU: uint32(x.gpu), Status: make([]uint32, len(out))}
		for k := range out {
			out[i].Status[k] = uint32(x.status[k])
		}
	}
	return out, nil
}

// PolicyXID has the engine wake us up at each XID, see [Library.Wake].
func (e *Engine) PolicyXID(group GroupHandle) error {
	return result("dcgmPolicyRegister_v2", int32(C.dcgm_policy_xid(e.l.d, e.h, C.uintptr_t(group))))
}

// PolicyNone ends [Engine.PolicyXID].
func (e *Engine) PolicyNone(group GroupHandle) error {
	return result("dcgmPolicyUnregister", int32(C.dcgm_policy_none(e.l.d, e.h, C.uintptr_t(group))))
}

// Values is room for the answer to one reading, kept for the next one. The zero value
// is ready; Free gives it back.
type Values struct {
	raw     *C.struct_abi_value_v2
	rawRoom int // values
	text    map[uint32]string
	s       C.struct_dcgm_samples
}

// Len returns how many values there are.
func (v *Values) Len() int { return int(v.s.n) }

// At returns one of them.
func (v *Values) At(i int) FieldValue {
	x := &unsafe.Slice(v.s.all, int(v.s.n))[i]
	return FieldValue{
		Entity:  GroupEntityPair{FieldEntityGroup(x.group), uint32(x.entity)},
		FieldID: Short(x.field), Type: byte(x._type), Status: Result(x.status), Ts: int64(x.ts),
		Int64: int64(x.i), Float64: float64(x.d), Blank: x.blank != 0, place: uint32(x.place),
	}
}

// Text returns the text of a value of type s.
func (v *Values) Text(f FieldValue) string { return v.text[f.place] }

// Cut returns how many values there was no room for.
func (v *Values) Cut() int { return int(v.s.cut) }

// Free gives the room back.
func (v *Values) Free() {
	C.free(unsafe.Pointer(v.raw))
	C.free(unsafe.Pointer(v.s.all))
	*v = Values{}
}

func (v *Values) reset() {
	v.s.n, v.s.cut, v.s.limit = 0, 0, maxSamples
	clear(v.text)
}

// EntitiesGetLatestValues reads the newest value of each field of each entity from the
// engine's memory. No order is promised.
func (e *Engine) EntitiesGetLatestValues(entities []GroupEntityPair, fields []Short, into *Values) error {
	into.reset()
	if len(entities) == 0 || len(fields) == 0 {
		return nil
	}
	for len(fields) > 0 {
		nf := min(len(fields), C.ABI_MAX_FIELDS)
		ne := max(1, min(maxRaw/rawSize/nf, C.ABI_MAX_ENTITIES))
		for from := 0; from < len(entities); from += ne {
			part := entities[from:min(from+ne, len(entities))]
			if err := e.latest(part, fields[:nf], into); err != nil {
				return err
			}
		}
		fields = fields[nf:]
	}
	return nil
}

func (e *Engine) latest(entities []GroupEntityPair, fields []Short, into *Values) error {
	if want := len(entities) * len(fields); want > into.rawRoom {
		C.free(unsafe.Pointer(into.raw))
		into.raw = (*C.struct_abi_value_v2)(C.malloc(C.size_t(want * rawSize)))
		into.rawRoom = want
	}
	before := into.Len()
	err := result("dcgmEntitiesGetLatestValues", int32(C.dcgm_latest(e.l.d, e.h,
		(*C.struct_abi_pair)(unsafe.Pointer(unsafe.SliceData(entities))), C.uint32_t(len(entities)),
		(*C.uint16_t)(unsafe.Pointer(unsafe.SliceData(fields))), C.uint32_t(len(fields)), into.raw, &into.s)))
	if err != nil {
		return err
	}
	// The room is used again for the next part, so the few texts are taken out of it.
	raw := unsafe.Slice(into.raw, into.rawRoom)
	samples := unsafe.Slice(into.s.all, into.Len())
	for i := before; i < len(samples); i++ {
		x := &samples[i]
		if x._type != 's' || x.status != 0 || x.blank != 0 {
			continue
		}
		if into.text == nil {
			into.text = map[uint32]string{}
		}
		into.text[uint32(i)] = text((*C.char)(unsafe.Pointer(&raw[x.place].v)), 256)
		x.place = C.uint32_t(i)
	}
	return nil
}

// GetValuesSince reads the samples of watched fields from a time on: those that are
// whole numbers and not blank. It returns when it began, by the engine's clock.
func (e *Engine) GetValuesSince(group GroupHandle, fields FieldHandle, since time.Time, into *Values) (time.Time, error) {
	into.reset()
	var next C.int64_t
	err := result("dcgmGetValuesSince_v2", int32(C.dcgm_since(e.l.d, e.h, C.uintptr_t(group), C.uintptr_t(fields),
		C.int64_t(since.UnixMicro()), &next, &into.s)))
	return time.UnixMicro(int64(next)), err
}

// text reads a text that ends with a zero byte or with its room.
func text(s *C.char, room int) string {
	b := unsafe.Slice((*byte)(unsafe.Pointer(s)), room)
	for i, c := range b {
		if c == 0 {
			return strings.ToValidUTF8(string(b[:i]), "?")
		}
	}
	return strings.ToValidUTF8(string(b), "?")
}
