//go:build cgo && linux

package dcgm_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/collector/dcgm"
	"stoker.dev/stoker/collector/dcgm/fake"
)

// A subject is an engine, and the library by which it is reached.
type subject struct {
	libraries []string // those of the system when empty
	address   string
	fake      *fake.Library // nil for a real one
}

// ofEveryEngine holds of the fake and of any real engine with at least one GPU. It makes
// groups and watches, gives them back, and injects XIDs: an engine on which somebody
// relies is not for this.
var ofEveryEngine = map[string]func(*testing.T, *subject, *dcgm.Library, *dcgm.Engine){
	"versions":                          checkVersions,
	"which GPUs there are":              checkEntities,
	"who a GPU is":                      checkAttributes,
	"the hierarchy of MIG":              checkHierarchy,
	"groups of entities":                checkGroups,
	"groups of fields":                  checkFieldGroups,
	"newest values and their status":    checkLatest,
	"a field that is refused":           checkRefused,
	"values since a time":               checkSince,
	"health":                            checkHealth,
	"being told of XIDs":                checkPolicy,
	"an XID that is injected":           checkInjected,
	"a connection that is ended":        checkDisconnect,
	"two connections":                   checkTwo,
	"a source over it":                  checkSource,
	"sources that come and go":          checkSources,
	"an XID on its way through sources": checkSourceXID,
}

// ofTheFakeAlone is what nobody can, or should, provoke in a real engine. They are tests
// of their own; this is for saying so.
var ofTheFakeAlone = map[string]func(*testing.T){
	"the engine hangs":                        TestComplaint_07_TheEngineHangs,
	"the client gives a call up":              TestComplaint_07_TheClientGivesUpAndTheConnectionStays,
	"a GPU is lost":                           TestComplaint_05_ALostGPU,
	"a GPU is lost at the start":              TestComplaint_05_AGPUThatIsLostAtTheStart,
	"the engine ends and starts":              TestComplaint_06_TheEngineRestarts,
	"the engine forgets its groups":           TestTrap_GroupsThatTheEngineHasForgotten,
	"all groups are in use":                   TestComplaint_10_NothingPilesUpInTheEngine,
	"MIG instances come and go":               TestComplaint_16_MIGInstancesComeAndGo,
	"the driver is detached and attached":     TestTrap_TheDriverIsDetachedAndAttached,
	"another major version":                   TestTrap_AnotherMajorVersion,
	"the engine asks the driver nothing":      TestTrap_AnEngineThatAsksTheDriverNothing,
	"XIDs turn up late":                       TestTrap_XIDsTurnUpLateAndInAnyOrder,
	"the kernel's ring is read again":         TestTrap_TheKernelsRingIsReadAgain,
	"values of which the status alone is bad": TestTrap_AValueWhoseStatusIsBadIsNone,
}

// TestReal asks the engine at DCGM_TEST_ADDRESS, through the libdcgm of the system. Where
// that is not set, the fake stands for one at a socket.
func TestReal(t *testing.T) {
	s := &subject{address: os.Getenv("DCGM_TEST_ADDRESS")}
	if s.address == "" {
		lib := fake.New(t)
		s = &subject{[]string{lib.Path}, "unix:///run/nv-hostengine", lib}
	}
	s.check(t)
	if s.fake == nil {
		for name := range ofTheFakeAlone {
			t.Logf("not asked of a real engine, but of the fake alone: %s", name)
		}
	}
}

// TestFake asks the fake the same over a port: what is proved with it is worth what it has
// in common with a real one.
func TestFake(t *testing.T) {
	lib := fake.New(t)
	(&subject{[]string{lib.Path}, "localhost:5555", lib}).check(t)
	if held := lib.Do(t, "held"); held != 0 {
		t.Errorf("afterwards the engine holds %d things", held)
	}
}

func (s *subject) check(t *testing.T) {
	t.Helper()
	lib, err := dcgm.Open(s.libraries...)
	if err != nil {
		t.Fatal(err)
	}
	defer lib.Close()
	if err := lib.Init(); err != nil {
		t.Fatal(err)
	}
	for name, check := range ofEveryEngine {
		t.Run(name, func(t *testing.T) { check(t, s, lib, s.connect(t, lib)) })
	}
}

// connect returns a connection that ends with the test.
func (s *subject) connect(t *testing.T, lib *dcgm.Library) *dcgm.Engine {
	t.Helper()
	e, err := lib.Connect(s.address, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Disconnect(); err != nil {
			t.Errorf("disconnect: %v", err)
		}
	})
	return e
}

func (s *subject) source(t *testing.T) *dcgm.Source {
	t.Helper()
	src := dcgm.New(quiet(t), dcgm.Options{Libraries: s.libraries, Addresses: []string{strings.TrimPrefix(s.address, "unix://")}})
	if s.fake != nil { // a socket of the fake is no file
		src = dcgm.New(quiet(t), dcgm.Options{Libraries: s.libraries, Addresses: []string{"localhost:5555"}})
	}
	t.Cleanup(func() { (&node{t: t}).close(src) })
	return src
}

// wells returns the GPUs that can be asked; there must be one.
func wells(t *testing.T, e *dcgm.Engine) []uint32 {
	t.Helper()
	ids, err := e.GetEntityGroupEntities(dcgm.FE_GPU, true)
	if err != nil {
		t.Fatal(err)
	}
	if len(ids) == 0 {
		t.Fatal("the engine has no GPU that is well")
	}
	return ids
}

func wantCode(t *testing.T, what string, err error, want dcgm.Result) {
	t.Helper()
	if got := dcgm.CodeOf(err); got != want {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

var names int

// unique returns a name that no group of the engine has.
func unique() string {
	names++
	return fmt.Sprintf("stoker-test-%d-%d-%d", os.Getpid(), time.Now().UnixNano(), names)
}

// group returns a group of GPUs that ends with the test.
func group(t *testing.T, e *dcgm.Engine, gpus ...uint32) dcgm.GroupHandle {
	t.Helper()
	g, err := e.CreateGroup(unique())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.DestroyGroup(g); err != nil {
			t.Errorf("destroy a group: %v", err)
		}
	})
	for _, id := range gpus {
		if err := e.AddEntityToGroup(g, dcgm.GroupEntityPair{EntityGroupId: dcgm.FE_GPU, EntityId: id}); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

// watched watches fields of a group until the test ends.
func watched(t *testing.T, e *dcgm.Engine, g dcgm.GroupHandle, fields ...dcgm.Short) dcgm.FieldHandle {
	t.Helper()
	f, err := e.FieldGroupCreate(unique(), fields)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.WatchFields(g, f, time.Second, time.Minute, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.UnwatchFields(g, f); err != nil {
			t.Errorf("unwatch: %v", err)
		}
		if err := e.FieldGroupDestroy(f); err != nil {
			t.Errorf("destroy fields: %v", err)
		}
	})
	return f
}
