package sim

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// util is the mean utilisation in % of the GPUs that the telemetry knows.
func util(t *testing.T, in fleet.Samples) float64 {
	t.Helper()
	sum, n := 0.0, 0
	for _, v := range in.Values {
		if v.Field == "DCGM_FI_DEV_GPU_UTIL" {
			sum += v.Value
			n++
		}
	}
	if n == 0 {
		t.Fatal("no GPU has told of its utilisation")
	}
	return sum / float64(n)
}

func (r *run) mustSample(tm *Telemetry) fleet.Samples {
	r.t.Helper()
	in, err := r.samples(tm)
	if err != nil {
		r.t.Fatal(err)
	}
	return in
}

// hold cordons a node as Stoker does.
func (r *run) hold(name string) {
	r.t.Helper()
	n := r.node(name)
	if _, err := r.cluster.MarkNode(r.t.Context(), n, fleet.Hold{Cordoned: true}.With("i", r.Now()), true); err != nil {
		r.t.Fatal(err)
	}
}

func (r *run) repair(node, action string) {
	r.t.Helper()
	n := r.node(node)
	if _, err := r.cluster.CreateRepair(r.t.Context(), actuator.Repair{Name: action + "-" + n.BootID, Action: action, Node: node, BootID: n.BootID}); err != nil {
		r.t.Fatal(err)
	}
}

// TestALostGPU is the thread of the demonstration by hand: a gang of four nodes loses a
// GPU, is stopped and started elsewhere; the node is booted and released.
func TestALostGPU(t *testing.T) {
	r := start(t, one(4, 8, Fault{At: trainsAt + 250*time.Second, Kind: GPULost, Node: "gpu-a-03", GPU: 5}))
	ill, other := r.telemetry("gpu-a-03"), r.telemetry("gpu-a-01")
	r.to(trainsAt + 200*time.Second)
	if in := r.mustSample(ill); util(t, in) < 80 || len(in.Events) != 0 || in.GPUs[5].Up != fleet.True {
		t.Errorf("before: used to %v %%, events %v, GPU 5 up: %v", util(t, in), in.Events, in.GPUs[5].Up)
	}
	r.to(trainsAt + 260*time.Second)
	in := r.mustSample(ill)
	if len(in.GPUs) != 8 || in.GPUs[5].Up != fleet.False || in.GPUs[5].UUID == "" || in.GPUs[4].Up != fleet.True {
		t.Errorf("the GPUs of the ill node are %+v", in.GPUs)
	}
	for _, v := range in.Values {
		if v.GPU == 5 {
			t.Fatalf("a lost GPU tells %s = %v", v.Field, v.Value)
		}
	}
	want := fleet.XIDEvent{GPU: 5, XID: 79, At: r.cfg.Start.Add(trainsAt + 250*time.Second), Source: "sim"}
	if len(in.Events) != 1 || in.Events[0] != want {
		t.Errorf("events %+v, want %+v", in.Events, want)
	}
	if again := r.mustSample(ill); len(again.Events) != 0 {
		t.Errorf("the event is told twice: %+v", again.Events)
	}
	if got := util(t, r.mustSample(other)); got != 0 {
		t.Errorf("the other nodes of the gang are used to %v %%, want 0: the job hangs", got)
	}
	if n := r.node("gpu-a-03"); n.Allocatable.GPUs != 7 || n.Capacity.GPUs != 8 || n.Ready.Status != fleet.True {
		t.Errorf("allocatable %d of %d, ready %s; want 7 of 8 and true", n.Allocatable.GPUs, n.Capacity.GPUs, n.Ready.Status)
	}
	if j := r.job("t/llm"); j.Phase != fleet.JobRunning {
		t.Errorf("the job is %s; a job that hangs still runs for all that the cluster knows", j.Phase)
	}
	if _, err := r.cluster.AskCheckpoint(t.Context(), r.job("t/llm"), "k"); err != nil {
		t.Fatal(err)
	}
	r.by(5 * time.Minute)
	if j := r.job("t/llm"); j.CheckpointAnswered != "" || j.Checkpoint.Step != 200 {
		t.Errorf("a job that hangs answered %q and has saved %d", j.CheckpointAnswered, j.Checkpoint.Step)
	}

	r.hold("gpu-a-03")
	boot := r.node("gpu-a-03").BootID
	r.stopStart(actuator.Restart{Resume: r.job("t/llm").Checkpoint.URI, Avoid: []string{"gpu-a-03"}})
	r.repair("gpu-a-03", "reboot")
	r.until("the node goes down", time.Minute, func() bool { return r.node("gpu-a-03").Ready.Status == fleet.False })
	if _, err := r.samples(ill); err == nil {
		t.Error("a node that is down tells something")
	}
	if r.Reach("gpu-a-03") == nil || r.Reach("gpu-a-01") != nil {
		t.Error("reach: want an error for the node that is down alone")
	}
	went := r.Elapsed()
	r.until("the node is back", 10*time.Minute, func() bool { return r.node("gpu-a-03").Ready.Status == fleet.True })
	if took := r.Elapsed() - went; took < 3*time.Minute || took > 5*time.Minute {
		t.Errorf("the boot took %v, want about 4m", took)
	}
	n := r.node("gpu-a-03")
	if n.BootID == boot || n.Allocatable.GPUs != 0 || r.Now().Sub(n.Ready.Since) >= time.Second {
		t.Errorf("right after the boot: boot id new: %t, %d allocatable, ready since %v", n.BootID != boot, n.Allocatable.GPUs, n.Ready.Since)
	}
	r.by(30 * time.Second)
	in = r.mustSample(ill)
	if n = r.node("gpu-a-03"); n.Allocatable.GPUs != 8 || in.GPUs[5].Up != fleet.True || in.BootID != n.BootID || len(in.Events) != 0 {
		t.Errorf("after the boot: %d allocatable, GPU 5 up %s, events %v", n.Allocatable.GPUs, in.GPUs[5].Up, in.Events)
	}
	if _, err := r.cluster.MarkNode(t.Context(), n, fleet.Hold{}, false); err != nil {
		t.Fatal(err)
	}
	r.until("the job is done", 2*time.Hour, func() bool { return r.job("t/llm").Phase == fleet.JobSucceeded })
	rep := r.Report()
	if rep.Cordons != 1 || rep.WrongCordons != 0 || rep.WrongStops != 0 || rep.WrongRepairs != 0 || rep.WrongReleases != 0 || rep.MissedFaults != 0 || rep.RanTwice != 0 {
		t.Errorf("report %+v, want one right cordon and no mistake", rep)
	}
	if got, want := rep.LostGPUHours["lost work"], 32*50./3600; !near(got, want) {
		t.Errorf("%v GPU-hours of work were lost, want %v: 50 iterations", got, want)
	}
	f := rep.Faults[0]
	if f.Where != "gpu-a-03/gpu-5" || f.NoticedAfterSeconds != 310 || f.EndedAfterSeconds < 500 || f.Missed {
		t.Errorf("the fault is reported as %+v", f)
	}
	if least := rep.LostGPUHours["fault"] + rep.LostGPUHours["lost work"]; f.GPUHours < least || f.GPUHours > rep.GPUHours-rep.UsefulGPUHours {
		t.Errorf("the fault has cost %v GPU-hours, want at least %v", f.GPUHours, least)
	}
	if err := r.check(); err != nil {
		t.Error(err)
	}
}

