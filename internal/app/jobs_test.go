package app

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/actuator/contract"
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/loop"
	"stoker.dev/stoker/internal/observe"
	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/internal/store"
)

// A ward is the shipped configuration, in auto mode, on a small cluster in memory.
type ward struct {
	*testing.T

	cluster *contract.Memory
	loop    *loop.Loop
	kept    *counted
	logged  *strings.Builder // what is told at level info
	said    []string         // on the objects themselves
	llm     fleet.JobRef
	fail    []fleet.Failure // of the job
	answers bool            // whether the training code answers requests to save
}

func newWard(t *testing.T) *ward {
	t.Helper()
	cfg, lcfg, err := ReadConfig("")
	if err != nil {
		t.Fatal(err)
	}
	w := &ward{T: t, cluster: contract.NewMemory(12), kept: &counted{}, logged: &strings.Builder{}}
	log := slog.New(slog.NewTextHandler(io.MultiWriter(t.Output(), w.logged), nil))
	reg := prometheus.NewRegistry()
	act, err := actuator.New(log, w.cluster, actuator.Actions, actuator.Gates(actuator.ModeAuto, cfg.Gates), reg)
	if err != nil {
		t.Fatal(err)
	}
	world := observe.NewWorld(log, observe.Source{Name: "memory", Filler: w, Needed: true})
	w.loop = loop.New(log, reg, w.kept, world, []loop.Witness{newFailures(world, time.Hour, logsNone, nil)}, newDoor(act, w), lcfg, loop.Options{Parallel: 1})
	w.llm = w.cluster.RunJob(t, "llm", 2, 8)
	w.cluster.Save(t, w.llm, "", fleet.Checkpoint{Step: 700, URI: "s3://b/700", At: w.cluster.Now()})
	return w
}

// A counted is a store that counts what is written to it.
type counted struct {
	store.Memory

	writes int
}

func (c *counted) Update(ctx context.Context, in remedy.Incident) (remedy.Incident, error) {
	c.writes++
	return c.Memory.Update(ctx, in)
}

func (w *ward) Started(o remedy.Order, _ []remedy.GateResult) {
	w.said = append(w.said, o.Action+" started")
}

func (w *ward) Ended(o remedy.Order, out remedy.Outcome) {
	w.said = append(w.said, o.Action+" ended "+string(out.Ending))
}

func (w *ward) Fill(_ context.Context, _ time.Time, into *fleet.Facts) error {
	f := w.cluster.Snapshot()
	into.Nodes, into.Pods, into.Jobs = f.Nodes, f.Pods, f.Jobs
	into.Failures[w.llm] = w.fail
	into.Sources["memory"] = f.At
	return nil
}

// run lets time pass until ok, for three hours at most.
func (w *ward) run(what string, ok func() bool) {
	w.Helper()
	for range 3 * 3600 {
		if ok() {
			return
		}
		w.tick()
	}
	var state []string
	for _, in := range w.loop.Incidents() {
		state = append(state, in.Name+" "+string(in.Phase)+" "+in.StepName()+": "+in.Reason)
	}
	w.Fatalf("%s: not within three hours; incidents:\n%s", what, strings.Join(state, "\n"))
}

func (w *ward) tick() {
	w.Helper()
	if err := w.loop.Tick(w.Context(), w.cluster.Now().Add(time.Second)); err != nil {
		w.Fatal(err)
	}
	if j := w.job(); w.answers && j.CheckpointAsked != j.CheckpointAnswered {
		w.cluster.Save(w.T, w.llm, j.CheckpointAsked, fleet.Checkpoint{Step: 900, URI: "s3://b/900", At: w.cluster.Now()})
	}
}

func (w *ward) job() fleet.Job {
	w.Helper()
	j, err := w.cluster.Job(w.Context(), w.llm)
	if err != nil {
		w.Fatal(err)
	}
	return j
}

