package actuator

import (
	"context"
	"time"

	"stoker.dev/stoker/internal/config"
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

var watchSpec = Spec{
	Info: remedy.ActionInfo{
		Name: "watch", Doc: "Watches each job that the incident has started until it has run whole for a time. Changes nothing.",
		Scope: remedy.ScopeJobs, Effect: remedy.EffectAsk, Role: remedy.RoleVerify, Within: time.Hour,
	},
	Params: func() config.Validator { return &watchParams{} },
	New:    func(Deps) Action { return watch{} },
}

const defaultWatch = 10 * time.Minute

type watchParams struct {
	For remedy.Duration `yaml:"for" json:"for" doc:"for how long the whole gang has to run; shorter than within"`
}

// Validate fills in the defaults.
func (p *watchParams) Validate(path string) error {
	if p.For == 0 {
		p.For = remedy.Duration(defaultWatch)
	}
	if p.For < 0 || p.For > remedy.Duration(maxVerify) {
		return config.Errorf(config.Key(path, "for"), "%s is not between 0 and %s", span(time.Duration(p.For)), span(maxVerify))
	}
	return nil
}

// watch looks on. That the fault itself does not come back is seen by whoever takes in
// evidence; here it is what the job tells.
type watch struct{}

func (watch) Start(_ context.Context, o remedy.Order) (remedy.Receipt, error) {
	_, err := params[watchParams](o)
	return remedy.Receipt{Found: true}, err
}

func (watch) Check(now time.Time, f fleet.Snapshot, o remedy.Order, r remedy.Receipt) (remedy.Outcome, bool) {
	if stale(f, r) {
		return remedy.Outcome{}, false
	}
	p, err := params[watchParams](o)
	if err != nil {
		return ended(remedy.Rejected, "%v", err)
	}
	d := time.Duration(p.For)
	if d == 0 {
		d = defaultWatch
	}
	j, ok := knownJob(f, o)
	switch {
	case !ok:
		return ended(remedy.Gone, "%s is gone", o.Target.Job)
	case j.Phase == fleet.JobSucceeded:
		return ended(remedy.Done, "%s has succeeded", j.Ref)
	case j.Phase == fleet.JobFailed:
		return ended(remedy.Rejected, "%s has failed for good", j.Ref)
	case j.Suspended && by(j.StoppedBy, o.Incident):
		return ended(remedy.Yielded, "%s was suspended by somebody else", j.Ref)
	case j.Suspended:
		return ended(remedy.Done, "%s was stopped by %s, which goes on with it", j.Ref, j.StoppedBy)
	case j.Phase != fleet.JobRunning || j.Started.IsZero():
		return unfinished(now, o, "%s does not run whole (%s)", j.Ref, j.Phase)
	case now.Sub(j.Started) < d || now.Sub(r.At) < d:
		return unfinished(now, o, "%s has run for %s of %s", j.Ref, span(min(now.Sub(j.Started), now.Sub(r.At))), span(d))
	}
	return ended(remedy.Done, "%s has run whole for %s", j.Ref, span(d))
}
