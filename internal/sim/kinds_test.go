package sim

import (
	"testing"
	"time"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/internal/sim/truth"
)

// TestWhatEachKindOfFaultDoes strikes a gang of two nodes that trains with each kind: what
// the driver says, what becomes of the job, and what the cluster shows.
func TestWhatEachKindOfFaultDoes(t *testing.T) {
	for name, tc := range map[string]struct {
		fault       Fault
		xid         int
		state       state
		up          fleet.Truth // of GPU 3, by telemetry
		allocatable int
	}{
		"a lost GPU is off the bus, and the job hangs":               {Fault{Kind: GPULost, Node: "gpu-a-01", GPU: 3}, 79, hung, fleet.False, 7},
		"a memory error ends the job, and the GPU still answers":     {Fault{Kind: GPUECC, Node: "gpu-a-01", GPU: 3}, 95, backing, fleet.True, 7},
		"firmware that does not answer hangs the job":                {Fault{Kind: GPUDriver, Node: "gpu-a-01", GPU: 3}, 119, hung, fleet.True, 7},
		"a link that is down ends the job":                           {Fault{Kind: NVLinkDown, Node: "gpu-a-01", GPU: 3}, 74, backing, fleet.True, 7},
		"a hot GPU slows the job down and says nothing":              {Fault{Kind: GPUHot, Node: "gpu-a-01", GPU: 3, For: time.Hour}, 0, training, fleet.True, 8},
		"a program that hangs is no fault of a GPU":                  {Fault{Kind: JobHang, Job: "t/llm"}, 0, hung, fleet.True, 8},
		"a program that runs out of memory ends without a word":      {Fault{Kind: JobOOM, Job: "t/llm"}, 0, backing, fleet.True, 8},
		"clocks that are low for a moment change nothing":            {Fault{Kind: Throttle, Node: "gpu-a-01", GPU: 3, For: 20 * time.Second}, 0, training, fleet.True, 8},
		"sensors that are blank for a moment change nothing":         {Fault{Kind: SensorBlank, Node: "gpu-a-01", GPU: 3, For: 20 * time.Second}, 0, training, fleet.True, 8},
		"an error counter that shows one for a poll changes nothing": {Fault{Kind: NVLinkBlip, Node: "gpu-a-01", GPU: 3, For: 10 * time.Second}, 0, training, fleet.True, 8},
	} {
		t.Run(name, func(t *testing.T) {
			tc.fault.At = trainsAt + 250*time.Second
			r := start(t, one(2, 8, tc.fault))
			tm := r.telemetry("gpu-a-01")
			r.to(trainsAt + 251*time.Second)
			in := r.mustSample(tm)
			xid := 0
			for _, e := range in.Events {
				if e.XID != xidChannel {
					xid = e.XID
				}
			}
			if got := r.byRef[r.job("t/llm").Ref].state; got != tc.state || xid != tc.xid {
				t.Errorf("the job is in state %d and XID %d was told, want %d and %d\n%s", got, xid, tc.state, tc.xid, r.log.String())
			}
			if n := r.node("gpu-a-01"); in.GPUs[3].Up != tc.up || n.Allocatable.GPUs != tc.allocatable {
				t.Errorf("GPU 3 is up: %s, %d are allocatable; want %s and %d", in.GPUs[3].Up, n.Allocatable.GPUs, tc.up, tc.allocatable)
			}
			if truth.Kinds[tc.fault.Kind].Ill != r.record.Ill("gpu-a-01") {
				t.Errorf("the node is ill: %t", r.record.Ill("gpu-a-01"))
			}
			if err := r.check(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestAHotGPUHalvesThePaceAndTheAccountsSaySo holds that slow time is neither useful nor
// without effect.
func TestAHotGPUHalvesThePaceAndTheAccountsSaySo(t *testing.T) {
	r := start(t, one(1, 8, Fault{At: trainsAt + 100*time.Second, Kind: GPUHot, Node: "gpu-a-01", GPU: 0, For: 400 * time.Second}))
	j := r.byRef[fleet.JobRef{Kind: JobKind, Namespace: "t", Name: "llm"}]
	if r.to(trainsAt + 90*time.Second); j == nil {
		for _, o := range r.byRef {
			j = o
		}
	}
	r.to(trainsAt + 99*time.Second)
	before := r.progress(j)
	r.to(trainsAt + 601*time.Second)
	// 502 s have passed, 400 of them at half the pace.
	if got := r.progress(j) - before; got != 302_000 {
		t.Errorf("%d ms of progress in 502 s, want 302000", got)
	}
	if got := r.ledger.Sum(truth.Slow).Hours(); got < 0.88 || got > 0.89 {
		t.Errorf("%.3f GPU-hours were slow, want 8 GPUs for 400 s", got)
	}
}

func TestANodeThatStopsIsNotKnownAndComesBack(t *testing.T) {
	r := start(t, one(2, 8, Fault{At: trainsAt + 250*time.Second, Kind: NodeLost, Node: "gpu-a-01", For: 10 * time.Minute}))
	r.to(trainsAt + 260*time.Second)
	if n := r.node("gpu-a-01"); n.Ready.Status != fleet.True {
		t.Errorf("after 10 s of silence it is %q, want what it last said", n.Ready.Status)
	}
	r.to(trainsAt + 300*time.Second)
	if n := r.node("gpu-a-01"); n.Ready.Status != fleet.Unknown {
		t.Errorf("after 50 s of silence it is %q, want not known", n.Ready.Status)
	}
	r.to(trainsAt + 900*time.Second)
	if n := r.node("gpu-a-01"); n.Ready.Status != fleet.True || r.record.Ill("gpu-a-01") {
		t.Errorf("after 10 minutes it is %q and ill: %t", n.Ready.Status, r.record.Ill("gpu-a-01"))
	}
	if rep := r.Report(); rep.MissedFaults != 0 {
		t.Error("what the cluster itself sees counts as missed")
	}
	if err := r.check(); err != nil {
		t.Error(err)
	}
}

// TestXIDsThatAreToldAgainKeepTheirTime is an exporter that starts anew.
func TestXIDsThatAreToldAgainKeepTheirTime(t *testing.T) {
	r := start(t, one(1, 8,
		Fault{At: trainsAt + 100*time.Second, Kind: GPUECC, Node: "gpu-a-01", GPU: 2},
		Fault{At: trainsAt + 500*time.Second, Kind: ExporterRestart, Node: "gpu-a-01"}))
	tm := r.telemetry("gpu-a-01")
	r.to(trainsAt + 200*time.Second)
	first := r.mustSample(tm).Events
	r.to(trainsAt + 400*time.Second)
	if again := r.mustSample(tm).Events; len(again) != 0 {
		t.Errorf("told twice before: %v", again)
	}
	r.to(trainsAt + 510*time.Second)
	again := r.mustSample(tm).Events
	if len(first) == 0 || len(again) != len(first) || again[0] != first[0] {
		t.Errorf("told again %v, want %v", again, first)
	}
}

// TestASpotNodeGoesAndAnotherComes follows a node of the spot pool from its notice to its
// successor, with a market that is out of capacity and one that is not.
func TestASpotNodeGoesAndAnotherComes(t *testing.T) {
	for name, tc := range map[string]struct {
		errors float64
		pool   string
	}{
		"spot while there is capacity":          {1e-9, "spot"},
		"on-demand after three capacity errors": {1, "a100"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := one(1, 8, Fault{At: trainsAt + 100*time.Second, Kind: SpotNotice, Node: "gpu-a-02"},
				Fault{At: trainsAt + 240*time.Second, Kind: ExporterRestart, Node: "gpu-a-02"}) // of no machine
			cfg.Nodes, cfg.Market = 2, Market{Spot: 1, Errors: tc.errors}
			r := start(t, cfg)
			uid := r.node("gpu-a-02").UID
			r.to(trainsAt + 110*time.Second)
			ev, err := r.cluster.Evidence(t.Context(), r.Now())
			if err != nil || len(ev) != 1 || ev[0].Class != remedy.ClassNodeNotice || ev[0].Resolved {
				t.Fatalf("evidence %+v, %v; want the notice", ev, err)
			}
			r.to(trainsAt + 230*time.Second)
			if _, err := r.cluster.Node(t.Context(), "gpu-a-02"); err == nil {
				t.Error("the node is there two minutes after its notice")
			}
			if ev, _ := r.cluster.Evidence(t.Context(), r.Now()); len(ev) != 1 || !ev[0].Resolved {
				t.Errorf("evidence %+v, want once that it is over", ev)
			}
			if ev, _ := r.cluster.Evidence(t.Context(), r.Now()); len(ev) != 0 {
				t.Errorf("evidence %+v, want none any more", ev)
			}
			r.to(trainsAt + 30*time.Minute)
			if n := r.node("gpu-a-02"); n.UID == uid || n.Pool != tc.pool || n.Allocatable.GPUs != 8 {
				t.Errorf("in its place is %+v, want another machine of pool %s", n, tc.pool)
			}
			if got := r.Report().CostUSD; got <= 0 {
				t.Errorf("all of that has cost %.2f", got)
			}
			if err := r.check(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestQueuesKeepQuotasAndPriorities holds the order in which jobs are placed.
func TestQueuesKeepQuotasAndPriorities(t *testing.T) {
	job := func(team, name string, at time.Duration, gpus int) JobSpec {
		return JobSpec{Namespace: team, Name: name, At: at, Workers: 1, GPUs: gpus, Iterations: 600, Iteration: time.Second}
	}
	cfg := Config{Seed: 3, Nodes: 1, Queues: []QueueSpec{{Name: "a", Quota: 4}, {Name: "b", Quota: 4}}, Jobs: []JobSpec{
		job("a", "first", 0, 8), job("a", "borrows", time.Minute, 8), job("b", "owns", 2*time.Minute, 4), job("b", "small", 3*time.Minute, 1),
	}}
	r := start(t, cfg)
	r.to(4 * time.Minute)
	if _, err := r.cluster.Prioritise(t.Context(), r.job("b/small"), "k", actuator.HoldsRoom); err != nil {
		t.Fatal(err)
	}
	runs := func(name string) bool { return r.job(name).Phase == fleet.JobRunning }
	r.until("somebody comes after the first", time.Hour, func() bool { return runs("b/small") || runs("b/owns") || runs("a/borrows") })
	r.by(time.Minute)
	if !runs("b/small") || !runs("b/owns") || runs("a/borrows") {
		t.Errorf("small %t, owns %t, borrows %t; want those within their quota\n%s", runs("b/small"), runs("b/owns"), runs("a/borrows"), r.log.String())
	}
	if _, err := r.cluster.Preempt(t.Context(), r.job("b/owns"), "p"); err != nil {
		t.Fatal(err)
	}
	r.until("it waits again", time.Minute, func() bool { return r.job("b/owns").Phase == fleet.JobPending })
	if j := r.job("b/owns"); j.PreemptedBy != "p" {
		t.Errorf("preempted by %q", j.PreemptedBy)
	}
	if got := r.Report(); got.Preemptions != 1 || len(got.Mistakes) != 0 {
		t.Errorf("%d preemptions, mistakes %v", got.Preemptions, got.Mistakes)
	}
	if err := r.check(); err != nil {
		t.Error(err)
	}
}

// TestPeopleRepairWhatStokerDoesNotHold holds that a fleet without Stoker heals too, late.
func TestPeopleRepairWhatStokerDoesNotHold(t *testing.T) {
	cfg := one(1, 8, Fault{At: trainsAt + 100*time.Second, Kind: GPULost, Node: "gpu-a-01", GPU: 1})
	cfg.Operators = time.Minute
	r := start(t, cfg)
	r.until("the GPU is back", 2*time.Hour, func() bool { return r.Elapsed() > trainsAt+200*time.Second && !r.record.Ill("gpu-a-01") })
	r.until("the node takes work", 10*time.Minute, func() bool { return r.node("gpu-a-01").Available() })
	cfg.Faults[0].Incurable = false
	held := start(t, cfg)
	held.to(trainsAt + 101*time.Second)
	held.hold("gpu-a-01")
	held.by(3 * time.Hour)
	if !held.record.Ill("gpu-a-01") {
		t.Error("people repair a node that Stoker holds")
	}
}

// TestCoresAndMemoryKeepPodsApart holds that GPUs are not all that a pod asks for.
func TestCoresAndMemoryKeepPodsApart(t *testing.T) {
	spec := func(name string) JobSpec {
		return JobSpec{Namespace: "t", Name: name, Workers: 1, GPUs: 1, Iterations: 600, Iteration: time.Second, MilliCPU: 5 * milliCPUPerGPU}
	}
	r := start(t, Config{Nodes: 1, Jobs: []JobSpec{spec("one"), spec("two")}})
	r.to(3 * time.Minute)
	if a, b := r.job("t/one").Phase, r.job("t/two").Phase; a != fleet.JobRunning || b != fleet.JobPending {
		t.Errorf("two pods of five eighths of the node's cores are %s and %s, want one to wait", a, b)
	}
}
