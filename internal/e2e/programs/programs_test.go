package programs

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/mod/modfile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestModulesPinTheirPrograms holds that what is built is what go.mod says: the
// program is a tool of its module, and Kubernetes' staging modules all have the
// version of the release.
func TestModulesPinTheirPrograms(t *testing.T) {
	for _, p := range pinned {
		data, err := os.ReadFile(filepath.Join(p.module, "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		f, err := modfile.Parse("go.mod", data, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(f.Tool, func(tool *modfile.Tool) bool { return tool.Path == p.pkg }) {
			t.Errorf("%s/go.mod has no tool line for %s", p.module, p.pkg)
		}
		if p.versionOf == "" {
			continue
		}
		version, err := requiredVersion(data, p.versionOf)
		if err != nil {
			t.Fatal(err)
		}
		staging := strings.Replace(version, "v1.", "v0.", 1)
		if len(f.Replace) == 0 {
			t.Errorf("%s/go.mod replaces no staging module", p.module)
		}
		for _, r := range f.Replace {
			if r.New.Path != r.Old.Path || r.New.Version != staging {
				t.Errorf("%s/go.mod replaces %s by %s %s, want version %s", p.module, r.Old.Path, r.New.Path, r.New.Version, staging)
			}
		}
	}
}

func TestFlags(t *testing.T) {
	kubernetes := program{name: "kube-apiserver", versionOf: "k8s.io/kubernetes"}
	for name, tc := range map[string]struct {
		program program
		mod     string
		want    string // in the flags, or in the error when wantErr
		wantErr bool
	}{
		"a program without a version is only stripped": {program{name: "etcd"}, "", "-s -w", false},
		"Kubernetes is told its version":               {kubernetes, "require k8s.io/kubernetes v1.37.2", "-X k8s.io/component-base/version.gitVersion=v1.37.2 -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37 ", false},
		"a module that is not required is an error":    {kubernetes, "require k8s.io/api v0.37.2", "go.mod does not require k8s.io/kubernetes", true},
		"a go.mod that is none is an error":            {kubernetes, "require (", "go.mod:1", true},
	} {
		t.Run(name, func(t *testing.T) {
			flags, err := tc.program.flags([]byte(tc.mod))
			got := strings.Join(flags, " ")
			if (err != nil) != tc.wantErr {
				t.Fatalf("flags = %q, error %v; want an error: %v", got, err, tc.wantErr)
			}
			if err != nil {
				got = err.Error()
			}
			if !strings.Contains(got, tc.want) {
				t.Errorf("got %q, want %q in it", got, tc.want)
			}
		})
	}
}

func TestKeyTellsPartsApart(t *testing.T) {
	if a, b := key([]byte("ab"), []byte("c")), key([]byte("a"), []byte("bc")); a == b {
		t.Errorf("ab+c and a+bc have the same key %s", a)
	}
	if a, b := key([]byte("ab")), key([]byte("ab")); a != b {
		t.Errorf("the same part has the keys %s and %s", a, b)
	}
}

// TestOneBuildsTheOtherWaits lets several builds want one program: one builds it.
func TestOneBuildsTheOtherWaits(t *testing.T) {
	name := filepath.Join(t.TempDir(), "program.lock")
	var inside, most, entered atomic.Int32
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			unlock, err := lock(t.Context(), t.Output(), name)
			if err != nil {
				t.Error(err)
				return
			}
			defer unlock()
			entered.Add(1)
			if n := inside.Add(1); n > most.Load() {
				most.Store(n)
			}
			time.Sleep(20 * time.Millisecond)
			inside.Add(-1)
		})
	}
	wg.Wait()
	if entered.Load() != 4 || most.Load() != 1 {
		t.Errorf("%d got the lock, at most %d at once; want 4, 1 at once", entered.Load(), most.Load())
	}
}

func TestWaitingForALockEndsWithTheContext(t *testing.T) {
	name := filepath.Join(t.TempDir(), "program.lock")
	unlock, err := lock(t.Context(), t.Output(), name)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	why := errors.New("had enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, why)
	defer cancel()
	var log bytes.Buffer
	if _, err := lock(ctx, &log, name); !errors.Is(err, why) {
		t.Errorf("err = %v, want the context's cause", err)
	}
	if got := strings.Count(log.String(), "waiting for another build"); got != 1 {
		t.Errorf("the wait was told %d times, want once:\n%s", got, log.String())
	}
}

// small is a main module that builds in a second.
func small(t *testing.T, source string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module small\n\ngo 1.26\n", "main.go": source} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestTwoBuildsOfOneProgramLeaveOneWholeProgram(t *testing.T) {
	dir, out := small(t, "package main\n\nfunc main() {}\n"), filepath.Join(t.TempDir(), "small")
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if err := goBuild(t.Context(), t.Output(), dir, out, noCgo, []string{"-trimpath"}, "."); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	left, err := os.ReadDir(filepath.Dir(out))
	if err != nil {
		t.Fatal(err)
	}
	if len(left) != 1 || left[0].Name() != "small" || !isFile(out) {
		t.Errorf("the folder holds %v, want the program alone", left)
	}
}

func TestABuildThatFailsLeavesNothingAndSaysWhy(t *testing.T) {
	dir, out := small(t, "package main\n\nfunc main() { undefined() }\n"), filepath.Join(t.TempDir(), "small")
	var log bytes.Buffer
	if err := goBuild(t.Context(), &log, dir, out, noCgo, nil, "."); err == nil {
		t.Error("a program that does not compile was built")
	}
	if !strings.Contains(log.String(), "main.go:3") {
		t.Errorf("the log names no place:\n%s", log.String())
	}
	if left, err := os.ReadDir(filepath.Dir(out)); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestWhatAKilledBuildLeftIsRemovedAfterADay(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	for name, age := range map[string]time.Duration{unfinished + "old": 25 * time.Hour, unfinished + "new": time.Hour, "kwok": 100 * time.Hour} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Join(path, "inside"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, now.Add(-age), now.Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeAbandoned(dir, now); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) != 2 || left[0].Name() != unfinished+"new" || left[1].Name() != "kwok" {
		t.Errorf("left are %v, want the new build and the program", left)
	}
}

func TestRootIsFoundFromBelow(t *testing.T) {
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	if !isFile(filepath.Join(root, "internal", "e2e", "programs", "programs_test.go")) {
		t.Errorf("root = %s, which is not above this test", root)
	}
	t.Chdir(t.TempDir())
	if _, err := Root(); err == nil {
		t.Error("a folder outside has a root")
	}
}
