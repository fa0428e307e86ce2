package actuator

import (
	"context"
	"fmt"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

var checkpointSpec = Spec{
	Info: remedy.ActionInfo{
		Name: "checkpoint", Doc: "Asks each job on the node to save its work now, and waits for its answer. The ladder goes on without one.",
		Scope: remedy.ScopeJobs, Effect: remedy.EffectAsk, Role: remedy.RoleSave, Within: 2 * time.Minute, Optional: true,
	},
	New: func(d Deps) Action { return checkpoint{d.Cluster} },
}

// checkpoint leaves a request on the job; the training code answers on the job too.
type checkpoint struct{ jobs Jobs }

func (c checkpoint) Start(ctx context.Context, o remedy.Order) (remedy.Receipt, error) {
	j, err := liveJob(ctx, c.jobs, o)
	if err != nil {
		return remedy.Receipt{}, err
	}
	if j.CheckpointAsked == o.Key {
		return remedy.Receipt{Version: j.Version, Found: true}, nil
	}
	if why := idle(j); why != "" {
		return remedy.Receipt{Version: j.Version, Found: true, Note: why + ", there is nothing to save"}, nil
	}
	m, err := c.jobs.AskCheckpoint(ctx, j, o.Key)
	if err != nil {
		return remedy.Receipt{}, fmt.Errorf("ask %s for a checkpoint: %w", j.Ref, err)
	}
	return remedy.Receipt{Version: m.Version}, nil
}

func (checkpoint) Check(now time.Time, f fleet.Snapshot, o remedy.Order, r remedy.Receipt) (remedy.Outcome, bool) {
	if stale(f, r) {
		return remedy.Outcome{}, false
	}
	j, ok := knownJob(f, o)
	if !ok {
		return ended(remedy.Gone, "%s is gone", o.Target.Job)
	}
	asked := j.CheckpointAsked == o.Key
	switch {
	case j.Version < r.Version:
		return unfinished(now, o, "the request has not been seen on %s; newest checkpoint is %s", j.Ref, newest(j.Checkpoint))
	case j.CheckpointAnswered == o.Key:
		return ended(remedy.Done, "%s saved %s", j.Ref, newest(j.Checkpoint))
	case r.Found && !asked:
		return ended(remedy.Done, "%s", r.Note) // not asked: it did not run
	case !asked && (j.CheckpointAnswered == j.CheckpointAsked || j.Checkpoint.At.After(r.At)):
		// A newer request has taken the place of ours; what answers it answers us.
		return ended(remedy.Done, "%s saved %s on a later request", j.Ref, newest(j.Checkpoint))
	case j.Phase.Ended():
		return ended(remedy.Gone, "%s ended before it answered", j.Ref)
	case j.Suspended:
		return ended(remedy.Rejected, "%s was stopped before it answered; newest checkpoint is %s", j.Ref, newest(j.Checkpoint))
	}
	return unfinished(now, o, "%s did not answer; newest checkpoint is %s", j.Ref, newest(j.Checkpoint))
}

// idle says why a job has nothing to save; empty when it may have something, also
// when its phase is not known.
func idle(j fleet.Job) string {
	switch j.Phase {
	case fleet.JobSucceeded, fleet.JobFailed:
		return fmt.Sprintf("%s has ended (%s)", j.Ref, j.Phase)
	case fleet.JobSuspended, fleet.JobPending:
		return fmt.Sprintf("%s does not run (%s)", j.Ref, j.Phase)
	case fleet.JobRunning:
	}
	if j.Suspended {
		return j.Ref.String() + " is being stopped"
	}
	return ""
}

// newest describes a checkpoint: "step 18200 of 12:03:40".
func newest(c fleet.Checkpoint) string {
	switch {
	case !c.Known():
		return "not known"
	case c.At.IsZero():
		return fmt.Sprintf("step %d", c.Step)
	}
	return fmt.Sprintf("step %d of %s UTC", c.Step, c.At.UTC().Format("15:04:05"))
}
