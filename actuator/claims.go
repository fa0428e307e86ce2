package actuator

import (
	"context"
	"fmt"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

var claimsSpec = Spec{
	Info: remedy.ActionInfo{
		Name: "claims", Doc: "Waits until every volume claim that the job's pods mount is there, bound and not being deleted. Changes nothing.",
		Scope: remedy.ScopeJobs, Effect: remedy.EffectAsk, Within: time.Hour,
	},
	RBAC: []Rule{{Resource: "persistentvolumeclaims", Verbs: []string{"get"}}},
	New:  func(d Deps) Action { return claims{d.Cluster, d.Cluster} },
}

// claims looks each time that it is started, which is again and again while something is
// missing: so nothing of volumes has to be watched.
type claims struct {
	jobs    Jobs
	volumes Volumes
}

func (a claims) Start(ctx context.Context, o remedy.Order) (remedy.Receipt, error) {
	j, err := liveJob(ctx, a.jobs, o)
	if err != nil {
		return remedy.Receipt{}, err
	}
	all, err := a.volumes.ClaimsOf(ctx, j)
	if err != nil {
		return remedy.Receipt{}, fmt.Errorf("read the volume claims of %s: %w", j.Ref, err)
	}
	var missing []string
	for _, c := range all {
		if c.Lacks != "" {
			missing = append(missing, c.Name+" "+c.Lacks)
		}
	}
	if len(missing) > 0 {
		return remedy.Receipt{}, failf(remedy.Conflict, "volume claims of %s: %s", j.Ref, list(missing))
	}
	return remedy.Receipt{Found: true, Note: fmt.Sprintf("%s of %s bound", count(len(all), "volume claim"), j.Ref)}, nil
}

func (claims) Check(_ time.Time, f fleet.Snapshot, o remedy.Order, r remedy.Receipt) (remedy.Outcome, bool) {
	if stale(f, r) {
		return remedy.Outcome{}, false
	}
	if _, ok := knownJob(f, o); !ok {
		return ended(remedy.Gone, "%s is gone", o.Target.Job)
	}
	return ended(remedy.Done, "%s", r.Note)
}
