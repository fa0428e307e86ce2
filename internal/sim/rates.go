package sim

import (
	"math"
	"time"

	"stoker.dev/stoker/internal/sim/truth"
)

// A Rate is how often a kind of fault happens by itself, and how long it lasts.
type Rate struct {
	Kind Kind
	// Each is per hour of what Per names: "GPU", "node", "spot node" or "job that runs".
	Each float64
	Per  string
	// Lasts is the mean of its length, of a kind that has one.
	Lasts time.Duration
	// Source says where the numbers are from; "assumed" where nobody has published any.
	Source string
}

// Kind is a kind of fault.
type Kind = truth.Kind

// Where rates come from. The table of causes of the Llama 3 training (16,384 GPUs, 54
// days, so 21.2 million GPU-hours) is divided by those GPU-hours.
const llamaHours = 16_384 * 54 * 24

const assumed = "assumed"

// resetsInVain: of so many faults of a GPU that happen by themselves, one is not cured by
// a reset but only by a boot, and nobody knows before. Assumed.
const resetsInVain = 10

// Rates are what goes wrong in a simulated fleet by itself. docs/simulation.md shows
// them as a table, which a test compares.
var Rates = []Rate{
	{Kind: GPULost, Each: 148.0 / 2 / llamaHours, Per: "GPU", Source: "Llama 3 (arXiv:2407.21783, table 5): half of 148 faulty GPUs"},
	{Kind: NVLinkDown, Each: 148.0 / 2 / llamaHours, Per: "GPU", Source: "Llama 3: the other half of 148 faulty GPUs, which include NVLink"},
	{Kind: GPUECC, Each: (72.0 + 19) / llamaHours, Per: "GPU", Source: "Llama 3: HBM3 72 and SRAM 19"},
	{Kind: GPUDriver, Each: 17.0 / llamaHours, Per: "GPU", Source: "Llama 3: GPU system processor 17"},
	{Kind: GPUHot, Each: 6.0 / llamaHours, Per: "GPU", Lasts: 30 * time.Minute, Source: "Llama 3: thermal interface and sensor 6; length assumed"},
	{Kind: NodeLost, Each: 6.5 / 1000 / 24 / 4, Per: "node", Lasts: 20 * time.Minute, Source: "RSC-1 (arXiv:2410.21680): 6.5 failures in 1,000 node-days, a quarter of them the whole node; length assumed"},
	{Kind: SpotNotice, Each: 1.0 / 24, Per: "spot node", Source: assumed + ": one a day"},

	{Kind: JobCrash, Each: 54.0 / llamaHours * 64, Per: "job that runs", Source: "Llama 3: software bugs 54, for a job of 64 GPUs"},
	{Kind: JobHang, Each: 7.0 / llamaHours * 64, Per: "job that runs", Source: "Llama 3: NCCL watchdog 7, for a job of 64 GPUs"},
	{Kind: JobOOM, Each: 1.0 / 20_000, Per: "job that runs", Source: assumed},

	{Kind: TelemetryLost, Each: 1.0 / 1000, Per: "node", Lasts: 6 * time.Minute, Source: assumed},
	{Kind: ExporterRestart, Each: 1.0 / 500, Per: "node", Source: assumed},
	{Kind: Throttle, Each: 1.0 / 200, Per: "GPU", Lasts: 20 * time.Second, Source: assumed},
	{Kind: SensorBlank, Each: 1.0 / 200, Per: "GPU", Lasts: 15 * time.Second, Source: assumed},
}

// Draw adds to the configuration what goes wrong by itself until the horizon: each kind
// of Rates at its rate, faults as often as so many times that, and noise as often as so
// many times. The configuration's jobs and nodes must be there already.
func (c *Config) Draw(horizon time.Duration, faults, noise float64) error {
	if err := c.defaults(); err != nil {
		return err
	}
	for k, r := range Rates {
		times := faults
		if truth.Kinds[r.Kind].Noise {
			times = noise
		}
		each := r.Each * times
		switch r.Per {
		case "GPU":
			c.poisson(r, k, each*float64(c.Nodes*c.GPUsPerNode), 0, horizon, func(n uint64) Fault {
				return Fault{Node: c.nodeName(int(n / 64 % uint64(c.Nodes))), GPU: int(n % 64 % uint64(c.GPUsPerNode))}
			})
		case "node":
			c.poisson(r, k, each*float64(c.Nodes), 0, horizon, func(n uint64) Fault { return Fault{Node: c.nodeName(int(n % uint64(c.Nodes)))} })
		case "spot node":
			if spot := uint64(c.Market.Spot); spot > 0 {
				c.poisson(r, k, r.Each*float64(spot), 0, horizon, func(n uint64) Fault {
					return Fault{Node: c.nodeName(c.Nodes - 1 - int(n%spot))}
				})
			}
		default:
			for i, j := range c.Jobs {
				if j.Idle {
					continue
				}
				lasts := time.Duration(j.Iterations) * j.Iteration
				c.poisson(r, k+len(Rates)*(i+1), each, j.At, min(horizon, j.At+lasts), func(uint64) Fault { return Fault{Job: j.Ref().String()} })
			}
		}
	}
	return nil
}

// poisson adds faults of one kind at so many an hour between two times.
func (c *Config) poisson(r Rate, key int, each float64, from, to time.Duration, where func(uint64) Fault) {
	if each <= 0 {
		return
	}
	mean := time.Duration(math.Min(float64(time.Hour)/each, float64(math.MaxInt64/64)))
	at := from
	for n := uint64(0); ; n++ {
		at += c.exponential(mean, concernRate, uint64(key), 3*n)
		if at >= to {
			return
		}
		f := where(c.random(concernRate, uint64(key), 3*n+1))
		f.Kind, f.At = r.Kind, at
		if _, breaks := breakages[r.Kind]; breaks {
			f.Stubborn = c.random(concernReset, uint64(key), n)%resetsInVain == 0
		}
		if r.Lasts > 0 {
			f.For = c.exponential(r.Lasts, concernRate, uint64(key), 3*n+2)
		}
		c.Faults = append(c.Faults, f)
	}
}