func TestAHungJobEndsByItsWatchdogWhenNobodyHelps(t *testing.T) {
	cfg := one(4, 8, Fault{At: 10 * time.Minute, Kind: GPULost, Job: "t/llm"})
	r := start(t, cfg)
	r.to(40*time.Minute - time.Second)
	if r.jobs[0].state != hung {
		t.Fatalf("the job is in state %d, want hung", r.jobs[0].state)
	}
	r.by(10 * time.Minute)
	if r.jobs[0].state != training || r.job("t/llm").Attempt != 0 {
		t.Errorf("the job is in state %d after %d starts by Stoker", r.jobs[0].state, r.job("t/llm").Attempt)
	}
	rep := r.Report()
	if rep.MissedFaults != 1 || !rep.Faults[0].Missed || rep.Faults[0].EndedAfterSeconds != -1 {
		t.Errorf("missed %d, %+v; want the one fault missed", rep.MissedFaults, rep.Faults)
	}
	for _, p := range r.pods("t/llm") {
		if strings.HasPrefix(rep.Faults[0].Where, p.Node) {
			t.Errorf("a pod of 8 GPUs is on %s, which has 7", p.Node)
		}
	}
}

// TestACrashLogsAStormAndNothingIsBroken is the noise of case F1.
func TestACrashLogsAStormAndNothingIsBroken(t *testing.T) {
	r := start(t, one(3, 8, Fault{At: 10 * time.Minute, Kind: JobCrash, Job: "t/llm"}))
	sources := map[string]*Telemetry{}
	for _, n := range r.NodeNames() {
		sources[n] = r.telemetry(n)
	}
	perGPU := map[string]int{}
	total := 0
	for r.Elapsed() < 15*time.Minute {
		r.by(10 * time.Second)
		for _, name := range r.NodeNames() {
			in := r.mustSample(sources[name])
			for _, e := range in.Events {
				if e.XID != 45 || e.At.After(r.Now()) || r.Now().Sub(e.At) > 10*time.Second {
					t.Errorf("event %+v at %v", e, r.Now())
				}
				perGPU[fmt.Sprint(name, e.GPU)]++
				total++
			}
			for _, g := range in.GPUs {
				if g.Up != fleet.True {
					t.Errorf("GPU %d of %s is %s", g.Index, name, g.Up)
				}
			}
		}
	}
	if len(perGPU) != 24 || total < 400 {
		t.Errorf("%d events on %d GPUs, want some hundred on the 24 of the job", total, len(perGPU))
	}
	if j := r.job("t/llm"); j.Phase != fleet.JobRunning || j.Attempt != 0 || j.Suspended {
		t.Errorf("the job is %s, attempt %d: its own controller should have started it anew", j.Phase, j.Attempt)
	}
	r.hold("gpu-a-01")
	rep := r.Report()
	if rep.MissedFaults != 0 || rep.WrongCordons != 1 || len(rep.Mistakes) != 1 {
		t.Errorf("missed %d, wrong cordons %d, mistakes %q; want a cordon after a storm to be wrong", rep.MissedFaults, rep.WrongCordons, rep.Mistakes)
	}
}

