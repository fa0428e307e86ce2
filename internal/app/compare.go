package app

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"stoker.dev/stoker/internal/replay"
	"stoker.dev/stoker/internal/sim"
)

// What is compared where nothing else is asked for: what goes wrong happens so much more
// often than it does, so that there is something to judge in half a day of a small fleet.
const (
	compareFor    = 12 * time.Hour
	compareNodes  = 8
	compareJobs   = 30
	compareFaults = 200
	compareNoise  = 4
)

// CompareOptions say what is compared.
type CompareOptions struct {
	For    time.Duration // of each run; 12h when zero
	Seed   uint64        // of the first run
	Seeds  int           // runs of each policy
	Nodes  int           // of 8 GPUs; 8 when zero
	Jobs   int           // 30 for every 8 nodes and 12 hours when zero
	Faults float64       // how much more often than their rates; 200 when zero
	Report string        // file for the report as JSON; empty: none
	// Progress is told how many of how many runs are done; may be nil.
	Progress func(done, all int)
}

// A CompareReport is what came of the same fleets with Stoker, without it, and under two
// policies that are in use.
type CompareReport struct {
	FirstSeed   uint64  `json:"firstSeed"`
	Seeds       int     `json:"seeds"`
	Hours       float64 `json:"hours"` // of each run
	GPUs        int     `json:"gpus"`
	FaultsTimes float64 `json:"faultsTimes"` // how much more often than the rates of docs/simulation.md

	With    ArmReport `json:"with"`
	Without ArmReport `json:"without"`
	Wait    ArmReport `json:"waitForCompletion"`
	Delete  ArmReport `json:"deleteAfter60m"`

	Difference Difference `json:"difference"`
}

// An ArmReport is one policy over all seeds: counts are sums, goodput and times are means,
// and GPU-hours lost per fault are those of all runs by the faults of all runs.
type ArmReport struct {
	Policy        string             `json:"policy"`
	Faults        int                `json:"faults"`
	Noise         int                `json:"noise"`
	Incidents     []IncidentReport   `json:"incidents"` // with more than one seed without their steps
	Cordons       int                `json:"cordons"`
	WrongCordons  int                `json:"wrongCordons"`
	MissedFaults  int                `json:"missedFaults"`
	WrongStops    int                `json:"wrongStops"`
	WrongReleases int                `json:"wrongReleases"`
	RanTwice      int                `json:"ranTwice"`
	Resubmissions int                `json:"resubmissions"`
	Preemptions   int                `json:"preemptions"`
	Unfinished    int                `json:"jobsUnfinished"` // of which times of completion are less than they will be
	LostGPUHours  map[string]float64 `json:"lostGPUHours"`
	Goodput       float64            `json:"goodput"`
	MeanJCT       float64            `json:"meanJCTSeconds"`
	P99JCT        float64            `json:"p99JCTSeconds"`
	LostPerFault  float64            `json:"gpuHoursLostPerFault"`
	LostByKind    map[string]float64 `json:"gpuHoursLostPerFaultByKind"`
	CostUSD       float64            `json:"costUSD"`

	// Intervals are the 95 % intervals of the means, over seeds.
	Intervals map[string]replay.Mean `json:"intervals"`
	// Mistakes are what was wrong, with the seed.
	Mistakes []string `json:"mistakes,omitempty"`
}

// A Difference is with minus without, pairwise of the same seeds, with its 95 % interval.
type Difference struct {
	Goodput replay.Mean `json:"goodput"`
	MeanJCT replay.Mean `json:"meanJCTSeconds"`
	P99JCT  replay.Mean `json:"p99JCTSeconds"`
	// LostPerFault is how much of the GPU-hours lost per fault of each other policy is
	// lost with Stoker.
	LostPerFault map[string]float64 `json:"gpuHoursLostPerFault"`
}

