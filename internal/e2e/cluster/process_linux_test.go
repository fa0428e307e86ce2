package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestNoProgramOutlivesItsTest kills a test with kill -9, as a timeout of go test does.
func TestNoProgramOutlivesItsTest(t *testing.T) {
	dir := t.TempDir()
	test := exec.CommandContext(t.Context(), os.Args[0])
	test.Env = append(os.Environ(), orphanEnv+"="+dir)
	if err := test.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	err := Await(t.Context(), "the program's pid", soon, func(context.Context) (bool, string, error) {
		text, err := os.ReadFile(filepath.Join(dir, "pid"))
		if err != nil {
			return false, "", err
		}
		n, err := fmt.Sscanln(string(text), &pid)
		return n == 1, string(text), err
	})
	if err != nil {
		t.Fatal(err)
	}
	if !alive(pid) {
		t.Fatalf("process %d does not run", pid)
	}
	if err := test.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = test.Wait() // killed
	err = Await(t.Context(), "the program to go", soon, func(context.Context) (bool, string, error) {
		return !alive(pid), "still there", nil
	})
	if err != nil {
		t.Error(err)
	}
}

// alive reports whether a process runs; one that is dead and not yet reaped does not.
func alive(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}
