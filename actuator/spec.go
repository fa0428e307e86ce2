package actuator

import (
	"encoding/json"
	"fmt"

	"go.yaml.in/yaml/v3"

	"stoker.dev/stoker/internal/config"
	"stoker.dev/stoker/internal/remedy"
)

// Actions are all actions that there are. Nothing registers at init: who adds one adds
// a file and a line here, and the contract test, the docs and the chart's role follow.
var Actions = Specs{cordonSpec, checkpointSpec, stopSpec, startSpec, drainSpec, rebootSpec, resetSpec, verifySpec, releaseSpec, watchSpec, inspectSpec, claimsSpec, recipeSpec}

// A Spec declares one action.
type Spec struct {
	Info remedy.ActionInfo
	// Params makes the action's parameters: a pointer to a struct with yaml and json
	// keys and a doc tag on each field. Nil for an action that takes none.
	Params func() config.Validator
	// RBAC is what the account needs for the action, beside what observing needs. What
	// a job of one framework needs is in the spec of the framework.
	RBAC []Rule
	New  func(Deps) Action
}

// A Rule is one permission in the cluster.
type Rule struct {
	Group    string   // API group; empty for the core
	Resource string   // with its sub-resource, such as pods/eviction
	Verbs    []string // in order
	Own      bool     // needed in Stoker's own namespace only
}

// Deps is what actions are made with.
type Deps struct {
	Cluster Cluster
}

// Specs is a list of actions, each name once.
type Specs []Spec

// Names returns the names of the actions, in the order of the list.
func (s Specs) Names() []string {
	out := make([]string, len(s))
	for i, a := range s {
		out[i] = a.Info.Name
	}
	return out
}

// Info returns what deciding has to know of an action; false when there is none of
// that name.
func (s Specs) Info(action string) (remedy.ActionInfo, bool) {
	a, ok := s.find(action)
	return a.Info, ok
}

// Params reads the parameters of a step, strictly, and returns them as JSON with the
// defaults filled in; nil for an action that takes none. What is common to all steps,
// such as within, is the caller's to read. The error is of type [config.Errors].
func (s Specs) Params(action, file, path string, n *yaml.Node) (json.RawMessage, error) {
	a, ok := s.find(action)
	if !ok {
		return nil, config.Errors{{File: file, Path: path, Text: config.Unknown("action", action, s.Names())}}
	}
	if a.Params == nil {
		return nil, config.Node(file, path, n, &struct{}{})
	}
	p := a.Params()
	if err := config.Node(file, path, n, p); err != nil {
		return nil, err
	}
	raw, err := json.Marshal(p)
	if err != nil {
		return nil, config.Errors{{File: file, Path: path, Text: err.Error()}}
	}
	return raw, nil
}

func (s Specs) find(action string) (Spec, bool) {
	for _, a := range s {
		if a.Info.Name == action {
			return a, true
		}
	}
	return Spec{}, false
}

// params reads what [Specs.Params] has written. An order without parameters has the
// zero value of each. Keys of another version are passed over: what was decided stays
// as near as this version can come to it.
func params[T any](o remedy.Order) (T, error) {
	var p T
	if len(o.Params) == 0 {
		return p, nil
	}
	if err := json.Unmarshal(o.Params, &p); err != nil {
		return p, &remedy.Failure{Ending: remedy.Rejected, Err: fmt.Errorf("parameters of %s: %w", o.Action, err)}
	}
	return p, nil
}