// Compare runs every policy on the same fleets and writes what came of it.
func Compare(ctx context.Context, out io.Writer, o CompareOptions) error {
	if err := mayWrite(o.Report); err != nil {
		return err
	}
	o.For, o.Nodes, o.Faults = cmp.Or(o.For, compareFor), cmp.Or(o.Nodes, compareNodes), cmp.Or(o.Faults, compareFaults)
	if o.Jobs == 0 {
		o.Jobs = max(1, int(float64(compareJobs*o.Nodes)/compareNodes*o.For.Hours()/compareFor.Hours()))
	}
	policies := []policy{policyStoker, policyNobody, policyWait, policyDelete}
	results := make([][]trialResult, len(policies))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	done := make(chan struct{}, o.Seeds*len(policies))
	var gpus int
	for k, p := range policies {
		results[k] = make([]trialResult, o.Seeds)
		for i := range o.Seeds {
			cfg, err := compareFleet(o, o.Seed+uint64(i))
			if err != nil {
				return err
			}
			gpus = cfg.Nodes * 8
			g.Go(func() error {
				r, err := trial{fleet: cfg, policy: p, horizon: o.For}.run(ctx)
				if err != nil {
					return fmt.Errorf("seed %d: %w", cfg.Seed, err)
				}
				results[k][i] = r
				done <- struct{}{}
				if o.Progress != nil {
					o.Progress(len(done), cap(done))
				}
				return nil
			})
		}
	}
	if err := g.Wait(); err != nil {
		return err
	}
	r := CompareReport{FirstSeed: o.Seed, Seeds: o.Seeds, Hours: o.For.Hours(), GPUs: gpus, FaultsTimes: o.Faults}
	arms := []*ArmReport{&r.With, &r.Without, &r.Wait, &r.Delete}
	for k, p := range policies {
		*arms[k] = armReport(p, o.Seed, results[k])
	}
	r.Difference = difference(arms, results)
	if err := r.summary(out); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return writeReport(o.Report, r)
}

// compareFleet is one fleet of a comparison. Jobs come in the first two thirds.
func compareFleet(o CompareOptions, seed uint64) (sim.Config, error) {
	over := (o.For * 2 / 3).Truncate(time.Millisecond)
	return sim.Teams(seed, o.Nodes, o.Jobs, over, o.For, o.Faults, compareNoise)
}

func armReport(p policy, first uint64, runs []trialResult) ArmReport {
	a := ArmReport{Policy: string(p), LostGPUHours: map[string]float64{}, Intervals: map[string]replay.Mean{}, Incidents: []IncidentReport{}, LostByKind: map[string]float64{}}
	byKind := map[string][]float64{}
	var goodput, jct, p99, perFault []float64
	var lost float64
	faults := 0
	for i, run := range runs {
		r := run.report
		a.Faults, a.Noise, a.MissedFaults = a.Faults+len(r.Faults), a.Noise+r.Noise, a.MissedFaults+r.MissedFaults
		a.Cordons, a.WrongCordons = a.Cordons+r.Cordons, a.WrongCordons+r.WrongCordons
		a.WrongStops, a.WrongReleases, a.RanTwice = a.WrongStops+r.WrongStops, a.WrongReleases+r.WrongReleases, a.RanTwice+r.RanTwice
		a.Resubmissions, a.Preemptions, a.Unfinished = a.Resubmissions+r.Resubmissions, a.Preemptions+r.Preemptions, a.Unfinished+r.JobsUnfinished
		for _, cause := range slices.Sorted(maps.Keys(r.LostGPUHours)) {
			a.LostGPUHours[cause] += r.LostGPUHours[cause]
		}
		a.CostUSD += r.CostUSD
		goodput, jct, p99 = append(goodput, r.Goodput), append(jct, r.MeanJCTSeconds), append(p99, r.P99JCTSeconds)
		lost, faults = lost+r.NodeFaultGPUHours, faults+r.NodeFaults
		if r.NodeFaults > 0 {
			perFault = append(perFault, r.GPUHoursLostPerFault)
		}
		for _, f := range r.Faults {
			byKind[string(f.Kind)] = append(byKind[string(f.Kind)], f.GPUHours)
		}
		for _, m := range r.Mistakes {
			a.Mistakes = append(a.Mistakes, fmt.Sprintf("seed %d: %s", first+uint64(i), m))
		}
		for _, in := range incidentReports(run.incidents, run.start) {
			if len(runs) > 1 {
				in.Seed, in.Steps = first+uint64(i), nil
			}
			a.Incidents = append(a.Incidents, in)
		}
	}
	if faults > 0 {
		a.LostPerFault = lost / float64(faults)
	}
	for kind, hours := range byKind {
		a.LostByKind[kind] = replay.MeanOf(hours).Mean
	}
	for name, values := range map[string][]float64{"goodput": goodput, "meanJCTSeconds": jct, "p99JCTSeconds": p99, "gpuHoursLostPerFault": perFault} {
		a.Intervals[name] = replay.MeanOf(values)
	}
	a.Goodput, a.MeanJCT, a.P99JCT = a.Intervals["goodput"].Mean, a.Intervals["meanJCTSeconds"].Mean, a.Intervals["p99JCTSeconds"].Mean
	return a
}

