package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/loop"
	"stoker.dev/stoker/internal/observe"
	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/internal/replay"
	"stoker.dev/stoker/internal/sim"
	"stoker.dev/stoker/internal/store"
)

// A policy is who acts on the simulated fleet.
type policy string

// The policies. All but [policyStoker] are there to compare with.
const (
	policyStoker  policy = "stoker"
	policyNobody  policy = "nobody"     // people alone, after hours
	policyWait    policy = "wait"       // cordon, wait for the jobs to end, boot
	policyDelete  policy = "delete-60m" // cordon, delete the pods after an hour, boot
	deleteAfter          = time.Hour
	trialTick            = 5 * time.Second
	trialLateness        = 90 * time.Minute // of alerts that come late
	trialDelay           = 30 * time.Second // of alerts about states on their way
)

// A trial is one run of one policy on one fleet, by the short way: what collectors read is
// turned into evidence without exposition and alert rules. Everything from there on is
// Stoker's own code.
type trial struct {
	fleet   sim.Config
	policy  policy
	horizon time.Duration
	lame    lameness
	lines   *printer // may be nil
}

// lameness takes something from Stoker, or lets it see what is not so, to show that a test
// notices.
type lameness struct {
	told           func([]remedy.Evidence) []remedy.Evidence // what it hears instead
	sees           func(hands) hands                         // of the cluster
	noVerification bool
	noGates        bool
	noPlanner      bool
}

// hands are the cluster as a trial's Stoker sees and changes it.
type hands interface {
	actuator.Cluster
	observe.Filler
}

// A trialResult is what came of a trial.
type trialResult struct {
	report    sim.Report
	incidents []remedy.Incident
	start     time.Time
}

// run runs the trial to its horizon.
func (t trial) run(ctx context.Context) (trialResult, error) {
	if t.lines != nil {
		t.fleet.Tell = func(e sim.Event) { t.lines.print(e.At, string(e.Kind), e.Text) }
	}
	s, err := sim.New(t.fleet)
	if err != nil {
		return trialResult{}, err
	}
	start := s.Now()
	if t.lines != nil {
		t.lines.start = start
	}
	direct, err := directOf(s)
	if err != nil {
		return trialResult{}, err
	}
	var tick func(now time.Time) error
	var incidents func() []remedy.Incident
	switch t.policy {
	case policyStoker:
		told := &gathered{of: []loop.Witness{newEcho(direct, t.fleet.Seed), s.Cluster()}, as: t.lame.told}
		l, err := t.stoker(s, direct, told)
		if err != nil {
			return trialResult{}, err
		}
		tick, incidents = lazily(ctx, l, told), l.Incidents
	case policyWait, policyDelete:
		after := time.Duration(0)
		if t.policy == policyDelete {
			after = deleteAfter
		}
		d, prev := replay.NewDrainer(s.Cluster(), direct, after), fleet.Snapshot{}
		tick = func(now time.Time) error {
			if prev, err = s.Cluster().Snapshot(ctx, now, prev); err != nil {
				return err
			}
			if err := d.Tick(ctx, now, prev); err != nil {
				if f, ok := errors.AsType[*remedy.Failure](err); !ok || f.Ending != remedy.Conflict {
					return err
				}
			}
			return nil
		}
	case policyNobody:
	}
	for at := time.Duration(0); at <= t.horizon; at += trialTick {
		now := start.Add(at)
		if err := s.Step(now); err != nil {
			return trialResult{}, err
		}
		if err := ctx.Err(); err != nil {
			return trialResult{}, context.Cause(ctx)
		}
		if tick == nil {
			continue
		}
		direct.Poll(ctx, now)
		if err := tick(now); err != nil {
			return trialResult{}, fmt.Errorf("%s at %s: %w", t.policy, at, err)
		}
	}
	r := trialResult{report: s.Report(), start: start}
	if incidents != nil {
		r.incidents = incidents()
	}
	return r, nil
}

// stoker makes the loop of a trial: the service's own but for its store and telemetry.
func (t trial) stoker(s *sim.Simulation, direct *replay.Direct, told *gathered) (*loop.Loop, error) {
	log, reg := slog.New(slog.DiscardHandler), prometheus.NewRegistry()
	cfg, lcfg, err := ReadConfig("")
	if err != nil {
		return nil, err
	}
	// A tenth of eight nodes is less than one. As whoever has so few of them would, two may
	// be out.
	for i := range cfg.Gates.Budgets {
		cfg.Gates.Budgets[i].AtLeast = new(2)
	}
	gates := actuator.Gates(actuator.ModeAuto, cfg.Gates)
	if t.lame.noGates {
		gates = nil
	}
	if t.lame.noVerification {
		for i := range lcfg.Playbooks.List {
			b := &lcfg.Playbooks.List[i]
			b.Steps = slices.DeleteFunc(slices.Clone(b.Steps), func(s remedy.Step) bool {
				return s.Role == remedy.RoleVerify
			})
		}
	}
	var cluster hands = s.Cluster()
	if t.lame.sees != nil {
		cluster = t.lame.sees(cluster)
	}
	specs := slices.Concat(actuator.Actions, actuator.Planned(s.Cluster()))
	act, err := actuator.New(log, cluster, specs, gates, reg)
	if err != nil {
		return nil, err
	}
	world := observe.NewWorld(log,
		observe.Source{Name: sim.Source, Filler: cluster, Needed: true},
		observe.Source{Name: "telemetry", Filler: direct})
	opts := loop.Options{Parallel: 1, Plans: !t.lame.noPlanner, Tell: func(e loop.Entry) {
		tellPeople(s, e)
		if t.lines != nil {
			t.lines.entry(e)
		}
	}}
	return loop.New(log, reg, &store.Memory{}, world, []loop.Witness{told}, act, lcfg, opts), nil
}

