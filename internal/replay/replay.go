// Package replay is what judging policies needs besides a simulated fleet: the short way
// from a collector's source to evidence, without exposition and alert rules; policies to
// compare with; and the arithmetic of many runs.
//
// A policy of this package sees what Stoker sees, a snapshot and evidence, and acts
// through the same interface to the cluster. None of it is part of the service.
package replay

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/internal/xid"
)

// A Source is the telemetry of one node, as a collector reads it.
type Source interface {
	Collect(ctx context.Context, into *fleet.Samples) error
}

// A Node is one node whose telemetry is read directly.
type Node struct {
	Name   string
	Events Source       // of identities and XIDs alone
	Usage  Source       // also of the fields in Fields; may be nil
	Reach  func() error // nil when its collector could be scraped; may be nil
}

// The fields that are read: a job's usage is the mean of the first.
const (
	usageField    = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
	tempField     = "DCGM_FI_DEV_GPU_TEMP"
	slowdownField = "DCGM_FI_DEV_SLOWDOWN_TEMP"
)

// Fields are the fields that are read once a minute.
var Fields = []string{usageField, tempField, slowdownField}

// Direct reads sources and turns what they tell into evidence and facts: what the alert
// rules would say of the same telemetry, as of the same time. It is a witness of the loop
// and a filler of its world. It must be polled, and used by one goroutine.
type Direct struct {
	nodes []*node
	told  []remedy.Evidence // since the last call of Evidence
	last  time.Time         // that usage was read
	due   bool              // it is read in this poll
	usage map[podName]*usage
	into  fleet.Samples

	steps func() []Step
	jobs  map[podName]*stepping
}

type podName struct{ namespace, name string }

type node struct {
	Node
	heard  bool // has ever told anything
	silent time.Time
	lost   bool // telemetry-lost was told and is not over
	gpus   []fleet.GPU
	boot   string
	since  time.Time // of the present state of its telemetry
	hot    []heat    // of each GPU
}

// Bounds of what is remembered of usage.
const (
	usageEvery = time.Minute
	usageKept  = 10
)

// A usage is the newest means of one pod's GPUs.
type usage struct {
	mean [usageKept]float64
	n    int // how many were taken in
	seen time.Time
}

// NewDirect returns a reader of those nodes, and of the steps that training programs
// show; steps may be nil.
func NewDirect(nodes []Node, steps func() []Step) *Direct {
	d := &Direct{usage: map[podName]*usage{}, steps: steps, jobs: map[podName]*stepping{}}
	for _, n := range nodes {
		d.nodes = append(d.nodes, &node{Node: n})
	}
	return d
}

// lostAfter is how long telemetry must be silent until that is told, as in the alert rule.
const lostAfter = 2 * time.Minute

// Poll reads every source once.
func (d *Direct) Poll(ctx context.Context, now time.Time) {
	d.due = d.last.IsZero() || now.Sub(d.last) >= usageEvery
	if d.due {
		d.last = now
	}
	for _, n := range d.nodes {
		d.poll(ctx, now, n)
	}
	if d.steps != nil {
		d.follow(now)
	}
	if d.due {
		for name, u := range d.usage {
			if now.Sub(u.seen) > 2*usageEvery {
				delete(d.usage, name)
			}
		}
	}
}

func (d *Direct) poll(ctx context.Context, now time.Time, n *node) {
	d.into = fleet.Samples{At: now, GPUs: d.into.GPUs[:0], Values: d.into.Values[:0], Events: d.into.Events[:0], Fields: d.into.Fields[:0]}
	read := n.Events
	if n.Usage != nil && d.due {
		read = n.Usage
	}
	var err error
	if n.Reach != nil {
		err = n.Reach()
	}
	if err == nil {
		err = read.Collect(ctx, &d.into)
	}
	if err != nil {
		d.silence(now, n)
		return
	}
	if !n.heard || !n.silent.IsZero() {
		n.since = now
	}
	n.heard, n.silent = true, time.Time{}
	if n.lost {
		n.lost = false
		e := lost(n.Name, now)
		e.Resolved = true
		d.told = append(d.told, e)
	}
	n.boot = d.into.BootID
	d.identities(now, n)
	for _, e := range d.into.Events {
		d.event(now, n, e)
	}
	if read == n.Usage {
		d.use(now, n)
		d.heat(now, n)
	}
}

// silence is what follows when a node's telemetry cannot be read.
func (d *Direct) silence(now time.Time, n *node) {
	if !n.heard {
		return // what has never told anything is not known, and nothing is lost
	}
	if n.silent.IsZero() {
		n.silent, n.since = now, now
	}
	if now.Sub(n.silent) >= lostAfter && !n.lost {
		n.lost = true
		d.told = append(d.told, lost(n.Name, n.silent))
	}
}

func lost(name string, at time.Time) remedy.Evidence {
	return remedy.Evidence{
		Subject: remedy.Subject{Kind: remedy.SubjectNode, Node: name}, Class: remedy.ClassTelemetryLost, At: at,
		Source: "collector", Summary: "No telemetry from " + name,
		Labels: map[string]string{"alertname": "GPUTelemetryLost", "node": name},
	}
}

