// Package scheduler optimises: which job deserves the GPUs, given what it has held so
// far. It is the second head beside rules, and pure like it: fleet and memory in, orders
// and memory out.
//
// What it rests on is the GPU-time that each job has held. Held time, not useful time, is
// what a job is charged for: no job gains by idling. It asks for three things: that idle
// holders give back when somebody waits ([idle]), that room is made for a gang that could
// not start otherwise ([room]), and that who waits longest is not passed by for ever. It
// knows neither the future of a job nor how long it will run.
package scheduler

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// MaxGap is the longest time between two plans that is charged. What lies in a longer
// gap nobody has seen: another leader planned then, or nobody did.
const MaxGap = 5 * time.Minute

// Priorities that the planner gives.
const (
	priorityIdle = -100 // of a job that holds GPUs and does nothing with them
	priorityRoom = 1000 // of the job for which room is made: what becomes free is kept for it
)

// Config is the configuration of this stage in force. What is zero gets a default.
type Config struct {
	Every time.Duration // from one plan to the next; 30s

	IdleUnder    float64       // usage under which a holder is idle; 0.05
	BusyOver     float64       // usage over which it is not any more; 0.15
	IdleFor      time.Duration // until it is told; 10m
	LowerAfter   time.Duration // from that until its priority is lowered; 5m
	ReclaimAfter time.Duration // from that until it may be suspended; 5m

	MinRun     time.Duration // a gang is left alone for so long after its start; 15m
	Pause      time.Duration // and after it was preempted, for so long; 1h
	RoomAfter  time.Duration // how long a job must have waited until room is made for it; 5m
	Long       time.Duration // a gang that has held as much as who waits would in this time may have to wait for it; 1h
	Starved    time.Duration // who has waited so long comes first; 1h
	RoomFor    time.Duration // how long room is kept; 5m
	SaveWithin time.Duration // how long a job may take to save before it is preempted; 2m
	Restart    time.Duration // what a start is reckoned to cost; 3m
	// Price is which part of the GPU-time that a job has waited for may be lost to make
	// room for it; 0.5.
	Price float64
}

// WithDefaults fills in what is zero.
func (c Config) WithDefaults() Config {
	for _, d := range []struct {
		v   *time.Duration
		def time.Duration
	}{
		{&c.Every, 30 * time.Second},
		{&c.IdleFor, 10 * time.Minute},
		{&c.LowerAfter, 5 * time.Minute},
		{&c.ReclaimAfter, 5 * time.Minute},
		{&c.MinRun, 15 * time.Minute},
		{&c.Pause, time.Hour},
		{&c.RoomAfter, 5 * time.Minute},
		{&c.Starved, time.Hour},
		{&c.Long, 4 * time.Hour},
		{&c.RoomFor, 5 * time.Minute},
		{&c.SaveWithin, 2 * time.Minute},
		{&c.Restart, 3 * time.Minute},
	} {
		if *d.v == 0 {
			*d.v = d.def
		}
	}
	c.IdleUnder, c.BusyOver, c.Price = cmp.Or(c.IdleUnder, 0.05), cmp.Or(c.BusyOver, 0.15), cmp.Or(c.Price, 0.5)
	return c
}

// Memory is what one plan hands to the next. It holds one account for each job that
// exists. After a change of leader it begins with what the jobs themselves tell: since when
// each runs, and when it was last preempted. What they held before that start is not known
// then, and nothing is taken from an idle holder before it was told again.
type Memory struct {
	At       time.Time // of the plan that wrote it; zero before the first
	Accounts map[fleet.JobRef]Account
	Room     Room // that is being made; zero when none is
}

// An Account is what is known of one job.
type Account struct {
	Held      time.Duration // GPU-time
	Waits     time.Time     // since when it waits; zero while it runs
	Preempted time.Time     // when we last took it off its nodes
	Times     int           // how often we have
	Stage     Stage         // of an idle holder
	Since     time.Time     // of the stage
}

// A Stage says how far the reclaim of an idle holder has come. It goes on by itself; what
// is taken is taken at the last one, and only when somebody waits.
type Stage string

// The stages.
const (
	StageBusy    Stage = ""
	StageTold    Stage = "told"
	StageLowered Stage = "lowered"
	StageTaken   Stage = "taken"
)

// Plan charges every running job for the time since the last plan and returns the orders
// that the plan asks for, each for another job. The memory that it was given is not
// changed. Between two plans of Config.Every it returns nothing and the memory as it was.
func Plan(now time.Time, f fleet.Snapshot, m Memory, cfg Config) ([]remedy.Order, Memory) {
	cfg = cfg.WithDefaults()
	gap := now.Sub(m.At)
	if !m.At.IsZero() && gap >= 0 && gap < cfg.Every {
		return nil, m
	}
	if m.At.IsZero() || gap < 0 || gap > MaxGap {
		gap = 0
	}
	p := &plan{now: now, fleet: f, cfg: cfg, next: Memory{At: now, Accounts: make(map[fleet.JobRef]Account, len(f.Jobs)), Room: m.Room}}
	unplaced := map[fleet.JobRef]bool{} // who has none waits for something else, such as a backoff
	for _, pod := range f.Pods {
		if pod.Node == "" && !pod.Terminating {
			unplaced[pod.Job] = true
		}
	}
	for ref, j := range f.Jobs {
		if j.Phase.Ended() {
			continue
		}
		a, known := m.Accounts[ref]
		if !known {
			a = recall(now, j)
		}
		switch {
		case j.Phase == fleet.JobRunning:
			if known {
				a.Held += j.GPUTime(gap)
			}
			a.Waits = time.Time{}
		case j.Phase != fleet.JobPending || !unplaced[ref]:
			a.Waits = time.Time{}
		case a.Waits.IsZero():
			a.Waits = now
			if a.Held == 0 && !j.Submitted.IsZero() {
				a.Waits = j.Submitted
				if !known && a.Preempted.After(a.Waits) {
					a.Waits = a.Preempted
				}
			}
		}
		p.next.Accounts[ref] = a
	}
	p.refs = slices.SortedFunc(maps.Keys(p.next.Accounts), fleet.JobRef.Compare)
	p.idle()
	p.room()
	return p.orders, p.next
}

