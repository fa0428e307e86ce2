package config_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"stoker.dev/stoker/internal/config"
	"stoker.dev/stoker/internal/remedy"
)

type site struct {
	Name     string            `yaml:"name"`
	On       bool              `yaml:"on"`
	Rooms    []room            `yaml:"rooms"`
	Labels   map[string]string `yaml:"labels"`
	Every    time.Duration     `yaml:"every"`
	Most     config.Amount     `yaml:"most"`
	Share    config.Percent    `yaml:"share"`
	Ratio    float64           `yaml:"ratio"`
	Small    int8              `yaml:"small"`
	Count    uint              `yaml:"count"`
	Later    yaml.Node         `yaml:"later"`
	LaterToo *yaml.Node        `yaml:"laterToo"`
	Extra    any               `yaml:",inline"`
	Unread   string            `yaml:"-"`
	hidden   string
}

type room struct {
	Name  string          `yaml:"name"`
	Grace remedy.Duration `yaml:"grace"`
	Beds  *int            `yaml:"beds"`
}

func (r *room) Validate(path string) error {
	var errs []error
	if r.Grace == 0 {
		r.Grace = remedy.Duration(10 * time.Minute)
	}
	if r.Grace < remedy.Duration(time.Minute) {
		errs = append(errs, config.Errorf(config.Key(path, "grace"), "%s is under 1m", r.Grace))
	}
	if r.Name == "" {
		errs = append(errs, config.Errorf(config.Key(path, "name"), "is missing"))
	}
	if r.Name == "attic" {
		errs = append(errs, errors.New("the attic is no room"))
	}
	return errors.Join(errs...)
}

type extra struct {
	Colour string `yaml:"colour"`
}

