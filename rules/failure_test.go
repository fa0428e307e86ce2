package rules

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// elastic is an error file as torchelastic writes it.
func elastic(message string, at time.Time) string {
	return fmt.Sprintf(`{"message": {"message": %q, "extraInfo": {"py_callstack": "Traceback (most recent call last):\n  File \"train.py\", line 9\n%s\n", "timestamp": "%d"}}}`, message, message, at.Unix())
}

func TestClassifyLooksInAFixedOrder(t *testing.T) {
	const file, text, end, status = "the error file in the termination message", "the termination message", "the container's end", "the pod's status"
	sick := func(g int, change func(*fleet.GPU)) fleet.Node {
		n := cluster(t0).Nodes[ill]
		change(&n.GPUs[g])
		return n
	}
	whole := fleet.Failure{At: t0, GPUs: 8, ExitCode: 1, Reason: "Error"}
	with := func(f func(*fleet.Failure)) fleet.Failure { o := whole; f(&o); return o }
	for name, tc := range map[string]struct {
		f    fleet.Failure
		node fleet.Node
		want remedy.FailReason
		from string
	}{
		"who was preempted has no fault, whatever it says": {with(func(f *fleet.Failure) { f.Disruption, f.Message = "PreemptionByScheduler", "ValueError" }), fleet.Node{}, remedy.FailPreempted, status},
		"an eviction by the API":                           {with(func(f *fleet.Failure) { f.Disruption = "EvictionByEvictionAPI" }), fleet.Node{}, remedy.FailEvicted, status},
		"an eviction by the kubelet":                       {with(func(f *fleet.Failure) { f.Disruption = "Evicted" }), fleet.Node{}, remedy.FailEvicted, status},
		"a node that does not answer":                      {with(func(f *fleet.Failure) { f.Disruption = "DeletionByTaintManager" }), fleet.Node{}, remedy.FailNodeLost, status},
		"a word of the cluster that is not known is none":  {with(func(f *fleet.Failure) { f.Disruption, f.Message = "Novel", "ValueError: x" }), fleet.Node{}, remedy.FailUser, text},

		"killed for memory, whatever it says":   {with(func(f *fleet.Failure) { f.Reason, f.ExitCode, f.Message = "OOMKilled", 137, "ValueError" }), fleet.Node{}, remedy.FailMemory, end},
		"killed by nobody knows whom":           {with(func(f *fleet.Failure) { f.ExitCode = 137 }), fleet.Node{}, remedy.FailUnknown, end},
		"a program that is not there":           {with(func(f *fleet.Failure) { f.ExitCode = 127 }), fleet.Node{}, remedy.FailUser, end},
		"a container whose end nobody has seen": {with(func(f *fleet.Failure) { f.Reason, f.ExitCode = "ContainerStatusUnknown", 137 }), fleet.Node{}, remedy.FailNodeLost, end},

		"GPU memory, in an error file": {with(func(f *fleet.Failure) {
			f.Message = elastic("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", t0)
		}), fleet.Node{}, remedy.FailGPUMemory, file},
		"GPU memory, as JAX says it":    {with(func(f *fleet.Failure) { f.Message = "RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes" }), fleet.Node{}, remedy.FailGPUMemory, text},
		"memory of the node, by Python": {with(func(f *fleet.Failure) { f.Message = elastic("MemoryError", t0) }), fleet.Node{}, remedy.FailMemory, file},
		"a killed loader of data": {with(func(f *fleet.Failure) {
			f.Message = "RuntimeError: DataLoader worker (pid 71) is killed by signal: Killed."
		}), fleet.Node{}, remedy.FailMemory, text},
		"NCCL, by its watchdog": {with(func(f *fleet.Failure) {
			f.Message = "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8)"
		}), fleet.Node{}, remedy.FailNCCL, text},
		"NCCL, by its error": {with(func(f *fleet.Failure) {
			f.Message = elastic("NCCL error in: ProcessGroupNCCL.cpp:1970, ncclRemoteError", t0)
		}), fleet.Node{}, remedy.FailNCCL, file},
		"what NCCL tells is no error": {with(func(f *fleet.Failure) { f.Message = "NCCL INFO Channel 00/08 : 0 1 2\nNCCL INFO timeout is 22" }), fleet.Node{}, remedy.FailUnknown, text},
		"a full volume": {with(func(f *fleet.Failure) {
			f.Message = elastic("OSError: [Errno 28] No space left on device: '/ckpt/x'", t0)
		}), fleet.Node{}, remedy.FailIO, file},
		"a volume that went away":         {with(func(f *fleet.Failure) { f.Message = "OSError: [Errno 116] Stale file handle" }), fleet.Node{}, remedy.FailIO, text},
		"a GPU, by the driver":            {with(func(f *fleet.Failure) { f.Message = "CUDA error: uncorrectable ECC error encountered" }), fleet.Node{}, remedy.FailGPU, text},
		"its own program":                 {with(func(f *fleet.Failure) { f.Message = elastic("KeyError: 'lr'", t0) }), fleet.Node{}, remedy.FailUser, file},
		"the first line that says why":    {with(func(f *fleet.Failure) { f.Message = "KeyError: 'lr'\nDuring handling: NCCL error" }), fleet.Node{}, remedy.FailUser, text},
		"an error file with a plain text": {with(func(f *fleet.Failure) { f.Message = `{"message": "ValueError: bad shape"}` }), fleet.Node{}, remedy.FailUser, file},
		"an error file after other text":  {with(func(f *fleet.Failure) { f.Message = "exiting\n" + elastic("CUDA out of memory", t0) }), fleet.Node{}, remedy.FailGPUMemory, file},
		"an error file whose end is cut":  {with(func(f *fleet.Failure) { f.Message = elastic("CUDA out of memory", t0)[:70] }), fleet.Node{}, remedy.FailGPUMemory, file},
		"what only looks like a file":     {with(func(f *fleet.Failure) { f.Message = "config {lr: 1} bad\nValueError: lr" }), fleet.Node{}, remedy.FailUser, text},
		"another object is text":          {with(func(f *fleet.Failure) { f.Message = `{"error": "CUDA out of memory"}` }), fleet.Node{}, remedy.FailGPUMemory, text},

		"the log, where the message is silent":   {with(func(f *fleet.Failure) { f.Log = "step 9\nNo space left on device" }), fleet.Node{}, remedy.FailIO, "the container's log"},
		"the message, before the log":            {with(func(f *fleet.Failure) { f.Message, f.Log = "KeyError", "No space left on device" }), fleet.Node{}, remedy.FailUser, text},
		"a lost GPU, where nothing else is said": {whole, sick(3, func(g *fleet.GPU) { g.Up = fleet.False }), remedy.FailGPU, "telemetry of gpu-a-02"},
		"an error of a GPU at that time":         {whole, sick(3, func(g *fleet.GPU) { g.XID, g.XIDTime = 48, t0.Add(-time.Minute) }), remedy.FailGPU, "telemetry of gpu-a-02"},
		"not one of long before":                 {whole, sick(3, func(g *fleet.GPU) { g.XID, g.XIDTime = 48, t0.Add(-time.Hour) }), remedy.FailUnknown, end},
		"nor one of a pod on half of the node":   {with(func(f *fleet.Failure) { f.GPUs = 4 }), sick(3, func(g *fleet.GPU) { g.Up = fleet.False }), remedy.FailUnknown, end},
		"nothing at all":                         {whole, cluster(t0).Nodes[ill], remedy.FailUnknown, end},
	} {
		t.Run(name, func(t *testing.T) {
			got := Classify(tc.f, tc.node)
			if got.Reason != tc.want || got.From != tc.from {
				t.Errorf("%s, read from %s (%q), want %s from %s", got.Reason, got.From, got.Text, tc.want, tc.from)
			}
			if remedy.FailReasons[got.Reason] == "" {
				t.Errorf("reason %q is not in the list", got.Reason)
			}
		})
	}
}

