// Package sim is a simulated GPU cluster on virtual time: nodes, jobs, a scheduler,
// telemetry and faults, behind the interfaces by which Stoker sees and changes a real
// one. It judges policy, so it must be able to say that Stoker is wrong: what really is
// so is kept in [truth], which nothing that decides may import.
//
// It starts no goroutine, reads no clock and uses no randomness but that of its seed.
// The same configuration and the same calls at the same virtual times give the same
// events, byte for byte. What happens costs time, what merely is does not: a step over
// an hour in which nothing changes is as quick as one over a second.
package sim

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/sim/truth"
)

// A Fault is one thing that goes wrong, as data. See [truth.Kinds].
type Fault = truth.Fault

// Kinds of fault, for scenarios.
const (
	GPULost         = truth.GPULost
	GPUECC          = truth.GPUECC
	GPUDriver       = truth.GPUDriver
	NVLinkDown      = truth.NVLinkDown
	GPUHot          = truth.GPUHot
	NodeLost        = truth.NodeLost
	BootHangs       = truth.BootHangs
	SpotNotice      = truth.SpotNotice
	JobCrash        = truth.JobCrash
	JobHang         = truth.JobHang
	JobOOM          = truth.JobOOM
	TelemetryLost   = truth.TelemetryLost
	Throttle        = truth.Throttle
	SensorBlank     = truth.SensorBlank
	NVLinkBlip      = truth.NVLinkBlip
	ExporterRestart = truth.ExporterRestart
)

// A Span is a range of durations from which one is drawn. Its zero value means the default.
type Span struct{ Min, Max time.Duration }

// Config describes a cluster and what will happen to it. What is zero gets a default.
type Config struct {
	Seed  uint64
	Start time.Time // default 2026-01-05 06:00 UTC

	Nodes        int    // default 8
	GPUsPerNode  int    // default 8, at most 16
	NodesPerRack int    // default 4
	Model        string // default NVIDIA H100 80GB HBM3
	Pool         string // default a100

	Market Market
	Queues []QueueSpec // of those that are not listed, nothing is known and everything is given
	Jobs   []JobSpec
	Faults []Fault

	Container Span // from a pod's place to its running container; default 20s to 45s
	Grace     Span // from the wish that a container ends to its end; default 2s to 8s
	Answer    Span // from a request for a checkpoint to the start of writing; default 2s to 6s
	Boot      Span // from the start of a reboot to the ready node; default 3m30s to 4m30s
	Plugin    Span // from the ready node to its allocatable GPUs; default 10s to 25s
	// Watchdog is after how long a job that hangs gives up by itself; default 30m.
	Watchdog time.Duration
	// Patience is how long a fault that makes a node ill may go unnoticed; default 10m.
	Patience time.Duration
	// Keep is how long a job that has ended stays in the cluster; default 30m.
	Keep time.Duration
	// Operators is the mean time after which people repair a node that is ill and that
	// Stoker does not hold. Zero: nobody does.
	Operators time.Duration

	// Tell is told what happens, one plain line each. It must not call the simulation.
	Tell func(Event)
}

// A JobSpec is a training job that will be submitted. Its pods are one gang.
type JobSpec struct {
	Namespace, Name string // the namespace is the team
	Queue           string // default: the namespace
	At              time.Duration
	Workers         int // pods
	GPUs            int // of each
	// Share makes it a job on a part of one GPU, in thousandths of it; zero: it has its GPUs
	// whole. Such a job has one worker and one GPU, which others may share.
	Share int
	// GPUMemory is what each pod needs of the memory of each of its GPUs, in MiB; default:
	// as large a part of it as of the GPU. Parts are only given while there is enough.
	GPUMemory       int
	Iterations      int64
	Iteration       time.Duration // of one iteration; default: drawn from 0.8s to 3s
	CheckpointEvery int64         // iterations; default: drawn from 100 to 200
	Write           time.Duration // of a checkpoint; default: drawn from 15s to 60s
	Load            time.Duration // of data and checkpoint; default: drawn from 40s to 90s
	// MinAvailable is a disruption budget: that many pods must stay. Zero: there is none.
	MinAvailable int
	// MilliCPU and MemoryBytes are what each pod asks for besides its GPUs; default: 16
	// cores and 256 GiB for each GPU.
	MilliCPU, MemoryBytes int64
	// Idle is a job that computes nothing, such as a forgotten notebook.
	Idle bool
	// Retries is how often the job's own controller starts it anew after it has crashed;
	// default 6.
	Retries int
}

