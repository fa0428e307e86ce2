package rules

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"stoker.dev/stoker/internal/config"
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

const resetLadder = `
playbooks:
  - name: gpu-ecc
    class: gpu-ecc
    steps:
      - cordon: {}
      - checkpoint: {of: gpu}
      - stop: {of: gpu}
      - start: {avoid: node}
      - drain: {of: gpu}
      - reset: {}
      - checkpoint: {unless: reset}
      - stop: {unless: reset}
      - start: {unless: reset, avoid: node}
      - drain: {unless: reset}
      - reboot: {unless: reset}
      - verify: {for: 5m}
      - release: {}
`

func xid95() remedy.Evidence {
	return changed(xid79(), func(e *remedy.Evidence) { e.Class, e.Labels["xid"] = remedy.ClassGPUECC, "95" })
}

// tell lets telemetry say that the pods hold these GPUs of the ill node, by index.
func tell(f *fleet.Snapshot, model string, holds map[string][]int) {
	n := f.Nodes[ill]
	n.GPUs = slices.Clone(n.GPUs)
	for i := range n.GPUs {
		n.GPUs[i].Model = model
	}
	for uid, gpus := range holds {
		for _, g := range gpus {
			n.GPUs[g].Pods = append(slices.Clone(n.GPUs[g].Pods), fleet.PodName{Namespace: f.Pods[uid].Namespace, Name: f.Pods[uid].Name})
		}
	}
	f.Nodes[ill] = n
}

// llm's pod-0 and eval's pod-2 are on the ill node, with four GPUs each; GPU 3 is ill.
func TestAStepAboutAGPUSparesWhatCertainlyHoldsOthers(t *testing.T) {
	const hopper = "NVIDIA H100 80GB HBM3"
	low, high := []int{0, 1, 2, 3}, []int{4, 5, 6, 7}
	for name, tc := range map[string]struct {
		model string
		holds map[string][]int
		stops []fleet.JobRef
		spare []string
	}{
		"the other job goes on":                     {hopper, map[string][]int{"pod-0": low, "pod-2": high}, []fleet.JobRef{llm}, []string{"pod-2"}},
		"whose pods are not known may hold it":      {hopper, map[string][]int{"pod-0": low}, []fleet.JobRef{eval, llm}, nil},
		"of whose GPUs one is not known, too":       {hopper, map[string][]int{"pod-0": low, "pod-2": {4, 5, 6}}, []fleet.JobRef{eval, llm}, nil},
		"two share it":                              {hopper, map[string][]int{"pod-0": low, "pod-2": {3, 5, 6, 7}}, []fleet.JobRef{eval, llm}, nil},
		"nobody holds it":                           {hopper, map[string][]int{"pod-0": {0, 1, 2, 4}, "pod-2": {0, 1, 2, 4}}, nil, []string{"pod-2", "pod-0"}},
		"nobody knows who holds what":               {hopper, nil, []fleet.JobRef{eval, llm}, nil},
		"GPUs that are reset with their neighbours": {"NVIDIA A100-SXM4-80GB", map[string][]int{"pod-0": low, "pod-2": high}, []fleet.JobRef{eval, llm}, nil},
		"a model that is not known":                 {"", map[string][]int{"pod-0": low, "pod-2": high}, []fleet.JobRef{eval, llm}, nil},
		"a name that only looks like it":            {"NVIDIA A100X", map[string][]int{"pod-0": low, "pod-2": high}, []fleet.JobRef{eval, llm}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f := cluster(t0)
			tell(&f, tc.model, tc.holds)
			in := remedy.Incident{Subject: gpu3, Class: remedy.ClassGPUECC}
			w := walk{now: t0, fleet: f, in: in}
			stop, _ := w.orders(remedy.Step{Action: "stop", Scope: remedy.ScopeJobs, Role: remedy.RoleStop, Of: remedy.OfGPU})
			var stops []fleet.JobRef
			for _, o := range stop {
				stops = append(stops, o.Target.Job)
			}
			if d := cmp.Diff(tc.stops, stops); d != "" {
				t.Errorf("jobs that are stopped differ (-want +got):\n%s", d)
			}
			reset, _ := w.orders(remedy.Step{Action: "reset", Scope: remedy.ScopeNode, Of: remedy.OfGPU})
			var spare []string
			for _, p := range reset[0].Spare {
				spare = append(spare, p.Name)
			}
			if d := cmp.Diff(tc.spare, spare); d != "" {
				t.Errorf("pods that are spared differ (-want +got):\n%s", d)
			}
			if reset[0].Target.GPU != uuid {
				t.Errorf("the reset is of GPU %q, want %s", reset[0].Target.GPU, uuid)
			}
			whole, _ := w.orders(remedy.Step{Action: "drain", Scope: remedy.ScopeNode})
			if len(whole[0].Spare) > 0 || whole[0].Target.GPU != "" {
				t.Errorf("a step about the node spares %v and is of GPU %q", whole[0].Spare, whole[0].Target.GPU)
			}
		})
	}
}

