package actuator_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/internal/config"
	"stoker.dev/stoker/internal/remedy"
)

var update = flag.Bool("update", false, "write the generated parts of docs/actions")

const (
	docs  = "../docs/actions"
	begin = "<!-- begin: from the action's spec; written by go test ./actuator -run Docs -update -->\n"
	end   = "<!-- end -->\n"
)

// TestDocsTellOfEveryAction holds docs/actions to the specs: a page for each action,
// with what the spec says, and no page for anything else.
func TestDocsTellOfEveryAction(t *testing.T) {
	pages := map[string]bool{"README.md": true}
	index := "| action | aimed at | effect | within | what it does |\n|---|---|---|---|---|\n"
	for _, s := range actuator.Actions {
		i := s.Info
		pages[i.Name+".md"] = true
		index += fmt.Sprintf("| [%s](%s.md) | %s | %s | %s | %s |\n", i.Name, i.Name, aimedAt[i.Scope], effects[i.Effect], remedy.Duration(i.Within), i.Doc)
		check(t, i.Name+".md", table(t, s))
	}
	check(t, "README.md", index)
	files, err := filepath.Glob(filepath.Join(docs, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !pages[filepath.Base(f)] {
			t.Errorf("%s is of no action", f)
		}
	}
}

// check compares the generated part of a page, or writes it.
func check(t *testing.T, page, want string) {
	t.Helper()
	path := filepath.Join(docs, page)
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(raw), begin)
	got, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no generated part between %q and %q", page, begin, end)
	}
	if got == want {
		return
	}
	if !*update {
		t.Errorf("%s is not what the spec says; run with -update. got:\n%s\nwant:\n%s", page, got, want)
		return
	}
	if err := os.WriteFile(path, []byte(before+begin+want+end+after), 0o600); err != nil {
		t.Fatal(err)
	}
}

var (
	aimedAt = map[remedy.Scope]string{remedy.ScopeNode: "the node", remedy.ScopeJobs: "each job"}
	effects = map[remedy.Effect]string{
		remedy.EffectHarm: "takes capacity or work away; gates may make it wait", remedy.EffectAsk: "asks or looks; takes nothing away",
		remedy.EffectRecovery: "gives back; no gate stops it",
	}
)

func table(t *testing.T, s actuator.Spec) string {
	t.Helper()
	i := s.Info
	var b strings.Builder
	row := func(k, v string) { fmt.Fprintf(&b, "| %s | %s |\n", k, v) }
	b.WriteString("| | |\n|---|---|\n")
	row("does", i.Doc)
	row("aimed at", aimedAt[i.Scope])
	row("effect", effects[i.Effect])
	row("within", fmt.Sprintf("%s, where the step names nothing else", remedy.Duration(i.Within)))
	if i.Optional {
		row("when it fails", "the ladder goes on")
	} else {
		row("when it fails", "the ladder ends and the incident is held for a person")
	}
	var rules []string
	for _, r := range s.RBAC {
		what := r.Resource
		if r.Group != "" {
			what += "." + r.Group
		}
		own := ""
		if r.Own {
			own = " (in Stoker's namespace)"
		}
		rules = append(rules, fmt.Sprintf("`%s`: %s%s", what, strings.Join(r.Verbs, ", "), own))
	}
	if i.Scope == remedy.ScopeJobs {
		rules = append(rules, "what the job's framework needs")
	}
	if len(rules) == 0 {
		rules = append(rules, "none")
	}
	row("permissions", strings.Join(rules, "; "))
	b.WriteString("\n| parameter | kind | default | meaning |\n|---|---|---|---|\n")
	fmt.Fprintf(&b, "| `within` | duration | %s | after this time the step has failed |\n", remedy.Duration(i.Within))
	if s.Params == nil {
		return b.String()
	}
	p := s.Params()
	defaults := map[string]any{}
	raw, err := actuator.Actions.Params(i.Name, "", "", nil)
	if missing, ok := errors.AsType[config.Errors](err); ok {
		for _, e := range missing { // what has no default has to be given
			defaults[e.Path] = "–"
		}
	} else if err := json.Unmarshal(raw, &defaults); err != nil {
		t.Fatal(err)
	}
	for _, f := range reflect.VisibleFields(reflect.TypeOf(p).Elem()) {
		key := f.Tag.Get("yaml")
		fmt.Fprintf(&b, "| `%s` | %s | %v | %s |\n", key, kind(t, f.Type), defaults[key], f.Tag.Get("doc"))
	}
	return b.String()
}

func kind(t *testing.T, typ reflect.Type) string {
	t.Helper()
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	switch {
	case typ == reflect.TypeFor[remedy.Duration]():
		return "duration"
	case typ == reflect.TypeFor[config.Amount]():
		return "number or share"
	case typ.Kind() == reflect.String:
		return "word"
	case typ == reflect.TypeFor[[]string]():
		return "words"
	case typ.Kind() == reflect.Int:
		return "number"
	}
	t.Fatalf("kind of %s has no name in the docs", typ)
	return ""
}
