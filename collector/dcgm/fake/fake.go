//go:build cgo && linux

package fake

// #cgo LDFLAGS: -ldl
// #include <dlfcn.h>
// #include <stdint.h>
// #include <stdlib.h>
// typedef int64_t (*control)(const char *);
// static int64_t tell(void *f, const char *line) { return ((control)f)(line); }
import "C"

import (
	"context"
	"embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unsafe"
)

//go:embed libdcgm
var sources embed.FS

// build compiles the library.
func build(flags ...string) ([]byte, error) {
	dir, err := os.MkdirTemp("", "fake-libdcgm")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := os.CopyFS(dir, sources); err != nil {
		return nil, err
	}
	out := filepath.Join(dir, "libdcgm.so.4")
	cmd := exec.CommandContext(context.Background(), "gcc", append(flags, "-O2", "-shared", "-fPIC", "-pthread", "-o", out, filepath.Join(dir, "libdcgm", "fake.c"))...)
	if text, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("gcc: %w\n%s", err, text)
	}
	return os.ReadFile(out)
}

// Each is compiled once for each process.
var (
	built  = sync.OnceValues(func() ([]byte, error) { return build() })
	built3 = sync.OnceValues(func() ([]byte, error) { return build("-DDCGM3") })
)

// A Library is one copy of the fake, with a state of its own: 8 GPUs that are well, and
// an engine that answers.
type Library struct {
	Path    string
	control unsafe.Pointer
}

// New makes a library for one test.
func New(tb testing.TB) *Library {
	tb.Helper()
	return load(tb, "libdcgm.so.4", built)
}

// New3 makes one of DCGM 3: with its functions, structs and limits.
func New3(tb testing.TB) *Library {
	tb.Helper()
	return load(tb, "libdcgm.so.3", built3)
}

func load(tb testing.TB, name string, built func() ([]byte, error)) *Library {
	tb.Helper()
	text, err := built()
	if err != nil {
		tb.Fatal(err)
	}
	l := &Library{Path: filepath.Join(tb.TempDir(), name)}
	if err := os.WriteFile(l.Path, text, 0o600); err != nil {
		tb.Fatal(err)
	}
	path, symbol := C.CString(l.Path), C.CString("fake_control")
	defer C.free(unsafe.Pointer(path))
	defer C.free(unsafe.Pointer(symbol))
	// It stays loaded, as a real one does.
	handle := C.dlopen(path, C.RTLD_NOW|C.RTLD_LOCAL)
	if handle == nil {
		tb.Fatalf("the fake library can't be opened: %s", C.GoString(C.dlerror()))
	}
	if l.control = C.dlsym(handle, symbol); l.control == nil {
		tb.Fatal("the fake library has no fake_control")
	}
	return l
}

// Pipe makes the named pipe by which another process that opens the library at Path is
// told what to do, as [Library.Do] does it in this one. Its path is to be given to that
// process in FAKE_DCGM_CONTROL.
func (l *Library) Pipe(tb testing.TB) (path string, do func(format string, args ...any)) {
	tb.Helper()
	path = filepath.Join(filepath.Dir(l.Path), "control")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		tb.Fatal(err)
	}
	// For reading, too, so that it does not wait for the other end.
	pipe, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = pipe.Close() })
	return path, func(format string, args ...any) {
		tb.Helper()
		if _, err := fmt.Fprintf(pipe, format+"\n", args...); err != nil {
			tb.Fatal(err)
		}
	}
}

// Do has the fake do what a line says, see control in fake.c for the words. It returns
// the number that was asked for.
func (l *Library) Do(tb testing.TB, format string, args ...any) int {
	tb.Helper()
	line := fmt.Sprintf(format, args...)
	text := C.CString(line)
	defer C.free(unsafe.Pointer(text))
	n := int(C.tell(l.control, text))
	if n < 0 {
		tb.Fatalf("the fake library does not understand %q", strings.TrimSpace(line))
	}
	return n
}