// newest is the newest incident, if there are so many.
func (w *ward) newest(n int) (remedy.Incident, bool) {
	list := w.loop.Incidents()
	if len(list) < n {
		return remedy.Incident{}, false
	}
	return list[n-1], true
}

// phase waits until the n-th incident is in the phase, and returns it.
func (w *ward) phase(n int, want remedy.Phase) remedy.Incident {
	w.Helper()
	var in remedy.Incident
	w.run("an incident is "+string(want), func() bool {
		var there bool
		in, there = w.newest(n)
		return there && in.Phase == want
	})
	return in
}

func (w *ward) told(e remedy.Evidence) {
	w.Helper()
	if err := w.loop.Ingest(w.Context(), w.cluster.Now(), []remedy.Evidence{e}); err != nil {
		w.Fatal(err)
	}
}

func stepsOf(in remedy.Incident) string {
	var out []string
	for _, s := range in.Steps {
		line := s.Action + " " + string(s.Ending)
		if s.Skipped {
			line = s.Action + " skipped"
		}
		out = append(out, line)
	}
	return strings.Join(out, ", ")
}

// lose makes a worker of the job end badly now.
func (w *ward) lose(f fleet.Failure) {
	f.Pod = fleet.PodRef{Namespace: "train", Name: "llm-0", UID: "gone", Node: w.cluster.Nodes()[0]}
	f.At = w.cluster.Now()
	w.fail = append(w.fail, f)
}

func TestAJobOutOfMemoryGoesOnByItsOwnRecipeOnce(t *testing.T) {
	w := newWard(t)
	w.cluster.Recipe(t, w.llm, "oom", "BATCH_SIZE=8")
	w.lose(fleet.Failure{Reason: "OOMKilled", ExitCode: 137})
	in := w.phase(1, remedy.PhaseResolved)
	if got, want := stepsOf(in), "stop done, recipe done, start done, watch done"; got != want {
		t.Errorf("steps %s, want %s", got, want)
	}
	j := w.job()
	if d := cmp.Diff(j.Env, map[string]string{"BATCH_SIZE": "8"}); d != "" || j.Attempt != 1 || j.Resume != "s3://b/700" || j.Suspended {
		t.Errorf("attempt %d from %q, suspended %v, environment (-got +want):\n%s", j.Attempt, j.Resume, j.Suspended, d)
	}
	if !strings.Contains(in.Evidence[0].Summary, "out of memory") || !strings.Contains(in.Evidence[0].Summary, "OOMKilled") {
		t.Errorf("summary %q does not say why, and where it was read", in.Evidence[0].Summary)
	}

	w.lose(fleet.Failure{Reason: "OOMKilled", ExitCode: 137})
	in = w.phase(2, remedy.PhaseHeld)
	if len(in.Steps) > 0 || w.job().Suspended || w.job().Attempt != 1 || !strings.Contains(in.Reason, "was restarted once within 24h") {
		t.Errorf("the second time: steps %s, attempt %d: %s; want it held untouched", stepsOf(in), w.job().Attempt, in.Reason)
	}
}

