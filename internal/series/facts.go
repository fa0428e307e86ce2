package series

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/prometheus/promql"

	"stoker.dev/stoker/internal/fleet"
)

// Source is the name under which [Telemetry] says when it last answered.
const Source = "series"

// Fresh is how old a sample may be that says that telemetry arrives.
const Fresh = time.Minute

// A Querier answers PromQL at a time. [DB] is one.
type Querier interface {
	Query(ctx context.Context, expr string, t time.Time) (promql.Vector, error)
}

// Telemetry fills in what the collectors' series tell of nodes that the cluster knows:
// their GPUs, and whether telemetry arrives at all. It remembers what a node's GPUs were
// when their series end: that they are not seen any more makes them unknown, and neither
// gone nor faulty. Its memory is one entry for each node of the fleet. It must not be
// used by two goroutines at once.
type Telemetry struct {
	q     Querier
	nodes map[string]*nodeSeries
}

// nodeSeries is what the series have told of one node so far.
type nodeSeries struct {
	telemetry fleet.Condition
	gpus      map[string]fleet.GPU // by uuid, or by bus address where that is not known
	boot      string
}

// told reports whether any GPU was told of lately.
func (n *nodeSeries) told(now time.Time) bool {
	for _, g := range n.gpus {
		if now.Sub(g.Seen) < Fresh {
			return true
		}
	}
	return false
}

// NewTelemetry returns telemetry that is asked of q.
func NewTelemetry(q Querier) *Telemetry {
	return &Telemetry{q: q, nodes: map[string]*nodeSeries{}}
}

// Fill adds what the series say at now to nodes that are in the facts. Nodes that are
// not are left out: series of a node outlive it. An error means that the series could
// not be asked; then nothing was filled in, and the source's time stays as it was.
func (t *Telemetry) Fill(ctx context.Context, now time.Time, into *fleet.Facts) error {
	var answers [7]promql.Vector
	for i, expr := range [...]string{
		`stoker_collector_source_up`,
		`timestamp(stoker_collector_source_up)`,
		`stoker_gpu_up`,
		`timestamp(stoker_gpu_up)`,
		`stoker_gpu_xid_last_event_timestamp_seconds`,
		`stoker_node_boot_info`,
		holders,
	} {
		v, err := t.q.Query(ctx, expr, now)
		if err != nil {
			return err
		}
		answers[i] = v
	}
	for name := range t.nodes {
		if _, ok := into.Nodes[name]; !ok {
			delete(t.nodes, name)
		}
	}
	arrives := t.sources(now, into, answers[0], answers[1])
	t.gpus(answers[2], answers[3])
	t.xids(answers[4])
	t.holders(answers[6])
	for _, s := range answers[5] {
		if n := t.nodes[s.Metric.Get("node")]; n != nil {
			n.boot = s.Metric.Get("boot_id")
		}
	}
	for name, n := range t.nodes {
		// A source that tells nothing of GPUs does not make up for the one that did.
		arrives := arrives[name] && (len(n.gpus) == 0 || n.told(now))
		status := fleet.TruthOf(arrives)
		if n.telemetry.Status != status {
			n.telemetry = fleet.Condition{Status: status, Since: now}
		}
		node := into.Nodes[name]
		node.Telemetry = n.telemetry
		if node.BootID == "" && arrives {
			node.BootID = n.boot
		}
		node.GPUs = make([]fleet.GPU, 0, len(n.gpus))
		for _, g := range n.gpus {
			if now.Sub(g.Seen) >= Fresh || !arrives {
				g.Up = fleet.Unknown
			}
			node.GPUs = append(node.GPUs, g)
		}
		slices.SortFunc(node.GPUs, func(a, b fleet.GPU) int {
			return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.UUID, b.UUID), cmp.Compare(a.PCI, b.PCI))
		})
		into.Nodes[name] = node
	}
	into.Sources[Source] = now
	return nil
}

