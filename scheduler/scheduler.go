// Package scheduler optimises: which job deserves the GPUs, given what it has held so
// far. It is the second head beside rules, and pure like it: fleet and memory in, orders
// and memory out.
//
// So far it keeps the account on which priorities will rest, the GPU-time that each job
// has held, and asks for nothing. Held time, not useful time, is what a job is charged
// for: no job gains by idling.
package scheduler

import (
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// MaxGap is the longest time between two plans that is charged. What lies in a longer
// gap nobody has seen: another leader planned then, or nobody did.
const MaxGap = 5 * time.Minute

// Config is the configuration of this stage in force.
type Config struct{}

// Memory is what one plan hands to the next. It holds one account for each job that
// exists and is rebuilt from series after a change of leader.
type Memory struct {
	At   time.Time // of the plan that wrote it; zero before the first
	Held map[fleet.JobRef]time.Duration
}

// Plan charges every running job for the time since the last plan and returns the
// orders that the plan asks for. The memory that it was given is not changed.
func Plan(now time.Time, f fleet.Snapshot, m Memory, _ Config) ([]remedy.Order, Memory) {
	next := Memory{At: now, Held: make(map[fleet.JobRef]time.Duration, len(f.Jobs))}
	gap := now.Sub(m.At)
	if m.At.IsZero() || gap < 0 || gap > MaxGap {
		gap = 0
	}
	for ref, j := range f.Jobs {
		if j.Phase.Ended() {
			continue
		}
		held := m.Held[ref]
		if j.Phase == fleet.JobRunning {
			held += time.Duration(j.GPUs()) * gap
		}
		next.Held[ref] = held
	}
	return nil, next
}
