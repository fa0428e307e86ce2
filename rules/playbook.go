package rules

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"stoker.dev/stoker/internal/config"
	"stoker.dev/stoker/internal/remedy"
)

// Actions is what reading a playbook needs to know of the actions that there are.
type Actions interface {
	Names() []string
	Info(action string) (remedy.ActionInfo, bool)
	// Params reads the parameters of a step strictly and returns them as JSON, as orders carry them.
	Params(action, file, path string, n *yaml.Node) (json.RawMessage, error)
}

// Config is this stage's part of the configuration file.
type Config struct {
	Playbooks []PlaybookConfig `yaml:"playbooks"`
	Evidence  EvidenceConfig   `yaml:"evidence"`
}

// EvidenceConfig bounds which evidence is acted on.
type EvidenceConfig struct {
	MaxAge remedy.Duration `yaml:"maxAge"` // of an event; 1h when left out
	Quiet  remedy.Duration `yaml:"quiet"`  // after a person's veto; 1h when left out
}

// Validate fills in the defaults.
func (c *EvidenceConfig) Validate(path string) error {
	var errs []error
	for _, f := range []struct {
		key  string
		d    *remedy.Duration
		zero time.Duration
	}{{"maxAge", &c.MaxAge, DefaultMaxAge}, {"quiet", &c.Quiet, DefaultQuiet}} {
		if *f.d == 0 {
			*f.d = remedy.Duration(f.zero)
		}
		if *f.d < 0 {
			errs = append(errs, config.Errorf(config.Key(path, f.key), "%s is negative", *f.d))
		}
	}
	return errors.Join(errs...)
}

// PlaybookConfig is one playbook as people write it.
type PlaybookConfig struct {
	Name      string       `yaml:"name"`
	Class     remedy.Class `yaml:"class"`
	Match     []string     `yaml:"match"`
	Mode      string       `yaml:"mode"`
	Steps     []yaml.Node  `yaml:"steps"` // each a mapping of one action to its parameters
	OnFailure []string     `yaml:"onFailure"`
}

// onFailures are what may follow a step that failed. Both always happen: they are
// written down so that the playbook says what will be.
var onFailures = []string{"hold", "notify"}

// modes are what a playbook may say of its mode.
var modes = []string{"dry-run", "approve", "auto"}

// Validate reports what is wrong with the playbook beside its steps.
func (c *PlaybookConfig) Validate(path string) error {
	var errs []error
	bad := func(key, format string, args ...any) {
		errs = append(errs, config.Errorf(config.Key(path, key), format, args...))
	}
	if c.Name == "" {
		bad("name", "is missing; incidents and orders name the playbook")
	}
	switch {
	case c.Class == "":
		bad("class", "is missing; a playbook is for one class of faults")
	case !c.Class.Known():
		var names []string
		for _, n := range remedy.ClassNames() {
			names = append(names, string(n))
		}
		bad("class", "%s", config.Unknown("class", string(c.Class), names))
	}
	for i, m := range c.Match {
		if _, err := ParseMatchers(m); err != nil {
			errs = append(errs, config.Errorf(config.Item(config.Key(path, "match"), i), "%v", err))
		}
	}
	if c.Mode != "" && !slices.Contains(modes, c.Mode) {
		bad("mode", "%s", config.Unknown("mode", c.Mode, modes))
	}
	for i, f := range c.OnFailure {
		if !slices.Contains(onFailures, f) {
			errs = append(errs, config.Errorf(config.Item(config.Key(path, "onFailure"), i), "%s", config.Unknown("consequence", f, onFailures)))
		}
	}
	return errors.Join(errs...)
}