func difference(arms []*ArmReport, results [][]trialResult) Difference {
	d := Difference{LostPerFault: map[string]float64{}}
	pairs := func(of func(sim.Report) float64) replay.Mean {
		var out []float64
		for i := range results[0] {
			out = append(out, of(results[0][i].report)-of(results[1][i].report))
		}
		return replay.MeanOf(out)
	}
	d.Goodput = pairs(func(r sim.Report) float64 { return r.Goodput })
	d.MeanJCT = pairs(func(r sim.Report) float64 { return r.MeanJCTSeconds })
	d.P99JCT = pairs(func(r sim.Report) float64 { return r.P99JCTSeconds })
	for _, a := range arms[1:] {
		if a.LostPerFault > 0 {
			d.LostPerFault[a.Policy] = arms[0].LostPerFault / a.LostPerFault
		}
	}
	return d
}

// summary writes the comparison for people.
func (r CompareReport) summary(out io.Writer) error {
	arms := []ArmReport{r.With, r.Without, r.Wait, r.Delete}
	row := func(what, format string, of func(ArmReport) any) string {
		line := fmt.Sprintf("  %-24s", what)
		for _, a := range arms {
			line += fmt.Sprintf("%16s", fmt.Sprintf(format, of(a)))
		}
		return line + "\n"
	}
	d := r.Difference
	_, err := fmt.Fprintf(out, "\n%d runs of %.1f hours of %d GPUs, faults %g times as often as they are\n"+
		"  %-24s%16s%16s%16s%16s\n", r.Seeds, r.Hours, r.GPUs, r.FaultsTimes, "", "with Stoker", "without", "wait for jobs", "delete after 1h")
	if err == nil {
		_, err = io.WriteString(out, row("faults", "%d", func(a ArmReport) any { return a.Faults })+
			row("missed", "%d", func(a ArmReport) any { return a.MissedFaults })+
			row("cordons", "%d", func(a ArmReport) any { return a.Cordons })+
			row("wrong cordons", "%d", func(a ArmReport) any { return a.WrongCordons })+
			row("resubmissions", "%d", func(a ArmReport) any { return a.Resubmissions })+
			row("preemptions", "%d", func(a ArmReport) any { return a.Preemptions })+
			row("jobs not done", "%d", func(a ArmReport) any { return a.Unfinished })+
			row("goodput, %", "%.1f", func(a ArmReport) any { return 100 * a.Goodput })+
			row("mean completion, min", "%.1f", func(a ArmReport) any { return a.MeanJCT / 60 })+
			row("p99 completion, min", "%.1f", func(a ArmReport) any { return a.P99JCT / 60 })+
			row("lost per fault, GPU-h", "%.2f", func(a ArmReport) any { return a.LostPerFault })+
			row("  of a lost GPU", "%.2f", func(a ArmReport) any { return a.LostByKind[string(sim.GPULost)] })+
			row("  of a memory error", "%.2f", func(a ArmReport) any { return a.LostByKind[string(sim.GPUECC)] })+
			row("  of a link", "%.2f", func(a ArmReport) any { return a.LostByKind[string(sim.NVLinkDown)] }))
	}
	if err == nil && r.Seeds > 1 {
		_, err = fmt.Fprintf(out, "  with less without, 95 %% interval: goodput %+.1f to %+.1f points, mean completion %+.1f to %+.1f min\n",
			100*d.Goodput.Low, 100*d.Goodput.High, d.MeanJCT.Low/60, d.MeanJCT.High/60)
	}
	return err
}
