package sim

import (
	"fmt"
	"slices"
	"time"

	"stoker.dev/stoker/internal/sim/truth"
)

// A Report says how the run went, by the truth.
type Report struct {
	Hours float64 `json:"hours"`
	GPUs  int     `json:"gpus"`
	// GPUHours is all GPU-time; UsefulGPUHours and LostGPUHours, by cause, add up to it,
	// with what was free and wanted by nobody among the causes.
	GPUHours       float64            `json:"gpuHours"`
	UsefulGPUHours float64            `json:"usefulGPUHours"`
	Goodput        float64            `json:"goodput"` // useful of all, 0 to 1
	LostGPUHours   map[string]float64 `json:"lostGPUHours"`

	Faults       []FaultReport `json:"faults"`
	MissedFaults int           `json:"missedFaults"`
	Noise        int           `json:"noise"` // what only looked like a fault
	// GPUHoursLostPerFault is over faults that want a node to be cordoned, of which there
	// were so many and which have cost so much.
	GPUHoursLostPerFault float64 `json:"gpuHoursLostPerFault"`
	NodeFaults           int     `json:"nodeFaults"`
	NodeFaultGPUHours    float64 `json:"nodeFaultGPUHours"`

	Cordons       int      `json:"cordons"`
	WrongCordons  int      `json:"wrongCordons"`
	MostCordoned  int      `json:"mostCordoned"` // nodes at one time, by whomever
	Stops         int      `json:"stops"`
	WrongStops    int      `json:"wrongStops"`
	Evictions     int      `json:"evictions"`
	Repairs       int      `json:"repairs"`
	WrongRepairs  int      `json:"wrongRepairs"`
	WrongReleases int      `json:"wrongReleases"`
	Resubmissions int      `json:"resubmissions"`
	Preemptions   int      `json:"preemptions"`
	RanTwice      int      `json:"ranTwice"` // gangs that ran beside an older one of the same job
	Mistakes      []string `json:"mistakes"` // one sentence for each wrong act, up to a limit

	JobsFinished int `json:"jobsFinished"`
	// JobsUnfinished are those that were submitted and have not succeeded, without such as
	// compute nothing.
	JobsUnfinished int `json:"jobsUnfinished"`
	// MeanJCTSeconds and P99JCTSeconds are the times from submission to success. Of a job
	// that has not succeeded it is the time until now, which is less than it will be: who
	// leaves jobs behind gains nothing by it. Jobs that compute nothing are left out.
	MeanJCTSeconds float64 `json:"meanJCTSeconds"`
	P99JCTSeconds  float64 `json:"p99JCTSeconds"`

	CostUSD float64 `json:"costUSD"` // of all nodes, at their prices
}

// A FaultReport is one fault that has happened. Times are since the start.
type FaultReport struct {
	Kind      truth.Kind `json:"kind"`
	Where     string     `json:"where"`
	AtSeconds float64    `json:"atSeconds"`
	// NoticedAfterSeconds is negative when the node was not cordoned while it was ill.
	NoticedAfterSeconds float64 `json:"noticedAfterSeconds"`
	EndedAfterSeconds   float64 `json:"endedAfterSeconds"` // negative: it still lasts
	Missed              bool    `json:"missed,omitempty"`
	GPUHours            float64 `json:"gpuHours"` // not useful because of it
	// GPUHoursBy is GPUHours by what they went into instead, as in LostGPUHours.
	GPUHoursBy map[string]float64 `json:"gpuHoursBy,omitempty"`
}

func lostBy(c truth.Case) map[string]float64 {
	out := map[string]float64{}
	for u, t := range c.Lost {
		if t > 0 {
			out[truth.Use(u).String()] = t.Hours()
		}
	}
	return out
}

// maxMistakes bounds the sentences of a report.
const maxMistakes = 100

