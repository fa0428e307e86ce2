// Package loop walks the ladders: one Tick observes the fleet, lets rules advance each
// incident, plans, passes the orders through the gates, writes down what will be done,
// and only then lets the actuator do it.
//
// It alone writes incidents and alone calls the stages in turn. Service, demo and
// replay drive the same [Loop.Tick]; the time is an argument. What deciding needs is in
// the interfaces below, which app fills in.
package loop

import (
	"context"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// A Store keeps incidents. Writes are durable when they return.
type Store interface {
	// List returns all incidents, closed ones too, in any order.
	List(ctx context.Context) ([]remedy.Incident, error)
	// Create stores a new incident under its name and returns it with its version; a
	// [remedy.Failure] with Conflict when the name is taken.
	Create(ctx context.Context, in remedy.Incident) (remedy.Incident, error)
	// Update replaces the incident if its stored version is still in.Version; a
	// Failure with Conflict when it is not, with Gone when there is none.
	Update(ctx context.Context, in remedy.Incident) (remedy.Incident, error)
	// Delete removes a closed incident, under the same precondition.
	Delete(ctx context.Context, in remedy.Incident) error
}

// A World is observed once in each tick.
type World interface {
	// Snapshot returns the fleet as it is known at now. An error means that nothing
	// is known; the tick then ends without acting.
	Snapshot(ctx context.Context, now time.Time) (fleet.Snapshot, error)
}

// A Witness is asked in each tick what speaks for faults: alert rules that are
// evaluated in the process, signs on cluster objects.
type Witness interface {
	Evidence(ctx context.Context, now time.Time) ([]remedy.Evidence, error)
}

// An Actuator starts and checks orders and says whether they may start.
type Actuator interface {
	Start(ctx context.Context, o remedy.Order) (remedy.Receipt, error)
	Check(now time.Time, f fleet.Snapshot, o remedy.Order, r remedy.Receipt) (remedy.Outcome, bool)
	// Admit asks every gate about the orders of one step. It is pure: incidents are all
	// open ones, with what this tick has already reserved. All must pass.
	Admit(now time.Time, f fleet.Snapshot, incidents []remedy.Incident, in remedy.Incident, orders []remedy.Order) []remedy.GateResult
}