func TestWhatAResetHasDoneIsNotDoneAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		ending remedy.Ending
		want   []string // actions that are ordered after the reset
	}{
		"the GPU is back":   {remedy.Done, []string{"verify", "release"}},
		"it does not help":  {remedy.Rejected, []string{"checkpoint", "stop", "start", "drain", "reboot", "verify", "release"}},
		"it does not end":   {remedy.Late, []string{"checkpoint", "stop", "start", "drain", "reboot", "verify", "release"}},
		"nobody knows more": {remedy.Unclear, []string{"checkpoint", "stop", "start", "drain", "reboot", "verify", "release"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := &patient{t: t, now: t0, f: cluster(t0), cfg: compiled(t, resetLadder)}
			p.change(func(f *fleet.Snapshot) {
				tell(f, "NVIDIA H100 80GB HBM3", map[string][]int{"pod-0": {0, 1, 2, 3}, "pod-2": {4, 5, 6, 7}})
			})
			opened, _ := Correlate(p.now, p.f, nil, []remedy.Evidence{xid95()}, p.cfg)
			p.in = opened[0]
			p.advance()
			var done []string
			for range 20 {
				if len(p.orders) == 0 {
					break
				}
				o := p.orders[0]
				done = append(done, o.Action)
				p.reserve()
				ending := remedy.Done
				if o.Action == "reset" {
					ending = tc.ending
				}
				p.end(ending, "as the test has it")
				p.advance()
			}
			i := slices.Index(done, "reset")
			if i < 0 {
				t.Fatalf("done were %v, without a reset", done)
			}
			if d := cmp.Diff(tc.want, done[i+1:]); d != "" {
				t.Errorf("after the reset (-want +got):\n%s", d)
			}
		})
	}
}

func TestMistakesInWhatAStepIsAbout(t *testing.T) {
	for step, want := range map[string]string{
		"drain: {of: rack}":       `of: unknown extent "rack"; known: node, gpu`,
		"reset: {of: node}":       "of: reset is always of the gpu",
		"drain: {unless: reset}":  `unless: no step before it is "reset"`,
		"drain: {unless: cordn}":  `unless: no step before it is "cordn"`,
		"drain: {of: gpu, at: 1}": `unknown key "at"`,
	} {
		var c Config
		if err := config.Decode("f", fmt.Appendf(nil, "playbooks: [{name: x, class: gpu-ecc, steps: [cordon: {}, %s]}]", step), &c); err != nil {
			t.Fatal(err)
		}
		_, err := Compile("f", c, actions)
		if es, ok := errors.AsType[config.Errors](err); !ok || !strings.Contains(es.Error(), want) {
			t.Errorf("%s: error %v, want %q", step, err, want)
		}
	}
	var c Config
	if err := config.Decode("f", []byte("playbooks: [{name: x, class: node-unready, steps: [cordon: {}, drain: {of: gpu}]}]"), &c); err != nil {
		t.Fatal(err)
	}
	if _, err := Compile("f", c, actions); err == nil || !strings.Contains(err.Error(), "is of a GPU, and node-unready is not about one") {
		t.Errorf("a GPU of a class about nodes: error %v", err)
	}
}
