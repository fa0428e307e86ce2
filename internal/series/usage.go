package series

import (
	"cmp"
	"context"
	"slices"
	"time"

	"stoker.dev/stoker/internal/fleet"
)

// What the series are asked. Some collectors put the pod that holds a GPU on every value of
// it, ours tells of it in a series of its own; the labels of a collector's own pod are not
// the job's. What a GPU that several share has done counts for each of them: none is taken
// for idle while one works.
const (
	// labelledExpr is how much of a GPU its pod has used over ten minutes, and labelledFor
	// how many minutes of that there are samples for.
	labelledExpr = `avg by (UUID, namespace, pod) (avg_over_time(DCGM_FI_PROF_GR_ENGINE_ACTIVE{pod!=""}[10m]))`
	labelledFor  = `min by (UUID, namespace, pod) (count_over_time((max by (UUID, namespace, pod) (DCGM_FI_PROF_GR_ENGINE_ACTIVE{pod!=""}))[10m:1m]))`

	// plainExpr is how much of each GPU was used, whoever had it, and holderFor for how many
	// of the last ten minutes each pod has had which.
	plainExpr = `avg by (UUID) (avg_over_time(DCGM_FI_PROF_GR_ENGINE_ACTIVE{pod=""}[10m]))`
	holderFor = `count_over_time((max by (UUID, namespace, pod) (stoker_gpu_pod_info))[10m:1m])`
)

// usageEvery is how often the series are asked: a mean over ten minutes does not change
// faster.
const usageEvery = time.Minute

// UsageSource is the name under which [Usage] says when it last asked.
const UsageSource = "usage"

// Usage fills in how much of their GPUs jobs use, and how much of each GPU was used, by the
// series. What no series tell of stays as it was: not known. It must not be used by
// two goroutines at once.
type Usage struct {
	q    Querier
	at   time.Time
	held []held // in order
}

// held is one pod on one GPU.
type held struct {
	uuid, namespace, pod string

	mean  float64 // of the GPU, from 0 to 1
	over  time.Duration
	known bool // mean is
}

func (h held) compare(o held) int {
	return cmp.Or(cmp.Compare(h.uuid, o.uuid), cmp.Compare(h.namespace, o.namespace), cmp.Compare(h.pod, o.pod))
}

// NewUsage returns usage that is asked of q.
func NewUsage(q Querier) *Usage { return &Usage{q: q} }

// Fill adds the usage of jobs whose pods are in the facts, and of the GPUs that they have.
// An error means that the series could not be asked; then nothing was filled in.
func (u *Usage) Fill(ctx context.Context, now time.Time, into *fleet.Facts) error {
	if u.at.IsZero() || now.Sub(u.at) >= usageEvery || now.Before(u.at) {
		if err := u.read(ctx, now); err != nil {
			return err
		}
	}
	type name struct{ namespace, pod string }
	pods := make(map[name]fleet.Pod, len(into.Pods))
	for _, p := range into.Pods {
		pods[name{p.Namespace, p.Name}] = p
	}
	type sum struct {
		mean  float64
		over  time.Duration
		parts int
	}
	sums := map[fleet.JobRef]sum{}
	for _, h := range u.held {
		p, there := pods[name{h.namespace, h.pod}]
		if !there {
			continue // it has ended since
		}
		use(into.Nodes[p.Node].GPUs, h, u.at)
		if !h.known || p.Job == (fleet.JobRef{}) {
			continue
		}
		s := sums[p.Job]
		if s.parts == 0 || h.over < s.over {
			s.over = h.over
		}
		sums[p.Job] = sum{s.mean + h.mean, s.over, s.parts + 1}
	}
	for ref, s := range sums {
		if j, ok := into.Jobs[ref]; ok {
			j.Usage = fleet.Usage{Mean: s.mean / float64(s.parts), Over: s.over, At: u.at}
			into.Jobs[ref] = j
		}
	}
	into.Sources[UsageSource] = u.at
	return nil
}

// use writes down how much of one of these GPUs was used. Where several share it, its usage
// is that of all of them, known for as long as the one that came last has been there.
func use(gpus []fleet.GPU, h held, at time.Time) {
	i := slices.IndexFunc(gpus, func(g fleet.GPU) bool { return g.UUID == h.uuid && h.uuid != "" })
	if i < 0 || !h.known {
		return
	}
	if g := &gpus[i]; g.Usage.At.IsZero() || h.over < g.Usage.Over {
		g.Usage = fleet.Usage{Mean: h.mean, Over: h.over, At: at}
	}
}

func (u *Usage) read(ctx context.Context, now time.Time) error {
	type key struct{ uuid, namespace, pod string }
	all := map[key]held{}
	ask := func(expr string, take func(k key, v float64)) error {
		v, err := u.q.Query(ctx, expr, now)
		if err != nil {
			return err
		}
		for _, s := range v {
			take(key{s.Metric.Get("UUID"), s.Metric.Get("namespace"), s.Metric.Get("pod")}, s.F)
		}
		return nil
	}
	plain := map[key]float64{}
	for _, q := range []struct {
		expr string
		take func(k key, v float64)
	}{
		{plainExpr, func(k key, v float64) { plain[k] = v }},
		{holderFor, func(k key, v float64) {
			mean, known := plain[key{uuid: k.uuid}]
			all[k] = held{k.uuid, k.namespace, k.pod, mean, time.Duration(v) * time.Minute, known}
		}},
		{labelledExpr, func(k key, v float64) { all[k] = held{k.uuid, k.namespace, k.pod, v, 0, true} }},
		{labelledFor, func(k key, v float64) {
			if h, ok := all[k]; ok {
				h.over = time.Duration(v) * time.Minute
				all[k] = h
			}
		}},
	} {
		if err := ask(q.expr, q.take); err != nil {
			return err
		}
	}
	u.at, u.held = now, make([]held, 0, len(all))
	for _, h := range all {
		u.held = append(u.held, h)
	}
	slices.SortFunc(u.held, held.compare)
	return nil
}
