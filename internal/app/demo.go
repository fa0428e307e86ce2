package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/labels"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/collector"
	"stoker.dev/stoker/internal/loop"
	"stoker.dev/stoker/internal/observe"
	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/internal/series"
	"stoker.dev/stoker/internal/server"
	"stoker.dev/stoker/internal/sim"
	"stoker.dev/stoker/internal/store"
	"stoker.dev/stoker/rules/alerts"
)

// DemoOptions say what the demonstration shows.
type DemoOptions struct {
	For    time.Duration // virtual time; 0: until ctx ends, which is then no error but its cause
	Speed  float64       // virtual seconds in a second; 0: as fast as it goes
	Seed   uint64
	Off    bool   // without Stoker, to compare
	Report string // file for the report as JSON; empty: none
	// Terminal says that out is a terminal: its last line then shows how far it is.
	Terminal bool
	Listen   string // loopback address for API and metrics; empty: none
	// Listening is told the address that is listened on.
	Listening func(net.Addr)
}

// Steps of virtual time.
const (
	demoStep   = time.Second
	demoTick   = 5 * time.Second
	demoScrape = 10 * time.Second
)

// Demo runs the whole of Stoker on a simulated fleet in virtual time and writes one
// line per event to out, then a summary. The same options give the same bytes.
func Demo(ctx context.Context, out io.Writer, o DemoOptions) (err error) {
	if err := mayWrite(o.Report); err != nil {
		return err
	}
	lines := &printer{out: out, terminal: o.Terminal}
	cfg := sim.Demo(o.Seed)
	cfg.Tell = func(e sim.Event) { lines.print(e.At, string(e.Kind), e.Text) }
	s, err := sim.New(cfg)
	if err != nil {
		return err
	}
	start := s.Now()
	lines.start = start

	var d *demo
	if !o.Off {
		if d, err = newDemo(s, lines); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, d.close()) }()
	}
	if o.Listen != "" && d != nil {
		stop, err := d.serve(ctx, s, o)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	defer lines.clear() // also where it ends before its time
	wall := time.Now()
	whole := context.WithoutCancel(ctx) // who stops it lets the step end that it is in
	for at := start; ; at = at.Add(demoStep) {
		if err := s.Step(at); err != nil {
			return err
		}
		if d != nil {
			if err := d.step(whole, at, at.Sub(start)); err != nil {
				return err
			}
		}
		if o.For > 0 && at.Sub(start) >= o.For {
			break
		}
		lines.progress(at, o.For)
		if err := pace(ctx, wall, at.Sub(start), o.Speed); err != nil {
			if o.For == 0 {
				break
			}
			return fmt.Errorf("stopped after %s of the fleet's time: %w", at.Sub(start), err)
		}
	}
	lines.clear()
	if lines.err != nil {
		return fmt.Errorf("print: %w", lines.err)
	}
	report := DemoReport{Seed: o.Seed, Report: s.Report(), Incidents: []IncidentReport{}}
	if d != nil {
		report.Incidents = incidentReports(d.loop.Incidents(), start)
	}
	if err := report.summary(out, o.Off); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	if err := writeReport(o.Report, report); err != nil || o.For > 0 {
		return err
	}
	return context.Cause(ctx)
}

// pace waits until the wall clock has caught up with the virtual one.
func pace(ctx context.Context, wall time.Time, virtual time.Duration, speed float64) error {
	if speed > 0 {
		due := wall.Add(time.Duration(float64(virtual) / speed))
		if d := time.Until(due); d > 0 {
			timer := time.NewTimer(d)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
		}
	}
	return context.Cause(ctx)
}

// A demo is Stoker on the simulated fleet: every room of the service, with a store in
// a file and telemetry through the collector's own pages.
type demo struct {
	loop      *loop.Loop
	telemetry *telemetry
	incidents *store.Bolt
	registry  *prometheus.Registry
	dir       string
}

func newDemo(s *sim.Simulation, lines *printer) (_ *demo, err error) {
	dir, err := os.MkdirTemp("", "stoker-demo-")
	if err != nil {
		return nil, fmt.Errorf("demo: %w", err)
	}
	d := &demo{dir: dir, registry: prometheus.NewRegistry()}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	log := slog.New(slog.DiscardHandler) // the lines are the log
	if d.incidents, err = store.OpenBolt(filepath.Join(dir, "incidents.db")); err != nil {
		return nil, err
	}
	if d.telemetry, err = newTelemetry(log, d.registry, "", alerts.Files(), demoScrape); err != nil {
		return nil, err
	}
	for _, name := range s.NodeNames() {
		page, err := nodePage(log, s, name)
		if err != nil {
			return nil, err
		}
		if err := d.telemetry.add(name, page, labels.Label{Name: "instance", Value: name}); err != nil {
			return nil, err
		}
	}
	if err := d.telemetry.add("training", stepsPage(s), labels.Label{Name: "job", Value: "training"}); err != nil {
		return nil, err
	}
	cfg, lcfg, err := ReadConfig("")
	if err != nil {
		return nil, err
	}
	specs := slices.Concat(actuator.Actions, actuator.Planned(s.Cluster()))
	act, err := actuator.New(log, s.Cluster(), specs, actuator.Gates(actuator.ModeAuto, cfg.Gates), d.registry)
	if err != nil {
		return nil, err
	}
	world := observe.NewWorld(log,
		observe.Source{Name: sim.Source, Filler: s.Cluster(), Needed: true},
		observe.Source{Name: "telemetry", Filler: d.telemetry},
		observe.Source{Name: series.UsageSource, Filler: series.NewUsage(d.telemetry.db)})
	d.loop = loop.New(log, d.registry, d.incidents, world, []loop.Witness{d.telemetry, s.Cluster()}, act, lcfg,
		loop.Options{Parallel: 1, Plans: true, Tell: func(e loop.Entry) {
			tellPeople(s, e)
			lines.entry(e)
		}})
	return d, nil
}

