package actuator

import (
	"context"
	"fmt"
	"strings"
	"time"

	"stoker.dev/stoker/internal/config"
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// Queues is what the planner does to the queues in which jobs wait. A cluster whose
// queues nobody may change is none: then plans are shown and not carried out.
type Queues interface {
	Job(ctx context.Context, ref fleet.JobRef) (fleet.Job, error)
	// Prioritise sets the priority of a job in its queue. From [HoldsRoom] on, what becomes
	// free is kept for the job.
	Prioritise(ctx context.Context, j fleet.Job, key string, priority int) (fleet.Job, error)
	// Preempt takes the whole gang off its nodes and lets the job wait in its queue again.
	Preempt(ctx context.Context, j fleet.Job, key string) (fleet.Job, error)
	// Tell leaves a remark on the job, for whoever owns it.
	Tell(ctx context.Context, j fleet.Job, key, text string) (fleet.Job, error)
}

// HoldsRoom is the priority from which on a waiting job that does not fit lets nobody
// pass.
const HoldsRoom = 1000

// Planned are the actions of the planner's orders. No playbook may name them, and a
// cluster that is no [Queues] has none of them.
func Planned(q Queues) Specs {
	spec := func(name, doc string, e remedy.Effect, params func() config.Validator, a Action) Spec {
		return Spec{
			Info:   remedy.ActionInfo{Name: name, Doc: doc, Scope: remedy.ScopeJobs, Effect: e, Within: 2 * time.Minute},
			Params: params, New: func(Deps) Action { return a },
		}
	}
	priority := func() config.Validator { return &PlanParams{} }
	return Specs{
		spec("tell", "Leaves a remark on a job.", remedy.EffectAsk, priority, tellJob{q}),
		spec("prioritise", "Sets the priority of a job in its queue.", remedy.EffectAsk, priority, prioritise{q}),
		spec("preempt", "Takes the gang of a job off its nodes, whole, and lets the job wait in its queue again.", remedy.EffectHarm, nil, preempt{q}),
	}
}

// PlanParams are the parameters of the planner's orders.
type PlanParams struct {
	Priority int    `yaml:"priority" json:"priority,omitempty" doc:"of the job in its queue"`
	Text     string `yaml:"text" json:"text,omitempty" doc:"what the job's owner is told"`
}

// Validate accepts every priority.
func (*PlanParams) Validate(string) error { return nil }

// inQueue reads the job that an order is for.
func inQueue(ctx context.Context, q Queues, o remedy.Order) (fleet.Job, error) {
	j, err := q.Job(ctx, o.Target.Job)
	if err != nil {
		return fleet.Job{}, fmt.Errorf("read job %s: %w", o.Target.Job, err)
	}
	if o.Target.UID != "" && j.UID != o.Target.UID {
		return fleet.Job{}, failf(remedy.Gone, "job %s is another one than the order is for", j.Ref)
	}
	return j, nil
}

type prioritise struct{ q Queues }

func (a prioritise) Start(ctx context.Context, o remedy.Order) (remedy.Receipt, error) {
	p, err := params[PlanParams](o)
	if err != nil {
		return remedy.Receipt{}, err
	}
	j, err := inQueue(ctx, a.q, o)
	if err != nil {
		return remedy.Receipt{}, err
	}
	if j.Priority == p.Priority {
		return remedy.Receipt{Version: j.Version, Found: true}, nil
	}
	m, err := a.q.Prioritise(ctx, j, o.Key, p.Priority)
	if err != nil {
		return remedy.Receipt{}, fmt.Errorf("prioritise %s: %w", j.Ref, err)
	}
	return remedy.Receipt{Version: m.Version, Note: fmt.Sprintf("%s has priority %d", j.Ref, p.Priority)}, nil
}

func (prioritise) Check(_ time.Time, f fleet.Snapshot, o remedy.Order, r remedy.Receipt) (remedy.Outcome, bool) {
	return seen(f, o, r)
}

type preempt struct{ q Queues }

func (a preempt) Start(ctx context.Context, o remedy.Order) (remedy.Receipt, error) {
	j, err := inQueue(ctx, a.q, o)
	if err != nil {
		return remedy.Receipt{}, err
	}
	if j.PreemptedBy == o.Key {
		return remedy.Receipt{Version: j.Version, Found: true}, nil
	}
	m, err := a.q.Preempt(ctx, j, o.Key)
	if err != nil {
		return remedy.Receipt{}, fmt.Errorf("preempt %s: %w", j.Ref, err)
	}
	return remedy.Receipt{Version: m.Version, Note: j.Ref.String() + " waits again"}, nil
}

func (preempt) Check(now time.Time, f fleet.Snapshot, o remedy.Order, r remedy.Receipt) (remedy.Outcome, bool) {
	if out, done := seen(f, o, r); !done || out.Ending != remedy.Done {
		return out, done
	}
	for _, p := range f.PodsOf(o.Target.Job) {
		if p.Terminating {
			return unfinished(now, o, "%s still has pods that are to go", o.Target.Job)
		}
	}
	return ended(remedy.Done, "%s", r.Note)
}

type tellJob struct{ q Queues }

func (a tellJob) Start(ctx context.Context, o remedy.Order) (remedy.Receipt, error) {
	p, err := params[PlanParams](o)
	if err != nil {
		return remedy.Receipt{}, err
	}
	j, err := inQueue(ctx, a.q, o)
	if err != nil {
		return remedy.Receipt{}, err
	}
	m, err := a.q.Tell(ctx, j, o.Key, strings.ToValidUTF8(p.Text, ""))
	if err != nil {
		return remedy.Receipt{}, fmt.Errorf("tell %s: %w", j.Ref, err)
	}
	return remedy.Receipt{Version: m.Version, Note: j.Ref.String() + " was told"}, nil
}

func (tellJob) Check(_ time.Time, f fleet.Snapshot, o remedy.Order, r remedy.Receipt) (remedy.Outcome, bool) {
	return seen(f, o, r)
}

// seen ends an order whose write is in the snapshot.
func seen(f fleet.Snapshot, o remedy.Order, r remedy.Receipt) (remedy.Outcome, bool) {
	if stale(f, r) {
		return remedy.Outcome{}, false
	}
	j, ok := knownJob(f, o)
	switch {
	case !ok:
		return ended(remedy.Gone, "%s is gone", o.Target.Job)
	case j.Version < r.Version:
		return remedy.Outcome{}, false
	}
	return ended(remedy.Done, "%s", r.Note)
}
