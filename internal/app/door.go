package app

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// An announcer tells on the objects themselves what is done to them.
type announcer interface {
	Started(o remedy.Order, gates []remedy.GateResult)
	Ended(o remedy.Order, out remedy.Outcome)
}

// A door is the actuator as the loop sees it: its gates can be changed while it is in
// use, and what goes through it is announced.
type door struct {
	actuator atomic.Pointer[actuator.Actuator]
	announce announcer // may be nil

	mu     sync.Mutex
	passed map[string][]remedy.GateResult // by key, from the gates to the start
}

func newDoor(a *actuator.Actuator, announce announcer) *door {
	d := &door{announce: announce, passed: map[string][]remedy.GateResult{}}
	d.actuator.Store(a)
	return d
}

// gates puts other gates in force.
func (d *door) gates(g []actuator.Gate) { d.actuator.Store(d.actuator.Load().WithGates(g)) }

// Start starts an order and, where that changed something, announces it.
func (d *door) Start(ctx context.Context, o remedy.Order) (remedy.Receipt, error) {
	r, err := d.actuator.Load().Start(ctx, o)
	d.mu.Lock()
	gates := d.passed[o.Key]
	delete(d.passed, o.Key)
	d.mu.Unlock()
	if err == nil && !r.Found && d.announce != nil {
		d.announce.Started(o, gates)
	}
	return r, err
}

// Check asks whether an order has ended, and announces its end.
func (d *door) Check(now time.Time, f fleet.Snapshot, o remedy.Order, r remedy.Receipt) (remedy.Outcome, bool) {
	out, done := d.actuator.Load().Check(now, f, o, r)
	if done && !out.Look && d.announce != nil {
		d.announce.Ended(o, out)
	}
	return out, done
}

// maxPassed bounds the answers that are kept between gates and start.
const maxPassed = 10_000

// Admit asks the gates.
func (d *door) Admit(now time.Time, f fleet.Snapshot, incidents []remedy.Incident, in remedy.Incident, orders []remedy.Order) []remedy.GateResult {
	results := d.actuator.Load().Admit(now, f, incidents, in, orders)
	if d.announce == nil {
		return results
	}
	for _, r := range results {
		if !r.Pass {
			return results
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.passed) > maxPassed {
		clear(d.passed)
	}
	for _, o := range orders {
		d.passed[o.Key] = results
	}
	return results
}
