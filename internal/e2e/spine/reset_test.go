package spine

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"stoker.dev/stoker/internal/e2e/cluster"
	"stoker.dev/stoker/internal/e2e/scene"
)

const resetSteps = `      - cordon: {}
      - checkpoint: {of: gpu, within: 1m}
      - stop: {of: gpu, within: 3m}
      - start: {from: latest-complete, avoid: node, attempts: 3}
      - drain: {of: gpu, within: 3m}
      - reset: {within: 3m}
      - drain: {unless: reset, within: 3m}
      - reboot: {unless: reset, within: 3m}
      - verify: {for: 3s, boot: any, within: 3m}
      - release: {}
`

var onGPU = regexp.MustCompile(`(?m)^(DCGM_FI_DEV_FB_USED\{gpu="(\d)",[^}]*)\}`)

// TestResetsOneGPU has a GPU reset of which telemetry says who holds it: the gang moves,
// and the job on the other GPUs of the node goes on, as does what holds none.
func TestResetsOneGPU(t *testing.T) {
	f := scene.SetUp(t, "reset", scene.Needs{Nodes: 8})
	ill := f.StartJob(t, time.Second)
	f.StartLodger(t, ill, time.Second)
	job := cluster.IndexedJob(f.Train, "neighbour", 1, 3)
	job.Spec.Template.Spec.NodeSelector = map[string]string{corev1.LabelHostname: ill}
	f.CreateJob(t, job)
	neighbour := f.AwaitRunning(t, f.Train, "neighbour", scene.Soon)[0]
	worker := slices.DeleteFunc(f.AwaitRunning(t, f.Train, scene.JobName, scene.Soon), func(p corev1.Pod) bool { return p.Spec.NodeName != ill })[0]
	boot := f.BootID(t, ill)

	// As an exporter tells it that knows of pods: the gang has GPUs 0 to 4, the other job the rest.
	held := func(page string) string {
		return onGPU.ReplaceAllStringFunc(page, func(line string) string {
			m := onGPU.FindStringSubmatch(line)
			pod := worker.Name
			if g, err := strconv.Atoi(m[2]); err != nil || g > 4 {
				pod = neighbour.Name
			}
			return fmt.Sprintf(`%s,namespace=%q,pod=%q}`, m[1], f.Train, pod)
		})
	}
	sample := scene.ExporterSample(t)
	tel := f.Collect(t, ill, boot, held(scene.WithoutXIDs(sample)))
	s := f.Serve(t, scene.Settings{Scrape: tel.Address, Steps: resetSteps})
	s.AwaitLeader(t)
	s.Await(t, "the fleet to show who has which GPU", scene.Soon, func(context.Context) (bool, string, error) {
		page := s.Get(t, "/nodes")
		return strings.Contains(page, "neighbour"), fmt.Sprintf("%d bytes", len(page)), nil
	})

	tel.Show(t, held(sample))
	f.AwaitStep(t, ill, "reset")
	tel.Show(t, held(scene.WithoutXIDs(sample)))
	in := f.AwaitIncident(t, ill, "to be over", scene.Long, scene.Incident.Over)

	var did []string
	for _, step := range in.Steps {
		if !step.Skipped {
			did = append(did, step.Action)
		}
		if !step.Skipped && step.Ending != "done" {
			t.Errorf("step %s ended %q: %s", step.Action, step.Ending, step.Note)
		}
	}
	if want := []string{"cordon", "stop", "start", "drain", "reset", "verify", "release"}; !slices.Equal(did, want) || in.Phase != "resolved" {
		t.Errorf("done were %v, and the incident is %s; want %v, resolved", did, in.Phase, want)
	}
	for _, p := range f.AwaitRunning(t, f.Train, scene.JobName, scene.Soon) {
		if p.Spec.NodeName == ill {
			t.Errorf("pod %s of the gang runs on %s again", p.Name, ill)
		}
	}
	if now := f.AwaitRunning(t, f.Train, "neighbour", scene.Soon)[0]; now.UID != neighbour.UID {
		t.Errorf("the job on the other GPUs was moved: pod %s is now %s", neighbour.Name, now.Name)
	}
	if at := f.Lodger(t); at != ill {
		t.Errorf("what holds no GPU was moved to %s", at)
	}
	if now := f.BootID(t, ill); now != boot {
		t.Errorf("the node was booted: %s, was %s", now, boot)
	}
	f.CheckUnmarked(t, ill)
	f.CheckEffects(t, map[scene.Effect]int{scene.Cordons: 1, scene.Stops: 1, scene.Starts: 1, scene.Reboots: 1, scene.Releases: 1})
	repairs := f.Repairs()
	if len(repairs) != 1 || repairs[0].Action != cluster.ActionReset || repairs[0].Node != ill || !strings.Contains(s.Explain(t, "node/"+ill), "reset") {
		t.Errorf("repairs %+v, want one reset on %s", repairs, ill)
	}
}
