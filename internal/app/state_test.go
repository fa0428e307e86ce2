package app

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/internal/kube"
	"stoker.dev/stoker/internal/loop"
	"stoker.dev/stoker/internal/observe"
	"stoker.dev/stoker/internal/store"
)

// TestPagesShowTheModeInForce holds that a mode which a changed configuration brings is
// shown, and one that is not taken is not.
func TestPagesShowTheModeInForce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "stoker.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("mode: approve\n")
	s := serviceOf(t, slog.New(slog.NewTextHandler(t.Output(), nil)), file)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.reload(ctx) }()
		synctest.Wait()
		for _, step := range []struct{ text, want string }{
			{"mode: approve\n", "approve"},
			{"mode: auto\n", "auto"},
			{"mode: automatic\n", "auto"},
			{"mode: dry-run\n", "auto"},
			{"mode: approve\n", "approve"},
		} {
			write(step.text)
			time.Sleep(reloadEvery + time.Second)
			synctest.Wait()
			if got := s.state(time.Now()); got.Mode != step.want || got.Leader != "one" || !got.Leading {
				t.Errorf("after %q pages show %+v, want mode %s, led by this replica", step.text, got, step.want)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// serviceOf is a service as the configuration in the file makes it, without a cluster.
func serviceOf(t *testing.T, log *slog.Logger, file string) *service {
	t.Helper()
	cfg, lcfg, err := ReadConfig(file)
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	act, err := actuator.New(log, nil, actuator.Actions, actuator.Gates(cfg.Mode, cfg.Gates), reg)
	if err != nil {
		t.Fatal(err)
	}
	s := &service{
		log: log, opts: ControllerOptions{ConfigFile: file, Identity: "one"}, cfg: cfg, loopConfig: lcfg, door: newDoor(act, nil),
		cluster: kube.NewCluster(log, nil, kube.ClusterOptions{}), failures: newFailures(nil, lcfg.Playbooks.MaxAge, logsNone, nil),
	}
	s.loop = loop.New(log, reg, &store.Memory{}, observe.NewWorld(log), nil, s.door, lcfg, loop.Options{})
	return s
}