// nodePage is the collector of one simulated node.
func nodePage(log *slog.Logger, s *sim.Simulation, name string) (page, error) {
	source, err := s.Telemetry(name)
	if err != nil {
		return nil, err
	}
	c, err := collector.New(log, name, []collector.Source{source}, collector.Options{Interval: demoScrape})
	if err != nil {
		return nil, fmt.Errorf("collector of %s: %w", name, err)
	}
	var buf []byte
	return func(ctx context.Context, now time.Time) ([]byte, error) {
		if err := s.Reach(name); err != nil {
			return nil, err
		}
		if err := c.Gather(ctx, now); err != nil {
			log.Debug("source down", "err", err) // the page says so too
		}
		buf = c.AppendPage(buf[:0], now)
		return buf, nil
	}, nil
}

// stepsPage is what training programs show of their progress.
func stepsPage(s *sim.Simulation) page {
	var buf []byte
	return func(context.Context, time.Time) ([]byte, error) {
		buf = append(buf[:0], "# HELP stoker_job_step Iterations done.\n# TYPE stoker_job_step gauge\n"...)
		for _, j := range s.JobSteps() {
			buf = fmt.Appendf(buf, "stoker_job_step{namespace=%q,job_name=%q} %d\n", j.Namespace, j.Name, j.Step)
		}
		return buf, nil
	}
}

func (d *demo) step(ctx context.Context, at time.Time, since time.Duration) error {
	if since%demoScrape == 0 {
		d.telemetry.scrape(ctx, at, 1)
	}
	if since%demoTick == 0 {
		if err := d.loop.Tick(ctx, at); err != nil {
			return fmt.Errorf("tick: %w", err)
		}
	}
	return nil
}

func (d *demo) close() error {
	var errs []error
	if d.telemetry != nil {
		errs = append(errs, d.telemetry.close())
	}
	if d.incidents != nil {
		errs = append(errs, d.incidents.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(d.dir))...)
}