// Compile turns the configuration into what is in force. Every mistake of every
// playbook is in the error, each with its place.
func Compile(file string, c Config, actions Actions) (Playbooks, error) {
	out := Playbooks{MaxAge: time.Duration(c.Evidence.MaxAge), Quiet: time.Duration(c.Evidence.Quiet)}
	if out.MaxAge == 0 {
		out.MaxAge = DefaultMaxAge
	}
	if out.Quiet == 0 {
		out.Quiet = DefaultQuiet
	}
	var errs config.Errors
	take := func(err error) {
		if es, ok := errors.AsType[config.Errors](err); ok {
			errs = append(errs, es...)
		} else if err != nil {
			errs = append(errs, config.Error{File: file, Text: err.Error()})
		}
	}
	names := map[string]bool{}
	open := map[remedy.Class]string{} // class → playbook that takes all of it
	for i, p := range c.Playbooks {
		path := config.Item("playbooks", i)
		place := config.Error{File: file, Path: path}
		if len(p.Steps) > 0 {
			place.Line, place.Col = p.Steps[0].Line, p.Steps[0].Column
		}
		b := Playbook{Name: p.Name, Class: p.Class, Mode: p.Mode, OnFailure: p.OnFailure}
		if m, err := ParseMatchers(p.Match...); err == nil { // a mistake was reported by Validate
			b.Match = m
		}
		if names[p.Name] && p.Name != "" {
			place.Text = fmt.Sprintf("there is another playbook named %q", p.Name)
			errs = append(errs, place)
		}
		names[p.Name] = true
		if by, taken := open[p.Class]; taken && p.Class.Known() {
			place.Text = fmt.Sprintf("is never used: playbook %s before it has no matchers and takes every %s", by, p.Class)
			errs = append(errs, place)
		} else if len(p.Match) == 0 {
			open[p.Class] = path
			if p.Name != "" {
				open[p.Class] = strconv.Quote(p.Name)
			}
		}
		for j := range p.Steps {
			step, err := compileStep(file, config.Item(config.Key(path, "steps"), j), &p.Steps[j], actions)
			take(err)
			if err == nil {
				b.Steps = append(b.Steps, step)
			}
		}
		if len(b.Steps) == len(p.Steps) {
			errs = append(errs, ladder(file, path, p, b.Steps)...)
		}
		out.List = append(out.List, b)
	}
	if len(errs) > 0 {
		slices.SortStableFunc(errs, func(a, b config.Error) int { return a.Line - b.Line })
		return Playbooks{}, errs
	}
	return out, nil
}

// timing is what every step may say, beside the parameters of its action.
type timing struct {
	Within remedy.Duration `yaml:"within"`
	Of     remedy.Extent   `yaml:"of"`
	Unless string          `yaml:"unless"`
}

// timingKeys are its keys.
var timingKeys = []string{"within", "of", "unless"}

func compileStep(file, path string, n *yaml.Node, actions Actions) (remedy.Step, error) {
	fail := func(at *yaml.Node, format string, args ...any) error {
		return config.Errors{{File: file, Line: at.Line, Col: at.Column, Path: path, Text: fmt.Sprintf(format, args...)}}
	}
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind != yaml.MappingNode || len(n.Content) != 2 {
		return remedy.Step{}, fail(n, "a step is one action and its parameters, such as `drain: {within: 10m}`")
	}
	key, params := n.Content[0], n.Content[1]
	for params.Kind == yaml.AliasNode {
		params = params.Alias
	}
	info, ok := actions.Info(key.Value)
	if !ok {
		return remedy.Step{}, fail(key, "%s", config.Unknown("action", key.Value, actions.Names()))
	}
	path = config.Key(path, key.Value)
	if params.Kind == yaml.ScalarNode && params.ShortTag() == "!!null" {
		params = &yaml.Node{Kind: yaml.MappingNode, Line: params.Line, Column: params.Column}
	}
	if params.Kind != yaml.MappingNode {
		return remedy.Step{}, fail(params, "the parameters of %s are a mapping, such as {within: 10m}", info.Name)
	}
	own, rest := *params, *params
	own.Content, rest.Content = nil, nil
	for i := 0; i+1 < len(params.Content); i += 2 {
		to := &rest
		if slices.Contains(timingKeys, params.Content[i].Value) {
			to = &own
		}
		to.Content = append(to.Content, params.Content[i], params.Content[i+1])
	}
	var t timing
	raw, err := actions.Params(info.Name, file, path, &rest)
	err = withinToo(err, path, &rest)
	err = errors.Join(config.Node(file, path, &own, &t), err)
	if t.Within == 0 {
		t.Within = remedy.Duration(info.Within)
	}
	if t.Within < 0 {
		err = errors.Join(err, fail(params, "within %s is negative", t.Within))
	}
	if extents := []string{string(remedy.OfNode), string(remedy.OfGPU)}; t.Of != "" && !slices.Contains(extents, string(t.Of)) {
		err = errors.Join(err, fail(params, "of: %s", config.Unknown("extent", string(t.Of), extents)))
	}
	switch {
	case t.Of != "" && info.Of != "":
		err = errors.Join(err, fail(params, "of: %s is always of the %s", info.Name, info.Of))
	case t.Of == remedy.OfNode:
		t.Of = ""
	case t.Of == "":
		t.Of = info.Of
	}
	if err != nil {
		var all config.Errors
		for _, e := range unjoin(err) {
			all = append(all, e...)
		}
		return remedy.Step{}, all
	}
	return remedy.Step{
		Action: info.Name, Scope: info.Scope, Effect: info.Effect, Role: info.Role,
		Within: t.Within, Optional: info.Optional, Of: t.Of, Unless: t.Unless, Params: raw,
	}, nil
}

