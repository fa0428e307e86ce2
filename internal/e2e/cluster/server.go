package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// readyWithin bounds the start of each server. The slowest, the API server,
// needs some 7 s on 2 idle cores.
const readyWithin = 2 * time.Minute

// A Server is one program of the cluster that can be stopped and started again
// with the same arguments, ports and data. Its log goes on in the same file.
type Server struct {
	name, path string
	args       []string
	dir        string // working directory, also of the log
	ready      func(context.Context) error

	mu   sync.Mutex
	proc *Process // of the newest start; nil before the first
}

// start starts the server and returns without waiting until it is ready.
func (s *Server) start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc != nil && s.proc.Running() {
		return fmt.Errorf("%s already runs as pid %d", s.name, s.proc.Pid())
	}
	p, err := startProcess(s.name, s.path, s.args, baseEnv(s.dir), s.dir, filepath.Join(s.dir, s.name+".log"))
	if err != nil {
		return err
	}
	s.proc = p
	return nil
}

// awaitReady waits until the server answers that it is ready, or has ended.
func (s *Server) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	return Await(ctx, s.name+" to be ready", readyWithin, func(ctx context.Context) (bool, string, error) {
		if died := s.Process().died(); died != "" {
			cancel(errors.New(died))
		}
		err := s.ready(ctx)
		return err == nil, "ready", err
	})
}

// Process returns the process of the newest start.
func (s *Server) Process() *Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc
}

// Start starts a stopped server and waits until it is ready.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	if err := s.awaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Stop ends the server with SIGTERM, after 10 s with SIGKILL, and returns when it is gone.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	if _, err := s.Process().Stop(10 * time.Second); err != nil {
		t.Fatal(err)
	}
}

// Kill ends the server with SIGKILL and returns when it is gone.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	if err := s.Process().Kill(); err != nil {
		t.Fatal(err)
	}
}

// baseEnv is the whole environment of every program: nothing of the test's own
// leaks in, a kubeconfig least of all.
func baseEnv(home string) []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + home}
}

// probe answers nil when url answers 200. It is used on loopback alone, where the
// servers' own certificates are not worth checking.
func probe(url, token string) func(context.Context) error {
	client := &http.Client{
		Timeout: 5 * time.Second,
		Transport: &http.Transport{
			DisableKeepAlives: true,
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // loopback, see above
		},
	}
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		if resp.StatusCode != http.StatusOK {
			body, _ := io.ReadAll(io.LimitReader(resp.Body, 500))
			return fmt.Errorf("%s answers %s: %s", url, resp.Status, strings.TrimSpace(string(body)))
		}
		return nil
	}
}