func TestWhatFollowsAFailedJob(t *testing.T) {
	for name, tc := range map[string]struct {
		fail    fleet.Failure
		prepare func(*ward)
		during  func(*ward)
		phase   remedy.Phase
		steps   string
		reason  string
	}{
		"out of memory without a recipe it is told": {fleet.Failure{Reason: "OOMKilled", ExitCode: 137}, nil, nil, remedy.PhaseResolved, "", "told; no playbook has steps for it"},
		"by its own error it is told (J5)":          {fleet.Failure{ExitCode: 1, Message: "KeyError: 'lr'"}, nil, nil, remedy.PhaseResolved, "", "told"},
		"evicted it is told":                        {fleet.Failure{Disruption: "EvictionByEvictionAPI"}, nil, nil, remedy.PhaseResolved, "", "told"},
		"for good, it cannot be restarted": {fleet.Failure{ExitCode: 1, Message: "ncclRemoteError"}, func(w *ward) {
			w.cluster.ChangeJob(w.llm, func(j *fleet.Job) { j.Phase = fleet.JobFailed })
		}, nil, remedy.PhaseResolved, "", "create it anew to go on from step 700 (s3://b/700)"},
		"by its network, on whole nodes, it is restarted": {fleet.Failure{ExitCode: 1, Message: "ncclRemoteError"}, nil, nil, remedy.PhaseResolved, "inspect done, stop done, start done, watch done", "healed"},
		"by its network, with an ill node, that is waited for": {fleet.Failure{ExitCode: 1, Message: "ncclRemoteError"}, func(w *ward) {
			w.cluster.Change(w.cluster.Nodes()[0], func(n *fleet.Node) { n.Allocatable.GPUs = 7 })
		}, nil, remedy.PhaseHeld, "inspect late", "gpu-a-01 (7 of 8 GPUs allocatable)"},
		"by its storage, it waits for the claim": {fleet.Failure{ExitCode: 1, Message: "OSError: [Errno 116] Stale file handle"}, func(w *ward) {
			w.cluster.Claim(w.llm, "ckpt", "is Lost")
		}, func(w *ward) {
			if j := w.job(); j.Attempt > 0 {
				w.Fatal("started with its claim lost")
			}
			w.cluster.Claim(w.llm, "ckpt", "")
		}, remedy.PhaseResolved, "stop done, claims done, start done, watch done", "healed"},
		"by its storage, and never gets it": {fleet.Failure{ExitCode: 1, Message: "Read-only file system"}, func(w *ward) {
			w.cluster.Claim(w.llm, "ckpt", "is Pending")
		}, nil, remedy.PhaseHeld, "stop done, claims late, start done", "ckpt is Pending"},
		"with a recipe that is not allowed, it runs without": {fleet.Failure{ExitCode: 1, Message: "CUDA out of memory"}, func(w *ward) {
			w.cluster.Recipe(w.T, w.llm, "oom", "LD_PRELOAD=/tmp/x.so")
		}, nil, remedy.PhaseHeld, "stop done, recipe rejected, start done", "LD_PRELOAD is not among the names that the playbook allows"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWard(t)
			if tc.prepare != nil {
				tc.prepare(w)
			}
			w.lose(tc.fail)
			if tc.during != nil {
				for range 300 {
					w.tick()
				}
				tc.during(w)
			}
			in := w.phase(1, tc.phase)
			if tc.phase == remedy.PhaseHeld { // what was stopped is started again
				w.run("the job runs", func() bool { return w.job().Phase == fleet.JobRunning })
				for range 3 {
					w.tick()
				}
				in, _ = w.newest(1)
			}
			if got := stepsOf(in); got != tc.steps || !strings.Contains(in.Reason+stepNotes(in), tc.reason) {
				t.Errorf("steps %q: %s; want %q with %q", got, in.Reason, tc.steps, tc.reason)
			}
		})
	}
}

func stepNotes(in remedy.Incident) string {
	var out []string
	for _, s := range in.Steps {
		out = append(out, s.Note)
	}
	return strings.Join(out, "\n")
}