// Ref is how the cluster calls the job.
func (j JobSpec) Ref() fleet.JobRef {
	return fleet.JobRef{Kind: JobKind, Namespace: j.Namespace, Name: j.Name}
}

// JobKind is the kind of every simulated job.
const JobKind = "Job.sim"

// An Event is something that happened, for people. Its text holds no time.
type Event struct {
	At   time.Time
	Kind EventKind
	Text string
}

// An EventKind says what an event is about.
type EventKind string

// The kinds of event.
const (
	EventJob    EventKind = "job"
	EventNode   EventKind = "node"
	EventFault  EventKind = "fault" // of the truth: nobody in the cluster is told so
	EventPerson EventKind = "person"
)

// A Simulation is a cluster at one virtual time. Its methods may be called by several
// goroutines; for the same events they have to come in the same order.
type Simulation struct {
	cfg     Config
	record  *truth.Record
	ledger  truth.Ledger
	cluster *Cluster

	mu       sync.Mutex // of everything below, and of what the fields point to
	now      int64      // ms since cfg.Start
	events   calendar
	sequence uint64
	revision fleet.Version
	uids     uint64

	nodes   []*node
	byName  map[string]*node
	jobs    []*job // of the cluster, oldest first
	byRef   map[fleet.JobRef]*job
	pods    map[string]*pod // by uid
	repairs map[string]*repair

	pending []int // faults that wait for their job to train

	queues  []*queue
	room    room
	kicked  bool // the scheduler has been woken
	arrived int  // jobs so far

	ended []ended // jobs that have ended, of whichever end
	cost  float64 // of all nodes so far

	cordoned, mostCordoned int // nodes now, and at most so far
}

// A QueueSpec is a team's queue: how many GPUs are its own. What another queue does not
// use it may borrow.
type QueueSpec struct {
	Name  string
	Quota int // GPUs; zero: everything
	// Strict says that a first job that does not fit lets nobody of the queue pass. So is
	// a queue that is not listed.
	Strict bool
}

// An ended is what a report needs of a job that has ended.
type ended struct {
	submitted, took int64

	idle bool // it did nothing
	well bool // it has succeeded
}

// New returns a cluster at its start, with nothing but its nodes. The error names every
// mistake of the configuration.
func New(cfg Config) (*Simulation, error) {
	if err := cfg.defaults(); err != nil {
		return nil, fmt.Errorf("simulated cluster: %w", err)
	}
	s := &Simulation{
		cfg: cfg, record: truth.NewRecord(cfg.Faults),
		byName: map[string]*node{}, byRef: map[fleet.JobRef]*job{}, pods: map[string]*pod{}, repairs: map[string]*repair{},
	}
	s.cluster = &Cluster{s: s}
	s.room = newRoom(cfg.Nodes, cfg.GPUsPerNode)
	for i := range cfg.Nodes {
		s.addNode(i)
	}
	for _, spec := range cfg.Jobs {
		s.at(spec.At.Milliseconds(), func() { s.submit(spec) })
	}
	for i, f := range cfg.Faults {
		s.at(f.At.Milliseconds(), func() { s.strike(i) })
	}
	return s, nil
}

// Step moves the time to exactly to, a whole millisecond, and lets happen what happens
// until then. A time that has passed is an error and changes nothing.
func (s *Simulation) Step(to time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := to.Sub(s.cfg.Start)
	if d%time.Millisecond != 0 {
		return fmt.Errorf("step to %v: not a whole millisecond since the start", to)
	}
	ms := d.Milliseconds()
	if ms < s.now {
		return fmt.Errorf("step to %v: it is %v already", to, s.time(s.now))
	}
	for {
		e, ok := s.events.before(ms)
		if !ok {
			break
		}
		s.pass(e.at)
		e.do()
	}
	s.pass(ms)
	return nil
}

// Now is the virtual time.
func (s *Simulation) Now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.time(s.now)
}

// Cluster is what Stoker may see and do.
func (s *Simulation) Cluster() *Cluster { return s.cluster }

// NodeNames are the names of all nodes, in order.
func (s *Simulation) NodeNames() []string {
	names := make([]string, len(s.nodes))
	for i, n := range s.nodes {
		names[i] = n.name
	}
	return names
}

// pass lets time go by.
func (s *Simulation) pass(ms int64) {
	s.now = ms
	s.ledger.To(ms)
}

func (s *Simulation) time(ms int64) time.Time {
	return s.cfg.Start.Add(time.Duration(ms) * time.Millisecond)
}

func (s *Simulation) since() time.Duration { return time.Duration(s.now) * time.Millisecond }

// write gives an object that has changed its next version: they count all writes to the
// cluster, one by one.
func (s *Simulation) write(v *fleet.Version) {
	s.revision++
	*v = s.revision
}

