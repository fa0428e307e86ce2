package series

import (
	"context"
	"time"

	"stoker.dev/stoker/internal/fleet"
)

// usageExpr is how much of its GPUs each pod has used over ten minutes, and samplesExpr how
// many minutes of that there are samples for. The labels of a collector's own pod are not
// the job's.
const (
	usageExpr   = `avg by (namespace, pod) (avg_over_time(DCGM_FI_PROF_GR_ENGINE_ACTIVE{pod!=""}[10m]))`
	samplesExpr = `min by (namespace, pod) (count_over_time((max by (namespace, pod) (DCGM_FI_PROF_GR_ENGINE_ACTIVE{pod!=""}))[10m:1m]))`
)

// usageEvery is how often the series are asked: a mean over ten minutes does not change
// faster.
const usageEvery = time.Minute

// UsageSource is the name under which [Usage] says when it last asked.
const UsageSource = "usage"

// Usage fills in how much of their GPUs jobs use, by the series of their pods. What no
// series tell of stays as it was: not known. It must not be used by two goroutines at once.
type Usage struct {
	q    Querier
	at   time.Time
	pods map[podKey]podUsage
}

type podKey struct{ namespace, name string }

type podUsage struct {
	mean float64
	over time.Duration
}

// NewUsage returns usage that is asked of q.
func NewUsage(q Querier) *Usage { return &Usage{q: q} }

// Fill adds the usage of jobs whose pods are in the facts. An error means that the series
// could not be asked; then nothing was filled in.
func (u *Usage) Fill(ctx context.Context, now time.Time, into *fleet.Facts) error {
	if u.at.IsZero() || now.Sub(u.at) >= usageEvery || now.Before(u.at) {
		if err := u.read(ctx, now); err != nil {
			return err
		}
	}
	type sum struct {
		mean float64
		over time.Duration
		pods int
	}
	sums := map[fleet.JobRef]sum{}
	for _, p := range into.Pods {
		of, told := u.pods[podKey{p.Namespace, p.Name}]
		if !told || p.Job == (fleet.JobRef{}) || p.GPUs == 0 {
			continue
		}
		s := sums[p.Job]
		if s.pods == 0 || of.over < s.over {
			s.over = of.over
		}
		sums[p.Job] = sum{s.mean + of.mean, s.over, s.pods + 1}
	}
	for ref, s := range sums {
		if j, ok := into.Jobs[ref]; ok {
			j.Usage = fleet.Usage{Mean: s.mean / float64(s.pods), Over: s.over, At: u.at}
			into.Jobs[ref] = j
		}
	}
	into.Sources[UsageSource] = u.at
	return nil
}

func (u *Usage) read(ctx context.Context, now time.Time) error {
	means, err := u.q.Query(ctx, usageExpr, now)
	if err != nil {
		return err
	}
	counts, err := u.q.Query(ctx, samplesExpr, now)
	if err != nil {
		return err
	}
	u.at, u.pods = now, make(map[podKey]podUsage, len(means))
	for _, s := range means {
		u.pods[podKey{s.Metric.Get("namespace"), s.Metric.Get("pod")}] = podUsage{mean: s.F}
	}
	for _, s := range counts {
		k := podKey{s.Metric.Get("namespace"), s.Metric.Get("pod")}
		if p, ok := u.pods[k]; ok {
			p.over = time.Duration(s.F) * time.Minute
			u.pods[k] = p
		}
	}
	return nil
}
