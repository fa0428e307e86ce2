package sim

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/internal/sim/truth"
)

func TestTheSameSeedTellsTheSame(t *testing.T) {
	tell := func(seed uint64, step time.Duration) string {
		r := start(t, Demo(seed))
		for r.Elapsed() < 3*time.Hour {
			r.by(step)
		}
		return r.log.String() + fmt.Sprintf("%+v", r.Report())
	}
	want := tell(1, time.Second)
	if got := tell(1, time.Second); got != want {
		t.Errorf("the second run (-first +second):\n%s", cmp.Diff(want, got))
	}
	if got := tell(1, time.Hour); got != want {
		t.Errorf("with other steps (-seconds +hours):\n%s", cmp.Diff(want, got))
	}
	if tell(2, time.Hour) == want {
		t.Error("another seed tells the same")
	}
}

func TestANewJobDoesNotChangeTheOthers(t *testing.T) {
	starts := func(cfg Config) string {
		r := start(t, cfg)
		r.to(10 * time.Minute)
		var lines []string
		for l := range strings.Lines(r.log.String()) {
			if strings.Contains(l, "nlp/llm-7b") {
				lines = append(lines, l)
			}
		}
		return strings.Join(lines, "")
	}
	cfg := Demo(5)
	more := cfg
	more.Jobs = append([]JobSpec{{Namespace: "a", Name: "new", Workers: 1, GPUs: 1, Iterations: 1000}}, cfg.Jobs...)
	if diff := cmp.Diff(starts(cfg), starts(more)); diff != "" {
		t.Errorf("without and with another job:\n%s", diff)
	}
}

func TestStepGoesForwardOnly(t *testing.T) {
	r := start(t, Config{})
	r.to(time.Minute)
	if err := r.Step(r.cfg.Start.Add(59 * time.Second)); err == nil {
		t.Error("a step back was taken")
	}
	if err := r.Step(r.cfg.Start.Add(time.Hour + 1)); err == nil {
		t.Error("a step to half a millisecond was taken")
	}
	if got, want := r.Now(), r.cfg.Start.Add(time.Minute); !got.Equal(want) {
		t.Errorf("it is %v, want %v", got, want)
	}
}

func TestNewNamesEveryMistake(t *testing.T) {
	_, err := New(Config{
		Nodes: -1, GPUsPerNode: 99, Boot: Span{Min: 2, Max: 1}, Watchdog: -1,
		Jobs: []JobSpec{
			{Namespace: "a", Name: "big", Workers: 1, GPUs: 200, Iterations: 1},
			{Namespace: "a", Name: "big", Workers: 1, GPUs: 1, Iterations: 0, At: time.Microsecond, MinAvailable: 2},
		},
		Faults: []Fault{
			{Kind: "moon-phase"},
			{Kind: GPULost},
			{Kind: GPULost, Job: "a/none"},
			{Kind: GPULost, Node: "none", GPU: 100},
			{Kind: TelemetryLost, Job: "a/big"},
			{Kind: JobCrash, Node: "gpu-a-01"},
			{Kind: BootHangs, Job: "a/big", Incurable: true},
		},
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		"nodes: -1", "GPUs of a node: 99", "boot:", "watchdog:", "job 1, a/big: 1 workers of 200 GPUs", "job 2, a/big: is there twice",
		"0 iterations", "at: 1µs", "budget of 2 of 1", "fault 1, moon-phase: no such kind", "fault 2, gpu-lost: says not where",
		"fault 3, gpu-lost: there is no job a/none", "fault 4, gpu-lost: there is no node none", "there is no GPU 100", "fault 5, telemetry-lost: for: 0s",
		"fault 6, job-crash: does not happen to nodes", "fault 7, boot-hangs: does not happen to jobs", "cannot be incurable or stubborn",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q:\n%v", want, err)
		}
	}
}

func TestWhatWasPlannedFirstHappensFirst(t *testing.T) {
	r := start(t, Config{})
	var got []int
	for i, at := range []int64{5, 3, 5, 3, 4, 5} {
		r.at(at, func() { got = append(got, i) })
	}
	r.to(time.Second)
	if want := []int{1, 3, 4, 0, 2, 5}; !cmp.Equal(got, want) {
		t.Errorf("in the order %v, want %v", got, want)
	}
}