// withinToo mends what an action says of a key that it does not know: every step may
// also say within, of which the action has not heard.
func withinToo(err error, path string, params *yaml.Node) error {
	es, ok := errors.AsType[config.Errors](err)
	if !ok {
		return err
	}
	es = slices.Clone(es)
	for i := 0; i+1 < len(params.Content); i += 2 {
		key := params.Content[i].Value
		meant := config.Unknown("key", key, timingKeys)
		for j, e := range es {
			if e.Path != config.Key(path, key) || !strings.HasPrefix(e.Text, "unknown key ") || strings.Contains(e.Text, "did you mean") {
				continue
			}
			if strings.Contains(meant, "did you mean") || !strings.Contains(e.Text, "; known: ") {
				es[j].Text = meant
			} else {
				es[j].Text += ", " + strings.Join(timingKeys, ", ")
			}
		}
	}
	return es
}

// unjoin takes apart what errors.Join has put together, nested as it may be.
func unjoin(err error) []config.Errors {
	if es, ok := err.(config.Errors); ok { //nolint:errorlint // a join is taken apart, not searched
		return []config.Errors{es}
	}
	var out []config.Errors
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range j.Unwrap() {
			out = append(out, unjoin(e)...)
		}
		return out
	}
	return []config.Errors{{{Text: err.Error()}}}
}

// maxSteps is how long a ladder may be, so that with all tries to recover its history
// stays within [remedy.MaxSteps].
const maxSteps = remedy.MaxSteps / 2

// ladder reports orders of steps that would do harm which no later step makes good.
func ladder(file, path string, p PlaybookConfig, steps []remedy.Step) config.Errors {
	var errs config.Errors
	at := func(i int, format string, args ...any) {
		errs = append(errs, config.Error{
			File: file, Line: p.Steps[i].Line, Col: p.Steps[i].Column,
			Path: config.Item(config.Key(path, "steps"), i), Text: fmt.Sprintf(format, args...),
		})
	}
	if len(steps) > maxSteps {
		at(maxSteps, "is over the %d steps that a ladder may have", maxSteps)
	}
	has := func(part []remedy.Step, r remedy.Role) bool {
		return slices.ContainsFunc(part, func(s remedy.Step) bool { return s.Role == r })
	}
	verifiesNode := func(part []remedy.Step) bool {
		return slices.ContainsFunc(part, func(s remedy.Step) bool { return s.Role == remedy.RoleVerify && s.Scope == remedy.ScopeNode })
	}
	for i, s := range steps {
		before, after := steps[:i], steps[i+1:]
		if info, ok := remedy.Classes[p.Class]; ok && s.Scope == remedy.ScopeNode && info.Subject != remedy.SubjectGPU && info.Subject != remedy.SubjectNode {
			at(i, "%s is for a node, and %s is about a %s", s.Action, p.Class, info.Subject)
		}
		if s.Effect == remedy.EffectHarm && remedy.Classes[p.Class].Telemetry {
			at(i, "%s takes something away, and %s says only that nothing is known", s.Action, p.Class)
		}
		earlier := func(r remedy.Step) bool { return r.Action == s.Unless }
		if s.Unless != "" && !slices.ContainsFunc(before, earlier) {
			at(i, "unless: no step before it is %q", s.Unless)
		}
		if s.Of == remedy.OfGPU && remedy.Classes[p.Class].Subject != remedy.SubjectGPU {
			at(i, "%s is of a GPU, and %s is not about one", s.Action, p.Class)
		}
		switch s.Role {
		case remedy.RoleStop:
			if !has(after, remedy.RoleStart) {
				at(i, "%s has no start after it: the jobs would stay stopped", s.Action)
			}
		case remedy.RoleRenew:
			if !has(before, remedy.RoleHold) {
				at(i, "%s needs a cordon before it: new pods would land on the node in between", s.Action)
			}
		case remedy.RoleRelease:
			var missing []string
			if !has(before, remedy.RoleHold) {
				missing = append(missing, "cordon")
			}
			if !verifiesNode(before) {
				missing = append(missing, "verify")
			}
			if len(missing) > 0 {
				at(i, "%s needs %s before it", s.Action, strings.Join(missing, " and "))
			}
		case remedy.RoleNone, remedy.RoleHold, remedy.RoleSave, remedy.RoleStart, remedy.RoleVerify:
		}
	}
	return errs
}