func TestAProgramThatCrashesAgainAndAgainFailsForGood(t *testing.T) {
	var faults []Fault
	for i := range 4 {
		faults = append(faults, Fault{At: time.Duration(10+10*i) * time.Minute, Kind: JobCrash, Job: "t/llm"})
	}
	cfg := one(1, 8, faults...)
	cfg.Jobs[0].Retries = 3
	r := start(t, cfg)
	r.to(39 * time.Minute)
	if j := r.job("t/llm"); j.Phase != fleet.JobRunning {
		t.Errorf("after three crashes the job is %s, want running", j.Phase)
	}
	r.to(42 * time.Minute)
	if j := r.job("t/llm"); j.Phase != fleet.JobFailed || len(r.pods("t/llm")) != 0 {
		t.Errorf("after four crashes the job is %s with %d pods, want failed with none", j.Phase, len(r.pods("t/llm")))
	}
	if err := r.check(); err != nil {
		t.Error(err)
	}
}

// TestLostTelemetryHarmsNothing is the noise of case F13.
func TestLostTelemetryHarmsNothing(t *testing.T) {
	r := start(t, one(2, 8, Fault{At: 10 * time.Minute, Kind: TelemetryLost, Node: "gpu-a-01", For: 10 * time.Minute}))
	tm := r.telemetry("gpu-a-01")
	r.to(10*time.Minute + time.Second)
	if _, err := r.samples(tm); err == nil {
		t.Error("the source tells something")
	}
	if err := r.Reach("gpu-a-01"); err != nil {
		t.Errorf("the node cannot be reached: %v; only its host engine is silent", err)
	}
	step := r.iteration(r.jobs[0])
	r.to(20 * time.Minute)
	if in := r.mustSample(tm); util(t, in) < 20 {
		t.Errorf("back, and used to %v %%", util(t, in))
	}
	if got := r.iteration(r.jobs[0]) - step; got != 599 {
		t.Errorf("the job has made %d iterations in the meantime, want 599", got)
	}
	r.hold("gpu-a-01")
	if rep := r.Report(); rep.WrongCordons != 1 || rep.MissedFaults != 0 || rep.Noise != 1 || r.record.Cases()[0].AllLost() != 0 {
		t.Errorf("report %+v: want a cordon for lost telemetry to be wrong, and no loss", rep)
	}
}

// TestABootThatHangsNeedsItsPowerCut is the fault of case A4.
func TestABootThatHangsNeedsItsPowerCut(t *testing.T) {
	r := start(t, one(2, 8, Fault{Kind: BootHangs, Node: "gpu-a-01"}, Fault{At: 10 * time.Minute, Kind: GPULost, Node: "gpu-a-01", GPU: 1}))
	r.to(11 * time.Minute)
	r.hold("gpu-a-01")
	r.repair("gpu-a-01", "reboot")
	boot := r.node("gpu-a-01").BootID
	r.by(time.Hour)
	if n := r.node("gpu-a-01"); n.Ready.Status != fleet.False || n.BootID != boot {
		t.Errorf("an hour after its reboot the node is ready: %s, boot id new: %t", n.Ready.Status, n.BootID != boot)
	}
	var left []string
	for _, p := range r.pods("t/llm") {
		if p.Node == "gpu-a-01" {
			left = append(left, p.Name)
		}
	}
	if len(left) != 1 {
		t.Errorf("pods %v of the job are on the dead node, want the one that nobody can tell the end of", left)
	}
	r.repair("gpu-a-01", "power-cycle")
	r.until("it is back", 10*time.Minute, func() bool { return r.node("gpu-a-01").Ready.Status == fleet.True })
	r.until("the job trains", 10*time.Minute, func() bool { return r.jobs[0].state == training })
	rep := r.Report()
	if rep.WrongRepairs != 0 || rep.MissedFaults != 0 || rep.Faults[0].EndedAfterSeconds < 3590 || rep.Faults[1].EndedAfterSeconds < 3600 {
		t.Errorf("wrong repairs %d, faults %+v", rep.WrongRepairs, rep.Faults)
	}
	if err := r.check(); err != nil {
		t.Error(err)
	}
}

