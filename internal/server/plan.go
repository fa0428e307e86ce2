package server

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	"stoker.dev/stoker/internal/loop"
	"stoker.dev/stoker/internal/remedy"
)

// planner is a walker that also plans.
type planner interface{ Plan() loop.Plan }

// A Plan is what the planner would do now, and what it rests on.
type Plan struct {
	At     time.Time      `json:"at,omitzero"` // zero before the first
	Acts   bool           `json:"acts"`        // false: it is shown and not carried out
	Orders []remedy.Order `json:"orders"`
	Jobs   []PlannedJob   `json:"jobs"` // in order of name
}

// A PlannedJob is what the planner knows of one job.
type PlannedJob struct {
	Job            string    `json:"job"`
	HeldGPUSeconds float64   `json:"heldGPUSeconds"`
	WaitsSince     time.Time `json:"waitsSince,omitzero"`
	Idle           string    `json:"idle,omitempty"` // how far the reclaim of an idle holder has come
}

// plan shows the newest plan; not found where nobody plans.
func (s *server) plan(w http.ResponseWriter, _ *http.Request) {
	p, ok := s.loop.(planner)
	if !ok {
		http.Error(w, "nobody plans here", http.StatusNotFound)
		return
	}
	now := p.Plan()
	out := Plan{At: now.At, Acts: now.Acts, Orders: slices.Concat([]remedy.Order{}, now.Orders), Jobs: []PlannedJob{}}
	for ref, a := range now.Held {
		out.Jobs = append(out.Jobs, PlannedJob{Job: ref.String(), HeldGPUSeconds: a.Held.Seconds(), WaitsSince: a.Waits, Idle: string(a.Stage)})
	}
	slices.SortFunc(out.Jobs, func(a, b PlannedJob) int { return cmp.Compare(a.Job, b.Job) })
	reply(w, out)
}
