package sim

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/tools/txtar"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/internal/sim/truth"
)

// A Scenario is a fleet, what happens to it, and what must come of it, as a file says it.
type Scenario struct {
	Name   string
	Why    string // the comment before the first section
	Fleet  Config
	For    time.Duration
	Expect []Expectation
}

// An Expectation is one line of the section expect.
type Expectation struct {
	Line int // in the file
	// Of a number of the report: its name as in the JSON, with a dot where it is in a map,
	// how it is compared, and with what.
	Number string
	Op     string // = != < <= > >=
	Value  float64
	// Of an incident: its class, subject, phase and steps. Subject and phase may be *; no
	// steps means any.
	Incident bool
	Never    bool // there must be none
	Class    string
	Subject  string
	Phase    string
	Steps    []string
}

// String is the expectation as it is written.
func (e Expectation) String() string {
	switch {
	case e.Never:
		return strings.TrimSpace("no incident " + e.Class + " " + e.Subject)
	case e.Incident:
		return strings.Join(append([]string{"incident", e.Class, e.Subject, e.Phase}, e.Steps...), " ")
	}
	return fmt.Sprintf("%s %s %g", e.Number, e.Op, e.Value)
}

// ParseScenario reads a txtar archive with the sections fleet, jobs, faults and expect.
// docs/simulation.md describes each. Every mistake is in the error, with its line.
func ParseScenario(name string, data []byte) (Scenario, error) {
	a := txtar.Parse(data)
	s := Scenario{Name: name, Why: strings.TrimSpace(string(a.Comment)), For: 2 * time.Hour}
	p := &scenarioParser{name: name, s: &s, lines: map[string][]int{}}
	from := strings.Count(string(a.Comment), "\n")
	seen := map[string]bool{}
	for _, f := range a.Files {
		from++ // the line of the section's name
		read, known := map[string]func([]string) error{"fleet": p.fleet, "jobs": p.job, "faults": p.fault, "expect": p.expect}[f.Name]
		p.line = from
		if !known || seen[f.Name] {
			p.fail(fmt.Errorf("section %q is unknown or there twice; known: fleet, jobs, faults, expect", f.Name))
		}
		seen[f.Name] = true
		for _, line := range strings.Split(strings.TrimSuffix(string(f.Data), "\n"), "\n") {
			from++
			p.line = from
			text, _, _ := strings.Cut(line, "#")
			if words := strings.Fields(text); len(words) > 0 && known {
				p.fail(read(words))
			}
		}
	}
	if len(s.Expect) == 0 {
		p.line = from
		p.fail(errors.New("nothing is expected"))
	}
	if len(p.errs) == 0 {
		c := s.Fleet
		p.place(c.defaults())
	}
	return s, errors.Join(p.errs...)
}

type scenarioParser struct {
	name  string
	line  int
	lines map[string][]int // of jobs and faults
	s     *Scenario
	errs  []error
}

// place gives each mistake of the fleet the line that it is in.
func (p *scenarioParser) place(err error) {
	if err == nil {
		return
	}
	if many, ok := errors.AsType[interface {
		error
		Unwrap() []error
	}](err); ok {
		for _, one := range many.Unwrap() {
			p.place(one)
		}
		return
	}
	if m, ok := errors.AsType[mistake](err); ok {
		p.line = p.lines[m.of][m.i]
		p.fail(errors.New(m.text))
		return
	}
	p.errs = append(p.errs, fmt.Errorf("%s: section fleet: %w", p.name, err))
}

func (p *scenarioParser) fail(err error) {
	if err != nil {
		p.errs = append(p.errs, fmt.Errorf("%s:%d: %w", p.name, p.line, err))
	}
}

// fleet reads one setting: its name and its value.
func (p *scenarioParser) fleet(words []string) error {
	c := &p.s.Fleet
	if words[0] == "queue" && len(words) == 3 {
		n, err := strconv.Atoi(words[2])
		if err != nil || n < 0 {
			return fmt.Errorf("%q is not a number of GPUs", words[2])
		}
		c.Queues = append(c.Queues, QueueSpec{Name: words[1], Quota: n})
		return nil
	}
	if len(words) != 2 {
		return fmt.Errorf("a setting is its name and its value, not %q", strings.Join(words, " "))
	}
	number := map[string]*int{"nodes": &c.Nodes, "gpus": &c.GPUsPerNode, "spot": &c.Market.Spot}
	length := map[string]*time.Duration{"for": &p.s.For, "operators": &c.Operators, "watchdog": &c.Watchdog}
	var err error
	switch name := words[0]; {
	case name == "seed":
		c.Seed, err = strconv.ParseUint(words[1], 10, 64)
	case number[name] != nil:
		if *number[name], err = strconv.Atoi(words[1]); err == nil && (*number[name] < 0 || *number[name] == 0 && name != "spot") {
			err = fmt.Errorf("%s %d: there must be some", name, *number[name])
		}
	case length[name] != nil:
		if *length[name], err = time.ParseDuration(words[1]); err == nil && *length[name] <= 0 {
			err = fmt.Errorf("%s %s: it must take some time", name, words[1])
		}
	default:
		return fmt.Errorf("setting %q is unknown; known: for, gpus, nodes, operators, queue, seed, spot, watchdog", name)
	}
	return err
}

