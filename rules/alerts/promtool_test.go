package alerts

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestPromtool gives the files to the tool that users give them to: promtool's check
// with all its lints, and its tests that stand beside the rules. The tool is built
// from internal/tools; the first time that takes minutes, later it is cached.
func TestPromtool(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	// Read here, so that go test reruns this when one of them has changed.
	var rules, tests []string
	for _, name := range glob(t, "*.yaml") {
		if _, err := os.ReadFile(name); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join("rules", "alerts", name)
		if ok, _ := filepath.Match("*.test.yaml", name); ok {
			tests = append(tests, file)
		} else {
			rules = append(rules, file)
		}
	}
	if len(rules) != len(tests) {
		t.Errorf("%d rule files and %d test files, want a test for each: %v, %v", len(rules), len(tests), rules, tests)
	}
	for name, args := range map[string][]string{
		"check": append([]string{"check", "rules", "--lint=all", "--lint-fatal"}, rules...),
		"test":  append([]string{"test", "rules"}, tests...),
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			if at, ok := t.Deadline(); ok {
				var cancel context.CancelFunc
				ctx, cancel = context.WithDeadline(ctx, at.Add(-5*time.Second))
				defer cancel()
			}
			cmd := exec.CommandContext(ctx, "go", append([]string{"tool", "-modfile=internal/tools/go.mod", "promtool"}, args...)...)
			cmd.Dir = root
			// The discovery of clouds' targets is most of what promtool is made of, and no rule needs it.
			cmd.Env = append(os.Environ(), "GOFLAGS="+os.Getenv("GOFLAGS")+" -tags=remove_all_sd")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("promtool %v: %v\n%s", args, err, out)
			}
		})
	}
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return names
}