func TestMistakesAreTold(t *testing.T) {
	for name, tc := range map[string]struct {
		yaml string
		want []string
	}{
		"an unknown key, with the one that is meant": {"nmae: x", []string{`f.yaml:1:1: nmae: unknown key "nmae"; did you mean "name"?`}},
		"an unknown key far from all, with the known ones": {"rooms:\n- name: a\n  windows: 2\n", []string{
			`f.yaml:3:3: rooms[0].windows: unknown key "windows"; known: beds, grace, name`,
		}},
		"a key twice":                             {"name: x\non: true\nname: y\n", []string{"f.yaml:3:1: name: is there already, at line 1"}},
		"a duration without a unit":               {"every: 5", []string{"f.yaml:1:8: every: 5 needs a unit, such as 5m"}},
		"a duration in days":                      {"every: 1d", []string{"f.yaml:1:8: every: 1d has a unit that is not known; units are s, m and h, as in 90s or 1h30m"}},
		"a duration that is a word":               {"every: soon", []string{"f.yaml:1:8: every: soon is not a duration; write it as in 90s, 5m or 1h30m"}},
		"a duration of a type that reads itself":  {"rooms: [{name: a, grace: 7}]", []string{"f.yaml:1:26: rooms[0].grace: 7 needs a unit, such as 7m"}},
		"a share without its sign":                {"share: 10", []string{"f.yaml:1:8: share: 10 needs a percent sign, as in 10%"}},
		"a share above the whole":                 {"share: 110%", []string{"f.yaml:1:8: share: 110% is not a share from 0% to 100%"}},
		"an amount that is neither":               {"most: few", []string{"f.yaml:1:7: most: few is neither a number, such as 3, nor a share, such as 10%"}},
		"a number where text is needed":           {"name: 5", []string{"f.yaml:1:7: name: needs text; put 5 in quotes"}},
		"yes for true":                            {"on: yes", []string{"f.yaml:1:5: on: needs true or false, not yes"}},
		"half a thing":                            {"small: 1.5", []string{"f.yaml:1:8: small: needs a whole number, not 1.5"}},
		"a number too large for its field":        {"small: 200", []string{"f.yaml:1:8: small: needs a smaller number than 200"}},
		"less than nothing":                       {"count: -1", []string{"f.yaml:1:8: count: needs a whole number, not -1"}},
		"a number that is infinite":               {"ratio: .inf", []string{"f.yaml:1:8: ratio: needs a number, not .inf"}},
		"a list where one value is needed":        {"name: [a]", []string{"f.yaml:1:1: name: needs one value, not a list"}},
		"one value where a list is needed":        {"rooms: hall", []string{"f.yaml:1:8: rooms: needs a list, not hall"}},
		"a list where keys are needed":            {"- a\n- b", []string{"f.yaml:1:1: needs keys and values, not a list"}},
		"a key without its value":                 {"name:", []string{"f.yaml:1:1: name: has no value"}},
		"a tag":                                   {"name: !secret x", []string{"f.yaml:1:7: name: has the tag !secret; tags are not used here"}},
		"a merge key":                             {"rooms:\n- &a {name: a}\n- <<: *a\n  beds: 2\n  name: b\n", []string{"f.yaml:3:3: rooms[1]: merge keys (<<) are not used here; write the keys out"}},
		"a key that is a list":                    {"? [a]\n: b", []string{"f.yaml:1:3: has a key that is not text"}},
		"a second document":                       {"name: a\n---\nname: b\n", []string{"f.yaml:2:1: a second document begins here; one file holds one document"}},
		"text that is not YAML":                   {"name: a\n bad: [\n", []string{"f.yaml:2:1: not YAML: mapping values are not allowed in this context"}},
		"an alias of nothing":                     {"name: *x", []string{"f.yaml: not YAML: unknown anchor 'x' referenced"}},
		"an alias of itself":                      {"later: 1\nrooms: &r\n- *r\n", []string{"f.yaml:3:3: rooms[0]: the alias stands for something that it is part of"}},
		"a key with a dot in its path":            {"labels: {topology.rack: 1}", []string{`f.yaml:1:25: labels["topology.rack"]: needs text; put 1 in quotes`}},
		"long text, cut":                          {"on: " + strings.Repeat("x", 300), []string{"f.yaml:1:5: on: needs true or false, not " + strings.Repeat("x", 40) + "…"}},
		"what a value says of a key of its own":   {"rooms:\n- name: a\n  grace: 1s\n", []string{"f.yaml:3:10: rooms[0].grace: 1s is under 1m"}},
		"what a value says of a key left out":     {"rooms:\n- beds: 1\n", []string{"f.yaml:2:3: rooms[0].name: is missing"}},
		"what a value says of itself":             {"rooms: [{name: attic}]", []string{"f.yaml:1:9: rooms[0]: the attic is no room"}},
		"what follows from a mistake is not told": {"rooms: [{name: 5}]", []string{"f.yaml:1:16: rooms[0].name: needs text; put 5 in quotes"}},
		"all mistakes at once, in order of their place": {"nope: 1\nrooms:\n- grace: 5\n- {name: a, grace: 1s}\nevery: x\n", []string{
			`f.yaml:1:1: nope: unknown key "nope"; did you mean "name"?`,
			"f.yaml:3:3: rooms[0].name: is missing",
			"f.yaml:3:10: rooms[0].grace: 5 needs a unit, such as 5m",
			"f.yaml:4:20: rooms[1].grace: 1s is under 1m",
			"f.yaml:5:8: every: x is not a duration; write it as in 90s, 5m or 1h30m",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var s site
			err := config.Decode("f.yaml", []byte(tc.yaml), &s)
			var got []string
			if err != nil {
				got = strings.Split(err.Error(), "\n")
			}
			if d := cmp.Diff(got, tc.want); d != "" {
				t.Errorf("mistakes (-got +want):\n%s", d)
			}
		})
	}
}

