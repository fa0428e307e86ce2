package dcgm

import (
	"errors"
	"fmt"
	"strings"
)

// Libraries are the names under which libdcgm is looked for, newest first.
var Libraries = []string{"libdcgm.so.4", "libdcgm.so.3"}

// A Short is the number of a field.
type Short uint16

// A FieldEntityGroup is a kind of entity.
type FieldEntityGroup uint32

// The kinds of entities that are read.
const (
	FE_NONE     FieldEntityGroup = 0 //nolint:revive // go-dcgm's name
	FE_GPU      FieldEntityGroup = 1 //nolint:revive // go-dcgm's name
	FE_VGPU     FieldEntityGroup = 2 //nolint:revive // go-dcgm's name
	FE_SWITCH   FieldEntityGroup = 3 //nolint:revive // go-dcgm's name
	FE_GPU_I    FieldEntityGroup = 4 //nolint:revive // go-dcgm's name
	FE_GPU_CI   FieldEntityGroup = 5 //nolint:revive // go-dcgm's name
	FE_LINK     FieldEntityGroup = 6 //nolint:revive // go-dcgm's name
	FE_CPU      FieldEntityGroup = 7 //nolint:revive // go-dcgm's name
	FE_CPU_CORE FieldEntityGroup = 8 //nolint:revive // go-dcgm's name
)

// A GroupEntityPair names one entity.
type GroupEntityPair struct {
	EntityGroupId FieldEntityGroup //nolint:revive // go-dcgm's name
	EntityId      uint32           //nolint:revive // go-dcgm's name
}

// A GroupHandle is a group of entities in the engine.
type GroupHandle uintptr

// A FieldHandle is a group of fields in the engine.
type FieldHandle uintptr

// An EntityStatus is what the engine says of a GPU.
type EntityStatus uint32

// The states of a GPU.
const (
	EntityStatusUnknown EntityStatus = iota
	EntityStatusOk
	EntityStatusUnsupported
	EntityStatusInaccessible
	EntityStatusLost
	EntityStatusFake
	EntityStatusDisabled
	EntityStatusDetached
)

// A FieldValue is one value without its room. Which of Int64, Float64 and the text is
// meant follows from Type.
type FieldValue struct {
	Entity  GroupEntityPair
	FieldID Short
	Type    byte // i, d, s, b or t
	Status  Result
	Ts      int64 // us since 1970
	Int64   int64
	Float64 float64
	Blank   bool // the status is fine and the value says that there is none
	place   uint32
}

// A DeviceAttributes is what the driver says of a GPU; texts may be blank.
type DeviceAttributes struct {
	UUID, PCI, Name, Serial, Driver string
}

// A MigHierarchyInfo is one GPU instance or compute instance.
type MigHierarchyInfo struct {
	Entity, Parent  GroupEntityPair
	GPUUUID         string
	Instance        uint32 // as NVML counts them on the GPU
	ComputeInstance uint32
	Profile, Slices uint32
}

// An Incident is one finding of the engine's health checks.
type Incident struct {
	Entity GroupEntityPair
	System uint32
	Health uint32 // 10 warns, 20 fails
	Code   uint32
}

// A NvLinkPeers is how one GPU reaches all that are in the same answer.
type NvLinkPeers struct {
	GPU    uint32
	Status []uint32 // by place in the answer; 0 is fine
}

// HealthAll asks for all health checks.
const HealthAll = 0xffffffff

// A Result is what a call returned, or the status of a value.
type Result int32

// The results that are told apart.
const (
	StOk                   Result = 0
	StBadparam             Result = -1
	StGenericError         Result = -3
	StNotConfigured        Result = -5
	StNotSupported         Result = -6
	StInitError            Result = -7
	StNvmlError            Result = -8
	StUninitialized        Result = -10
	StTimeout              Result = -11
	StVerMismatch          Result = -12
	StUnknownField         Result = -13
	StNoData               Result = -14
	StNotWatched           Result = -16
	StNoPermission         Result = -17
	StGpuIsLost            Result = -18
	StConnectionNotValid   Result = -21
	StGpuNotSupported      Result = -22
	StMaxLimit             Result = -24
	StDuplicateKey         Result = -26
	StRequiresRoot         Result = -29
	StInsufficientSize     Result = -31
	StModuleNotLoaded      Result = -33
	StInUse                Result = -34
	StGroupIsEmpty         Result = -35
	StProfilingUnsupported Result = -36
	StProfilingLibrary     Result = -37
	StProfilingMultiPass   Result = -38
	StPaused               Result = -54
	StNvmlNotLoaded        Result = -56
	StNvmlDriverTimeout    Result = -57
	StGpusDetached         Result = -67
	StNoSymbol             Result = -1000 // ours: the library has no such function
)

var resultNames = map[Result]string{
	StBadparam: "bad parameter", StGenericError: "error", StNotConfigured: "not configured", StNotSupported: "not supported",
	StInitError: "initialisation error", StNvmlError: "NVML error", StUninitialized: "not initialised", StTimeout: "timeout",
	StVerMismatch: "version mismatch", StUnknownField: "unknown field", StNoData: "no data", StNotWatched: "not watched",
	StNoPermission: "no permission", StGpuIsLost: "GPU is lost", StConnectionNotValid: "connection not valid",
	StGpuNotSupported: "GPU not supported", StMaxLimit: "limit reached", StDuplicateKey: "duplicate key",
	StRequiresRoot: "requires root", StInsufficientSize: "insufficient size", StModuleNotLoaded: "module not loaded",
	StInUse: "in use", StGroupIsEmpty: "group is empty", StProfilingUnsupported: "profiling not supported",
	StProfilingLibrary: "profiling library error", StProfilingMultiPass: "profiling needs several passes",
	StPaused: "paused", StNvmlNotLoaded: "NVML not loaded", StNvmlDriverTimeout: "driver timeout",
	StGpusDetached: "GPUs are detached", StNoSymbol: "not in this library",
}

// String returns a few words for a result.
func (r Result) String() string {
	if s, ok := resultNames[r]; ok {
		return s
	}
	return fmt.Sprintf("result %d", int32(r))
}

// gone reports whether the engine that we were connected to is not there any more.
func (r Result) gone() bool {
	return r == StConnectionNotValid || r == StUninitialized || r == StNotConfigured
}

// An Error is a call that the library has refused.
type Error struct {
	Call string
	Code Result
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %v (%d)", e.Call, e.Code, int32(e.Code)) }

// codeOf returns the result behind an error, StOk if there is none.
func codeOf(err error) Result {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return StOk
}

func result(call string, code int32) error {
	if code == 0 {
		return nil
	}
	return &Error{call, Result(code)}
}

// isSocket reports whether an address is the path of a unix socket.
func isSocket(address string) bool {
	return strings.HasPrefix(address, "/") || strings.HasPrefix(address, "unix://")
}

// isBlankText reports whether a text only says that there is none.
func isBlankText(s string) bool {
	return s == "" || strings.HasPrefix(s, "<<<") && strings.Contains(s, ">>>")
}

// versionIn returns the version in a text such as version:4.6.0;arch:x86_64.
func versionIn(info string) string {
	for part := range strings.SplitSeq(info, ";") {
		if v, ok := strings.CutPrefix(strings.TrimSpace(part), "version:"); ok {
			return v
		}
	}
	return ""
}
