package cluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// A Process is one running program. Its methods may be called at any time and
// from any goroutine, also after it has ended.
type Process struct {
	// Name says what it is, for messages.
	Name string
	// LogPath is the file that stdout and stderr are appended to.
	LogPath string

	cmd   *exec.Cmd
	asked atomic.Bool   // somebody here ended it, so its end is no surprise
	ended chan struct{} // closed after state is set
	state *os.ProcessState
}

// startProcess starts the program at path with exactly the environment env, in
// dir, its output appended to logPath. The caller ends it.
func startProcess(name, path string, args, env []string, dir, logPath string) (*Process, error) {
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600) //nolint:gosec // the folder is the test's own
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the program keeps its own descriptor
	cmd := exec.Command(path, args...) //nolint:gosec,noctx // running what the test names is its purpose; a process outlives contexts
	cmd.Env = env
	cmd.Dir = dir
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = sysProcAttr()
	p := &Process{Name: name, LogPath: logPath, cmd: cmd, ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel ties the program's life to this thread, not to this process: hold the thread.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		_ = cmd.Wait() // the state says it all
		p.state = cmd.ProcessState
		close(p.ended)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// Pid returns the process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Ended is closed when the program has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Running reports whether the program has not ended yet.
func (p *Process) Running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// ExitCode returns the exit code, or -1 while the program runs or when a signal ended it.
func (p *Process) ExitCode() int {
	if p.Running() {
		return -1
	}
	return p.state.ExitCode()
}

// Signal sends sig. A program that has ended already is no error.
func (p *Process) Signal(sig syscall.Signal) error {
	if sig == syscall.SIGKILL || sig == syscall.SIGTERM || sig == syscall.SIGINT {
		p.asked.Store(true)
	}
	if err := p.cmd.Process.Signal(sig); err != nil && p.Running() {
		return fmt.Errorf("send %v to %s (pid %d): %w", sig, p.Name, p.Pid(), err)
	}
	return nil
}

// Wait waits for the end of the program, until ctx ends.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the end of %s (pid %d): %w", p.Name, p.Pid(), context.Cause(ctx))
	}
}

// Kill ends the program with SIGKILL and returns when it is gone.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	select {
	case <-p.ended:
		return nil
	case <-time.After(10 * time.Second):
		return fmt.Errorf("%s (pid %d) is still there 10 s after SIGKILL", p.Name, p.Pid())
	}
}

// Stop asks the program to end with SIGTERM and, if it has not ended within
// grace, kills it. It reports whether SIGTERM was enough.
func (p *Process) Stop(grace time.Duration) (gently bool, err error) {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return false, err
	}
	select {
	case <-p.ended:
		return true, nil
	case <-time.After(grace):
		return false, p.Kill()
	}
}

// Log returns all that the program has written so far, together with what
// earlier programs wrote to the same file.
func (p *Process) Log(t testing.TB) string {
	t.Helper()
	b, err := os.ReadFile(p.LogPath)
	if err != nil {
		t.Fatalf("read the log of %s: %v", p.Name, err)
	}
	return string(b)
}

// died says how the program ended if nobody here asked it to, or "".
func (p *Process) died() string {
	if p.asked.Load() || p.Running() {
		return ""
	}
	return fmt.Sprintf("%s ended by itself: %v; its last lines:\n%s", p.Name, p.state, tail(p.LogPath, 15))
}

// tail returns the last n lines of a file, or why it has none.
func tail(name string, n int) string {
	b, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	lines := bytes.Split(bytes.TrimRight(b, "\n"), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-n):], []byte("\n")))
}