func TestEverythingIsRead(t *testing.T) {
	const text = `
# a comment
name: "5"
on: true
rooms: &rooms
- {name: hall, grace: 90s, beds: 2}
- name: den
labels: {topology.rack: r1, "1": one}
every: 1h30m
most: 29%
share: 12.5%
ratio: 2
small: -128
count: 7
later: {rooms: *rooms}
laterToo: [1]
colour: red
`
	s := site{Unread: "kept", hidden: "kept"}
	s.Extra = &extra{}
	if err := config.Decode("f.yaml", []byte(text), &s); err != nil {
		t.Fatal(err)
	}
	later, too := s.Later, s.LaterToo
	s.Later, s.LaterToo = yaml.Node{}, nil
	want := site{
		Name: "5", On: true, Every: 90 * time.Minute, Most: config.Amount{Percent: 29, Shared: true}, Share: 12.5,
		Ratio: 2, Small: -128, Count: 7, Extra: &extra{Colour: "red"}, Unread: "kept", hidden: "kept",
		Labels: map[string]string{"topology.rack": "r1", "1": "one"},
		Rooms: []room{
			{Name: "hall", Grace: remedy.Duration(90 * time.Second), Beds: new(2)},
			{Name: "den", Grace: remedy.Duration(10 * time.Minute)},
		},
	}
	if d := cmp.Diff(s, want, cmp.AllowUnexported(site{})); d != "" {
		t.Errorf("site (-got +want):\n%s", d)
	}
	if too == nil || too.Kind != yaml.SequenceNode {
		t.Errorf("laterToo = %v, want the list", too)
	}
	var part struct {
		Rooms []room `yaml:"rooms"`
	}
	if err := config.Node("f.yaml", "later", &later, &part); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(part.Rooms, want.Rooms); d != "" {
		t.Errorf("rooms of the part (-got +want):\n%s", d)
	}
}

func TestValuesOfAMapHaveDefaultsToo(t *testing.T) {
	var s struct {
		Rooms map[string]room `yaml:"rooms"`
	}
	if err := config.Decode("f.yaml", []byte("rooms: {a: {name: hall}}"), &s); err != nil {
		t.Fatal(err)
	}
	if got, want := s.Rooms["a"].Grace, remedy.Duration(10*time.Minute); got != want {
		t.Errorf("grace %v, want the default, %v", got, want)
	}
}

func TestAPartKeepsItsPlace(t *testing.T) {
	var s site
	if err := config.Decode("f.yaml", []byte("name: a\nlater:\n  beds: 1\n  rooms: 2\n"), &s); err != nil {
		t.Fatal(err)
	}
	var r room
	err := config.Node("f.yaml", "later", &s.Later, &r)
	want := "f.yaml:3:3: later.name: is missing\n" + `f.yaml:4:3: later.rooms: unknown key "rooms"; known: beds, grace, name`
	if err == nil || err.Error() != want {
		t.Errorf("mistakes:\n%v\nwant:\n%s", err, want)
	}
	es, ok := errors.AsType[config.Errors](err)
	if !ok || len(es) != 2 || es[0].Line != 3 || es[0].Col != 3 || es[0].File != "f.yaml" {
		t.Errorf("errors = %#v, want two with their places", es)
	}
}

// outer reads its parts itself, as a playbook reads its steps.
type outer struct {
	Parts []map[string]yaml.Node `yaml:"parts"`
}

func (o *outer) Validate(path string) error {
	var errs []error
	for i, p := range o.Parts {
		for k, n := range p {
			var r room
			errs = append(errs, config.Node("", config.Key(config.Item(config.Key(path, "parts"), i), k), &n, &r))
		}
	}
	return errors.Join(errs...)
}

func TestPartsReadByValidateAreToldAmongTheRest(t *testing.T) {
	var o outer
	err := config.Decode("f.yaml", []byte("parts:\n- hall: {name: a, grace: 2}\n- den:\nmore: 1\n"), &o)
	want := strings.Join([]string{
		"f.yaml:2:26: parts[0].hall.grace: 2 needs a unit, such as 2m",
		"f.yaml:3:7: parts[1].den.name: is missing",
		`f.yaml:4:1: more: unknown key "more"; known: parts`,
	}, "\n")
	if err == nil || err.Error() != want {
		t.Errorf("mistakes:\n%v\nwant:\n%s", err, want)
	}
}

