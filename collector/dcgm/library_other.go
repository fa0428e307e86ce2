//go:build !cgo || !linux

package dcgm

import (
	"errors"
	"os"
	"time"
)

// errNoCgo is what there is to say in a program that can't open libraries.
var errNoCgo = errors.New("this program was built without cgo: the source dcgm can't open libdcgm")

// A Library is a libdcgm that was opened; there is none in this build.
type Library struct{}

// An Engine is a connection; there is none in this build.
type Engine struct{}

// Values is room for the answer to one reading.
type Values struct{}

// Open returns an error that says what is missing.
func Open(...string) (*Library, error) { return nil, errNoCgo }

func (*Library) Path() string                                   { return "" }
func (*Library) Close()                                         {}
func (*Library) Init() error                                    { return errNoCgo }
func (*Library) Version() (string, error)                       { return "", errNoCgo }
func (*Library) Wake() *os.File                                 { return nil }
func (*Library) Connect(string, time.Duration) (*Engine, error) { return nil, errNoCgo }
func (*Library) Embed() (*Engine, error)                        { return nil, errNoCgo }

// FieldLevel is never asked in this build.
func (*Library) FieldLevel(Short) FieldEntityGroup { return FE_GPU }

func (*Engine) GetNvLinkLinkStatus() ([]NvLink, error) { return nil, errNoCgo }
func (*Engine) GetCPUHierarchy() ([]CPU, error)        { return nil, errNoCgo }

func (*Engine) Embedded() bool           { return false }
func (*Engine) Disconnect() error        { return errNoCgo }
func (*Engine) Version() (string, error) { return "", errNoCgo }

func (*Engine) GetEntityGroupEntities(FieldEntityGroup, bool) ([]uint32, error) { return nil, errNoCgo }

func (*Engine) GetGpuStatus(uint32) (EntityStatus, error) { return 0, errNoCgo }

func (*Engine) GetDeviceAttributes(uint32) (DeviceAttributes, error) {
	return DeviceAttributes{}, errNoCgo
}
func (*Engine) GetGPUInstanceHierarchy() ([]MigHierarchyInfo, error)  { return nil, errNoCgo }
func (*Engine) CreateGroup(string) (GroupHandle, error)               { return 0, errNoCgo }
func (*Engine) AddEntityToGroup(GroupHandle, GroupEntityPair) error   { return errNoCgo }
func (*Engine) DestroyGroup(GroupHandle) error                        { return errNoCgo }
func (*Engine) FieldGroupCreate(string, []Short) (FieldHandle, error) { return 0, errNoCgo }
func (*Engine) FieldGroupDestroy(FieldHandle) error                   { return errNoCgo }
func (*Engine) WatchFields(GroupHandle, FieldHandle, time.Duration, time.Duration, int) error {
	return errNoCgo
}

func (*Engine) UnwatchFields(GroupHandle, FieldHandle) error { return errNoCgo }

func (*Engine) HealthSet(GroupHandle, uint32) error { return errNoCgo }

func (*Engine) HealthCheck(GroupHandle) ([]Incident, error) { return nil, errNoCgo }

func (*Engine) GetNvLinkP2PStatus() ([]NvLinkPeers, error) { return nil, errNoCgo }

func (*Engine) PolicyXID(GroupHandle) error { return errNoCgo }

func (*Engine) PolicyNone(GroupHandle) error { return errNoCgo }

func (*Engine) EntitiesGetLatestValues([]GroupEntityPair, []Short, *Values) error { return errNoCgo }

func (*Engine) GetValuesSince(GroupHandle, FieldHandle, time.Time, *Values) (time.Time, error) {
	return time.Time{}, errNoCgo
}

func (*Values) Len() int               { return 0 }
func (*Values) At(int) FieldValue      { return FieldValue{} }
func (*Values) Text(FieldValue) string { return "" }
func (*Values) Cut() int               { return 0 }
func (*Values) Free()                  {}