// TestReadersDoNotDisturb lets others look while time goes on, for the race detector.
func TestReadersDoNotDisturb(t *testing.T) {
	r := start(t, Demo(3))
	var readers sync.WaitGroup
	done := make(chan struct{})
	for range 3 {
		readers.Go(func() {
			tm, err := r.Telemetry("gpu-a-01")
			if err != nil {
				t.Error(err)
				return
			}
			for {
				select {
				case <-done:
					return
				default:
				}
				into := fleet.Samples{At: r.Now()}
				if err := tm.Collect(t.Context(), &into); err != nil {
					t.Error(err)
				}
				if _, err := r.cluster.Snapshot(t.Context(), r.Now(), fleet.Snapshot{}); err != nil {
					t.Error(err)
				}
				r.Report()
			}
		})
	}
	r.to(time.Hour)
	close(done)
	readers.Wait()
	quiet := start(t, Demo(3))
	quiet.to(time.Hour)
	if diff := cmp.Diff(quiet.log.String(), r.log.String()); diff != "" {
		t.Errorf("without readers and with them:\n%s", diff)
	}
}

// one is a cluster with one job, whose times are known to the second.
func one(workers, gpus int, faults ...Fault) Config {
	exact := func(d time.Duration) Span { return Span{d, d} }
	return Config{
		Nodes:     8,
		Container: exact(30 * time.Second), Grace: exact(5 * time.Second), Answer: exact(3 * time.Second), Boot: exact(4 * time.Minute), Plugin: exact(15 * time.Second),
		Jobs: []JobSpec{{
			Namespace: "t", Name: "llm", Workers: workers, GPUs: gpus, Iterations: 3600, Iteration: time.Second,
			CheckpointEvery: 100, Write: 20 * time.Second, Load: 60 * time.Second,
		}},
		Faults: faults,
	}
}

// trainsAt is when the job of one begins to train: scheduler, container, load.
const trainsAt = 91 * time.Second

func TestAJobFromItsQueueToItsEnd(t *testing.T) {
	r := start(t, one(4, 8))
	for _, tc := range []struct {
		at    time.Duration
		phase fleet.JobPhase
		step  int64
		on    int // pods that have a place
	}{
		{0, fleet.JobPending, 0, 0},
		{time.Second, fleet.JobPending, 0, 4},
		{31 * time.Second, fleet.JobRunning, 0, 4},
		{trainsAt + 119*time.Second, fleet.JobRunning, 0, 4}, // the first checkpoint is half written
		{trainsAt + 120*time.Second, fleet.JobRunning, 100, 4},
		{trainsAt + 3599*time.Second, fleet.JobRunning, 3500, 4},
		{trainsAt + 3600*time.Second, fleet.JobSucceeded, 3500, 0},
	} {
		r.to(tc.at)
		j := r.job("t/llm")
		on := 0
		for _, p := range r.pods("t/llm") {
			if p.Node != "" {
				on++
			}
		}
		if j.Phase != tc.phase || j.Checkpoint.Step != tc.step || on != tc.on {
			t.Errorf("after %v: %s, checkpoint %d, %d pods placed; want %s, %d, %d", tc.at, j.Phase, j.Checkpoint.Step, on, tc.phase, tc.step, tc.on)
		}
		if err := r.check(); err != nil {
			t.Error(err)
		}
	}
	rep := r.Report()
	if rep.UsefulGPUHours != 32 || rep.LostGPUHours["start"] != 32*90./3600 {
		t.Errorf("useful %v and starting %v GPU-hours, want 32 and %v", rep.UsefulGPUHours, rep.LostGPUHours["start"], 32*90./3600)
	}
	if rep.JobsFinished != 1 || rep.MeanJCTSeconds != 3691 || rep.P99JCTSeconds != 3691 {
		t.Errorf("finished %d, mean %v s, p99 %v s; want 1 after 3691 s", rep.JobsFinished, rep.MeanJCTSeconds, rep.P99JCTSeconds)
	}
	r.by(31 * time.Minute)
	if _, err := r.cluster.Job(t.Context(), fleet.JobRef{Kind: JobKind, Namespace: "t", Name: "llm"}); ending(err) != remedy.Gone {
		t.Errorf("a job that ended long ago: %v, want gone", err)
	}
}

func ending(err error) remedy.Ending {
	if f, ok := errors.AsType[*remedy.Failure](err); ok {
		return f.Ending
	}
	return ""
}