// job reads a job: team/name, when it comes, WORKERSxGPUS, how long it trains, and idle
// for one that only holds.
func (p *scenarioParser) job(words []string) error {
	if len(words) < 4 || len(words) > 5 || len(words) == 5 && words[4] != "idle" {
		return errors.New("a job is team/name, when it comes, WORKERSxGPUS, how long it trains, and perhaps idle")
	}
	team, name, _ := strings.Cut(words[0], "/")
	workers, gpus, _ := strings.Cut(words[2], "x")
	at, err1 := time.ParseDuration(words[1])
	w, err2 := strconv.Atoi(workers)
	g, share, err3 := parseGPUs(gpus)
	lasts, err4 := time.ParseDuration(words[3])
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err
	}
	p.lines["job"] = append(p.lines["job"], p.line)
	p.s.Fleet.Jobs = append(p.s.Fleet.Jobs, JobSpec{
		Namespace: team, Name: name, At: at, Workers: w, GPUs: g, Share: share, Iteration: time.Second, Iterations: int64(lasts / time.Second), Idle: len(words) == 5,
	})
	return nil
}

// fault reads a fault: when, its kind, where (a job, a node or node/GPU), and perhaps for
// how long, and incurable or stubborn.
func (p *scenarioParser) fault(words []string) error {
	if len(words) < 3 {
		return errors.New("a fault is when, its kind and where, and perhaps `for 10m`, incurable or stubborn")
	}
	at, err := time.ParseDuration(words[0])
	if err != nil {
		return err
	}
	f := Fault{At: at, Kind: truth.Kind(words[1])}
	if node, gpu, ok := strings.Cut(words[2], "/gpu-"); ok {
		f.Node = node
		if f.GPU, err = strconv.Atoi(gpu); err != nil {
			return err
		}
	} else if strings.Contains(words[2], "/") {
		f.Job = words[2]
	} else {
		f.Node = words[2]
	}
	for rest := words[3:]; len(rest) > 0; rest = rest[1:] {
		switch {
		case rest[0] == "incurable":
			f.Incurable = true
		case rest[0] == "stubborn":
			f.Stubborn = true
		case rest[0] == "for" && len(rest) > 1:
			if f.For, err = time.ParseDuration(rest[1]); err != nil {
				return err
			}
			rest = rest[1:]
		default:
			return fmt.Errorf("%q is neither `for` and a length nor incurable nor stubborn", rest[0])
		}
	}
	p.lines["fault"] = append(p.lines["fault"], p.line)
	p.s.Fleet.Faults = append(p.s.Fleet.Faults, f)
	return nil
}

// expect reads what must come of it: a number of the report, or an incident.
func (p *scenarioParser) expect(words []string) error {
	e := Expectation{Line: p.line, Op: "="}
	switch {
	case (len(words) == 3 || len(words) == 4) && words[0] == "no" && words[1] == "incident":
		e.Never, e.Class, e.Subject = true, words[2], "*"
		if len(words) > 3 {
			e.Subject = words[3]
		}
	case words[0] == "incident" && len(words) >= 4:
		e.Incident, e.Class, e.Subject, e.Phase, e.Steps = true, words[1], words[2], words[3], words[4:]
		if !slices.Contains(phases, e.Phase) {
			return unknown("phase", e.Phase, phases)
		}
		for _, step := range e.Steps {
			if _, known := actuator.Actions.Info(step); !known {
				return unknown("step", step, actuator.Actions.Names())
			}
		}
	case len(words) == 3 && strings.Contains(" = != < <= > >= ", " "+words[1]+" "):
		e.Number, e.Op = words[0], words[1]
		v, err := strconv.ParseFloat(words[2], 64)
		if err != nil {
			return err
		}
		e.Value = v
	case len(words) == 2:
		e.Number = words[0]
		v, err := strconv.ParseFloat(words[1], 64)
		if err != nil {
			return err
		}
		e.Value = v
	default:
		return fmt.Errorf("%q is neither `NAME OP NUMBER` nor `incident CLASS SUBJECT PHASE STEPS...` nor `no incident CLASS`", strings.Join(words, " "))
	}
	// That there is no incident of a class that does not exist would always hold.
	if class := remedy.Class(e.Class); (e.Incident || e.Never) && !class.Known() {
		var known []string
		for _, c := range remedy.ClassNames() {
			known = append(known, string(c))
		}
		return unknown("class", e.Class, known)
	}
	p.s.Expect = append(p.s.Expect, e)
	return nil
}

func unknown(what, got string, known []string) error {
	return fmt.Errorf("unknown %s %q; known: %s", what, got, strings.Join(known, ", "))
}

// phases are what an incident may be expected to be in.
var phases = []string{
	"*", string(remedy.PhaseOpen), string(remedy.PhaseActing), string(remedy.PhaseHeld), string(remedy.PhaseCancelling),
	string(remedy.PhaseResolved), string(remedy.PhaseCancelled),
}

// Holds reports whether the comparison of a number holds.
func (e Expectation) Holds(got float64) bool {
	switch e.Op {
	case "=":
		return got == e.Value
	case "!=":
		return got != e.Value
	case "<":
		return got < e.Value
	case "<=":
		return got <= e.Value
	case ">":
		return got > e.Value
	case ">=":
		return got >= e.Value
	}
	return false
}
