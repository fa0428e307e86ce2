package actuator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"stoker.dev/stoker/internal/config"
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

var startSpec = Spec{
	Info: remedy.ActionInfo{
		Name: "start", Doc: "Lets each job that the incident has stopped run again, from its newest complete checkpoint and away from the ill node.",
		Scope: remedy.ScopeJobs, Effect: remedy.EffectRecovery, Role: remedy.RoleStart, Within: 10 * time.Minute,
	},
	Params: func() config.Validator { return &startParams{} },
	RBAC:   []Rule{{Resource: "nodes", Verbs: []string{"get"}}, {Resource: "pods", Verbs: []string{"list"}}},
	New:    func(d Deps) Action { return start{d.Cluster, d.Cluster, d.Cluster} },
}

// Values of startParams.
const (
	fromLatest = "latest-complete"
	avoidNode  = "node"
	avoidNone  = "none"

	defaultAttempts = 3
	maxAttempts     = 100
	defaultPer      = 24 * time.Hour
)

// startParams are of a playbook's step. An order without them, as recovery makes it,
// has no limit of attempts: what we stopped is started again in any case.
type startParams struct {
	From     string `yaml:"from" json:"from,omitempty" doc:"which checkpoint to go on from: latest-complete"`
	Avoid    string `yaml:"avoid" json:"avoid,omitempty" doc:"where the job's pods may not land: node (the ill node) or none"`
	Attempts *int   `yaml:"attempts" json:"attempts,omitempty" doc:"how often one job may be started anew by Stoker; at the limit a person is needed"`
	// Per is read by who walks the ladder, before anything is stopped.
	Per remedy.Duration `yaml:"per" json:"per,omitempty" doc:"of an incident about the job itself: attempts is how many such incidents may start it anew within this time"`
}

// Validate fills in the defaults.
func (p *startParams) Validate(path string) error {
	var errs []error
	if p.From == "" {
		p.From = fromLatest
	}
	if p.From != fromLatest {
		errs = append(errs, config.Errorf(config.Key(path, "from"), "%s", config.Unknown("checkpoint", p.From, []string{fromLatest})))
	}
	if p.Avoid == "" {
		p.Avoid = avoidNode
	}
	if p.Avoid != avoidNode && p.Avoid != avoidNone {
		errs = append(errs, config.Errorf(config.Key(path, "avoid"), "%s", config.Unknown("place", p.Avoid, []string{avoidNode, avoidNone})))
	}
	if p.Attempts == nil {
		p.Attempts = new(defaultAttempts)
	}
	if *p.Attempts < 1 || *p.Attempts > maxAttempts {
		errs = append(errs, config.Errorf(config.Key(path, "attempts"), "%d is not from 1 to %d", *p.Attempts, maxAttempts))
	}
	if p.Per == 0 {
		p.Per = remedy.Duration(defaultPer)
	}
	if p.Per < remedy.Duration(time.Minute) {
		errs = append(errs, config.Errorf(config.Key(path, "per"), "%s is under 1m", p.Per))
	}
	return errors.Join(errs...)
}

// start undoes stop, once no pod of the old gang can write any more. That the cluster
// has no room for the job is not its failure: the job then waits in its queue.
type start struct {
	jobs  Jobs
	pods  Pods
	nodes Nodes
}

func (a start) Start(ctx context.Context, o remedy.Order) (remedy.Receipt, error) {
	p, err := params[startParams](o)
	if err != nil {
		return remedy.Receipt{}, err
	}
	j, err := liveJob(ctx, a.jobs, o)
	if err != nil {
		return remedy.Receipt{}, err
	}
	found := remedy.Receipt{Version: j.Version, Found: true}
	switch {
	case j.StartedBy == o.Key:
		found.Note = j.Ref.String() + " may run again"
		return found, nil
	case j.Phase.Ended():
		return remedy.Receipt{}, failf(remedy.Gone, "%s has ended (%s)", j.Ref, j.Phase)
	case !by(j.StoppedBy, o.Incident):
		found.Note = j.Ref.String() + " was not stopped by us"
		return found, nil
	case !j.Suspended && by(j.StartedBy, o.Incident):
		found.Note = j.Ref.String() + " has been started already"
		return found, nil
	case !j.Suspended:
		return remedy.Receipt{}, failf(remedy.Yielded, "%s was started by somebody else", j.Ref)
	case p.Attempts != nil && o.Node != "" && j.Attempt >= *p.Attempts:
		return remedy.Receipt{}, failf(remedy.Rejected, "%s has been started anew %s already; a person is needed", j.Ref, count(j.Attempt, "time"))
	}
	pods, err := a.pods.PodsOf(ctx, j.Ref)
	if err != nil {
		return remedy.Receipt{}, fmt.Errorf("list the pods of %s: %w", j.Ref, err)
	}
	if left := a.alive(ctx, pods, o); len(left) > 0 {
		return remedy.Receipt{}, failf(remedy.Conflict, "%s of the stopped %s may still run: %s", count(len(left), "pod"), j.Ref, list(left))
	}
	with := Restart{Resume: resume(j.Checkpoint)}
	if p.Avoid != avoidNone && o.Node != "" {
		with.Avoid = []string{o.Node}
	}
	m, err := a.jobs.StartJob(ctx, j, o.Key, with)
	if err != nil {
		return remedy.Receipt{}, fmt.Errorf("start %s: %w", j.Ref, err)
	}
	note := "goes on from its own newest checkpoint"
	if with.Resume != "" {
		note = "goes on from " + newest(j.Checkpoint)
	}
	return remedy.Receipt{Version: m.Version, Note: j.Ref.String() + " " + note}, nil
}

// alive names those of the pods that may still run. A pod that is still in the API
// though its node has been booted anew does not: that boot has ended.
func (a start) alive(ctx context.Context, pods []fleet.Pod, o remedy.Order) []string {
	var left []string
	boots := map[string]string{}
	for _, p := range pods {
		was := p.BootID
		if was == "" && p.Node == o.Node {
			was = o.BootID // the job was stopped in that boot, and has had no new pods since
		}
		if was != "" {
			is, read := boots[p.Node]
			if !read && len(boots) < maxBoots {
				if n, err := a.nodes.Node(ctx, p.Node); err == nil {
					is = n.BootID
				}
				boots[p.Node] = is
			}
			if is != "" && is != was {
				continue
			}
		}
		left = append(left, pod(p.PodRef)+" on "+p.Node)
	}
	return left
}

// resume is what the pods are told of a checkpoint: its place, else its step. Empty
// when none is known: the training code then looks for itself.
func resume(c fleet.Checkpoint) string {
	switch {
	case c.URI != "":
		return c.URI
	case c.Known():
		return fmt.Sprintf("step-%d", c.Step)
	}
	return ""
}

func (start) Check(now time.Time, f fleet.Snapshot, o remedy.Order, r remedy.Receipt) (remedy.Outcome, bool) {
	if stale(f, r) {
		return remedy.Outcome{}, false
	}
	j, ok := knownJob(f, o)
	switch {
	case !ok:
		return ended(remedy.Gone, "%s is gone", o.Target.Job)
	case j.Version < r.Version:
		return unfinished(now, o, "the start has not been seen on %s", j.Ref)
	case j.StartedBy == o.Key, r.Found:
		return ended(remedy.Done, "%s", r.Note)
	case j.Phase.Ended():
		return ended(remedy.Gone, "%s has ended (%s)", j.Ref, j.Phase)
	case !j.Suspended:
		return ended(remedy.Done, "%s runs", j.Ref)
	}
	return ended(remedy.Yielded, "somebody else has changed %s since its start", j.Ref)
}
