package cluster

import (
	"context"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"stoker.dev/stoker/internal/e2e/programs"
)

// stopGrace is what a program gets at the end of a test between SIGTERM and SIGKILL.
const stopGrace = 30 * time.Second

// serviceBinary builds cmd/stoker once per test process, collectorBinary the collector.
var (
	serviceBinary = sync.OnceValues(func() (string, error) {
		return programs.BuildService(context.Background(), os.Stderr)
	})
	collectorBinary = sync.OnceValues(func() (string, error) {
		return programs.BuildCollector(context.Background(), os.Stderr)
	})
)

// StartStoker starts the stoker program of this checkout and does not wait until it
// is ready. args are all its arguments, env ("NAME=value") is all of its environment
// but PATH, HOME and TMPDIR; a kubeconfig is for the test to name, see
// [Cluster.ServiceAccountKubeconfig], a port to choose, see [FreePort].
//
// The test may kill it and start another with the same arguments. At the end of
// the test it gets SIGTERM and, after 30 s, SIGKILL.
func (c *Cluster) StartStoker(t testing.TB, args, env []string) *Process {
	t.Helper()
	path, err := serviceBinary()
	if err != nil {
		t.Fatal(err)
	}
	return c.StartProgram(t, "stoker", path, args, env)
}

// StartCollector starts the stoker-collector program of this checkout, as
// [Cluster.StartStoker] starts the service.
func (c *Cluster) StartCollector(t testing.TB, args, env []string) *Process {
	t.Helper()
	path, err := collectorBinary()
	if err != nil {
		t.Fatal(err)
	}
	return c.StartProgram(t, "stoker-collector", path, args, env)
}

// StartProgram starts any program for the length of the test, as
// [Cluster.StartStoker] does. Its output goes to a log file of its own in the
// cluster's folder, called after name.
func (c *Cluster) StartProgram(t testing.TB, name, path string, args, env []string) *Process {
	t.Helper()
	p, err := startProcess(name, path, args, append(baseEnv(c.Dir), env...), c.Dir, c.logPath(name))
	if err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	c.processes = append(c.processes, p)
	c.mu.Unlock()
	t.Cleanup(func() {
		if !p.Running() {
			return
		}
		gently, err := p.Stop(stopGrace)
		if err != nil {
			t.Errorf("stop %s: %v", name, err)
		}
		if !gently {
			t.Errorf("%s did not end within %v of %v; its last lines:\n%s", name, stopGrace, syscall.SIGTERM, tail(p.LogPath, 15))
		}
	})
	return p
}

// AwaitLog waits until the program has written text, and fails the test at once
// when it ends before.
func (c *Cluster) AwaitLog(t testing.TB, p *Process, text string, within time.Duration) {
	t.Helper()
	c.Await(t, p.Name+" to write "+text, within, func(context.Context) (bool, string, error) {
		ended := !p.Running() // asked first, so that no last words are missed
		log := p.Log(t)
		if strings.Contains(log, text) {
			return true, "", nil
		}
		if ended {
			t.Fatalf("%s ended (%v) without writing %q; its last lines:\n%s", p.Name, p.state, text, tail(p.LogPath, 15))
		}
		return false, tail(p.LogPath, 3), nil
	})
}