// stopStart stops the job, waits until its pods are gone, and starts it again.
func (r *run) stopStart(with actuator.Restart) {
	r.t.Helper()
	if _, err := r.cluster.StopJob(r.t.Context(), r.job("t/llm"), "i/1-stop"); err != nil {
		r.t.Fatal(err)
	}
	r.until("the pods are gone", time.Minute, func() bool { return len(r.pods("t/llm")) == 0 })
	if got := r.job("t/llm"); got.Phase != fleet.JobSuspended || !got.Started.IsZero() {
		r.t.Errorf("a stopped job is %s since %v", got.Phase, got.Started)
	}
	if _, err := r.cluster.StartJob(r.t.Context(), r.job("t/llm"), "i/2-start", with); err != nil {
		r.t.Fatal(err)
	}
}

func TestResume(t *testing.T) {
	// The job trains for 350 s, which makes checkpoints of 100, 200 and 300 iterations,
	// and is stopped. It holds 16 GPUs.
	const uri = "sim://checkpoints/t/llm/"
	for name, tc := range map[string]struct {
		resume string
		from   int64
	}{
		"from the newest checkpoint, by its place":          {uri + "300", 300},
		"from the newest checkpoint, by its step":           {"step-300", 300},
		"from the newest checkpoint, which it finds itself": {"", 300},
		"from an older one":                                 {uri + "200", 200},
		"from one that is not there":                        {uri + "350", 0},
		"from one of another job":                           {"sim://checkpoints/t/other/300", 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, one(2, 8))
			r.to(trainsAt + 350*time.Second)
			r.stopStart(actuator.Restart{Resume: tc.resume, Avoid: []string{"gpu-a-01"}})
			r.until("it trains again", 3*time.Minute, func() bool { return r.Simulation.jobs[0].state == training })
			for _, p := range r.pods("t/llm") {
				if p.Node == "gpu-a-01" {
					t.Error("it landed on the node that it should avoid")
				}
			}
			if got := r.iteration(r.jobs[0]); got != tc.from {
				t.Errorf("it goes on from %d, want %d", got, tc.from)
			}
			if got := r.job("t/llm"); got.Attempt != 1 || got.StartedBy != "i/2-start" || got.StoppedBy != "i/1-stop" || got.Resume != tc.resume {
				t.Errorf("the job's marks are %+v", got)
			}
			r.until("it is done", 2*time.Hour, func() bool { return r.job("t/llm").Phase == fleet.JobSucceeded })
			rep := r.Report()
			if want := 16 * float64(350-tc.from) / 3600; !near(rep.LostGPUHours["lost work"], want) {
				t.Errorf("%v GPU-hours of work were lost, want %v", rep.LostGPUHours["lost work"], want)
			}
			if !near(rep.UsefulGPUHours, 16) {
				t.Errorf("%v GPU-hours were useful, want 16", rep.UsefulGPUHours)
			}
			if rep.WrongStops != 1 || rep.Resubmissions != 1 {
				t.Errorf("%d wrong stops, %d resubmissions; want 1 each: nothing was wrong with the job", rep.WrongStops, rep.Resubmissions)
			}
			if err := r.check(); err != nil {
				t.Error(err)
			}
		})
	}
}

func near(a, b float64) bool { return a-b < 1e-9 && b-a < 1e-9 }

func TestACheckpointThatIsHalfWrittenIsNone(t *testing.T) {
	r := start(t, one(2, 8))
	r.to(trainsAt + 110*time.Second)
	r.stopStart(actuator.Restart{})
	r.until("it trains again", 3*time.Minute, func() bool { return r.jobs[0].state == training })
	if got := r.iteration(r.jobs[0]); got != 0 {
		t.Errorf("it goes on from %d, want 0", got)
	}
	r.by(2 * time.Minute)
	if got := r.job("t/llm").Checkpoint.Step; got != 100 {
		t.Errorf("two minutes later the newest checkpoint is %d, want 100", got)
	}
}

func TestARequestIsAnsweredWhenTheCheckpointIsComplete(t *testing.T) {
	r := start(t, one(2, 8))
	r.to(trainsAt + 50*time.Second)
	before := r.job("t/llm")
	asked, err := r.cluster.AskCheckpoint(t.Context(), before, "i/1-checkpoint")
	if err != nil {
		t.Fatal(err)
	}
	if asked.CheckpointAsked != "i/1-checkpoint" || asked.CheckpointAnswered != "" || asked.Version <= before.Version {
		t.Errorf("right after the request: %+v", asked)
	}
	r.by(22 * time.Second) // 3 s until it begins to write, 20 s until it has written
	if got := r.job("t/llm"); got.CheckpointAnswered != "" {
		t.Errorf("answered %q before the checkpoint was complete", got.CheckpointAnswered)
	}
	r.by(time.Second)
	got := r.job("t/llm")
	if got.CheckpointAnswered != "i/1-checkpoint" || got.Checkpoint.Step != 53 || !got.Checkpoint.At.Equal(r.Now()) {
		t.Errorf("answered %q with %+v, want step 53 of now", got.CheckpointAnswered, got.Checkpoint)
	}
}