func TestWhatTheDriverKnewEndsWithItsBoot(t *testing.T) {
	r := start(t, one(1, 8, Fault{At: 10 * time.Minute, Kind: GPULost, Node: "gpu-a-01", GPU: 1}))
	tm := r.telemetry("gpu-a-01")
	r.to(10 * time.Minute) // and nobody has read of it
	r.repair("gpu-a-01", "reboot")
	r.by(10 * time.Minute)
	if in := r.mustSample(tm); len(in.Events) != 0 {
		t.Errorf("in its new boot the node tells of %+v", in.Events)
	}
}

func TestALateReaderMissesTheOldestOfAStorm(t *testing.T) {
	var l xidLog
	_, next := l.from(0)
	for i := range 3 * maxXIDs {
		l.add(fleet.XIDEvent{XID: i})
	}
	got, end := l.from(next)
	if len(got) > maxXIDs || len(got) < maxXIDs/2 || got[len(got)-1].XID != 3*maxXIDs-1 || end != 3*maxXIDs {
		t.Errorf("%d events up to %d, next is %d; want the newest %d at most", len(got), got[len(got)-1].XID, end, maxXIDs)
	}
	if again, _ := l.from(end); len(again) != 0 {
		t.Errorf("%d events are told twice", len(again))
	}
}

func TestAnIncurableGPUStaysLost(t *testing.T) {
	r := start(t, one(1, 8, Fault{At: 10 * time.Minute, Kind: GPULost, Node: "gpu-a-01", GPU: 1, Incurable: true}))
	r.to(11 * time.Minute)
	r.repair("gpu-a-01", "reboot")
	r.by(10 * time.Minute)
	if n := r.node("gpu-a-01"); n.Allocatable.GPUs != 7 || n.Ready.Status != fleet.True {
		t.Errorf("after the boot %d GPUs are allocatable, ready %s; want 7, true", n.Allocatable.GPUs, n.Ready.Status)
	}
	if rep := r.Report(); rep.Faults[0].EndedAfterSeconds != -1 {
		t.Errorf("the fault is over: %+v", rep.Faults[0])
	}
}

func TestARebootUnderAJobCostsIt(t *testing.T) {
	r := start(t, one(2, 8))
	r.to(trainsAt + 250*time.Second)
	r.repair("gpu-a-01", "reboot")
	r.until("the job is whole again", 15*time.Minute, func() bool { return r.jobs[0].gang == 2 && r.jobs[0].state == training })
	rep := r.Report()
	if rep.WrongRepairs != 1 || rep.LostGPUHours["repair"] == 0 || len(rep.Mistakes) != 1 {
		t.Errorf("wrong repairs %d, lost to repair %v, mistakes %q", rep.WrongRepairs, rep.LostGPUHours["repair"], rep.Mistakes)
	}
	if got := r.job("t/llm").Phase; got != fleet.JobRunning {
		t.Errorf("the job is %s", got)
	}
}

func TestARepairOfAnotherBootDoesNothing(t *testing.T) {
	r := start(t, one(1, 1))
	ctx := t.Context()
	if _, err := r.cluster.CreateRepair(ctx, actuator.Repair{Name: "a", Action: "reboot", Node: "gpu-b-01", BootID: "an older one"}); err != nil {
		t.Fatal(err)
	}
	r.by(time.Minute)
	rep, err := r.cluster.Repair(ctx, "a")
	if err != nil || rep.Failed || rep.Note == "" {
		t.Errorf("the repair says %+v, %v", rep, err)
	}
	if n := r.node("gpu-b-01"); n.Ready.Status != fleet.True {
		t.Errorf("the node is ready: %s", n.Ready.Status)
	}
	if _, err := r.cluster.CreateRepair(ctx, actuator.Repair{Name: "b", Action: "reboot", Node: "nowhere"}); ending(err) != remedy.Rejected {
		t.Errorf("a repair of no node: %v, want rejected", err)
	}
}

