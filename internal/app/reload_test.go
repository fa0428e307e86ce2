package app

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestAChangedConfigurationIsTakenWhole: what a section says is in force in each part that
// goes by it, and the files that it names belong to it.
func TestAChangedConfigurationIsTakenWhole(t *testing.T) {
	dir := t.TempDir()
	file, template := filepath.Join(dir, "stoker.yaml"), filepath.Join(dir, "reboot.yaml")
	write := func(name, text string) {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const job = "apiVersion: batch/v1\nkind: Job\nspec: {template: {spec: {containers: [{name: r, image: a}]}}}\n"
	const repairs = "repairs: {reboot: {template: "
	write(template, job)
	write(file, "mode: auto\n"+repairs+template+"}}\n")
	var said strings.Builder
	s := serviceOf(t, slog.New(slog.NewTextHandler(io.MultiWriter(t.Output(), &said), nil)), file)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.reload(ctx) }()
		synctest.Wait()
		for _, step := range []struct{ name, text, says, lacks string }{
			{template, job + "# the same\n", "configuration taken", "restart"},
			{template, "kind: Pod\n", "reboot: repair template: apiVersion, kind", "taken\""},
			{template, job, "configuration taken", "restart"},
			{file, "mode: auto\nevidence: {maxAge: 2h}\n" + repairs + template + "}}\n", "configuration taken", "restart"},
			{file, "mode: auto\nevery: 2s\nevidence: {maxAge: 2h}\n" + repairs + template + "}}\n", "takes a restart\" sections=every", "failures"},
		} {
			said.Reset()
			write(step.name, step.text)
			time.Sleep(reloadEvery + time.Second)
			synctest.Wait()
			if got := said.String(); !strings.Contains(got, step.says) || strings.Contains(got, step.lacks) {
				t.Errorf("after %q it says\n%swant %q, and not %q", step.text, got, step.says, step.lacks)
			}
		}
		if got := time.Duration(s.failures.maxAge.Load()); got != 2*time.Hour {
			t.Errorf("failures of jobs are told for %v, want the 2h of evidence.maxAge", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