// TestCase_J5_TheJobsOwnFaultIsToldAndNotRestarted: XID 13 and 31 are the program's own
// the first time, and what failed by its own fault would only fail again.
func TestCase_J5_TheJobsOwnFaultIsToldAndNotRestarted(t *testing.T) {
	cfg := `
playbooks:
  - name: network
    class: job-failed
    match: ['reason="nccl"']
    steps: [stop: {}, start: {attempts: 1}]
`
	for code, want := range map[int]string{13: "user-error", 31: "user-error", 48: "gpu", 79: "gpu"} {
		f := cluster(t0)
		j := f.Jobs[llm]
		j.Failures = []fleet.Failure{{Pod: fleet.PodRef{Name: "llm-0", Node: ill}, GPUs: 8, At: t0, ExitCode: 1}}
		f.Jobs[llm] = j
		f.Nodes[ill].GPUs[3].XID, f.Nodes[ill].GPUs[3].XIDTime = code, t0.Add(-time.Second)
		ev := FailedJobs(t0.Add(time.Minute), f, time.Hour)
		if len(ev) != 1 || ev[0].Labels["reason"] != want {
			t.Errorf("XID %d: evidence %v, want one with reason %s", code, ev, want)
			continue
		}
		p := admitted(t, cfg, ev[0])
		p.finish()
		wantHistory(t, p.in, "resolved: told; no playbook has steps for it")
		if s := p.in.Evidence[0].Summary; !strings.Contains(s, "telemetry of gpu-a-02") || !strings.Contains(s, fmt.Sprintf("XID %d on GPU 3", code)) {
			t.Errorf("summary %q does not say where it was read", s)
		}
	}
}