// sources says of which nodes a source tells something now. A node is heard of for the
// first time here, also by a source that says that it is down.
func (t *Telemetry) sources(now time.Time, into *fleet.Facts, up, times promql.Vector) map[string]bool {
	seen := newestOf(times, "node", "source")
	arrives := map[string]bool{}
	for _, s := range up {
		name := s.Metric.Get("node")
		if _, ok := into.Nodes[name]; !ok {
			continue
		}
		n := t.nodes[name]
		fresh := s.F == 1 && now.Sub(seen[key(s, "node", "source")]) < Fresh
		if n == nil && !fresh {
			continue // has never told of anything: not known
		}
		if n == nil {
			t.nodes[name] = &nodeSeries{gpus: map[string]fleet.GPU{}}
		}
		arrives[name] = arrives[name] || fresh
	}
	return arrives
}

func (t *Telemetry) gpus(up, times promql.Vector) {
	seen := newestOf(times, "node", "UUID", "pci_bus_id")
	for _, s := range up {
		n := t.nodes[s.Metric.Get("node")]
		id := cmp.Or(s.Metric.Get("UUID"), s.Metric.Get("pci_bus_id"))
		if n == nil || id == "" || s.Metric.Get("GPU_I_ID") != "" {
			continue
		}
		index, err := strconv.Atoi(s.Metric.Get("gpu"))
		if err != nil {
			index = len(n.gpus)
		}
		g := n.gpus[id]
		g.Index, g.UUID, g.PCI = index, s.Metric.Get("UUID"), s.Metric.Get("pci_bus_id")
		g.Model = cmp.Or(s.Metric.Get("modelName"), g.Model)
		g.Up = fleet.TruthOf(s.F == 1)
		g.Seen = seen[key(s, "node", "UUID", "pci_bus_id")]
		n.gpus[id] = g
	}
}

func (t *Telemetry) xids(last promql.Vector) {
	for _, s := range last {
		n := t.nodes[s.Metric.Get("node")]
		xid, err := strconv.Atoi(s.Metric.Get("xid"))
		if n == nil || err != nil {
			continue
		}
		id := cmp.Or(s.Metric.Get("UUID"), s.Metric.Get("pci_bus_id"))
		g, ok := n.gpus[id]
		at := seconds(s.F)
		if !ok || !at.After(g.XIDTime) {
			continue
		}
		g.XID, g.XIDTime = xid, at
		n.gpus[id] = g
	}
}

// holders asks which pods hold which GPUs: our collector's own series, or what labels
// another's series of a GPU.
const holders = `group by (UUID, namespace, pod) ({__name__=~"stoker_gpu_pod_info|DCGM_FI_DEV_FB_USED", UUID!="", pod!=""})`

// holders takes in who holds which GPU. A GPU of which nothing is told at present keeps
// what was told last: one that is lost is still held.
func (t *Telemetry) holders(of promql.Vector) {
	pods := map[string][]fleet.PodName{}
	for _, s := range of {
		id := s.Metric.Get("UUID")
		pods[id] = append(pods[id], fleet.PodName{Namespace: s.Metric.Get("namespace"), Name: s.Metric.Get("pod")})
	}
	for _, n := range t.nodes {
		for id, g := range n.gpus {
			if g.Up != fleet.True && len(pods[id]) == 0 {
				continue
			}
			slices.SortFunc(pods[id], func(a, b fleet.PodName) int {
				return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
			})
			g.Pods = pods[id]
			n.gpus[id] = g
		}
	}
}

// newestOf reads the answer of timestamp(): the newest time of each combination of labels.
func newestOf(times promql.Vector, by ...string) map[string]time.Time {
	out := make(map[string]time.Time, len(times))
	for _, s := range times {
		if at, k := seconds(s.F), key(s, by...); at.After(out[k]) {
			out[k] = at
		}
	}
	return out
}

func key(s promql.Sample, names ...string) string {
	var k string
	for _, n := range names {
		k += s.Metric.Get(n) + "\x00"
	}
	return k
}

// seconds turns seconds since 1970 into a time, to the millisecond.
func seconds(v float64) time.Time { return time.UnixMilli(int64(math.Round(v * 1000))).UTC() }