func TestARequestDuringAWriteIsObeyedAfterIt(t *testing.T) {
	r := start(t, one(2, 8))
	r.to(trainsAt + 105*time.Second)
	if _, err := r.cluster.AskCheckpoint(t.Context(), r.job("t/llm"), "k"); err != nil {
		t.Fatal(err)
	}
	r.to(trainsAt + 120*time.Second)
	if got := r.job("t/llm"); got.Checkpoint.Step != 100 || got.CheckpointAnswered != "" {
		t.Errorf("after the first one: step %d, answered %q", got.Checkpoint.Step, got.CheckpointAnswered)
	}
	r.to(trainsAt + 140*time.Second)
	if got := r.job("t/llm"); got.Checkpoint.Step != 120 || got.CheckpointAnswered != "k" {
		t.Errorf("after the second one: step %d, answered %q; want 120 and k", got.Checkpoint.Step, got.CheckpointAnswered)
	}
}

func TestAHeadOfTheQueueIsNotPassed(t *testing.T) {
	spec := func(name string, at time.Duration, workers, gpus int) JobSpec {
		return JobSpec{Namespace: "t", Name: name, Queue: "q", At: at, Workers: workers, GPUs: gpus, Iterations: 600, Iteration: time.Second, Load: time.Second}
	}
	other := spec("other", 3*time.Minute, 1, 1)
	other.Queue = "another"
	r := start(t, Config{Nodes: 2, Jobs: []JobSpec{spec("first", 0, 1, 1), spec("gang", time.Minute, 2, 8), spec("small", 2*time.Minute, 1, 1), other}})
	r.to(5 * time.Minute)
	if got := r.job("t/gang"); got.Phase != fleet.JobPending {
		t.Errorf("the gang is %s, though it does not fit whole", got.Phase)
	}
	for _, p := range r.pods("t/gang") {
		if p.Node != "" {
			t.Errorf("%s has a place, though its gang does not fit whole", p.Name)
		}
	}
	if got := r.job("t/small"); got.Phase != fleet.JobPending {
		t.Errorf("the small job is %s; it stands behind the gang", got.Phase)
	}
	if got := r.job("t/other"); got.Phase != fleet.JobRunning {
		t.Errorf("the job of another queue is %s, want running", got.Phase)
	}
	rep := r.Report()
	if rep.LostGPUHours["queued beside free GPUs"] == 0 {
		t.Error("no GPU-time was lost to queueing beside free GPUs")
	}
	r.until("the gang runs", 20*time.Minute, func() bool { return r.job("t/gang").Phase == fleet.JobRunning })
	if err := r.check(); err != nil {
		t.Error(err)
	}
}

func TestAnIdleHolderIsNotUseful(t *testing.T) {
	cfg := one(1, 4)
	cfg.Jobs[0].Idle = true
	r := start(t, cfg)
	r.to(trainsAt + 30*time.Minute)
	rep := r.Report()
	if rep.UsefulGPUHours != 0 || rep.LostGPUHours["idle"] != 2 {
		t.Errorf("useful %v, idle %v GPU-hours; want 0 and 2", rep.UsefulGPUHours, rep.LostGPUHours["idle"])
	}
	in, err := r.samples(r.telemetry("gpu-a-01"))
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range in.Values {
		if v.Field == "DCGM_FI_DEV_GPU_UTIL" && v.Value != 0 {
			t.Errorf("GPU %d is used to %v %%", v.GPU, v.Value)
		}
	}
}

