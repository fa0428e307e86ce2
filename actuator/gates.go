package actuator

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"stoker.dev/stoker/internal/config"
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// A Gate is a reason not to act now. Its answer depends on the question alone.
type Gate interface {
	Name() string
	// Ask answers for all orders of one step together, with a reason that has numbers.
	// Orders that only give back are never among them.
	Ask(Question) remedy.GateResult
}

// A Question is what gates are asked: may these orders of the incident start now?
type Question struct {
	Now       time.Time
	Fleet     fleet.Snapshot
	Incidents []remedy.Incident // all open ones, with what is reserved already
	Incident  remedy.Incident
	Orders    []remedy.Order // at least one
}

// GatesConfig is the part of the configuration under gates.
type GatesConfig struct {
	Budgets []BudgetConfig `yaml:"budgets"`
}

// Validate fills in the defaults: where no budgets are named, one for the whole fleet
// of a tenth of its nodes, one at least. An empty list is none.
func (c *GatesConfig) Validate(path string) error {
	if c.Budgets == nil {
		c.Budgets = []BudgetConfig{{Name: "fleet", MaxUnavailable: config.Amount{Percent: 10, Shared: true}, AtLeast: new(1)}}
	}
	var errs []error
	names := map[string]bool{}
	for i, b := range c.Budgets {
		if names[b.Name] {
			errs = append(errs, config.Errorf(config.Key(config.Item(config.Key(path, "budgets"), i), "name"), "there is another budget named %q", b.Name))
		}
		names[b.Name] = true
	}
	return errors.Join(errs...)
}

// Gates are the gates of a configuration, in the order in which they are asked: what
// a person decides comes first.
func Gates(mode Mode, c GatesConfig) []Gate {
	out := []Gate{modeGate{mode}, optOutGate{}, silenceGate{}, pathGate{}, busyGate{}}
	for _, b := range c.Budgets {
		out = append(out, budgetGate{b})
	}
	return out
}

func pass(format string, args ...any) remedy.GateResult {
	return remedy.GateResult{Pass: true, Reason: fmt.Sprintf(format, args...)}
}

func wait(format string, args ...any) remedy.GateResult {
	return remedy.GateResult{Reason: fmt.Sprintf(format, args...)}
}

// harmful reports whether the order takes capacity or work away.
func harmful(o remedy.Order) bool { return o.Effect == remedy.EffectHarm }

// held are the nodes that an incident holds or is about to: those that it has reserved
// a hold for, unless it is known that there is none, and that it has not given back.
func held(in remedy.Incident) []string {
	if in.Phase.Closed() {
		return nil
	}
	var out []string
	for _, s := range in.Steps {
		if s.Skipped {
			continue
		}
		for _, o := range s.Orders {
			node := o.Order.Target.Node
			switch s.Role {
			case remedy.RoleHold:
				if mayHold(o.Outcome) && !slices.Contains(out, node) {
					out = append(out, node)
				}
			case remedy.RoleRelease:
				if o.Outcome != nil && o.Outcome.Ending.Settled() {
					out = slices.DeleteFunc(out, func(n string) bool { return n == node })
				}
			case remedy.RoleNone, remedy.RoleSave, remedy.RoleStop, remedy.RoleStart, remedy.RoleRenew, remedy.RoleVerify:
			}
		}
	}
	return out
}

// mayHold reports whether an order with this outcome may have had its effect.
func mayHold(out *remedy.Outcome) bool {
	if out == nil {
		return true
	}
	switch out.Ending {
	case remedy.Done, remedy.Late, remedy.Unclear:
		return true
	case remedy.Conflict, remedy.Rejected, remedy.Gone, remedy.Yielded:
		return false
	}
	return true
}

// stopped are the jobs that an incident has stopped, or is about to, and that have not
// been started again.
func stopped(in remedy.Incident) []fleet.JobRef {
	if in.Phase.Closed() {
		return nil
	}
	var out []fleet.JobRef
	for _, s := range in.Steps {
		if s.Skipped {
			continue
		}
		for _, o := range s.Orders {
			job := o.Order.Target.Job
			switch s.Role {
			case remedy.RoleStop:
				if mayHold(o.Outcome) {
					out = append(out, job)
				}
			case remedy.RoleStart:
				if o.Outcome != nil && o.Outcome.Ending != remedy.Late {
					out = slices.DeleteFunc(out, func(j fleet.JobRef) bool { return j == job })
				}
			case remedy.RoleNone, remedy.RoleHold, remedy.RoleSave, remedy.RoleRenew, remedy.RoleVerify, remedy.RoleRelease:
			}
		}
	}
	return out
}

// targets joins what orders are for, for people.
func targets(orders []remedy.Order) string {
	var out []string
	for _, o := range orders {
		out = append(out, o.Target.String())
	}
	return list(out)
}
