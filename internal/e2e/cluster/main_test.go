package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"go.uber.org/goleak"
)

// orphanEnv makes this test binary one that starts a program and then hangs, for
// TestNoProgramOutlivesItsTest to kill. Its value is a folder.
const orphanEnv = "STOKER_E2E_TEST_ORPHAN"

// portEnv makes it one that says whether it could have a port, for TestFreePorts.
const portEnv = "STOKER_E2E_TEST_PORT"

func TestMain(m *testing.M) {
	if dir := os.Getenv(orphanEnv); dir != "" {
		if err := hang(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if text := os.Getenv(portEnv); text != "" {
		port, err := strconv.Atoi(text)
		if err == nil {
			var free bool
			free, err = lockPort(port)
			fmt.Print(free)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// hang starts a program, writes its process id to dir/pid and waits for its end.
func hang(dir string) error {
	p, err := startProcess("orphan", "/bin/sleep", []string{"60"}, nil, dir, filepath.Join(dir, "orphan.log"))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "pid"), fmt.Appendln(nil, p.Pid()), 0o600); err != nil {
		return err
	}
	<-p.Ended()
	return nil
}
