package pods

import (
	"slices"

	"stoker.dev/stoker/internal/fleet"
)

// labels are what the series of a GPU or instance have of its pods, by UUID of the GPU and
// number of the instance: one set for each copy of the series.
type labels map[[2]string][][]fleet.Label

// labelsOf makes the labels of series as dcgm-exporter has them. A part that several pods
// share has none, unless each share has a copy of its own: nobody knows whose value it is.
func labelsOf(rows []row, s Seen, about map[pod]known, replicas bool) labels {
	out := labels{}
	shared := holders(rows)
	done := map[part]bool{}
	for _, r := range rows {
		p := part{r.gpu, r.instance}
		one := shared[p] == 1 && r.replica == ""
		if s.GPUs[r.gpu].UUID == "" || !one && (!replicas || r.replica == "") || one && done[p] {
			continue
		}
		done[p] = true
		k := about[r.pod]
		set := slices.Clone(k.labels)
		for _, x := range []fleet.Label{
			{Name: "container", Value: r.container},
			{Name: "dra_claim_name", Value: r.claim.name},
			{Name: "dra_claim_namespace", Value: r.claim.namespace},
			{Name: "dra_device_name", Value: r.claim.device},
			{Name: "dra_driver_name", Value: r.claim.driver},
			{Name: "dra_mig_device_uuid", Value: r.claim.mig},
			{Name: "dra_mig_profile", Value: r.claim.profile},
			{Name: "dra_pool_name", Value: r.claim.pool},
			{Name: "namespace", Value: r.pod.namespace},
			{Name: "pod", Value: r.pod.name},
			{Name: "pod_uid", Value: k.uid},
			{Name: "vgpu", Value: r.replica},
		} {
			if x.Value != "" {
				set = append(set, x)
			}
		}
		key := [2]string{s.GPUs[r.gpu].UUID, r.instance}
		out[key] = append(out[key], set)
	}
	return out
}

// Label adds the labels of its pod to each sample of a GPU or instance, as dcgm-exporter
// does, and a copy of it for each share where shares are told apart. It waits for nobody.
func (l *Lister) Label(s *fleet.Samples) {
	of := l.finished.Load().labels
	if len(of) == 0 {
		return
	}
	// Samples of one GPU share their labels; so do they afterwards.
	type base struct {
		gpu   int
		first *fleet.Label
		count int
	}
	joined := map[base][][]fleet.Label{}
	n := len(s.Values)
	for i := range n {
		v := &s.Values[i]
		if v.GPU < 0 || v.GPU >= len(s.GPUs) {
			continue
		}
		g := &s.GPUs[v.GPU]
		sets := of[[2]string{g.UUID, g.Instance}]
		if len(sets) == 0 {
			continue
		}
		k := base{gpu: v.GPU, count: len(v.Labels)}
		if len(v.Labels) > 0 {
			k.first = &v.Labels[0]
		}
		sum, ok := joined[k]
		if !ok {
			for _, set := range sets {
				sum = append(sum, join(v.Labels, set))
			}
			joined[k] = sum
		}
		was := *v
		v.Labels = sum[0]
		for _, labels := range sum[1:] {
			was.Labels = labels
			s.Values = append(s.Values, was)
		}
	}
}

// join appends the labels that are not there yet.
func join(have, more []fleet.Label) []fleet.Label {
	out := slices.Clone(have)
	for _, m := range more {
		if !slices.ContainsFunc(have, func(x fleet.Label) bool { return x.Name == m.Name }) {
			out = append(out, m)
		}
	}
	return out
}
