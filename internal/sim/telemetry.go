package sim

import (
	"context"
	"errors"
	"fmt"
	"math"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/sim/truth"
)

// telemetrySource is the name of the simulated host engine as a source.
const telemetrySource = "sim"

// Telemetry is what the host engine of one node tells of its GPUs: a source for the
// collector. It must not be used by two goroutines at once.
type Telemetry struct {
	s    *Simulation
	n    *node
	next int // number of the next XID that was not told yet
	read int // how often the reader of the log had started anew by then
	only map[string]bool
}

// Only lets the source tell of those fields alone; it returns the source.
func (t *Telemetry) Only(fields ...string) *Telemetry {
	t.only = map[string]bool{}
	for _, f := range fields {
		t.only[f] = true
	}
	return t
}

// Telemetry returns a new source for the node of that name, which tells of every XID
// from now on.
func (s *Simulation) Telemetry(name string) (*Telemetry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, ok := s.byName[name]
	if !ok {
		return nil, fmt.Errorf("there is no node %s", name)
	}
	_, next := n.log.from(math.MaxInt)
	return &Telemetry{s: s, n: n, next: next, read: n.reread}, nil
}

// Reach is nil when what runs on the node can be asked, as by a scrape of its collector.
func (s *Simulation) Reach(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, ok := s.byName[name]
	if !ok {
		return fmt.Errorf("there is no node %s", name)
	}
	if !n.up {
		return fmt.Errorf("node %s: %w", name, errDown)
	}
	return nil
}

// Name is the source's name.
func (t *Telemetry) Name() string { return telemetrySource }

var errDeaf = errors.New("the host engine does not answer")

// Collect tells of the node's GPUs at the present virtual time. It fails when the node
// is down or its telemetry is lost; XIDs of that time are told the next time that it
// does not.
func (t *Telemetry) Collect(ctx context.Context, into *fleet.Samples) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	s, n := t.s, t.n
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !n.up:
		return errDown
	case n.deaf > 0:
		return errDeaf
	}
	into.BootID = n.bootID
	for _, f := range fields {
		if t.only == nil || t.only[f.Name] {
			into.Fields = append(into.Fields, f.Field)
		}
	}
	for i := range n.gpus {
		g := &n.gpus[i]
		off := n.off&(1<<i) != 0
		into.GPUs = append(into.GPUs, fleet.SampledGPU{
			Index: i, UUID: g.uuid, PCI: g.pci, Device: g.device, Model: s.cfg.Model, Up: fleet.TruthOf(!off),
		})
		if off || s.now < g.blank || len(into.Fields) == 0 {
			continue
		}
		r := s.reading(n, i)
		for _, f := range fields {
			if t.only != nil && !t.only[f.Name] {
				continue
			}
			// Each who shares it has its values, as dcgm-exporter shows virtual GPUs.
			for k := range max(1, len(r.labels)) {
				v := fleet.Sample{Field: f.Name, GPU: i, Value: f.of(r)}
				if len(r.labels) > 0 {
					v.Labels = r.labels[k]
				}
				into.Values = append(into.Values, v)
			}
		}
	}
	if t.read != n.reread {
		t.read, t.next = n.reread, 0
	}
	var events []fleet.XIDEvent
	events, t.next = n.log.from(t.next)
	into.Events = append(into.Events, events...)
	return nil
}

// A reading is what all fields of a GPU follow from.
type reading struct {
	util   float64         // 0 to 1
	memory float64         // MiB in use
	noise  float64         // -1 to 1, another one each second
	works  bool            // a process has a context on it
	slow   bool            // its clocks are low
	hot    bool            // it is over the temperature at which it slows down
	blip   bool            // an error counter of its links shows one
	labels [][]fleet.Label // of each pod that has it
}

const memoryMiB = 81920

// slowdownTemp is the temperature in C at which a GPU lowers its clocks for good.
const slowdownTemp = 92

// reading says what a GPU does now. It follows from what the job on it does and from
// the time alone: whoever asks more often sees nothing else.
func (s *Simulation) reading(n *node, i int) reading {
	g := &n.gpus[i]
	key := hash(g.uuid)
	r := reading{noise: s.noise(key, s.now/1000), memory: 4, hot: g.hot != none, blip: s.now < g.blip}
	r.slow = r.hot || s.now < g.throttled
	for _, p := range g.holders {
		s.readPod(&r, p)
	}
	r.util = min(max(r.util, 0), 1)
	return r
}

// readPod adds what a pod does with its GPU, or with its part of it.
func (s *Simulation) readPod(r *reading, p *pod) {
	r.labels = append(r.labels, p.labels)
	j := p.job
	if !p.running || p.dead || p.gang != j.gang {
		return
	}
	part := float64(j.spec.share()) / truth.Whole
	var util float64
	memory := 38_000 + float64(s.cfg.random(concernTelemetry, j.key, 0)%38_000)
	memory = min(memory, float64(j.spec.GPUMemory))
	switch j.state {
	case loading:
		util, memory = 0.14+0.1*r.noise, memory/4
	case training:
		if j.spec.Idle {
			memory /= 8
			break
		}
		util = s.wave(j, s.now-j.since) + 0.015*r.noise
	case waiting, starting, hung, backing, stopped, succeeded, failed, deleted:
	}
	if !r.works {
		r.works, r.memory = true, 0
	}
	r.util, r.memory = r.util+part*util, r.memory+memory
}