// Report sums up the run until now.
func (s *Simulation) Report() Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	r := Report{
		Hours: s.since().Hours(), GPUs: s.cfg.Nodes * s.cfg.GPUsPerNode,
		GPUHours: s.ledger.Total().Hours(), UsefulGPUHours: s.ledger.Sum(truth.Useful).Hours(),
		LostGPUHours: map[string]float64{}, Faults: []FaultReport{}, Mistakes: []string{},
		Cordons: s.record.Done(truth.Cordon), WrongCordons: s.record.Wrong(truth.Cordon),
		Stops: s.record.Done(truth.Stop), WrongStops: s.record.Wrong(truth.Stop),
		Evictions: s.record.Done(truth.Evict), Repairs: s.record.Done(truth.Repair), WrongRepairs: s.record.Wrong(truth.Repair),
		WrongReleases: s.record.Wrong(truth.Release), Resubmissions: s.record.Done(truth.Start), RanTwice: s.record.RanTwice(),
		MostCordoned: s.mostCordoned, Preemptions: s.record.Done(truth.Preempt), CostUSD: s.cost,
	}
	if r.GPUHours > 0 {
		r.Goodput = r.UsefulGPUHours / r.GPUHours
	}
	for _, u := range truth.Uses() {
		if u != truth.Useful {
			r.LostGPUHours[u.String()] = s.ledger.Sum(u).Hours()
		}
	}
	s.reportFaults(&r)
	for _, a := range s.record.Acts() {
		if a.Wrong != "" && len(r.Mistakes) < maxMistakes {
			r.Mistakes = append(r.Mistakes, fmt.Sprintf("%s of %s after %s: %s", a.Verb, a.Target, span(a.At), a.Wrong))
		}
	}
	s.reportJobs(&r)
	return r
}

func (s *Simulation) reportJobs(r *Report) {
	var took []int64
	var sum int64
	count := func(ms int64) {
		took = append(took, ms)
		sum += ms
	}
	for _, e := range s.ended {
		switch {
		case e.well:
			r.JobsFinished++
			if !e.idle {
				count(e.took)
			}
		case !e.idle:
			r.JobsUnfinished++
			count(s.now - e.submitted)
		}
	}
	for _, j := range s.jobs {
		if !j.state.over() && !j.spec.Idle {
			r.JobsUnfinished++
			count(s.now - j.submitted)
		}
	}
	if n := len(took); n > 0 {
		slices.Sort(took)
		r.MeanJCTSeconds = float64(sum) / float64(n) / 1000
		r.P99JCTSeconds = float64(took[(n*99+99)/100-1]) / 1000
	}
}

func (s *Simulation) reportFaults(r *Report) {
	missed := s.record.Missed(s.since(), s.cfg.Patience)
	r.MissedFaults = len(missed)
	for _, c := range s.record.Cases() {
		if !c.Active && !c.Over {
			continue
		}
		if truth.Kinds[c.Kind].Noise {
			r.Noise++
			continue
		}
		f := FaultReport{
			Kind: c.Kind, Where: c.Node, AtSeconds: c.Begun.Seconds(), NoticedAfterSeconds: -1, EndedAfterSeconds: -1,
			Missed: slices.Contains(missed, c), GPUHours: c.AllLost().Hours(),
			GPUHoursBy: lostBy(c),
		}
		info := truth.Kinds[c.Kind]
		switch {
		case c.Node == "":
			f.Where = c.Job
		case info.GPU:
			f.Where = fmt.Sprintf("%s/gpu-%d", c.Node, c.GPU)
		}
		if c.Seen {
			f.NoticedAfterSeconds = (c.Noticed - c.Begun).Seconds()
		}
		if c.Over {
			f.EndedAfterSeconds = (c.Ended - c.Begun).Seconds()
		}
		if info.Wanted {
			r.NodeFaults++
			r.NodeFaultGPUHours += f.GPUHours
		}
		r.Faults = append(r.Faults, f)
	}
	if r.NodeFaults > 0 {
		r.GPUHoursLostPerFault = r.NodeFaultGPUHours / float64(r.NodeFaults)
	}
}

// settle charges faults for what they have cost until now.
func (s *Simulation) settle() {
	for _, n := range s.nodes {
		s.settleNode(n)
		s.settleCost(n)
		for _, p := range n.pods {
			s.settlePod(p)
		}
	}
}

// Elapsed is the virtual time since the start.
func (s *Simulation) Elapsed() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.since()
}