func (s *Simulation) tell(kind EventKind, format string, args ...any) {
	if s.cfg.Tell != nil {
		s.cfg.Tell(Event{At: s.time(s.now), Kind: kind, Text: fmt.Sprintf(format, args...)})
	}
}

const maxGPUsPerNode = 16

func (c *Config) defaults() error {
	var errs []error
	if c.Start.IsZero() {
		c.Start = time.Date(2026, 1, 5, 6, 0, 0, 0, time.UTC)
	}
	for _, d := range []struct {
		name          string
		v             *int
		def, min, max int
	}{
		{"nodes", &c.Nodes, 8, 1, 100_000},
		{"GPUs of a node", &c.GPUsPerNode, 8, 1, maxGPUsPerNode},
		{"nodes of a rack", &c.NodesPerRack, 4, 1, 100_000},
	} {
		if *d.v == 0 {
			*d.v = d.def
		}
		if *d.v < d.min || *d.v > d.max {
			errs = append(errs, fmt.Errorf("%s: %d is not from %d to %d", d.name, *d.v, d.min, d.max))
		}
	}
	if c.Model == "" {
		c.Model = "NVIDIA H100 80GB HBM3"
	}
	if c.Pool == "" {
		c.Pool = "a100"
	}
	for _, d := range []struct {
		name     string
		v        *Span
		min, max time.Duration
	}{
		{"container", &c.Container, 20 * time.Second, 45 * time.Second},
		{"grace", &c.Grace, 2 * time.Second, 8 * time.Second},
		{"answer", &c.Answer, 2 * time.Second, 6 * time.Second},
		{"boot", &c.Boot, 210 * time.Second, 270 * time.Second},
		{"plugin", &c.Plugin, 10 * time.Second, 25 * time.Second},
	} {
		if *d.v == (Span{}) {
			*d.v = Span{d.min, d.max}
		}
		if d.v.Min < time.Millisecond || d.v.Max < d.v.Min {
			errs = append(errs, fmt.Errorf("%s: %v to %v is not a span of at least 1ms", d.name, d.v.Min, d.v.Max))
		}
	}
	for _, d := range []struct {
		name string
		v    *time.Duration
		def  time.Duration
	}{{"watchdog", &c.Watchdog, 30 * time.Minute}, {"patience", &c.Patience, 10 * time.Minute}, {"keep", &c.Keep, 30 * time.Minute}, {"operators", &c.Operators, 0}} {
		if *d.v == 0 {
			*d.v = d.def
		}
		if *d.v < 0 {
			errs = append(errs, fmt.Errorf("%s: %v is negative", d.name, *d.v))
		}
	}
	return errors.Join(append(errs, c.Market.defaults(c.Nodes), c.defaultJobs(), c.checkFaults())...)
}

func (c *Config) defaultJobs() error {
	var errs []error
	c.Jobs = append([]JobSpec(nil), c.Jobs...)
	seen := map[fleet.JobRef]bool{}
	for i := range c.Jobs {
		j := &c.Jobs[i]
		bad := func(format string, args ...any) {
			errs = append(errs, mistake{"job", i, fmt.Sprintf("%s: %s", j.Ref(), fmt.Sprintf(format, args...))})
		}
		if j.Namespace == "" || j.Name == "" {
			bad("has no namespace or no name")
		}
		if seen[j.Ref()] {
			bad("is there twice")
		}
		seen[j.Ref()] = true
		if j.Queue == "" {
			j.Queue = j.Namespace
		}
		if j.Workers < 1 || j.GPUs < 1 || j.GPUs > c.GPUsPerNode || j.Workers > c.Nodes*(c.GPUsPerNode/max(1, j.GPUs)) {
			bad("%d workers of %d GPUs do not fit into %d nodes of %d GPUs", j.Workers, j.GPUs, c.Nodes, c.GPUsPerNode)
		}
		if j.Share < 0 || j.Share >= truth.Whole || j.Share > 0 && (j.Workers != 1 || j.GPUs != 1) {
			bad("%d thousandths of a GPU, %d workers of %d GPUs: a part is of one GPU of one worker", j.Share, j.Workers, j.GPUs)
		}
		if j.GPUMemory == 0 {
			j.GPUMemory = usableMiB * j.share() / truth.Whole
		}
		if j.GPUMemory < 0 || j.GPUMemory > usableMiB {
			bad("%d MiB of a GPU's memory, of which %d can be used", j.GPUMemory, usableMiB)
		}
		if j.Iterations < 1 {
			bad("%d iterations are not at least one", j.Iterations)
		}
		if j.MinAvailable < 0 || j.MinAvailable > j.Workers {
			bad("a disruption budget of %d of %d pods", j.MinAvailable, j.Workers)
		}
		for _, d := range []struct {
			name string
			v    time.Duration
		}{{"at", j.At}, {"iteration", j.Iteration}, {"write", j.Write}, {"load", j.Load}} {
			if d.v < 0 || d.v%time.Millisecond != 0 {
				bad("%s: %v is negative or no whole milliseconds", d.name, d.v)
			}
		}
		if j.CheckpointEvery < 0 || j.Retries < 0 {
			bad("checkpoints every %d iterations and %d retries: negative", j.CheckpointEvery, j.Retries)
		}
		if j.Retries == 0 {
			j.Retries = 6
		}
		if j.MilliCPU == 0 {
			j.MilliCPU = int64(j.each()) * milliCPUPerGPU / truth.Whole
		}
		if j.MemoryBytes == 0 {
			j.MemoryBytes = int64(j.each()) * memoryPerGPU / truth.Whole
		}
		if whole := int64(c.GPUsPerNode); j.MilliCPU < 0 || j.MilliCPU > whole*milliCPUPerGPU || j.MemoryBytes < 0 || j.MemoryBytes > whole*memoryPerGPU {
			bad("%d thousandths of a core and %d bytes do not fit into a node", j.MilliCPU, j.MemoryBytes)
		}
		c.draw(j)
	}
	return errors.Join(errs...)
}