// wave is the utilisation of a job that has trained for so many ms: a sawtooth between
// 80 and 100 %, and now and then a few seconds of loading under 30 %.
func (s *Simulation) wave(j *job, ms int64) float64 {
	period := 60_000 + int64(s.cfg.random(concernTelemetry, j.key, 1)%120_000)
	pause := period * (4 + int64(s.cfg.random(concernTelemetry, j.key, 2)%5)) / 100
	in := ms % period
	if in >= period-pause {
		return 0.16
	}
	const tooth = 14_000
	return 0.82 + 0.16*float64(in%tooth)/tooth
}

func (s *Simulation) noise(key uint64, second int64) float64 {
	return float64(mix(s.cfg.Seed^key^mix(uint64(second)))>>11)/(1<<52) - 1
}

// A field is one of DCGM's, and how it follows from a reading.
type field struct {
	fleet.Field
	of func(reading) float64
}

func gauge(name, help string, of func(reading) float64) field {
	return field{fleet.Field{Name: name, Type: "gauge", Help: help}, of}
}

func whole(v float64) float64 { return math.Round(v) }

// fields are what the simulated host engine is asked for, in the order of the page.
var fields = []field{
	gauge("DCGM_FI_DEV_SM_CLOCK", "SM clock frequency (in MHz).", func(r reading) float64 {
		switch {
		case !r.works:
			return 210
		case r.slow:
			return 735
		}
		return 1410
	}),
	gauge("DCGM_FI_DEV_MEM_CLOCK", "Memory clock frequency (in MHz).", func(reading) float64 { return 1593 }),
	gauge("DCGM_FI_DEV_MEMORY_TEMP", "Memory temperature (in C).", func(r reading) float64 { return whole(36 + 34*r.util + 1.5*r.noise) }),
	gauge("DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C).", func(r reading) float64 {
		switch {
		case r.hot:
			return whole(94 + 1.5*r.noise) // 92 to 96
		case r.slow:
			return whole(84 + 1.5*r.noise)
		}
		return whole(31 + 33*r.util + 1.5*r.noise)
	}),
	gauge("DCGM_FI_DEV_SLOWDOWN_TEMP", "Temperature at which the GPU slows down (in C).", func(reading) float64 { return slowdownTemp }),
	gauge("DCGM_FI_DEV_POWER_USAGE", "Power draw (in W).", func(r reading) float64 {
		base := 58.0
		if r.works {
			base = 86
		}
		return whole(1000*(base+310*r.util+3*r.noise)) / 1000
	}),
	gauge("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", func(r reading) float64 { return whole(100 * r.util) }),
	gauge("DCGM_FI_DEV_MEM_COPY_UTIL", "Memory utilization (in %).", func(r reading) float64 { return whole(55 * r.util) }),
	gauge("DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB).", func(r reading) float64 { return memoryMiB - 640 - r.memory }),
	gauge("DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB).", func(r reading) float64 { return r.memory }),
	gauge("DCGM_FI_DEV_FB_RESERVED", "Framebuffer memory reserved (in MiB).", func(reading) float64 { return 640 }),
	{fleet.Field{Name: "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", Type: "counter", Help: "Number of remapped rows for uncorrectable errors."}, func(reading) float64 { return 0 }},
	{fleet.Field{Name: "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", Type: "counter", Help: "Number of remapped rows for correctable errors."}, func(reading) float64 { return 0 }},
	gauge("DCGM_FI_DEV_ROW_REMAP_FAILURE", "Whether remapping of rows has failed.", func(reading) float64 { return 0 }),
	{fleet.Field{Name: "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", Type: "counter", Help: "Total number of PCIe retries."}, func(reading) float64 { return 0 }},
	{fleet.Field{Name: "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", Type: "counter", Help: "Total number of NVLink recovery errors."}, func(r reading) float64 {
		if r.blip {
			return 1
		}
		return 0
	}},
	gauge("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "Ratio of time the graphics engine is active.", func(r reading) float64 { return whole(1e6*r.util) / 1e6 }),
	gauge("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "Ratio of cycles the tensor (HMMA) pipe is active.", func(r reading) float64 { return whole(1e6*r.util*0.46) / 1e6 }),
	gauge("DCGM_FI_PROF_DRAM_ACTIVE", "Ratio of cycles the device memory interface is active sending or receiving data.", func(r reading) float64 { return whole(1e6*r.util*0.38) / 1e6 }),
	gauge("DCGM_FI_PROF_PCIE_TX_BYTES", "Bytes sent over PCIe per second.", func(r reading) float64 { return whole(2.1e9 * r.util) }),
	gauge("DCGM_FI_PROF_PCIE_RX_BYTES", "Bytes received over PCIe per second.", func(r reading) float64 { return whole(3.4e9 * r.util) }),
}

// A JobStep is what a training program shows of its progress: the series stoker_job_step.
type JobStep struct {
	Namespace, Name string
	Step            int64
}

// JobSteps are the steps of all jobs whose program has begun to count, in the order of
// their submission. A job that computes nothing counts nothing.
func (s *Simulation) JobSteps() []JobStep {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []JobStep
	for _, j := range s.jobs {
		if !j.spec.Idle && (j.state == training || j.state == hung && j.showed) {
			out = append(out, JobStep{j.ref.Namespace, j.ref.Name, s.iteration(j)})
		}
	}
	return out
}
