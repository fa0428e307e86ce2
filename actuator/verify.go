package actuator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"stoker.dev/stoker/internal/config"
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

var verifySpec = Spec{
	Info: remedy.ActionInfo{
		Name: "verify", Doc: "Watches the node until it has been whole for a time: booted anew, ready, all of its GPUs there and allocatable. Changes nothing.",
		Scope: remedy.ScopeNode, Effect: remedy.EffectAsk, Role: remedy.RoleVerify, Within: 30 * time.Minute,
	},
	Params: func() config.Validator { return &verifyParams{} },
	New:    func(Deps) Action { return verify{} },
}

// Values of verifyParams.
const (
	bootNew = "new"
	bootAny = "any"

	defaultVerify = 5 * time.Minute
	maxVerify     = 24 * time.Hour
)

type verifyParams struct {
	For  remedy.Duration `yaml:"for" json:"for" doc:"for how long the node has to be whole; shorter than within"`
	Boot string          `yaml:"boot" json:"boot,omitempty" doc:"new: the node must have been booted since the fault; any: it need not, for ladders without a reboot"`
}

// Validate fills in the defaults.
func (p *verifyParams) Validate(path string) error {
	var errs []error
	if p.For == 0 {
		p.For = remedy.Duration(defaultVerify)
	}
	if p.For < 0 || p.For > remedy.Duration(maxVerify) {
		errs = append(errs, config.Errorf(config.Key(path, "for"), "%s is not between 0 and %s", span(time.Duration(p.For)), span(maxVerify)))
	}
	if p.Boot == "" {
		p.Boot = bootNew
	}
	if p.Boot != bootNew && p.Boot != bootAny {
		errs = append(errs, config.Errorf(config.Key(path, "boot"), "%s", config.Unknown("boot", p.Boot, []string{bootNew, bootAny})))
	}
	return errors.Join(errs...)
}

// verify looks on. That the fault itself does not come back is seen by whoever takes
// in evidence; here it is what the node and its telemetry tell.
type verify struct{}

func (verify) Start(_ context.Context, o remedy.Order) (remedy.Receipt, error) {
	_, err := params[verifyParams](o)
	return remedy.Receipt{Found: true}, err
}

func (verify) Check(now time.Time, f fleet.Snapshot, o remedy.Order, r remedy.Receipt) (remedy.Outcome, bool) {
	if stale(f, r) {
		return remedy.Outcome{}, false
	}
	p, err := params[verifyParams](o)
	if err != nil {
		return ended(remedy.Rejected, "%v", err)
	}
	n, ok := knownNode(f, o)
	if !ok {
		return ended(remedy.Gone, "%s is gone", o.Target.Node)
	}
	if n.Hold.Has(o.Incident) && !n.Unschedulable {
		return ended(remedy.Yielded, "%s was uncordoned by a person", n.Name)
	}
	d := time.Duration(p.For)
	if d == 0 {
		d = defaultVerify
	}
	missing := lacks(now, n, o.BootID, p.Boot, d)
	if f.Alerts.Path.Status == fleet.False {
		missing = append(missing, "alerts do not arrive, so that none comes says nothing")
	}
	if now.Sub(r.At) < d {
		missing = append(missing, fmt.Sprintf("watched for %s of %s", span(now.Sub(r.At)), span(d)))
	}
	if len(missing) > 0 {
		return unfinished(now, o, "%s", strings.Join(missing, "; "))
	}
	return ended(remedy.Done, "%s has been whole for %s with %d of %d GPUs", n.Name, span(d), n.Allocatable.GPUs, n.Capacity.GPUs)
}

// lacks says what keeps a node from being whole for d at now. What is not known is
// lacking too, except telemetry where there never was any.
func lacks(now time.Time, n fleet.Node, boot, want string, d time.Duration) []string {
	var out []string
	switch {
	case want == bootAny:
	case boot == "" || n.BootID == "":
		out = append(out, "whether it was booted since the fault is not known")
	case boot == n.BootID:
		out = append(out, "not booted since the fault")
	}
	switch {
	case n.Ready.Status != fleet.True:
		out = append(out, "not ready")
	case !n.Ready.HeldFor(now, d):
		out = append(out, "ready for "+span(now.Sub(n.Ready.Since))+" only")
	}
	switch {
	case n.Capacity.GPUs == 0 || n.Allocatable.GPUs != n.Capacity.GPUs:
		out = append(out, fmt.Sprintf("%d of %d GPUs allocatable", n.Allocatable.GPUs, n.Capacity.GPUs))
	case now.Sub(n.AllocatableSince) < d:
		out = append(out, "GPUs allocatable for "+span(now.Sub(n.AllocatableSince))+" only")
	}
	switch n.Telemetry.Status {
	case fleet.False:
		out = append(out, "telemetry is lost")
	case fleet.True:
		if !n.Telemetry.HeldFor(now, d) {
			out = append(out, "telemetry for "+span(now.Sub(n.Telemetry.Since))+" only")
		}
	case fleet.Unknown:
	}
	for _, g := range n.GPUs {
		if g.Up == fleet.False {
			out = append(out, fmt.Sprintf("GPU %d is lost", g.Index))
		}
	}
	return out
}
