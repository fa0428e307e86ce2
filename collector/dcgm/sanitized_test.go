//go:build cgo && linux

package dcgm_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestTheBindingUnderASanitizer builds binding and fake with gcc's checks of addresses,
// leaks and undefined behaviour, goes through all calls once, and then reads as a
// collector does in an hour.
func TestTheBindingUnderASanitizer(t *testing.T) {
	dir := t.TempDir()
	gcc := func(args ...string) {
		t.Helper()
		args = append([]string{"-g", "-O1", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"}, args...)
		if out, err := exec.CommandContext(t.Context(), "gcc", args...).CombinedOutput(); err != nil {
			t.Fatalf("gcc %v: %v\n%s", args, err, out)
		}
	}
	// Read here as well, so that go test knows that its result depends on them.
	parts, err := filepath.Glob("fake/libdcgm/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(parts, "testdata/drive.c", "binding.c") {
		if _, err := os.ReadFile(file); err != nil {
			t.Fatal(err)
		}
	}
	library, program := filepath.Join(dir, "libdcgm.so.4"), filepath.Join(dir, "drive")
	gcc("-shared", "-fPIC", "-pthread", "-o", library, "fake/libdcgm/fake.c")
	gcc("-pthread", "-o", program, "testdata/drive.c", "binding.c", "-ldl")
	cmd := exec.CommandContext(t.Context(), program, library)
	cmd.Env = append(os.Environ(), "ASAN_OPTIONS=detect_leaks=1")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "all is well") {
		t.Errorf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}
