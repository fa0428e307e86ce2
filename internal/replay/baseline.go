package replay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/internal/xid"
)

// A Drainer is the usual policy to compare with: a node whose GPU has told of a fault is
// cordoned at once; when its jobs are gone it is booted, and when it is whole it is given
// back. It waits for the jobs, or deletes their pods after a time. It knows nothing of
// checkpoints, and the jobs' own controllers start them anew.
type Drainer struct {
	cluster actuator.Cluster
	witness witness
	// after is when what still runs is deleted; zero: never.
	after time.Duration
	cases map[string]*drainCase // by node
}

type witness interface {
	Evidence(ctx context.Context, now time.Time) ([]remedy.Evidence, error)
}

type drainCase struct {
	since    time.Time
	boot     string
	cordoned bool
	repair   string
}

// NewDrainer returns the policy that waits for the jobs to end, or one that deletes
// their pods after a time.
func NewDrainer(c actuator.Cluster, w witness, after time.Duration) *Drainer {
	return &Drainer{cluster: c, witness: w, after: after, cases: map[string]*drainCase{}}
}

// Acts reports whether a fault of that ladder is one of the node's hardware for which
// the jobs have to leave: Stoker's own playbooks ask the same of it.
func Acts(code int) bool {
	row, _ := xid.Lookup(code)
	first := row.Ladder.Fallback()
	return row.Class != xid.None && (first == xid.Reset || first == xid.Reboot)
}

// Tick does what is to be done at now.
func (d *Drainer) Tick(ctx context.Context, now time.Time, f fleet.Snapshot) error {
	told, err := d.witness.Evidence(ctx, now)
	errs := []error{err}
	for _, e := range told {
		var code int
		if _, err := fmt.Sscan(e.Labels["xid"], &code); err != nil || e.Resolved || !Acts(code) {
			continue
		}
		if _, known := d.cases[e.Subject.Node]; known || e.BootID != f.Nodes[e.Subject.Node].BootID {
			continue
		}
		d.cases[e.Subject.Node] = &drainCase{since: now, boot: e.BootID}
	}
	for _, name := range slices.Sorted(maps.Keys(d.cases)) {
		if err := d.step(ctx, now, f, name, d.cases[name]); err != nil {
			errs = append(errs, fmt.Errorf("node %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// step takes the next step for one node. What conflicts is tried again at the next tick.
func (d *Drainer) step(ctx context.Context, now time.Time, f fleet.Snapshot, name string, c *drainCase) error {
	n, there := f.Nodes[name]
	if !there {
		delete(d.cases, name)
		return nil
	}
	switch {
	case !c.cordoned:
		live, err := d.cluster.Node(ctx, name)
		if err != nil {
			return err
		}
		if _, err := d.cluster.MarkNode(ctx, live, fleet.Hold{Cordoned: true, Why: "drainer"}.With("drainer", now), true); err != nil {
			return err
		}
		c.cordoned = true
	case n.BootID != c.boot:
		if n.Ready.Status != fleet.True || n.Allocatable.GPUs < n.Capacity.GPUs {
			return nil
		}
		live, err := d.cluster.Node(ctx, name)
		if err != nil {
			return err
		}
		if _, err := d.cluster.MarkNode(ctx, live, fleet.Hold{}, false); err != nil {
			return err
		}
		delete(d.cases, name)
	case c.repair != "":
	default:
		return d.drain(ctx, now, f, n, c)
	}
	return nil
}

func (d *Drainer) drain(ctx context.Context, now time.Time, f fleet.Snapshot, n fleet.Node, c *drainCase) error {
	left := 0
	for _, p := range f.PodsOn(n.Name) {
		if p.GPUs == 0 || p.Resident {
			continue
		}
		left++
		if d.after == 0 || now.Sub(c.since) < d.after || p.Terminating {
			continue
		}
		if err := d.cluster.Evict(ctx, p.PodRef); err != nil {
			return err
		}
	}
	if left > 0 {
		return nil
	}
	r := actuator.Repair{Name: "drainer-" + n.BootID, Action: "reboot", Key: "drainer/" + n.BootID, Node: n.Name, BootID: n.BootID}
	if _, err := d.cluster.CreateRepair(ctx, r); err != nil {
		return err
	}
	c.repair = r.Name
	return nil
}
