package replay

import (
	"fmt"
	"strconv"
	"time"

	"stoker.dev/stoker/internal/remedy"
)

// A Step is how many iterations a training program says that it has done.
type Step struct {
	Namespace, Name string
	Step            int64
}

// stepping is what is known of a job's progress.
type stepping struct {
	step    int64
	changed time.Time
	usual   time.Duration // of one step; zero: not known
	told    bool
	seen    time.Time
}

// As the alert rules have it: a job is stalled when it has made no step for so long, and
// for ten of its usual steps.
const (
	stalledAfter = 10 * time.Minute
	stalledFor   = time.Minute
	stalledSteps = 10
)

// follow tells of jobs that make no step any more.
func (d *Direct) follow(now time.Time) {
	for _, s := range d.steps() {
		name := podName{s.Namespace, s.Name}
		j := d.jobs[name]
		if j == nil {
			j = &stepping{step: s.Step, changed: now}
			d.jobs[name] = j
		}
		j.seen = now
		if s.Step != j.step {
			if s.Step > j.step {
				j.usual = now.Sub(j.changed) / time.Duration(s.Step-j.step)
			}
			j.step, j.changed = s.Step, now
			if j.told {
				j.told = false
				d.told = append(d.told, stalled(name, now, true))
			}
			continue
		}
		if j.usual > 0 && !j.told && now.Sub(j.changed) >= max(stalledAfter, stalledSteps*j.usual)+stalledFor {
			j.told = true
			d.told = append(d.told, stalled(name, now, false))
		}
	}
	for name, j := range d.jobs {
		if now.Sub(j.seen) >= lostAfter {
			if j.told {
				d.told = append(d.told, stalled(name, now, true))
			}
			delete(d.jobs, name)
		}
	}
}

func stalled(name podName, at time.Time, over bool) remedy.Evidence {
	return remedy.Evidence{
		Subject: remedy.Subject{Kind: remedy.SubjectJob, Namespace: name.namespace, Name: name.name}, Class: remedy.ClassJobStalled,
		At: at, Seen: at, Source: "collector", Resolved: over, Summary: fmt.Sprintf("%s/%s makes no progress", name.namespace, name.name),
		Labels: map[string]string{"alertname": "TrainingStalled", "namespace": name.namespace, "job_name": name.name},
	}
}

// heat is since when a GPU is at its slowdown temperature, and since when it is not.
type heat struct {
	since, cool time.Time
	told        bool
}

// hotFor is how long a GPU must be hot until that is told, and cool until it is over.
const hotFor = 5 * time.Minute

// heat tells of GPUs that are at the temperature at which they slow down.
func (d *Direct) heat(now time.Time, n *node) {
	for len(n.hot) < len(n.gpus) {
		n.hot = append(n.hot, heat{})
	}
	temp, limit := map[int]float64{}, map[int]float64{}
	for _, v := range d.into.Values {
		switch v.Field {
		case tempField:
			temp[v.GPU] = v.Value
		case slowdownField:
			limit[v.GPU] = v.Value
		}
	}
	for i := range n.gpus {
		h := &n.hot[i]
		t, known := temp[i]
		switch {
		case !known:
		case t >= limit[i]:
			h.cool = time.Time{}
			if h.since.IsZero() {
				h.since = now
			}
			if !h.told && now.Sub(h.since) >= hotFor {
				h.told = true
				d.told = append(d.told, d.hot(now, h.since, n, i))
			}
		case !h.told:
			h.since = time.Time{}
		default:
			if h.cool.IsZero() {
				h.cool = now
			}
			if now.Sub(h.cool) >= hotFor {
				e := d.hot(now, h.since, n, i)
				e.Resolved = true
				d.told = append(d.told, e)
				*h = heat{}
			}
		}
	}
}

func (d *Direct) hot(now, since time.Time, n *node, i int) remedy.Evidence {
	g, index := n.gpus[i], strconv.Itoa(n.gpus[i].Index)
	return remedy.Evidence{
		Subject: remedy.Subject{Kind: remedy.SubjectGPU, Node: n.Name, UUID: g.UUID, PCI: g.PCI, Index: index}, Class: remedy.ClassGPUHot,
		At: since, Seen: now, Source: "collector", Summary: fmt.Sprintf("GPU %s of %s is at its slowdown temperature", index, n.Name),
		Labels: map[string]string{"alertname": "GPUSlowdownTemperature", "node": n.Name, "gpu": index},
	}
}
