package actuator

import (
	"context"
	"fmt"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

var inspectSpec = Spec{
	Info: remedy.ActionInfo{
		Name: "inspect", Doc: "Looks at the nodes of the job's gang, and goes on when each of them is whole or takes no new pods. Changes nothing.",
		Scope: remedy.ScopeJobs, Effect: remedy.EffectAsk, Within: 10 * time.Minute,
	},
	New: func(Deps) Action { return inspect{} },
}

// inspect looks at what the cluster and telemetry tell of nodes. It sends nothing over
// any network.
type inspect struct{}

func (inspect) Start(context.Context, remedy.Order) (remedy.Receipt, error) {
	return remedy.Receipt{Found: true}, nil
}

func (inspect) Check(now time.Time, f fleet.Snapshot, o remedy.Order, r remedy.Receipt) (remedy.Outcome, bool) {
	if stale(f, r) {
		return remedy.Outcome{}, false
	}
	j, ok := knownJob(f, o)
	if !ok {
		return ended(remedy.Gone, "%s is gone", o.Target.Job)
	}
	var whole int
	var out, lacking []string
	for _, name := range f.NodesOf(j.Ref) {
		n, known := f.Nodes[name]
		switch why := flaw(n); {
		case !known:
			out = append(out, name+" (gone)")
		case !n.Available():
			out = append(out, name)
		case why != "":
			lacking = append(lacking, name+" ("+why+")")
		default:
			whole++
		}
	}
	if len(lacking) > 0 {
		return unfinished(now, o, "pods of %s may land on nodes that are not whole: %s", j.Ref, list(lacking))
	}
	note := fmt.Sprintf("%s of %s whole", count(whole, "node"), j.Ref)
	if len(out) > 0 {
		note += "; no new pods go to " + list(out)
	}
	return ended(remedy.Done, "%s", note)
}

// flaw says what is wrong with a node that takes pods; empty when nothing is known to be.
func flaw(n fleet.Node) string {
	switch {
	case n.Hold.Any():
		return "held by " + holders(n.Hold)
	case n.Telemetry.Status == fleet.False:
		return "telemetry is lost"
	case n.Allocatable.GPUs < n.Capacity.GPUs:
		return fmt.Sprintf("%d of %d GPUs allocatable", n.Allocatable.GPUs, n.Capacity.GPUs)
	}
	for _, g := range n.GPUs {
		if g.Up == fleet.False {
			return fmt.Sprintf("GPU %d is lost", g.Index)
		}
	}
	return ""
}