func TestAnEmptyFileIsAFileOfDefaults(t *testing.T) {
	for _, text := range []string{"", "# nothing\n", "---\n", "{}"} {
		var r room
		err := config.Decode("f.yaml", []byte(text), &r)
		if err == nil || !strings.Contains(err.Error(), "name: is missing") {
			t.Errorf("Decode(%q) = %v, want what Validate says", text, err)
		}
		if r.Grace != remedy.Duration(10*time.Minute) {
			t.Errorf("Decode(%q) left grace at %v, want the default", text, r.Grace)
		}
	}
}

func TestLimits(t *testing.T) {
	t.Run("a file that is too large is not read", func(t *testing.T) {
		var s site
		err := config.Decode("f.yaml", []byte("name: "+strings.Repeat("x", config.MaxSize)), &s)
		if err == nil || !strings.Contains(err.Error(), "more than the 1048576 that are read") {
			t.Errorf("err = %v, want one about the size", err)
		}
	})
	t.Run("aliases of aliases end", func(t *testing.T) {
		// Each level is ten times the one before: 10^9 values in 200 bytes.
		var b strings.Builder
		b.WriteString("a0: &a0 {}\n")
		for i := 1; i < 10; i++ {
			b.WriteString("a" + string(rune('0'+i)) + ": &a" + string(rune('0'+i)) + " {")
			for j := range 10 {
				b.WriteString(string(rune('a'+j)) + ": *a" + string(rune('0'+i-1)) + ", ")
			}
			b.WriteString("}\n")
		}
		type tree map[string]tree
		var deep tree
		err := config.Decode("f.yaml", []byte(b.String()), &deep)
		if err == nil || !strings.Contains(err.Error(), "more values, aliases included, than one configuration may have") {
			t.Errorf("err = %.200v, want one about the number of values", err)
		}
	})
	t.Run("after a thousand mistakes no more are looked for", func(t *testing.T) {
		var s site
		err := config.Decode("f.yaml", []byte("rooms:\n"+strings.Repeat("- {name: a, x: 1}\n", 5000)), &s)
		es, ok := errors.AsType[config.Errors](err)
		if !ok || len(es) != 52 {
			t.Fatalf("%d mistakes listed, want the limit, 50 and one line for the rest", len(es))
		}
		if got, want := es[0].Error(), "f.yaml:1002:13: rooms[1000].x: more mistakes than are looked for"; got != want {
			t.Errorf("first line %q, want %q", got, want)
		}
	})
	t.Run("hundreds of mistakes are counted, not listed", func(t *testing.T) {
		var s site
		err := config.Decode("f.yaml", []byte("rooms:\n"+strings.Repeat("- {name: a, x: 1}\n", 900)), &s)
		es, ok := errors.AsType[config.Errors](err)
		if !ok || len(es) != 51 {
			t.Fatalf("%d mistakes listed, want 50 and one line for the rest", len(es))
		}
		if got, want := es[50].Error(), "f.yaml:52:13: and 850 more mistakes from here on"; got != want {
			t.Errorf("last line %q, want %q", got, want)
		}
	})
}

func TestUnknown(t *testing.T) {
	many := strings.Split("a b c d e f g h i j k l m n", " ")
	for name, tc := range map[string]struct {
		got   string
		known []string
		want  string
	}{
		"a slip is guessed":                {"drian", []string{"drain", "stop"}, `unknown action "drian"; did you mean "drain"?`},
		"case is a slip":                   {"Drain", []string{"drain", "stop"}, `unknown action "Drain"; did you mean "drain"?`},
		"what is far off is not guessed":   {"explode", []string{"drain", "stop"}, `unknown action "explode"; known: drain, stop`},
		"a short name is not guessed from": {"xy", []string{"ab"}, `unknown action "xy"; known: ab`},
		"many names are not listed":        {"zzz", many, `unknown action "zzz"`},
		"none are known":                   {"zzz", nil, `unknown action "zzz"; there is none to set here`},
	} {
		t.Run(name, func(t *testing.T) {
			if got := config.Unknown("action", tc.got, tc.known); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
