package actuator_test

import (
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/internal/remedy"
)

func TestParametersAreReadStrictly(t *testing.T) {
	for name, tc := range map[string]struct {
		action, yaml string
		want         string // JSON, or the mistakes
	}{
		"an action without parameters has none":     {"drain", "{}", ""},
		"nothing where nothing is needed":           {"drain", "", ""},
		"a parameter of an action that takes none":  {"drain", "{force: true}", `p.yaml:1:2: steps[0].drain.force: unknown key "force"; there is none to set here`},
		"what is left out has its default":          {"start", "{}", `{"from":"latest-complete","avoid":"node","attempts":3,"per":"24h"}`},
		"what is said is kept":                      {"start", "{from: latest-complete, avoid: none, attempts: 1}", `{"from":"latest-complete","avoid":"none","attempts":1,"per":"24h"}`},
		"every mistake of a step":                   {"start", "{from: newest, avoid: rack, attempts: 0}", "p.yaml:1:8: steps[0].start.from: unknown checkpoint \"newest\"; known: latest-complete\np.yaml:1:23: steps[0].start.avoid: unknown place \"rack\"; known: node, none\np.yaml:1:39: steps[0].start.attempts: 0 is not from 1 to 100"},
		"a time to verify":                          {"verify", "{for: 90s}", `{"for":"1m30s","boot":"new"}`},
		"no time to verify is the default":          {"verify", "{}", `{"for":"5m","boot":"new"}`},
		"a time without a unit":                     {"verify", "{for: 5}", "p.yaml:1:7: steps[0].verify.for: 5 needs a unit, such as 5m"},
		"a time that is too long, and another boot": {"verify", "{for: 48h, boot: old}", "p.yaml:1:7: steps[0].verify.for: 48h is not between 0 and 24h\np.yaml:1:18: steps[0].verify.boot: unknown boot \"old\"; known: new, any"},
		"a recipe and what it may set":              {"recipe", "{name: oom, allow: [BATCH_SIZE]}", `{"name":"oom","allow":["BATCH_SIZE"]}`},
		"a recipe that nobody has bounded":          {"recipe", "{}", "p.yaml:1:1: steps[0].recipe.allow: is missing: a recipe could set nothing\np.yaml:1:1: steps[0].recipe.name: \"\" is not the name of a recipe, such as oom"},
		"names that no recipe may set":              {"recipe", "{name: oom, allow: [LD_PRELOAD, _X, PYTHONPATH]}", "p.yaml:1:21: steps[0].recipe.allow[0]: LD_PRELOAD decides what a program runs; no recipe may set it\np.yaml:1:33: steps[0].recipe.allow[1]: \"_X\" is not a name that can be set: letters, digits and _, a letter first\np.yaml:1:37: steps[0].recipe.allow[2]: PYTHONPATH decides what a program runs; no recipe may set it"},
		"an action that is not there":               {"drian", "{}", `p.yaml: steps[0].drian: unknown action "drian"; did you mean "drain"?`},
	} {
		t.Run(name, func(t *testing.T) {
			var n yaml.Node
			if err := yaml.Unmarshal([]byte(tc.yaml), &n); err != nil {
				t.Fatal(err)
			}
			part := &n
			if n.Kind == yaml.DocumentNode {
				part = n.Content[0]
			}
			raw, err := actuator.Actions.Params(tc.action, "p.yaml", "steps[0]."+tc.action, part)
			got := string(raw)
			if err != nil {
				got = err.Error()
			}
			if d := cmp.Diff(got, tc.want); d != "" {
				t.Errorf("(-got +want):\n%s", d)
			}
		})
	}
}

var verbs = []string{"create", "delete", "get", "list", "patch", "update", "watch"}

// TestEverySpecIsWhole holds for all actions, also those not written yet.
func TestEverySpecIsWhole(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range actuator.Actions {
		i := s.Info
		t.Run(i.Name, func(t *testing.T) {
			if !regexp.MustCompile(`^[a-z][a-z-]*$`).MatchString(i.Name) || seen[i.Name] {
				t.Errorf("name %q is no single word of its own", i.Name)
			}
			seen[i.Name] = true
			if !strings.HasSuffix(i.Doc, ".") || i.Within <= 0 {
				t.Errorf("doc %q, within %v: want a sentence and a deadline", i.Doc, i.Within)
			}
			if !slices.Contains([]remedy.Scope{remedy.ScopeNode, remedy.ScopeJobs}, i.Scope) ||
				!slices.Contains([]remedy.Effect{remedy.EffectAsk, remedy.EffectHarm, remedy.EffectRecovery}, i.Effect) {
				t.Errorf("scope %q, effect %q", i.Scope, i.Effect)
			}
			if a := s.New(actuator.Deps{}); a == nil {
				t.Error("New makes nothing")
			}
			for _, r := range s.RBAC {
				if r.Resource == "" || len(r.Verbs) == 0 || !slices.IsSorted(r.Verbs) || slices.ContainsFunc(r.Verbs, func(v string) bool { return !slices.Contains(verbs, v) }) {
					t.Errorf("rule %+v", r)
				}
			}
			if s.Params != nil {
				for _, f := range reflect.VisibleFields(reflect.TypeOf(s.Params()).Elem()) {
					key := f.Tag.Get("yaml")
					json, _, _ := strings.Cut(f.Tag.Get("json"), ",")
					if key == "" || key != json || f.Tag.Get("doc") == "" {
						t.Errorf("field %s has yaml %q, json %q, doc %q", f.Name, key, json, f.Tag.Get("doc"))
					}
				}
			}
			info, ok := actuator.Actions.Info(i.Name)
			if !ok || info != i {
				t.Errorf("Info(%q) = %+v, %v", i.Name, info, ok)
			}
		})
	}
}

// TestRecoveryIsThere holds what the walker relies on when it undoes.
func TestRecoveryIsThere(t *testing.T) {
	for role, want := range map[remedy.Role]remedy.Effect{
		remedy.RoleHold: remedy.EffectHarm, remedy.RoleStop: remedy.EffectHarm, remedy.RoleRenew: remedy.EffectHarm,
		remedy.RoleSave: remedy.EffectAsk, remedy.RoleVerify: remedy.EffectAsk,
		remedy.RoleStart: remedy.EffectRecovery, remedy.RoleRelease: remedy.EffectRecovery,
	} {
		i := slices.IndexFunc(actuator.Actions, func(s actuator.Spec) bool { return s.Info.Role == role })
		if i < 0 || actuator.Actions[i].Info.Effect != want {
			t.Errorf("role %s: no action with effect %s", role, want)
		}
	}
	for _, name := range []string{string(remedy.RoleStart), string(remedy.RoleRelease)} {
		if info, ok := actuator.Actions.Info(name); !ok || string(info.Role) != name {
			t.Errorf("no action %s of that role; recovery asks for it by this name", name)
		}
	}
}