// TestWhateverHappens lets people, Stoker and faults do anything in any order.
func TestWhateverHappens(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cfg := Crowd(rapid.Uint64Range(0, 1<<20).Draw(rt, "seed"), rapid.IntRange(1, 6).Draw(rt, "nodes"), rapid.IntRange(1, 12).Draw(rt, "jobs"), time.Hour)
		kinds := []truth.Kind{GPULost, BootHangs, JobCrash, TelemetryLost}
		for range rapid.IntRange(0, 6).Draw(rt, "faults") {
			f := Fault{Kind: rapid.SampledFrom(kinds).Draw(rt, "kind"), At: time.Duration(rapid.IntRange(0, 7200).Draw(rt, "at")) * time.Second}
			info := truth.Kinds[f.Kind]
			if info.Lasts {
				f.For = 10 * time.Minute
			}
			if info.Node && (!info.Job || rapid.Bool().Draw(rt, "on a node")) {
				f.Node, f.GPU = "gpu-a-01", rapid.IntRange(0, 7).Draw(rt, "gpu")
			} else {
				f.Job = rapid.SampledFrom(cfg.Jobs).Draw(rt, "job").Ref().String()
			}
			f.Incurable = f.Kind == GPULost && rapid.Bool().Draw(rt, "incurable")
			cfg.Faults = append(cfg.Faults, f)
		}
		r := start(t, cfg)
		c, ctx := r.cluster, t.Context()
		someNode := func() fleet.Node { return r.node(rapid.SampledFrom(r.NodeNames()).Draw(rt, "node")) }
		someJob := func() (fleet.Job, bool) {
			j, err := c.Job(ctx, rapid.SampledFrom(cfg.Jobs).Draw(rt, "job").Ref())
			return j, err == nil
		}
		var versions fleet.Version
		n := 0
		rt.Repeat(map[string]func(*rapid.T){
			"": func(rt *rapid.T) {
				if err := r.check(); err != nil {
					rt.Fatalf("%v\n%s", err, r.log.String())
				}
				if r.revision < versions {
					rt.Fatalf("versions went back from %d to %d", versions, r.revision)
				}
				versions = r.revision
			},
			"time": func(rt *rapid.T) { r.by(time.Duration(rapid.IntRange(1, 1_200_000).Draw(rt, "ms")) * time.Millisecond) },
			"mark": func(rt *rapid.T) {
				node := someNode()
				if _, err := c.MarkNode(ctx, node, node.Hold.With("i", r.Now()), rapid.Bool().Draw(rt, "unschedulable")); err != nil {
					rt.Fatal(err)
				}
			},
			"stop": func(rt *rapid.T) {
				if j, ok := someJob(); ok {
					if _, err := c.StopJob(ctx, j, "stop"); err != nil && !j.Phase.Ended() {
						rt.Fatal(err)
					}
				}
			},
			"start": func(rt *rapid.T) {
				if j, ok := someJob(); ok {
					if _, err := c.StartJob(ctx, j, "start", actuator.Restart{Resume: rapid.SampledFrom([]string{"", "step-100", j.Checkpoint.URI}).Draw(rt, "resume")}); err != nil && !j.Phase.Ended() {
						rt.Fatal(err)
					}
				}
			},
			"ask": func(rt *rapid.T) {
				if j, ok := someJob(); ok {
					n++
					if _, err := c.AskCheckpoint(ctx, j, fmt.Sprint("k", n)); err != nil {
						rt.Fatal(err)
					}
				}
			},
			"evict": func(rt *rapid.T) {
				pods, err := c.PodsOn(ctx, someNode().Name)
				if err != nil {
					rt.Fatal(err)
				}
				if err := c.Evict(ctx, rapid.SampledFrom(pods).Draw(rt, "pod").PodRef); err != nil {
					rt.Fatal(err)
				}
			},
			"repair": func(rt *rapid.T) {
				node := someNode()
				n++
				action := rapid.SampledFrom([]string{"reboot", "power-cycle", "pray"}).Draw(rt, "action")
				if _, err := c.CreateRepair(ctx, actuator.Repair{Name: fmt.Sprint("r", n), Action: action, Node: node.Name, BootID: node.BootID}); err != nil {
					rt.Fatal(err)
				}
			},
			"person": func(rt *rapid.T) {
				p := r.People()
				switch rapid.IntRange(0, 4).Draw(rt, "what") {
				case 0:
					_ = p.Cordon(someNode().Name)
				case 1:
					_ = p.Uncordon(someNode().Name)
				case 2:
					_ = p.Suspend(rapid.SampledFrom(cfg.Jobs).Draw(rt, "job").Ref()) // may have ended
				case 3:
					_ = p.Unsuspend(rapid.SampledFrom(cfg.Jobs).Draw(rt, "job").Ref())
				case 4:
					_ = p.DeleteJob(rapid.SampledFrom(cfg.Jobs).Draw(rt, "job").Ref())
				}
			},
		})
		rep := r.Report()
		sum := rep.UsefulGPUHours
		for _, h := range rep.LostGPUHours {
			sum += h
		}
		if d := sum - rep.GPUHours; d > 1e-6 || d < -1e-6 {
			rt.Fatalf("the report's uses add up to %v GPU-hours, there were %v", sum, rep.GPUHours)
		}
	})
}
