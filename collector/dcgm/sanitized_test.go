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
// leaks and undefined behaviour, and goes through all calls once.
func TestTheBindingUnderASanitizer(t *testing.T) {
	dir := t.TempDir()
	gcc := func(args ...string) {
		t.Helper()
		args = append([]string{"-g", "-O1", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"}, args...)
		if out, err := exec.CommandContext(t.Context(), "gcc", args...).CombinedOutput(); err != nil {
			t.Fatalf("gcc %v: %v\n%s", args, err, out)
		}
	}
	library, program := filepath.Join(dir, "libdcgm.so.4"), filepath.Join(dir, "drive")
	gcc("-shared", "-fPIC", "-pthread", "-o", library, "fake/libdcgm/fake.c")
	gcc("-pthread", "-o", program, "testdata/drive.c", "binding.c", "-ldl")
	cmd := exec.CommandContext(t.Context(), program, library)
	// The fake keeps what it holds until its process ends.
	suppressions := filepath.Join(dir, "lsan")
	if err := os.WriteFile(suppressions, []byte("leak:libdcgm.so.4\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(os.Environ(), "LSAN_OPTIONS=suppressions="+suppressions)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "all is well") {
		t.Errorf("%v\n%s", err, out)
	}
}