func TestTwoGangsOfOneJobAreSeen(t *testing.T) {
	cfg := one(1, 8)
	cfg.Grace = Span{5 * time.Minute, 5 * time.Minute} // a pod that does not want to go
	r := start(t, cfg)
	r.to(10 * time.Minute)
	ctx := t.Context()
	if _, err := r.cluster.StopJob(ctx, r.job("t/llm"), "stop"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.cluster.StartJob(ctx, r.job("t/llm"), "start", actuator.Restart{}); err != nil {
		t.Fatal(err)
	}
	r.by(2 * time.Minute)
	if rep := r.Report(); rep.RanTwice != 1 {
		t.Errorf("ran twice %d times, want 1", rep.RanTwice)
	}
	if err := r.check(); err != nil {
		t.Error(err)
	}
}

func TestAnEvictedWorkerTakesItsGangAlong(t *testing.T) {
	cfg := one(4, 8)
	cfg.Jobs[0].MinAvailable = 3
	r := start(t, cfg)
	r.to(10 * time.Minute)
	pods := r.pods("t/llm")
	if err := r.cluster.Evict(t.Context(), pods[0].PodRef); err != nil {
		t.Fatal(err)
	}
	if err := r.cluster.Evict(t.Context(), pods[0].PodRef); err != nil {
		t.Errorf("a pod that goes already: %v", err)
	}
	if err := r.cluster.Evict(t.Context(), pods[1].PodRef); ending(err) != remedy.Conflict || !strings.Contains(err.Error(), "t/llm") {
		t.Errorf("a second pod: %v, want a conflict that names the budget", err)
	}
	r.by(10 * time.Second)
	if err := r.cluster.Evict(t.Context(), pods[0].PodRef); ending(err) != remedy.Gone {
		t.Errorf("a pod that is gone: %v, want gone", err)
	}
	r.until("the gang is whole again", 10*time.Minute, func() bool { return r.jobs[0].gang == 2 && r.jobs[0].state == training })
	if got := len(r.pods("t/llm")); got != 4 {
		t.Errorf("%d pods, want 4", got)
	}
}

func TestPeople(t *testing.T) {
	r := start(t, one(2, 8))
	r.to(10 * time.Minute)
	p, ref := r.People(), r.job("t/llm").Ref
	r.hold("gpu-b-01")
	for _, err := range []error{p.Uncordon("gpu-b-01"), p.OptOutNode("gpu-b-01", "mine"), p.OptOutJob(ref, "mine too"), p.Suspend(ref)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := r.node("gpu-b-01"); n.Unschedulable || !n.Hold.Has("i") || n.OptOut != "mine" {
		t.Errorf("the node is unschedulable %t, held %v, opted out %q", n.Unschedulable, n.Hold, n.OptOut)
	}
	if err := p.Unhold("gpu-b-01"); err != nil || r.node("gpu-b-01").Hold.Any() {
		t.Errorf("unhold: %v, %v", err, r.node("gpu-b-01").Hold)
	}
	r.by(time.Minute)
	if j := r.job("t/llm"); j.Phase != fleet.JobSuspended || j.StoppedBy != "" || j.OptOut != "mine too" {
		t.Errorf("the job is %s, stopped by %q, opted out %q", j.Phase, j.StoppedBy, j.OptOut)
	}
	if err := p.Unsuspend(ref); err != nil {
		t.Fatal(err)
	}
	r.until("it trains", 5*time.Minute, func() bool { return r.jobs[0].state == training })
	if err := r.check(); err != nil {
		t.Error(err)
	}
	if err := p.DeleteJob(ref); err != nil {
		t.Fatal(err)
	}
	if _, err := r.cluster.Job(t.Context(), ref); ending(err) != remedy.Gone {
		t.Errorf("a deleted job: %v, want gone", err)
	}
	if got := len(r.pods("t/llm")); got != 2 {
		t.Errorf("%d pods right after, want 2 that are stopping", got)
	}
	r.by(10 * time.Second)
	if got := len(r.pods("t/llm")); got != 0 {
		t.Errorf("%d pods are left", got)
	}
	for what, err := range map[string]error{"node": p.Cordon("x"), "job": p.Suspend(ref), "deleted job": p.DeleteJob(ref), "pod": p.Protect("x", true)} {
		if err == nil {
			t.Errorf("no %s, and no error", what)
		}
	}
	if err := r.check(); err != nil {
		t.Error(err)
	}
}