// serve answers API and metrics, on loopback alone since it asks for no token.
func (d *demo) serve(ctx context.Context, s *sim.Simulation, o DemoOptions) (stop func() error, err error) {
	host, _, err := net.SplitHostPort(o.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nil, fmt.Errorf("listen: %s is not a loopback address, and the demo asks nobody for a token", o.Listen)
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if o.Listening != nil {
		o.Listening(l.Addr())
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	h := server.Handler(slog.New(slog.DiscardHandler), d.registry, d.loop, s.Now, server.Options{ReadOnly: true, State: demoState})
	go func() { done <- server.Serve(ctx, l, h) }()
	return func() error { cancel(); return <-done }, nil
}

// demoState is what pages show of the demo: it acts by itself and leads itself.
func demoState(time.Time) server.State {
	return server.State{Mode: string(actuator.ModeAuto), Identity: "demo", Leader: "demo", Leading: true}
}

// A printer writes one plain line per event, with the time since the start.
type printer struct {
	out      io.Writer
	start    time.Time
	err      error // of the first line that could not be written
	terminal bool  // the last line shows how far it is
	shown    bool  // it does now
}

// progressEvery is how often the last line of a terminal changes, in the fleet's time.
const progressEvery = 30 * time.Second

// progress shows on a terminal how far it is, in a line that the next event replaces.
func (p *printer) progress(at time.Time, all time.Duration) {
	since := at.Sub(p.start)
	if !p.terminal || p.err != nil || since%progressEvery != 0 {
		return
	}
	p.clear()
	text := clock(since)
	if all > 0 {
		text += fmt.Sprintf(" of %s (%.0f %%)", clock(all), 100*since.Seconds()/all.Seconds())
	}
	_, p.err = io.WriteString(p.out, text)
	p.shown = true
}

// clear takes the line of progress away.
func (p *printer) clear() {
	if p.shown && p.err == nil {
		_, p.err = io.WriteString(p.out, "\r\033[K")
	}
	p.shown = false
}

// clock writes a time since the start as hours, minutes and seconds.
func clock(d time.Duration) string {
	d = d.Round(time.Second)
	return fmt.Sprintf("%02d:%02d:%02d", int(d.Hours()), int(d.Minutes())%60, int(d.Seconds())%60)
}

func (p *printer) print(at time.Time, kind, text string) {
	if p.err != nil {
		return
	}
	p.clear()
	_, p.err = fmt.Fprintf(p.out, "%s  %-8s %s\n", clock(at.Sub(p.start)), kind, text)
}

// entry prints what the loop did.
func (p *printer) entry(e loop.Entry) {
	what := e.Text
	switch e.Kind {
	case loop.EntryOpened:
		what = fmt.Sprintf("opens %s: %s", e.Incident, e.Text)
	case loop.EntryStarted:
		what = fmt.Sprintf("%s %s (%s)", e.Step, e.Target, e.Text)
	case loop.EntryEnded:
		what = fmt.Sprintf("%s %s: %s", e.Step, e.Target, e.Text)
	case loop.EntrySkipped:
		what = fmt.Sprintf("%s is skipped: %s", e.Step, e.Text)
	case loop.EntryWaiting, loop.EntryRetry:
		what = fmt.Sprintf("%s waits: %s", e.Step, e.Text)
	case loop.EntryNoted:
		what = fmt.Sprintf("notes, and does nothing: %s", e.Text)
	case loop.EntryEvidence, loop.EntryClosed, loop.EntryHeld, loop.EntryUndoing:
		what = fmt.Sprintf("%s: %s", e.Incident, e.Text)
	case loop.EntryPlanned:
		what = fmt.Sprintf("%s %s (%s)", e.Step, e.Target, e.Text)
	case loop.EntryTrouble:
		what = "trouble: " + e.Text
	}
	p.print(e.At, "stoker", what)
}

// A DemoReport is the report of one run: the truth of the simulated fleet, and what
// Stoker knew and did.
type DemoReport struct {
	Seed      uint64           `json:"seed"`
	Incidents []IncidentReport `json:"incidents"`
	sim.Report
}

// An IncidentReport is one incident. Times are seconds since the start.
type IncidentReport struct {
	Seed          uint64       `json:"seed,omitempty"` // of the run, where there were several
	Name          string       `json:"name"`
	Subject       string       `json:"subject"`
	Class         remedy.Class `json:"class"`
	Phase         remedy.Phase `json:"phase"`
	Reason        string       `json:"reason"`
	OpenedSeconds float64      `json:"openedSeconds"`
	ClosedSeconds float64      `json:"closedSeconds,omitempty"`
	LostGPUHours  float64      `json:"lostGPUHours"` // as Stoker reckons
	Steps         []StepReport `json:"steps,omitempty"`
}

// A StepReport is one step of an incident.
type StepReport struct {
	Action         string        `json:"action"`
	Targets        []string      `json:"targets,omitempty"`
	StartedSeconds float64       `json:"startedSeconds"`
	EndedSeconds   float64       `json:"endedSeconds,omitempty"`
	Ending         remedy.Ending `json:"ending,omitempty"`
	Note           string        `json:"note,omitempty"`
}

func incidentReports(list []remedy.Incident, start time.Time) []IncidentReport {
	since := func(t time.Time) float64 {
		if t.IsZero() {
			return 0
		}
		return t.Sub(start).Seconds()
	}
	out := make([]IncidentReport, 0, len(list))
	for _, in := range list {
		r := IncidentReport{
			Name: in.Name, Subject: in.Subject.String(), Class: in.Class, Phase: in.Phase, Reason: in.Reason,
			OpenedSeconds: since(in.Opened), ClosedSeconds: since(in.Closed), LostGPUHours: in.Lost(), Steps: []StepReport{},
		}
		for _, s := range in.Steps {
			step := StepReport{Action: s.Action, StartedSeconds: since(s.Reserved), EndedSeconds: since(s.Ended), Ending: s.Ending, Note: s.Note}
			if s.Skipped {
				step.Ending = "skipped"
			}
			for _, o := range s.Orders {
				step.Targets = append(step.Targets, o.Order.Target.String())
			}
			r.Steps = append(r.Steps, step)
		}
		out = append(out, r)
	}
	return out
}

// summary writes the report for people.
func (r DemoReport) summary(out io.Writer, off bool) error {
	who := "with Stoker"
	if off {
		who = "without Stoker"
	}
	var lost float64
	for cause, h := range r.LostGPUHours {
		if cause != "free" {
			lost += h
		}
	}
	_, err := fmt.Fprintf(out, `
%.1f hours of %d GPUs %s (seed %d)
  faults         %d, of which missed %d
  incidents      %d
  cordons        %d, of which wrong %d
  resubmissions  %d
  lost           %.1f GPU-hours
  goodput        %.1f %% of all GPU-time
`, r.Hours, r.GPUs, who, r.Seed, len(r.Faults), r.MissedFaults, len(r.Incidents), r.Cordons, r.WrongCordons, r.Resubmissions, lost, 100*r.Goodput)
	return err
}
