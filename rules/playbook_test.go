package rules

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"stoker.dev/stoker/internal/config"
	"stoker.dev/stoker/internal/remedy"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares got with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s differs (-want +got):\n%s", name, d)
	}
}

func TestEveryMistakeOfAConfigurationIsToldAtOnce(t *testing.T) {
	text, err := os.ReadFile("testdata/mistakes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var c Config
	err = config.Decode("mistakes.yaml", text, &c)
	p, err2 := Compile("mistakes.yaml", c, actions)
	var all []string
	for _, err := range []error{err, err2} {
		es, ok := errors.AsType[config.Errors](err)
		if !ok {
			t.Fatalf("error %v has no places", err)
		}
		for _, e := range es {
			if e.Path == "" || e.File == "" {
				t.Errorf("%q does not say where", e)
			}
			all = append(all, e.Error())
		}
	}
	golden(t, "mistakes.txt", strings.Join(all, "\n")+"\n")
	if len(p.List) > 0 {
		t.Errorf("%d playbooks are in force in spite of mistakes", len(p.List))
	}
}

func TestAPlaybookBecomesALadder(t *testing.T) {
	p := compiled(t, `
evidence: {maxAge: 30m}
playbooks:
  - name: gpu-lost
    class: gpu-lost
    mode: approve
    match: ['pool!="dev"', 'xid=~"79|119"']
    steps:
      - cordon:
      - stop: {within: 3m}
      - start: {avoid: node, within: 1h}
    onFailure: [hold, notify]
`)
	within := func(d time.Duration) remedy.Duration { return remedy.Duration(d) }
	want := []remedy.Step{
		{Action: "cordon", Scope: remedy.ScopeNode, Effect: remedy.EffectHarm, Role: remedy.RoleHold, Within: within(2 * time.Minute), Params: []byte(`{}`)},
		{Action: "stop", Scope: remedy.ScopeJobs, Effect: remedy.EffectHarm, Role: remedy.RoleStop, Within: within(3 * time.Minute), Params: []byte(`{}`)},
		{Action: "start", Scope: remedy.ScopeJobs, Effect: remedy.EffectRecovery, Role: remedy.RoleStart, Within: within(time.Hour), Params: []byte(`{"avoid":"node"}`)},
	}
	if len(p.List) != 1 {
		t.Fatalf("%d playbooks, want 1", len(p.List))
	}
	b := p.List[0]
	if d := cmp.Diff(want, b.Steps); d != "" {
		t.Errorf("ladder differs (-want +got):\n%s", d)
	}
	if b.Name != "gpu-lost" || b.Mode != "approve" || !cmp.Equal(b.OnFailure, []string{"hold", "notify"}) {
		t.Errorf("playbook %+v, want gpu-lost in mode approve that holds and notifies", b)
	}
	if p.MaxAge != 30*time.Minute || p.Quiet != DefaultQuiet {
		t.Errorf("maxAge %v and quiet %v, want 30m and the default", p.MaxAge, p.Quiet)
	}
}

func TestADefaultIsNotInForceTwice(t *testing.T) {
	p, err := Compile("f", Config{}, actions)
	if err != nil || p.MaxAge != DefaultMaxAge || p.Quiet != DefaultQuiet || len(p.List) > 0 {
		t.Errorf("an empty configuration gives %+v, %v; want the defaults and no playbooks", p, err)
	}
}

func TestTheFirstPlaybookThatMatchesIsTaken(t *testing.T) {
	p := compiled(t, `
playbooks:
  - {name: first, class: gpu-lost, match: ['pool="a"', 'xid=~"7."']}
  - {name: second, class: gpu-lost, match: ['pool=~"a|b"']}
  - {name: third, class: gpu-lost, match: ['rack=""']}
  - {name: hot, class: gpu-hot}
`)
	for name, tc := range map[string]struct {
		class  remedy.Class
		labels map[string]string
		want   string
	}{
		"all matchers have to match":         {remedy.ClassGPULost, map[string]string{"pool": "a", "xid": "79"}, "first"},
		"the next one when they do not":      {remedy.ClassGPULost, map[string]string{"pool": "a", "xid": "119"}, "second"},
		"a label that is missing is empty":   {remedy.ClassGPULost, nil, "third"},
		"none when no labels match":          {remedy.ClassGPULost, map[string]string{"rack": "7"}, ""},
		"only those of the class are asked":  {remedy.ClassGPUHot, map[string]string{"pool": "a", "xid": "79"}, "hot"},
		"none when there is none of a class": {remedy.ClassGPUECC, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := p.For(remedy.Evidence{Class: tc.class, Labels: tc.labels})
			if got.Name != tc.want || ok != (tc.want != "") {
				t.Errorf("playbook %q, %t; want %q", got.Name, ok, tc.want)
			}
		})
	}
}

func TestMatchersThatCannotBeReadAreErrors(t *testing.T) {
	for _, text := range []string{"", `pool`, `pool="a`, `pool=~"("`, `="a"`, `pool=="a"`} {
		if m, err := ParseMatchers(text); err == nil {
			t.Errorf("matcher %q was read as %v, want an error", text, m.list)
		}
	}
	m, err := ParseMatchers(`pool="a"`, `{rack!="7",zone=~"x|y"}`)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		labels map[string]string
		want   bool
	}{
		{map[string]string{"pool": "a", "zone": "x"}, true},
		{map[string]string{"pool": "a", "zone": "z"}, false},
		{map[string]string{"pool": "a", "zone": "y", "rack": "7"}, false},
		{map[string]string{"zone": "y"}, false},
	} {
		if got := m.Matches(tc.labels); got != tc.want {
			t.Errorf("matches %v = %t, want %t", tc.labels, got, tc.want)
		}
	}
	if !(Matchers{}).Matches(nil) {
		t.Error("no matchers do not match everything")
	}
}