// A gathered is what witnesses have told since the loop last asked.
type gathered struct {
	of   []loop.Witness
	as   func([]remedy.Evidence) []remedy.Evidence // nil: as it was told
	held []remedy.Evidence
}

// gather asks the witnesses and reports whether the loop has anything to hear.
func (g *gathered) gather(ctx context.Context, now time.Time) (bool, error) {
	for _, w := range g.of {
		ev, err := w.Evidence(ctx, now)
		if err != nil {
			return false, err
		}
		if g.as != nil {
			ev = g.as(ev)
		}
		g.held = append(g.held, ev...)
	}
	return len(g.held) > 0, nil
}

// Evidence hands over what was gathered.
func (g *gathered) Evidence(context.Context, time.Time) ([]remedy.Evidence, error) {
	out := g.held
	g.held = nil
	return out, nil
}

// plansEvery is the time between two plans; the loop is asked to tick at least as often.
const plansEvery = 30 * time.Second

// lazily ticks the loop when there is something for it to do: it was told something, an
// incident is open, or a plan is due. In between a tick would do nothing.
func lazily(ctx context.Context, l *loop.Loop, told *gathered) func(time.Time) error {
	var last time.Time
	open := false
	return func(now time.Time) error {
		heard, err := told.gather(ctx, now)
		if err != nil {
			return err
		}
		if !heard && !open && now.Sub(last) < plansEvery {
			return nil
		}
		last = now
		err = l.Tick(ctx, now)
		open = slices.ContainsFunc(l.Incidents(), func(in remedy.Incident) bool { return !in.Phase.Closed() })
		return err
	}
}

// tellPeople lets the simulation know of incidents that were opened: whoever reads
// Stoker's journal has been told.
func tellPeople(s *sim.Simulation, e loop.Entry) {
	if e.Kind == loop.EntryOpened {
		s.People().Told(string(e.Class), e.Subject)
	}
}

// directOf reads every node of the fleet directly.
func directOf(s *sim.Simulation) (*replay.Direct, error) {
	var nodes []replay.Node
	for _, name := range s.NodeNames() {
		events, err := s.Telemetry(name)
		if err != nil {
			return nil, err
		}
		usage, err := s.Telemetry(name)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, replay.Node{
			Name: name, Events: events.Only(), Usage: usage.Only(replay.Fields...), Reach: func() error { return s.Reach(name) },
		})
	}
	steps := func() []replay.Step {
		var out []replay.Step
		for _, j := range s.JobSteps() {
			out = append(out, replay.Step(j))
		}
		return out
	}
	return replay.NewDirect(nodes, steps), nil
}

// An echo is the way of alerts over Prometheus and Alertmanager beside the fast path:
// some of what is told comes again a little later, some twice, and some after an hour and
// a half, when it is too old to be acted on.
type echo struct {
	of   loop.Witness
	seed uint64
	n    uint64
	late []echoed
}

type echoed struct {
	due time.Time
	e   remedy.Evidence
}

func newEcho(of loop.Witness, seed uint64) *echo { return &echo{of: of, seed: seed} }

// Evidence returns what is told now, and what comes again.
func (c *echo) Evidence(ctx context.Context, now time.Time) ([]remedy.Evidence, error) {
	out, err := c.of.Evidence(ctx, now)
	for _, e := range out {
		c.n++
		again := e
		again.Source, again.Seen = "alertmanager", time.Time{}
		luck := (c.seed*0x9e3779b97f4a7c15 + c.n*0xbf58476d1ce4e5b9) >> 56
		wait := time.Duration(20+luck%60) * time.Second
		if !remedy.Classes[e.Class].Event {
			wait = trialDelay // what tells of a state keeps its order: begun, over
		}
		c.late = append(c.late, echoed{now.Add(wait), again})
		if luck%8 == 0 && remedy.Classes[e.Class].Event {
			c.late = append(c.late, echoed{now.Add(wait), again}, echoed{now.Add(trialLateness), again})
		}
	}
	kept := c.late[:0]
	for _, l := range c.late {
		if l.due.After(now) {
			kept = append(kept, l)
			continue
		}
		out = append(out, l.e)
	}
	c.late = kept
	return out, err
}
