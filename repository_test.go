// Package stoker_test tests the repository itself: which package may import which,
// and habits that no linter knows.
package stoker_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "stoker.dev/stoker"

var (
	vocabulary = []string{"internal/fleet", "internal/remedy", "internal/xid", "internal/calendar", "internal/config"}
	everything = []string{""}
)

// arrows says which of our packages a package may import, by the longest prefix of its
// folder. A stage knows the vocabulary and nothing of the other stages; only app knows
// all of them.
var arrows = map[string][]string{
	"cmd/stoker":           {"internal/app", "internal/remedy", "internal/server", "internal/config"},
	"cmd/stoker-collector": {"collector", "internal/fleet", "internal/xid"},

	"collector": {"internal/fleet", "internal/xid", "collector"},
	"rules":     append([]string{"rules"}, vocabulary...),
	"scheduler": vocabulary,
	"actuator":  append([]string{"actuator"}, vocabulary...),

	"internal/fleet":  {},
	"internal/remedy": {"internal/fleet"},
	"internal/xid":    {"internal/fleet"},
	"internal/config": {"internal/remedy", "internal/fleet"},

	"internal/alertmanager": {"internal/fleet", "internal/remedy", "rules"},
	"internal/observe":      {"internal/fleet", "internal/remedy", "actuator/jobs"},
	"internal/series":       {"internal/fleet"},
	"internal/loop":         {"internal/fleet", "internal/remedy", "internal/store", "rules", "scheduler"}, // the store in tests
	"internal/store":        {"internal/store", "internal/fleet", "internal/remedy", "deploy/crds"},
	"internal/kube":         {"internal/kube", "internal/fleet", "internal/remedy", "internal/observe", "internal/config", "actuator"},
	"internal/sim":          {"internal/sim", "internal/fleet", "internal/remedy", "actuator", "collector", "internal/series"},
	"internal/replay":       {"internal/fleet", "internal/remedy", "internal/xid", "actuator"},
	"internal/server":       {"internal/fleet", "internal/remedy", "internal/loop", "rules", "scheduler"},
	"internal/app":          everything,
	"internal/e2e":          everything,
	"internal/tools":        {},
	"deploy":                {},
}

// kubernetes says where k8s.io and sigs.k8s.io may be imported.
var kubernetes = []string{"internal/kube", "internal/store", "internal/observe", "internal/e2e", "actuator/jobs", "actuator/queues", "actuator/pools", "collector/pods"}

// TestArrows reads the sources itself: go test sees the files that a test opens and
// reruns it when they change.
func TestArrows(t *testing.T) {
	files := 0
	eachGoFile(t, func(rel string, src []byte) {
		files++
		from, may := rule(rel)
		if from == "" {
			if strings.Contains(rel, "/") {
				t.Errorf("%s: no arrow rule covers this folder", rel)
			}
			return
		}
		f, err := parser.ParseFile(token.NewFileSet(), rel, src, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, imp := range f.Imports {
			path, err := strconv.Unquote(imp.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(path, "k8s.io/") || strings.HasPrefix(path, "sigs.k8s.io/") {
				if !slices.ContainsFunc(kubernetes, func(p string) bool { return within(rel, p) }) {
					t.Errorf("%s imports %s; only %v may", rel, path, kubernetes)
				}
			}
			to, ours := strings.CutPrefix(path, module+"/")
			if !ours || within(to, from) && !strings.HasPrefix(from, "actuator") {
				continue
			}
			if !slices.ContainsFunc(may, func(p string) bool { return within(to, p) }) {
				t.Errorf("%s imports %s; %s may import only %v", rel, to, from, may)
			}
		}
	})
	if files < 50 {
		t.Errorf("only %d Go files were read: the test looks in the wrong place", files)
	}
}

// TestFilesStayReadable holds what the style asks of every file.
func TestFilesStayReadable(t *testing.T) {
	eachGoFile(t, func(rel string, src []byte) {
		if n := strings.Count(string(src), "\n"); n > 650 && !strings.Contains(rel, "generated") {
			t.Errorf("%s has %d lines; split it where it changes for different reasons", rel, n)
		}
		dir := filepath.Base(filepath.Dir(rel))
		if slices.Contains([]string{"util", "utils", "common", "helpers", "types", "manager"}, dir) {
			t.Errorf("%s: package %q says nothing about what it owns", rel, dir)
		}
		for i, line := range strings.Split(string(src), "\n") {
			if strings.Contains(line, "t.Skip"+"(") && !strings.Contains(rel, "traces") {
				t.Errorf("%s:%d skips a test", rel, i+1)
			}
		}
	})
}

// TestTargetsOfReadme holds that every make target that a document names exists.
func TestTargetsOfReadme(t *testing.T) {
	mk, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, doc := range []string{"README.md", "CONTRIBUTING.md"} {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range strings.Split(string(text), "`") {
			target, ok := strings.CutPrefix(word, "make ")
			if !ok || strings.ContainsAny(target, "\n") {
				continue
			}
			target, _, _ = strings.Cut(target, " ")
			if !strings.Contains(string(mk), "\n"+target+":") {
				t.Errorf("%s names `make %s`, which the Makefile does not have", doc, target)
			}
		}
	}
}

func rule(rel string) (from string, may []string) {
	for prefix, list := range arrows {
		if within(rel, prefix) && len(prefix) > len(from) {
			from, may = prefix, list
		}
	}
	return from, may
}

// within reports whether path is the folder or lies in it. The empty folder holds everything.
func within(path, folder string) bool {
	return folder == "" || path == folder || strings.HasPrefix(path, folder+"/")
}

func eachGoFile(t *testing.T, f func(rel string, src []byte)) {
	t.Helper()
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && p != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "bin" || d.Name() == "node_modules") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(p, ".go") {
			return nil
		}
		src, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		f(filepath.ToSlash(p), src)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
