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
	// GPUHoursLostPerFault is over faults that make a node ill.
	GPUHoursLostPerFault float64 `json:"gpuHoursLostPerFault"`

	Cordons       int      `json:"cordons"`
	WrongCordons  int      `json:"wrongCordons"`
	Stops         int      `json:"stops"`
	WrongStops    int      `json:"wrongStops"`
	Evictions     int      `json:"evictions"`
	Repairs       int      `json:"repairs"`
	WrongRepairs  int      `json:"wrongRepairs"`
	WrongReleases int      `json:"wrongReleases"`
	Resubmissions int      `json:"resubmissions"`
	RanTwice      int      `json:"ranTwice"` // gangs that ran beside an older one of the same job
	Mistakes      []string `json:"mistakes"` // one sentence for each wrong act, up to a limit

	JobsFinished   int     `json:"jobsFinished"`
	JobsUnfinished int     `json:"jobsUnfinished"` // of those that were submitted
	MeanJCTSeconds float64 `json:"meanJCTSeconds"` // of the finished, from submission
	P99JCTSeconds  float64 `json:"p99JCTSeconds"`
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
		JobsFinished: len(s.ended), JobsUnfinished: s.arrived - len(s.ended),
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
	if n := len(s.ended); n > 0 {
		took := make([]int64, n)
		var sum int64
		for i, e := range s.ended {
			took[i] = e.took
			sum += e.took
		}
		slices.Sort(took)
		r.MeanJCTSeconds = float64(sum) / float64(n) / 1000
		r.P99JCTSeconds = float64(took[(n*99+99)/100-1]) / 1000
	}
	return r
}

func (s *Simulation) reportFaults(r *Report) {
	missed := s.record.Missed(s.since(), s.cfg.Patience)
	r.MissedFaults = len(missed)
	var lost float64
	ill := 0
	for _, c := range s.record.Cases() {
		if !c.Active && !c.Over {
			continue
		}
		f := FaultReport{
			Kind: c.Kind, Where: c.Node, AtSeconds: c.Begun.Seconds(), NoticedAfterSeconds: -1, EndedAfterSeconds: -1,
			Missed: slices.Contains(missed, c), GPUHours: c.Lost.Hours(),
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
		if info.Ill {
			ill++
			lost += f.GPUHours
		}
		r.Faults = append(r.Faults, f)
	}
	if ill > 0 {
		r.GPUHoursLostPerFault = lost / float64(ill)
	}
}

// settle charges faults for what they have cost until now.
func (s *Simulation) settle() {
	for _, n := range s.nodes {
		s.settleNode(n)
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
