package main

import (
	"fmt"
	"time"

	"stoker.dev/stoker/internal/fleet"
)

// mix gives the nodes of a scene GPUs of which telemetry tells: each node its own kind of
// day, in two pools and three zones.
func mix(now time.Time, f fleet.Snapshot) {
	clear(f.Pods)
	clear(f.Jobs)
	turn := int(now.Sub(began) / (2 * time.Second))
	for i := range len(f.Nodes) {
		n := f.Nodes[nodeName(i)]
		n.Pool, n.Unschedulable = "h100", false
		if i%11 == 10 {
			n.Pool = "spot"
		}
		if i%4 != 3 {
			n.Labels = map[string]string{"topology.kubernetes.io/zone": fmt.Sprintf("eu-%c", 'a'+i*3/len(f.Nodes))}
		}
		n.GPUs = nil
		for g := range 8 {
			n.GPUs = append(n.GPUs, fleet.GPU{Index: g, UUID: fmt.Sprint("GPU-", n.Name, "-", g), Up: fleet.True, Seen: now})
		}
		has := func(team, job string, from, to int, mean float64) {
			ref := fleet.JobRef{Kind: "Job.batch", Namespace: team, Name: job}
			p := fleet.Pod{PodRef: fleet.PodRef{Namespace: team, Name: fmt.Sprint(job, "-", i, "-", from), UID: fmt.Sprint(job, i, from), Node: n.Name}, Job: ref, GPUs: to - from}
			f.Pods[p.UID] = p
			f.Jobs[ref] = fleet.Job{Ref: ref, Team: team, Phase: fleet.JobRunning}
			for g := from; g < to; g++ {
				n.GPUs[g].Pods = append(n.GPUs[g].Pods, fleet.PodName{Namespace: p.Namespace, Name: p.Name})
				if mean >= 0 {
					n.GPUs[g].Usage = fleet.Usage{Mean: mean, Over: 10 * time.Minute, At: now}
				}
			}
		}
		switch i % 12 {
		case 0, 1, 3, 7, 9:
			has("nlp", fmt.Sprint("llm-70b-pretrain-", i/4), 0, 8, 0.9)
		case 2:
			has("vision", fmt.Sprint("segment-", i), 0, 4, 0.8)
			has("nlp", fmt.Sprint("notebook-", i), 4, 6, 0.01)
		case 4:
			n.Unschedulable = true
			has("speech", fmt.Sprint("asr-", i), 0, 2, 0.7)
		case 5:
			has("speech", fmt.Sprint("tune-", i), 0, 1+turn%7, 0.6)
		case 6:
			n.Telemetry.Status = fleet.False
			has("nlp", fmt.Sprint("quiet-", i), 0, 8, -1)
		case 8:
			has("vision", fmt.Sprint("serve-a-", i), 0, 1, 0.5)
			has("nlp", fmt.Sprint("serve-b-", i), 0, 1, 0.5)
			for uid, p := range f.Pods {
				if p.Node == n.Name {
					p.Share = 250
					f.Pods[uid] = p
				}
			}
			has("vision", fmt.Sprint("new-", i), 1, 3, -1)
		case 10:
			n.Ready.Status = fleet.False
		case 11:
			n.GPUs[5].Up = fleet.False
			n.Unschedulable = true
			n.Hold = fleet.Hold{Cordoned: true}.With("gpu-lost", began)
		}
		f.Nodes[n.Name] = n
	}
}