// TestCase_J1_AJobIsAskedToSaveBeforeItsPodsGo: the answer names the step, and without
// one what is lost is written down.
func TestCase_J1_AJobIsAskedToSaveBeforeItsPodsGo(t *testing.T) {
	for name, answers := range map[string]bool{"with an answer nothing is lost": true, "without one what is lost is written down": false} {
		t.Run(name, func(t *testing.T) {
			w := newWard(t)
			w.answers = answers
			for range 600 {
				w.tick()
			}
			node := w.cluster.Nodes()[0]
			hot := remedy.Evidence{Subject: remedy.Subject{Kind: remedy.SubjectGPU, Node: node, Index: "3"}, Class: remedy.ClassGPUHot, At: w.cluster.Now(), Source: "rules", Labels: map[string]string{"alertname": "GPUHot"}}
			w.told(hot)
			w.run("the job runs elsewhere", func() bool { return w.job().Attempt == 1 && w.job().Phase == fleet.JobRunning })
			in, _ := w.newest(1)
			if want := map[bool]string{true: "cordon done, checkpoint done, stop done, start done", false: "cordon done, checkpoint late, stop done, start done"}[answers]; !strings.HasPrefix(stepsOf(in), strings.TrimSuffix(want, " done")) {
				t.Errorf("steps %s, want %s", stepsOf(in), want)
			}
			j, lost := w.job(), in.Lost()
			if from := map[bool]string{true: "s3://b/900", false: "s3://b/700"}[answers]; j.Resume != from || lost > 0.1 == answers || len(j.Avoid) != 1 || j.Avoid[0] != node {
				t.Errorf("resumes from %q avoiding %v with %.2f GPU-hours lost", j.Resume, j.Avoid, lost)
			}
			hot.Resolved = true
			w.told(hot)
			in = w.phase(1, remedy.PhaseResolved)
			if n, err := w.cluster.Node(t.Context(), node); err != nil || n.Unschedulable || n.Hold.Any() {
				t.Errorf("after %s the node is %+v, %v; want it given back", stepsOf(in), n, err)
			}
			if strings.Contains(stepsOf(in), "reboot") {
				t.Errorf("steps %s: a boot cools nothing", stepsOf(in))
			}
		})
	}
}

func TestAStalledJobIsRestartedAndOnceOnly(t *testing.T) {
	w := newWard(t)
	stalled := remedy.Evidence{
		Subject: remedy.Subject{Kind: remedy.SubjectJob, Namespace: "train", Name: "llm"}, Class: remedy.ClassJobStalled,
		At: w.cluster.Now(), Source: "alertmanager", Labels: map[string]string{"alertname": "TrainingStalled", "reason": "no-steps"},
	}
	w.told(stalled)
	w.run("the job was started", func() bool { return w.job().Attempt == 1 })
	over := stalled
	over.Resolved = true
	w.told(over)
	in := w.phase(1, remedy.PhaseResolved)
	if got, want := stepsOf(in), "stop done, start done, watch done"; got != want {
		t.Errorf("steps %s, want %s", got, want)
	}
	again := stalled
	again.At = w.cluster.Now()
	w.told(again)
	in = w.phase(2, remedy.PhaseHeld)
	if len(in.Steps) > 0 || w.job().Attempt != 1 || w.job().Suspended {
		t.Errorf("the second time: %s, attempt %d; want nothing done", stepsOf(in), w.job().Attempt)
	}
}

// TestOneFaultRestartsAJobOnce: a node's incident and one of the job that it has ended
// are two, and the job is restarted for the node's sake alone.
func TestOneFaultRestartsAJobOnce(t *testing.T) {
	w := newWard(t)
	node := w.cluster.Nodes()[0]
	w.lose(fleet.Failure{ExitCode: 1, Message: "Watchdog caught collective operation timeout"})
	for range 20 { // the pods of a gang are waited for, so that the XID may come later
		w.tick()
	}
	w.told(remedy.Evidence{Subject: remedy.Subject{Kind: remedy.SubjectGPU, Node: node, Index: "3"}, Class: remedy.ClassGPULost, At: w.cluster.Now().Add(-25 * time.Second), Source: "rules", Labels: map[string]string{"alertname": "GPUXidGpuLost", "xid": "79"}})
	w.cluster.Change(node, func(n *fleet.Node) { n.Allocatable.GPUs = 7 })
	w.run("the job was restarted", func() bool { return w.job().Attempt == 1 })
	for range 600 {
		w.tick()
	}
	if j := w.job(); j.Attempt != 1 || j.Phase != fleet.JobRunning {
		t.Errorf("attempt %d, phase %s; want one restart", j.Attempt, j.Phase)
	}
	for _, in := range w.loop.Incidents() {
		if in.Class == remedy.ClassJobFailed && in.Phase != remedy.PhaseResolved {
			t.Errorf("%s is %s: %s", in.Name, in.Phase, in.Reason)
		}
	}
}
