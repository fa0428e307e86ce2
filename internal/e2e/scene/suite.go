// Package scene is what the groups of tests share that heal faults on a real control
// plane and let the API server's audit log judge what was done. It runs the programs of
// this checkout as they are shipped, the service under its own service account, and knows
// of them only what users and operators know: flags, configuration, HTTP, annotations and
// the custom resource.
//
// All tests share one control plane. Each has nodes, namespaces, an account and a
// service process of its own, so that the log can be asked about one test by the name
// of the account. No two tests run at once: a service sees every node there is.
package scene

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"stoker.dev/stoker/internal/e2e/cluster"
	"stoker.dev/stoker/internal/e2e/programs"
)

// A Suite is what the tests share.
type Suite struct {
	*cluster.Cluster

	Folder    string // of what is not the cluster's
	stokerBin string
	Token     string // of webhook and API
	TokenFile string
	// webhook is the port to which Alertmanager sends; the service of a test that is
	// to hear of it listens there.
	WebhookPort int
	// OtherPort is that of a second replica.
	OtherPort int
	runs      map[string]int // of each test's fixture
}

var (
	once   sync.Once
	shared *Suite
	broken error
)

// theSuite starts the control plane for the first test that asks.
func theSuite(t *testing.T) *Suite {
	t.Helper()
	once.Do(func() { shared, broken = newSuite(t) })
	if broken != nil {
		t.Fatal(broken)
	}
	if shared == nil {
		t.Fatal("the control plane was not started, see the first test")
	}
	return shared
}

func newSuite(t *testing.T) (*Suite, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Minute) // the programs may have to be built
	defer cancel()
	bin, err := programs.BuildService(ctx, os.Stderr)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "stoker-scene-")
	if err != nil {
		return nil, err
	}
	s := &Suite{Folder: dir, stokerBin: bin, Token: rand.Text(), TokenFile: filepath.Join(dir, "token"), WebhookPort: cluster.FreePort(t), OtherPort: cluster.FreePort(t), runs: map[string]int{}}
	if err := os.WriteFile(s.TokenFile, []byte(s.Token+"\n"), 0o600); err != nil {
		return nil, err
	}
	s.Cluster, err = cluster.New(ctx, cluster.Options{Alertmanager: s.alertmanagerConfig(), Log: os.Stderr})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// alertmanagerConfig sends every alert by itself, at once, as an operator would who
// routes to Stoker.
func (s *Suite) alertmanagerConfig() string {
	if options.Alertmanager != nil {
		return options.Alertmanager(s.WebhookPort, s.OtherPort, s.TokenFile)
	}
	return fmt.Sprintf(`
route:
  receiver: stoker
  group_by: ['...']
  group_wait: 0s
  group_interval: 1s
  repeat_interval: 1h
receivers:
  - name: stoker
    webhook_configs:
      - url: http://127.0.0.1:%d/webhook/alertmanager
        send_resolved: true
        http_config:
          authorization:
            credentials_file: %s
`, s.WebhookPort, s.TokenFile)
}

// Stoker runs the program to its end, which must come within a minute.
func (s *Suite) Stoker(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out, errs strings.Builder
	cmd := exec.CommandContext(ctx, s.stokerBin, args...) //nolint:gosec // the program of this checkout
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.Folder, "TMPDIR=" + s.Folder}
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.Folder, &out, &errs
	err := cmd.Run()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && (!exited || ctx.Err() != nil) {
		t.Fatalf("run stoker %s: %v; it said:\n%s", strings.Join(args, " "), err, errs.String())
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// Options say how the group's control plane differs from the usual one.
type Options struct {
	// Alertmanager is its configuration, given the ports of the service's replicas and the token file;
	// nil: each alert is sent by itself, at once.
	Alertmanager func(port, other int, tokenFile string) string
}

// options are those of the group that runs.
var options Options

// Run runs the tests of a group and ends what they shared.
func Run(m *testing.M, o Options) int {
	options = o
	code := m.Run()
	if shared == nil {
		return code
	}
	err := shared.Close()
	if err == nil {
		err = goleak.Find()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if code != 0 || os.Getenv(cluster.KeepEnv) != "" {
		fmt.Fprintf(os.Stderr, "logs, audit log and data are kept in %s and %s\n", shared.Dir, shared.Folder)
		return code
	}
	for _, dir := range []string{shared.Dir, shared.Folder} {
		if err := os.RemoveAll(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	return code
}
