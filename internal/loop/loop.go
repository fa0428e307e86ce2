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
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/rules"
	"stoker.dev/stoker/scheduler"
)

// A Store keeps incidents. Writes are durable when they return.
type Store interface {
	// List returns all incidents, closed ones too, in any order. A list that is not nil
	// beside an error is all that could be read; the error is about the others.
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

// A World is observed once in each tick, and when evidence comes before the first.
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

// Config is what may change while the loop runs.
type Config struct {
	Playbooks rules.Playbooks
	Scheduler scheduler.Config
}

// Options bound the loop. The zero value is for the service; the simulated fleet sets
// Parallel to 1, so that the order of effects is the same in every run.
type Options struct {
	Parallel     int           // incidents acted on at once; 16 when zero
	MaxOpen      int           // open incidents; evidence for more is refused; 5,000 when zero
	MaxClosed    int           // closed incidents kept; 1,000 when zero
	ClosedFor    time.Duration // for which closed incidents are kept; 7 days when zero
	JournalLines int           // entries kept; 2,000 when zero
	Plans        bool          // what the planner asks for is carried out; else it is only shown
	Tell         func(Entry)   // told of each entry, one at a time; must not call the loop; may be nil
}

// ErrPressure says that evidence was not taken in because too much is waiting. The
// sender must send it again.
var ErrPressure = errors.New("too many open incidents")

// Loop is the walker. Its methods may be called by any goroutine.
type Loop struct {
	log       *slog.Logger
	store     Store
	world     World
	witnesses []Witness
	actuator  Actuator
	opts      Options
	metrics   *metrics

	turn      chan struct{} // full through a tick and an ingest: there is one writer
	cfg       Config
	loaded    bool
	unread    error          // about incidents that the store has and that cannot be read
	fleet     fleet.Snapshot // of the last tick; its zero value when there was none
	incidents map[string]remedy.Incident
	memory    scheduler.Memory
	planned   map[fleet.JobRef]planned // the planner's orders that have not ended
	news      bool                     // evidence has changed an incident
	heard     map[string]heard         // by incident: what it has learned and the store has not
	noted     map[string]time.Time     // evidence noted lately, so that it is told once
	troubled  Entry                    // the last trouble that was told
	orphaned  map[string]time.Time     // nodes with a mark of ours that no open incident wants, since when

	wake chan struct{} // holds a value when there is something to do before the next tick is due

	viewMu    sync.Mutex
	view      fleet.Snapshot
	shown     map[string]remedy.Incident
	shownPlan Plan
	journal   journal
}

// New returns a loop that has read nothing yet.
func New(log *slog.Logger, reg registerer, store Store, world World, witnesses []Witness, act Actuator, cfg Config, opts Options) *Loop {
	if opts.Parallel == 0 {
		opts.Parallel = 16
	}
	if opts.MaxOpen == 0 {
		opts.MaxOpen = 5000
	}
	if opts.MaxClosed == 0 {
		opts.MaxClosed = 1000
	}
	if opts.ClosedFor == 0 {
		opts.ClosedFor = 7 * 24 * time.Hour
	}
	if opts.JournalLines == 0 {
		opts.JournalLines = 2000
	}
	return &Loop{
		log: log, store: store, world: world, witnesses: witnesses, actuator: act, opts: opts, cfg: cfg,
		turn: make(chan struct{}, 1), incidents: map[string]remedy.Incident{}, noted: map[string]time.Time{}, heard: map[string]heard{}, metrics: newMetrics(reg),
		journal: journal{most: opts.JournalLines, tell: opts.Tell}, wake: make(chan struct{}, 1),
	}
}

// begin waits for its turn, for as long as ctx lasts.
func (l *Loop) begin(ctx context.Context) error {
	select {
	case l.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the tick that is under way: %w", context.Cause(ctx))
	}
}

// end lets others have their turn.
func (l *Loop) end() { <-l.turn }

// Configure puts another configuration in force from the next tick on. Incidents that
// are open keep the ladder that they were opened with.
func (l *Loop) Configure(cfg Config) {
	l.turn <- struct{}{}
	defer l.end()
	l.cfg = cfg
}

// Forget drops everything that was read, so that the next tick or ingest reads the
// store anew: a new leader must not trust what it remembers.
func (l *Loop) Forget() {
	l.turn <- struct{}{}
	defer l.end()
	l.loaded = false
	l.fleet = fleet.Snapshot{}
	l.incidents = map[string]remedy.Incident{}
	l.noted, l.heard = map[string]time.Time{}, map[string]heard{}
	l.memory, l.planned = scheduler.Memory{}, nil
}

// Incidents returns the incidents as they last were, oldest first. The caller may
// not change what they point to.
func (l *Loop) Incidents() []remedy.Incident {
	l.viewMu.Lock()
	defer l.viewMu.Unlock()
	return slices.SortedFunc(maps.Values(l.shown), remedy.CompareIncidents)
}

// Fleet returns the snapshot of the last tick; its zero value before the first.
func (l *Loop) Fleet() fleet.Snapshot {
	l.viewMu.Lock()
	defer l.viewMu.Unlock()
	return l.view
}

// Journal returns the newest entries, oldest first.
func (l *Loop) Journal() []Entry { return l.journal.entries() }

func (l *Loop) publish(f *fleet.Snapshot) {
	l.viewMu.Lock()
	defer l.viewMu.Unlock()
	l.shown = maps.Clone(l.incidents)
	if f != nil {
		l.view = *f
	}
}

func (l *Loop) load(ctx context.Context) error {
	if l.loaded {
		return nil
	}
	list, err := l.store.List(ctx)
	if err != nil {
		err = fmt.Errorf("read incidents: %w", err)
	}
	if err != nil && list == nil {
		return err
	}
	l.unread = err // one that is damaged does not keep the others from being healed
	old := l.incidents
	l.incidents = make(map[string]remedy.Incident, len(list))
	for _, in := range list {
		if have, ok := old[in.Name]; ok && have.Version == in.Version {
			in = have // it also has what was answered and heard since, which is not stored
		} else {
			delete(l.heard, in.Name)
		}
		l.incidents[in.Name] = in
	}
	l.loaded = true
	return nil
}

// list returns all incidents in the order in which they are served.
func (l *Loop) list() []remedy.Incident {
	return slices.SortedFunc(maps.Values(l.incidents), remedy.CompareIncidents)
}

// save creates or updates one incident and keeps what was stored. On a conflict, what
// the store has is read before the next tick.
func (l *Loop) save(ctx context.Context, in remedy.Incident) (remedy.Incident, error) {
	write := l.store.Update
	if in.Version == "" {
		write = l.store.Create
	}
	stored, err := write(ctx, in)
	if err != nil {
		return in, fmt.Errorf("store incident %s: %w", in.Name, err)
	}
	return stored, nil
}