func TestTheFirstWorkerThatEndsDecidesForTheGang(t *testing.T) {
	fail := func(name string, after time.Duration, message string) fleet.Failure {
		return fleet.Failure{Pod: fleet.PodRef{Name: name, UID: name, Node: ill}, GPUs: 4, At: t0.Add(after), ExitCode: 1, Message: message}
	}
	const nccl, oom = "ncclRemoteError: peer closed", "CUDA out of memory"
	for name, tc := range map[string]struct {
		failures []fleet.Failure
		change   func(*fleet.Job)
		age      time.Duration
		want     []string // reason and pod
	}{
		"its peers' errors follow from it": {[]fleet.Failure{fail("b", 10*time.Minute, nccl), fail("a", 0, oom), fail("c", 11*time.Minute, nccl)}, nil, 12 * time.Minute, []string{"gpu-out-of-memory a"}},
		"by clocks that differ a little, the one with a cause": {
			[]fleet.Failure{fail("b", 0, nccl), fail("c", time.Second, ""), fail("a", 2*time.Second, oom)}, nil, time.Minute, []string{"gpu-out-of-memory a"},
		},
		"but not one that ends much later":        {[]fleet.Failure{fail("b", 0, nccl), fail("a", 5*time.Minute, oom)}, nil, 6 * time.Minute, []string{"nccl b"}},
		"by what the program says of when it was": {[]fleet.Failure{fail("b", 0, elastic("KeyError: 1", t0.Add(-2*time.Second))), fail("a", time.Second, elastic(oom, t0.Add(-9*time.Second)))}, nil, time.Minute, []string{"gpu-out-of-memory a"}},
		"nothing is told before all could have":   {[]fleet.Failure{fail("a", 0, oom)}, nil, 29 * time.Second, nil},
		"nor of what is long over":                {[]fleet.Failure{fail("a", 0, oom)}, nil, 61 * time.Minute, nil},
		"nor of what was before the last start":   {[]fleet.Failure{fail("a", 0, oom)}, func(j *fleet.Job) { j.Started = t0.Add(time.Minute) }, 5 * time.Minute, nil},
		"two failures of the gang are two":        {[]fleet.Failure{fail("a", 0, oom), fail("a2", 20*time.Minute, "KeyError")}, nil, 21 * time.Minute, []string{"gpu-out-of-memory a", "user-error a2"}},
		"a job that failed with no pod to ask is told of": {nil, func(j *fleet.Job) {
			j.Phase, j.Ended, j.EndReason = fleet.JobFailed, t0, "DeadlineExceeded"
		}, time.Minute, []string{"unknown "}},
		"and that it is over is not told beside why": {[]fleet.Failure{fail("a", 0, oom)}, func(j *fleet.Job) {
			j.Phase, j.Ended, j.EndReason = fleet.JobFailed, t0.Add(time.Second), "BackoffLimitExceeded"
		}, time.Minute, []string{"gpu-out-of-memory a"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := cluster(t0)
			j := f.Jobs[llm]
			j.Failures = tc.failures
			if tc.change != nil {
				tc.change(&j)
			}
			f.Jobs[llm] = j
			var got []string
			for _, e := range FailedJobs(t0.Add(tc.age), f, time.Hour) {
				got = append(got, e.Labels["reason"]+" "+e.Labels["pod"])
				if e.Subject.Name != "llm" || e.Class != remedy.ClassJobFailed || e.Summary == "" {
					t.Errorf("evidence %+v is not of the job", e)
				}
			}
			if strings.Join(got, ", ") != strings.Join(tc.want, ", ") {
				t.Errorf("told %q, want %q", got, tc.want)
			}
		})
	}
}

func FuzzReadMessage(f *testing.F) {
	f.Add(elastic("boom", t0))
	f.Add(elastic("boom", t0)[:60])
	f.Add(`{"message": {"message": 7}}`)
	f.Add("{{{\"message\": \"a\\")
	f.Fuzz(func(t *testing.T, raw string) {
		m := readMessage(raw)
		if m.from == "" || strings.TrimSpace(raw) != "" && m.text == "" && m.from == "the termination message" {
			t.Errorf("read %+v of %q", m, raw)
		}
		v := Classify(fleet.Failure{At: t0, ExitCode: 1, Message: raw}, fleet.Node{})
		if remedy.FailReasons[v.Reason] == "" || len(v.Text) > len(raw)+20 {
			t.Errorf("verdict %+v of %q", v, raw)
		}
	})
}