func (d *Direct) identities(now time.Time, n *node) {
	n.gpus = slices.Grow(n.gpus[:0], len(d.into.GPUs))[:len(d.into.GPUs)]
	for i, g := range d.into.GPUs {
		old := &n.gpus[i]
		if old.UUID != g.UUID {
			*old = fleet.GPU{Index: g.Index, UUID: g.UUID, PCI: g.PCI, Model: g.Model}
		}
		old.Up, old.Seen = g.Up, now
	}
}

func (d *Direct) event(now time.Time, n *node, e fleet.XIDEvent) {
	row, _ := xid.Lookup(e.XID)
	g := &n.gpus[e.GPU]
	if e.At.After(g.XIDTime) {
		g.XID, g.XIDTime = e.XID, e.At
	}
	index, code := strconv.Itoa(g.Index), strconv.Itoa(e.XID)
	d.told = append(d.told, remedy.Evidence{
		Subject: remedy.Subject{Kind: remedy.SubjectGPU, Node: n.Name, UUID: g.UUID, PCI: g.PCI, Index: index},
		Class:   remedy.Class(row.Class), BootID: n.boot, At: e.At, Seen: now, Source: "collector",
		Summary: "XID " + code + " on GPU " + index + " of " + n.Name,
		Labels:  map[string]string{"node": n.Name, "gpu": index, "xid": code, "ladder": row.Ladder.String()},
	})
}

// use takes in which pods hold which GPUs, and how much of them each has used. Pods on
// several nodes have a name of their own on each.
func (d *Direct) use(now time.Time, n *node) {
	type sum struct {
		v float64
		n int
	}
	sums := map[podName]sum{}
	told := map[int][]fleet.PodName{} // by GPU; several where it is shared
	for _, v := range d.into.Values {
		if v.Field != usageField {
			continue
		}
		var p podName
		for _, l := range v.Labels {
			switch l.Name {
			case "namespace":
				p.namespace = l.Value
			case "pod":
				p.name = l.Value
			}
		}
		if p.name != "" {
			s := sums[p]
			sums[p] = sum{s.v + v.Value, s.n + 1}
		}
		pods := told[v.GPU]
		if p.name != "" {
			pods = append(pods, fleet.PodName{Namespace: p.namespace, Name: p.name})
		}
		told[v.GPU] = pods
	}
	// Whose GPU tells nothing keeps it: one that is lost is still held.
	for i, pods := range told {
		if !slices.Equal(n.gpus[i].Pods, pods) {
			n.gpus[i].Pods = pods
		}
	}
	for p, s := range sums {
		u := d.usage[p]
		if u == nil {
			u = &usage{}
			d.usage[p] = u
		}
		u.mean[u.n%usageKept] = s.v / float64(s.n)
		u.n, u.seen = u.n+1, now
	}
}

// Evidence returns what was told since it was last asked.
func (d *Direct) Evidence(context.Context, time.Time) ([]remedy.Evidence, error) {
	out := d.told
	d.told = nil
	slices.SortStableFunc(out, func(a, b remedy.Evidence) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Subject.String(), b.Subject.String()))
	})
	return out, nil
}

// Fill tells the fleet what the sources have told of GPUs, and of what jobs use.
func (d *Direct) Fill(_ context.Context, now time.Time, into *fleet.Facts) error {
	for _, n := range d.nodes {
		f, there := into.Nodes[n.Name]
		if !there || !n.heard {
			continue
		}
		f.Telemetry = fleet.Condition{Status: fleet.TruthOf(n.silent.IsZero()), Since: n.since}
		f.GPUs = slices.Clone(n.gpus)
		if !n.silent.IsZero() {
			for i := range f.GPUs {
				f.GPUs[i].Up = fleet.Unknown
			}
		}
		into.Nodes[n.Name] = f
	}
	if len(d.usage) > 0 {
		d.fillUsage(now, into)
	}
	into.Sources["telemetry"] = now
	return nil
}

func (d *Direct) fillUsage(now time.Time, into *fleet.Facts) {
	type sum struct {
		mean float64
		pods int
		over int
	}
	sums := map[fleet.JobRef]sum{}
	for _, p := range into.Pods {
		u := d.usage[podName{p.Namespace, p.Name}]
		if u == nil || p.Job == (fleet.JobRef{}) {
			continue
		}
		n := min(u.n, usageKept)
		var mean float64
		for _, v := range u.mean[:n] {
			mean += v / float64(n)
		}
		s := sums[p.Job]
		if s.pods == 0 || n < s.over {
			s.over = n
		}
		sums[p.Job] = sum{s.mean + mean, s.pods + 1, s.over}
	}
	for ref, s := range sums {
		j, ok := into.Jobs[ref]
		if !ok {
			continue
		}
		j.Usage = fleet.Usage{Mean: s.mean / float64(s.pods), Over: time.Duration(s.over) * time.Minute, At: now}
		into.Jobs[ref] = j
	}
}