// draw fills in what a job leaves to chance. It depends on the seed and on the job's
// name alone, so that another job beside it changes nothing.
func (c *Config) draw(j *JobSpec) {
	key := hash(j.Ref().String())
	if j.Iteration == 0 {
		j.Iteration = time.Duration(c.between(Span{800 * time.Millisecond, 3 * time.Second}, concernIteration, key, 0)) * time.Millisecond
	}
	if j.CheckpointEvery == 0 {
		j.CheckpointEvery = 100 + int64(c.random(concernEvery, key, 0)%101)
	}
	if j.Write == 0 {
		j.Write = time.Duration(c.between(Span{15 * time.Second, time.Minute}, concernWrite, key, 0)) * time.Millisecond
	}
	if j.Load == 0 {
		j.Load = time.Duration(c.between(Span{40 * time.Second, 90 * time.Second}, concernLoad, key, 0)) * time.Millisecond
	}
}

// A mistake is what is wrong with one job or one fault of a configuration.
type mistake struct {
	of   string // job or fault
	i    int
	text string
}

func (m mistake) Error() string { return fmt.Sprintf("%s %d, %s", m.of, m.i+1, m.text) }

func (c *Config) checkFaults() error {
	var errs []error
	jobs := map[string]JobSpec{}
	for _, j := range c.Jobs {
		jobs[j.Ref().String()] = j
	}
	for i, f := range c.Faults {
		bad := func(format string, args ...any) {
			errs = append(errs, mistake{"fault", i, fmt.Sprintf("%s: %s", f.Kind, fmt.Sprintf(format, args...))})
		}
		info, known := truth.Kinds[f.Kind]
		if !known {
			bad("no such kind")
			continue
		}
		if f.At < 0 || f.At%time.Millisecond != 0 {
			bad("at: %v is negative or no whole milliseconds", f.At)
		}
		_, hasJob := jobs[f.Job]
		hasNode := nodeNumber(c, f.Node) >= 0
		switch {
		case f.Job != "" && f.Node != "":
			bad("names a node and a job")
		case f.Job != "" && !info.Job:
			bad("does not happen to jobs, but names %s", f.Job)
		case f.Node != "" && !info.Node:
			bad("does not happen to nodes, but names %s", f.Node)
		case f.Job != "" && !hasJob:
			bad("there is no job %s", f.Job)
		case f.Node != "" && !hasNode:
			bad("there is no node %s", f.Node)
		case f.Job == "" && f.Node == "":
			bad("says not where")
		}
		if f.GPU < 0 || f.GPU >= c.GPUsPerNode {
			bad("there is no GPU %d", f.GPU)
		}
		if why := c.checkSpot(f); why != "" {
			bad("%s", why)
		}
		if info.Lasts != (f.For > 0) || f.For%time.Millisecond != 0 {
			bad("for: %v; whether it has a length of its own: %t", f.For, info.Lasts)
		}
		if _, breaks := breakages[f.Kind]; (f.Incurable || f.Stubborn) && !breaks {
			bad("cannot be incurable or stubborn")
		}
	}
	return errors.Join(errs...)
}