// recall opens an account with what the job tells of itself.
func recall(now time.Time, j fleet.Job) Account {
	var a Account
	if j.Phase == fleet.JobRunning && !j.Started.IsZero() && j.Started.Before(now) {
		a.Held = j.GPUTime(now.Sub(j.Started))
	}
	if at, ok := plannedAt(j.PreemptedBy); ok && !at.After(now) {
		a.Preempted, a.Times = at, 1
	}
	return a
}

// plannedAt is the time of the plan that asked with this key; false when no plan did.
func plannedAt(key string) (time.Time, bool) {
	rest, ours := strings.CutPrefix(key, keyPrefix)
	stamp, _, found := strings.Cut(rest, "-")
	s, err := strconv.ParseInt(stamp, 36, 64)
	return time.Unix(s, 0).UTC(), ours && found && err == nil
}

// keyPrefix begins the key of every order of a plan.
const keyPrefix = "plan/"

// A plan is one call of Plan.
type plan struct {
	now    time.Time
	fleet  fleet.Snapshot
	cfg    Config
	next   Memory
	refs   []fleet.JobRef // of all accounts, in order
	orders []remedy.Order
	asked  map[fleet.JobRef]bool // jobs with an order of this plan
	atHand *freeGPUs             // what is free; nil until it is asked for
	queued []fleet.Job           // who waits; nil until it is asked for
}

// free is what is free now. It must not be changed: see [freeGPUs.copy].
func (p *plan) free() *freeGPUs {
	if p.atHand == nil {
		p.atHand = newFree(p.fleet)
	}
	return p.atHand
}

// may reports whether the planner may touch the job at all.
func (p *plan) may(j fleet.Job) bool { return j.OptOut == "" && !j.Suspended && !p.asked[j.Ref] }

// order asks for one change of a job. Its key is the job, the action and the time of the
// plan, so that no two plans ask with one key.
func (p *plan) order(action string, effect remedy.Effect, j fleet.Job, within time.Duration, cause string, params any) {
	raw := json.RawMessage(nil)
	if params != nil {
		if b, err := json.Marshal(params); err == nil {
			raw = b
		}
	}
	if p.asked == nil {
		p.asked = map[fleet.JobRef]bool{}
	}
	p.asked[j.Ref] = true
	p.orders = append(p.orders, remedy.Order{
		Key:    fmt.Sprintf(keyPrefix+"%s-%s/%s/%s", strconv.FormatInt(p.now.Unix(), 36), action, j.Ref.Kind, j.Ref),
		Action: action, Effect: effect, Target: remedy.Target{Job: j.Ref, UID: j.UID}, Params: raw,
		Cause: cause, Actor: "stoker", Reserved: p.now, Deadline: p.now.Add(within),
	})
}

// setting are the parameters of the planner's orders, as the actuator reads them.
type setting struct {
	Priority int    `json:"priority,omitempty"`
	Text     string `json:"text,omitempty"`
}

func (p *plan) prioritise(j fleet.Job, priority int, cause string) {
	if j.Priority != priority && p.may(j) {
		p.order("prioritise", remedy.EffectAsk, j, time.Minute, cause, setting{Priority: priority})
	}
}

func (p *plan) preempt(j fleet.Job, cause string) {
	p.order("preempt", remedy.EffectHarm, j, 2*time.Minute, cause, nil)
	a := p.next.Accounts[j.Ref]
	a.Preempted = p.now
	a.Times++
	p.next.Accounts[j.Ref] = a
}

// waiting returns the jobs that wait, who waits longest first.
func (p *plan) waiting() []fleet.Job {
	if p.queued != nil {
		return p.queued
	}
	out := []fleet.Job{}
	for _, ref := range p.refs {
		j := p.fleet.Jobs[ref]
		if !p.next.Accounts[ref].Waits.IsZero() && j.OptOut == "" && !j.Suspended {
			out = append(out, j)
		}
	}
	slices.SortStableFunc(out, func(a, b fleet.Job) int {
		return p.next.Accounts[a.Ref].Waits.Compare(p.next.Accounts[b.Ref].Waits)
	})
	p.queued = out
	return out
}

func (p *plan) waited(ref fleet.JobRef) time.Duration {
	if at := p.next.Accounts[ref].Waits; !at.IsZero() {
		return p.now.Sub(at)
	}
	return 0
}
