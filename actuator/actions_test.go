package actuator_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/actuator/contract"
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// What holds for every cluster is in the contract; here is what the actions decide.

const inc = "gpu-lost-a"

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// open is an actuator with all actions and no gates.
func open(t *testing.T, c actuator.Cluster) *actuator.Actuator {
	t.Helper()
	a, err := actuator.New(slog.New(slog.NewTextHandler(t.Output(), nil)), c, actuator.Actions, nil, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func onNode(action, node string) remedy.Order {
	return remedy.Order{
		Key: inc + "/1-" + action, Incident: inc, Action: action, Target: remedy.Target{Node: node}, Node: node,
		Cause: "GPU 3 fell off the bus", Reserved: t0, Deadline: t0.Add(10 * time.Minute),
	}
}

func onJob(action string, job fleet.JobRef) remedy.Order {
	return remedy.Order{
		Key: inc + "/1-" + action + "/" + job.Name, Incident: inc, Action: action, Target: remedy.Target{Job: job},
		Node: "gpu-a-01", Reserved: t0, Deadline: t0.Add(10 * time.Minute),
	}
}

func ending(err error) remedy.Ending {
	if f, ok := errors.AsType[*remedy.Failure](err); ok {
		return f.Ending
	}
	return ""
}

// want compares an outcome: its ending, and a part of its note.
func want(t *testing.T, out remedy.Outcome, ended bool, e remedy.Ending, note string) {
	t.Helper()
	if ended != (e != "") || out.Ending != e || !strings.Contains(out.Note, note) {
		t.Errorf("ended %v: %q (%s), want %q with %q", ended, out.Ending, out.Note, e, note)
	}
}

func wantErr(t *testing.T, err error, e remedy.Ending, text string) {
	t.Helper()
	if err == nil || ending(err) != e || !strings.Contains(err.Error(), text) {
		t.Errorf("err = %v (%s), want %s with %q", err, ending(err), e, text)
	}
}

var (
	mine   = fleet.Hold{Incidents: map[string]time.Time{inc: t0}, Cordoned: true}
	theirs = fleet.Hold{Incidents: map[string]time.Time{"gpu-ecc-b": t0}, Cordoned: true}
	llm    = fleet.JobRef{Kind: "Job.batch", Namespace: "train", Name: "llm"}
)

func whole(change func(*fleet.Node)) fleet.Node {
	gpus := fleet.Resources{GPUs: 8}
	n := fleet.Node{
		Name: "gpu-a-01", UID: "u1", Version: 5, BootID: "boot-2", Hold: mine, Unschedulable: true, Capacity: gpus, Allocatable: gpus,
		Ready: fleet.Condition{Status: fleet.True, Since: t0.Add(-time.Hour)}, AllocatableSince: t0.Add(-time.Hour),
	}
	if change != nil {
		change(&n)
	}
	return n
}

func world(at time.Time, nodes []fleet.Node, jobs []fleet.Job, pods ...fleet.Pod) fleet.Snapshot {
	s := fleet.Snapshot{At: at, Nodes: map[string]fleet.Node{}, Jobs: map[fleet.JobRef]fleet.Job{}, Pods: map[string]fleet.Pod{}}
	for _, n := range nodes {
		s.Nodes[n.Name] = n
	}
	for _, j := range jobs {
		s.Jobs[j.Ref] = j
	}
	for _, p := range pods {
		s.Pods[p.UID] = p
	}
	return s
}

func worker(uid, node, boot string) fleet.Pod {
	return fleet.Pod{PodRef: fleet.PodRef{Namespace: "train", Name: "llm-" + uid, UID: uid, Node: node, BootID: boot}, Job: llm, GPUs: 8, Controlled: true}
}

// TestChecksOfNodes asks each action about one node at one time.
func TestChecksOfNodes(t *testing.T) {
	const (
		soon = time.Minute
		end  = 10 * time.Minute
	)
	receipt := remedy.Receipt{At: t0, Version: 5}
	pod := worker("p1", "gpu-a-01", "boot-2")
	going := pod
	going.Terminating = true
	for name, tc := range map[string]struct {
		action  string
		node    *fleet.Node // nil: whole
		gone    bool
		pods    []fleet.Pod
		receipt remedy.Receipt
		after   time.Duration // since the start
		want    remedy.Ending
		note    string
	}{
		"a snapshot of the time of the start ends nothing":              {action: "cordon", receipt: receipt, after: 0},
		"a cordon that is seen is done":                                 {action: "cordon", receipt: receipt, after: soon, want: remedy.Done, note: "takes no new work"},
		"a cordon over somebody else's says so":                         {action: "cordon", node: new(whole(func(n *fleet.Node) { n.Hold.Cordoned = false })), receipt: receipt, after: soon, want: remedy.Done, note: "before by somebody else"},
		"a cordon is not done by the state from before it":              {action: "cordon", node: new(whole(func(n *fleet.Node) { n.Version = 4; n.Hold = fleet.Hold{} })), receipt: receipt, after: soon},
		"a cordon that is never seen is late":                           {action: "cordon", node: new(whole(func(n *fleet.Node) { n.Version = 4 })), receipt: receipt, after: end, want: remedy.Late, note: "not within 10m: the change of gpu-a-01 has not been seen"},
		"a cordon yields to who removes the mark":                       {action: "cordon", node: new(whole(func(n *fleet.Node) { n.Version = 6; n.Hold = theirs })), receipt: receipt, after: soon, want: remedy.Yielded, note: "not held by gpu-lost-a any more"},
		"a node that is gone is gone":                                   {action: "cordon", gone: true, receipt: receipt, after: soon, want: remedy.Gone, note: "gpu-a-01 is gone"},
		"a release that is seen is done":                                {action: "release", node: new(whole(func(n *fleet.Node) { n.Hold = theirs })), receipt: remedy.Receipt{At: t0, Version: 5, Note: "stays held by gpu-ecc-b"}, after: soon, want: remedy.Done, note: "stays held"},
		"a release is not done by the state from before it":             {action: "release", node: new(whole(func(n *fleet.Node) { n.Version = 4 })), receipt: receipt, after: soon},
		"a release is not done by a state from before the hold":         {action: "release", node: new(whole(func(n *fleet.Node) { n.Version = 4; n.Hold = fleet.Hold{} })), receipt: receipt, after: soon},
		"a mark that somebody has put back is removed again":            {action: "release", node: new(whole(func(n *fleet.Node) { n.Version = 6 })), receipt: receipt, after: soon, want: remedy.Conflict, note: "back on gpu-a-01"},
		"a release of a node that is gone has nothing left to do":       {action: "release", gone: true, receipt: receipt, after: soon, want: remedy.Gone},
		"a drain waits for pods that are stopping":                      {action: "drain", pods: []fleet.Pod{going}, receipt: remedy.Receipt{At: t0, Pods: []fleet.PodRef{pod.PodRef}}, after: soon},
		"a drain names the pods that are stopping still at its end":     {action: "drain", pods: []fleet.Pod{going}, receipt: remedy.Receipt{At: t0, Pods: []fleet.PodRef{pod.PodRef}}, after: end, want: remedy.Late, note: "train/llm-p1 on gpu-a-01 (is stopping)"},
		"a drain says when it is the node that does not answer":         {action: "drain", node: new(whole(func(n *fleet.Node) { n.Ready.Status = fleet.Unknown })), pods: []fleet.Pod{going}, receipt: remedy.Receipt{At: t0, Pods: []fleet.PodRef{pod.PodRef}}, after: end, want: remedy.Late, note: "(whose node does not answer)"},
		"a drain tries a refused pod again":                             {action: "drain", pods: []fleet.Pod{pod}, receipt: remedy.Receipt{At: t0, Pods: []fleet.PodRef{pod.PodRef}, Note: "train/llm-p1 (budget x)"}, after: soon, want: remedy.Conflict, note: "budget x"},
		"a drain that is refused to its end names who refuses":          {action: "drain", pods: []fleet.Pod{pod}, receipt: remedy.Receipt{At: t0, Pods: []fleet.PodRef{pod.PodRef}, Note: "train/llm-p1 (budget x)"}, after: end, want: remedy.Late, note: "1 pod on gpu-a-01: train/llm-p1 (budget x)"},
		"a drain turns to a pod that has come since":                    {action: "drain", pods: []fleet.Pod{pod}, receipt: receipt, after: soon, want: remedy.Conflict, note: "train/llm-p1 on gpu-a-01 (has not been asked to go)"},
		"a drain is done when the pods are gone":                        {action: "drain", receipt: remedy.Receipt{At: t0, Pods: []fleet.PodRef{pod.PodRef}}, after: soon, want: remedy.Done, note: "1 pod gone"},
		"a drain is done when the boot of its pods has ended":           {action: "drain", pods: []fleet.Pod{worker("p1", "gpu-a-01", "boot-1")}, receipt: remedy.Receipt{At: t0, Pods: []fleet.PodRef{{UID: "p1", Node: "gpu-a-01", BootID: "boot-1"}}}, after: soon, want: remedy.Done},
		"a drain stops when a person uncordons":                         {action: "drain", node: new(whole(func(n *fleet.Node) { n.Unschedulable = false })), pods: []fleet.Pod{pod}, receipt: receipt, after: soon, want: remedy.Yielded, note: "uncordoned by a person"},
		"a drain of a node that is gone is over":                        {action: "drain", gone: true, receipt: receipt, after: soon, want: remedy.Gone},
		"a reboot is done with a new boot that is ready":                {action: "reboot", receipt: remedy.Receipt{At: t0, BootID: "boot-1"}, after: soon, want: remedy.Done, note: "has been booted and is ready"},
		"a reboot waits until the node is ready":                        {action: "reboot", node: new(whole(func(n *fleet.Node) { n.Ready.Status = fleet.False })), receipt: remedy.Receipt{At: t0, BootID: "boot-1"}, after: soon},
		"a reboot does not take an unknown node for a ready one":        {action: "reboot", node: new(whole(func(n *fleet.Node) { n.Ready = fleet.Condition{} })), receipt: remedy.Receipt{At: t0, BootID: "boot-1"}, after: end, want: remedy.Late, note: "booted and is not ready"},
		"a reboot does not take an unknown boot for a new one":          {action: "reboot", node: new(whole(func(n *fleet.Node) { n.BootID = "" })), receipt: remedy.Receipt{At: t0, BootID: "boot-1"}, after: soon},
		"a reboot is left alone for a while":                            {action: "reboot", receipt: remedy.Receipt{At: t0, BootID: "boot-2"}, after: 4 * time.Minute},
		"a reboot that shows nothing has its repair looked at":          {action: "reboot", receipt: remedy.Receipt{At: t0, BootID: "boot-2"}, after: 5 * time.Minute, want: remedy.Conflict},
		"a reboot that does not come is late":                           {action: "reboot", receipt: remedy.Receipt{At: t0, BootID: "boot-2"}, after: end, want: remedy.Late, note: "gpu-a-01 has no new boot"},
		"a reboot of a node that is gone is over":                       {action: "reboot", gone: true, receipt: receipt, after: soon, want: remedy.Gone},
		"a verification of a node that is gone is over":                 {action: "verify", gone: true, receipt: receipt, after: soon, want: remedy.Gone},
		"a verification yields to a person who uncordons":               {action: "verify", node: new(whole(func(n *fleet.Node) { n.Unschedulable = false })), receipt: receipt, after: soon, want: remedy.Yielded},
		"a verification does not end before its time":                   {action: "verify", receipt: receipt, after: 4 * time.Minute},
		"a verification ends after its time":                            {action: "verify", receipt: receipt, after: 5 * time.Minute, want: remedy.Done, note: "whole for 5m with 8 of 8 GPUs"},
		"a node with the boot of the fault is not verified":             {action: "verify", node: new(whole(func(n *fleet.Node) { n.BootID = "boot-1" })), receipt: receipt, after: end, want: remedy.Late, note: "not booted since the fault"},
		"a node of an unknown boot is not verified":                     {action: "verify", node: new(whole(func(n *fleet.Node) { n.BootID = "" })), receipt: receipt, after: end, want: remedy.Late, note: "not known"},
		"a node that is not ready is not verified":                      {action: "verify", node: new(whole(func(n *fleet.Node) { n.Ready.Status = fleet.Unknown })), receipt: receipt, after: end, want: remedy.Late, note: "not ready"},
		"a node that flaps is not verified":                             {action: "verify", node: new(whole(func(n *fleet.Node) { n.Ready.Since = t0.Add(6 * time.Minute) })), receipt: receipt, after: end, want: remedy.Late, note: "ready for 4m only"},
		"a node that lacks a GPU is not verified":                       {action: "verify", node: new(whole(func(n *fleet.Node) { n.Allocatable.GPUs = 7 })), receipt: receipt, after: end, want: remedy.Late, note: "7 of 8 GPUs allocatable"},
		"a node without any GPU is not verified":                        {action: "verify", node: new(whole(func(n *fleet.Node) { n.Allocatable.GPUs, n.Capacity.GPUs = 0, 0 })), receipt: receipt, after: end, want: remedy.Late, note: "0 of 0 GPUs"},
		"a node whose GPUs have just come back is not verified":         {action: "verify", node: new(whole(func(n *fleet.Node) { n.AllocatableSince = t0.Add(9 * time.Minute) })), receipt: receipt, after: end, want: remedy.Late, note: "GPUs allocatable for 1m only"},
		"a node whose telemetry is lost is not verified":                {action: "verify", node: new(whole(func(n *fleet.Node) { n.Telemetry.Status = fleet.False })), receipt: receipt, after: end, want: remedy.Late, note: "telemetry is lost"},
		"a node whose telemetry has just come back is not verified":     {action: "verify", node: new(whole(func(n *fleet.Node) { n.Telemetry = fleet.Condition{Status: fleet.True, Since: t0.Add(8 * time.Minute)} })), receipt: receipt, after: end, want: remedy.Late, note: "telemetry for 2m only"},
		"a node that never had telemetry is verified without":           {action: "verify", node: new(whole(func(n *fleet.Node) { n.GPUs = []fleet.GPU{{Index: 0}} })), receipt: receipt, after: end, want: remedy.Done},
		"a node whose driver has lost a GPU is not verified":            {action: "verify", node: new(whole(func(n *fleet.Node) { n.GPUs = []fleet.GPU{{Index: 3, Up: fleet.False}} })), receipt: receipt, after: end, want: remedy.Late, note: "GPU 3 is lost"},
		"what is missing is told together at the end of a verification": {action: "verify", node: new(whole(func(n *fleet.Node) { n.BootID, n.Allocatable.GPUs = "boot-1", 7 })), receipt: receipt, after: end, want: remedy.Late, note: "not within 10m: not booted since the fault; 7 of 8 GPUs allocatable"},
	} {
		t.Run(name, func(t *testing.T) {
			o := onNode(tc.action, "gpu-a-01")
			o.Target.UID, o.BootID = "u1", "boot-1"
			nodes := []fleet.Node{whole(nil)}
			switch {
			case tc.gone:
				nodes[0].UID = "u2" // another node has taken the name
			case tc.node != nil:
				nodes[0] = *tc.node
			}
			now := t0.Add(tc.after)
			out, ended := open(t, nil).Check(now, world(now, nodes, nil, tc.pods...), o, tc.receipt)
			want(t, out, ended, tc.want, tc.note)
		})
	}
}

func TestAVerificationMayDoWithoutAReboot(t *testing.T) {
	o := onNode("verify", "gpu-a-01")
	o.BootID, o.Params = "boot-2", json.RawMessage(`{"for":"1m0s","boot":"any"}`)
	now := t0.Add(time.Minute)
	out, ended := open(t, nil).Check(now, world(now, []fleet.Node{whole(nil)}, nil), o, remedy.Receipt{At: t0})
	want(t, out, ended, remedy.Done, "whole for 1m")
}

// TestChecksOfJobs asks each action about one job at one time.
func TestChecksOfJobs(t *testing.T) {
	const (
		soon = time.Minute
		end  = 10 * time.Minute
	)
	key := func(action string) string { return onJob(action, llm).Key }
	receipt := remedy.Receipt{At: t0, Version: 5}
	saved := fleet.Checkpoint{Step: 18200, At: t0.Add(3 * time.Minute)}
	running := func(change func(*fleet.Job)) *fleet.Job {
		j := fleet.Job{Ref: llm, UID: "u1", Version: 5, Workers: 2, Phase: fleet.JobRunning, Started: t0}
		change(&j)
		return &j
	}
	stopped := func(change func(*fleet.Job)) *fleet.Job {
		return running(func(j *fleet.Job) {
			j.Suspended, j.Phase, j.StoppedBy = true, fleet.JobSuspended, inc+"/1-stop/llm"
			change(j)
		})
	}
	same := func(*fleet.Job) {}
	p1, p2 := worker("p1", "gpu-a-01", "boot-2"), worker("p2", "gpu-a-02", "boot-2")
	both := remedy.Receipt{At: t0, Version: 5, Pods: []fleet.PodRef{p1.PodRef, p2.PodRef}}
	for name, tc := range map[string]struct {
		action  string
		job     *fleet.Job // nil: gone
		pods    []fleet.Pod
		receipt remedy.Receipt
		after   time.Duration
		want    remedy.Ending
		note    string
	}{
		"a request without an answer waits":             {action: "checkpoint", job: running(func(j *fleet.Job) { j.CheckpointAsked = key("checkpoint") }), receipt: receipt, after: soon},
		"a request without an answer says what is lost": {action: "checkpoint", job: running(func(j *fleet.Job) { j.CheckpointAsked, j.Checkpoint = key("checkpoint"), saved }), receipt: receipt, after: end, want: remedy.Late, note: "not within 10m: train/llm did not answer; newest checkpoint is step 18200 of 12:03:00 UTC"},
		"a job that never saved says so":                {action: "checkpoint", job: running(func(j *fleet.Job) { j.CheckpointAsked = key("checkpoint") }), receipt: receipt, after: end, want: remedy.Late, note: "newest checkpoint is not known"},
		"an answer is told with its step": {action: "checkpoint", job: running(func(j *fleet.Job) {
			j.CheckpointAsked, j.CheckpointAnswered, j.Checkpoint = key("checkpoint"), key("checkpoint"), saved
		}), receipt: receipt, after: soon, want: remedy.Done, note: "step 18200"},
		"an answer to a later request answers ours": {action: "checkpoint", job: running(func(j *fleet.Job) {
			j.CheckpointAsked, j.CheckpointAnswered, j.Checkpoint = "gpu-ecc-b/1", "gpu-ecc-b/1", saved
		}), receipt: receipt, after: soon, want: remedy.Done, note: "on a later request"},
		"an old answer is none":                        {action: "checkpoint", job: running(func(j *fleet.Job) { j.CheckpointAsked, j.CheckpointAnswered = key("checkpoint"), "gpu-lost-a/0" }), receipt: receipt, after: soon},
		"a job that is stopped meanwhile won't answer": {action: "checkpoint", job: running(func(j *fleet.Job) { j.CheckpointAsked, j.Suspended = key("checkpoint"), true }), receipt: receipt, after: soon, want: remedy.Rejected, note: "stopped before it answered"},
		"a job that ends meanwhile has saved its work": {action: "checkpoint", job: running(func(j *fleet.Job) { j.CheckpointAsked, j.Phase = key("checkpoint"), fleet.JobSucceeded }), receipt: receipt, after: soon, want: remedy.Gone, note: "ended before it answered"},
		"a job that was not asked is done":             {action: "checkpoint", job: running(same), receipt: remedy.Receipt{At: t0, Version: 5, Found: true, Note: "nothing to save"}, after: soon, want: remedy.Done, note: "nothing to save"},
		"a job that is gone can't be asked":            {action: "checkpoint", receipt: receipt, after: soon, want: remedy.Gone},
		"a request that is not seen waits":             {action: "checkpoint", job: running(func(j *fleet.Job) { j.Version = 4 }), receipt: receipt, after: soon},

		"a stop waits for every pod":                           {action: "stop", job: stopped(same), pods: []fleet.Pod{p2}, receipt: both, after: soon},
		"a stop is done when every pod is gone":                {action: "stop", job: stopped(same), receipt: both, after: soon, want: remedy.Done, note: "2 pods of train/llm gone"},
		"a stop waits for a pod that came after the receipt":   {action: "stop", job: stopped(same), pods: []fleet.Pod{worker("p3", "gpu-a-02", "boot-2")}, receipt: both, after: soon},
		"a stop is done when the last pod's boot has ended":    {action: "stop", job: stopped(same), pods: []fleet.Pod{worker("p1", "gpu-a-01", "boot-1")}, receipt: remedy.Receipt{At: t0, Version: 5, Pods: []fleet.PodRef{{UID: "p1", Node: "gpu-a-01", BootID: "boot-1"}}}, after: soon, want: remedy.Done},
		"a stop that hangs names pods and nodes":               {action: "stop", job: stopped(same), pods: []fleet.Pod{p2}, receipt: both, after: end, want: remedy.Late, note: "1 pod of train/llm may still run: train/llm-p2 on gpu-a-02 (whose node does not answer)"},
		"a stop is not done by the state from before it":       {action: "stop", job: stopped(func(j *fleet.Job) { j.Version = 4 }), receipt: both, after: soon},
		"a stop that the controller has not taken waits":       {action: "stop", job: running(func(j *fleet.Job) { j.StoppedBy = key("stop") }), receipt: both, after: soon},
		"a stop yields to who starts the job":                  {action: "stop", job: running(func(j *fleet.Job) { j.StoppedBy, j.Version = key("stop"), 6 }), receipt: both, after: soon, want: remedy.Yielded, note: "started by somebody else"},
		"a stop yields to who removes its mark and starts":     {action: "stop", job: running(func(j *fleet.Job) { j.Version = 6 }), receipt: both, after: soon, want: remedy.Yielded},
		"a stop of what others suspended needs no more":        {action: "stop", job: stopped(func(j *fleet.Job) { j.StoppedBy = "" }), receipt: remedy.Receipt{At: t0, Found: true}, after: soon, want: remedy.Done, note: "suspended by somebody else"},
		"what others suspended and start again is not our own": {action: "stop", job: running(same), pods: []fleet.Pod{worker("p9", "gpu-a-02", "boot-2")}, receipt: remedy.Receipt{At: t0, Found: true, Pods: []fleet.PodRef{p1.PodRef}}, after: soon, want: remedy.Done},
		"a stop of a job that ends by itself is over":          {action: "stop", job: running(func(j *fleet.Job) { j.Phase = fleet.JobFailed }), pods: []fleet.Pod{p1}, receipt: both, after: soon, want: remedy.Gone},
		"a stop of a job that is gone is over":                 {action: "stop", receipt: both, after: soon, want: remedy.Gone},

		"a start is done when the job may run (J8: room or none)": {action: "start", job: running(func(j *fleet.Job) { j.Phase, j.StartedBy = fleet.JobPending, key("start") }), receipt: receipt, after: soon, want: remedy.Done},
		"a start is done though a queue suspends the job again":   {action: "start", job: stopped(func(j *fleet.Job) { j.StartedBy, j.Version = key("start"), 6 }), receipt: receipt, after: soon, want: remedy.Done},
		"a start is not done by the state from before it":         {action: "start", job: stopped(func(j *fleet.Job) { j.Version = 4 }), receipt: receipt, after: soon},
		"a start that is never seen is late":                      {action: "start", job: stopped(func(j *fleet.Job) { j.Version = 4 }), receipt: receipt, after: end, want: remedy.Late, note: "has not been seen"},
		"a start whose mark is lost is done when the job runs":    {action: "start", job: running(func(j *fleet.Job) { j.Version = 6 }), receipt: receipt, after: soon, want: remedy.Done},
		"a start yields to who undoes it":                         {action: "start", job: stopped(func(j *fleet.Job) { j.Version = 6 }), receipt: receipt, after: soon, want: remedy.Yielded},
		"a start of a job that has ended is over":                 {action: "start", job: running(func(j *fleet.Job) { j.Phase = fleet.JobSucceeded }), receipt: receipt, after: soon, want: remedy.Gone},
		"a start of a job that is gone is over":                   {action: "start", receipt: receipt, after: soon, want: remedy.Gone},
	} {
		t.Run(name, func(t *testing.T) {
			o := onJob(tc.action, llm)
			o.Target.UID = "u1"
			var jobs []fleet.Job
			if tc.job != nil {
				jobs = append(jobs, *tc.job)
			}
			now := t0.Add(tc.after)
			out, ended := open(t, nil).Check(now, world(now, []fleet.Node{whole(nil)}, jobs, tc.pods...), o, tc.receipt)
			want(t, out, ended, tc.want, tc.note)
		})
	}
}

func TestACordonDoesNotHideThatAnotherWasOverruled(t *testing.T) {
	m := contract.NewMemory(1)
	m.Change("gpu-a-01", func(n *fleet.Node) { n.Hold = theirs }) // held by another incident, and schedulable
	_, err := open(t, m).Start(t.Context(), onNode("cordon", "gpu-a-01"))
	wantErr(t, err, remedy.Conflict, "under the hold of gpu-ecc-b")
}

func TestAJobThatDoesNotRunIsNotAskedToSave(t *testing.T) {
	for _, phase := range []fleet.JobPhase{fleet.JobPending, fleet.JobSuspended, fleet.JobSucceeded, fleet.JobFailed} {
		t.Run(string(phase), func(t *testing.T) {
			m := contract.NewMemory(1)
			ref := m.RunJob(t, "llm", 1, 8)
			m.ChangeJob(ref, func(j *fleet.Job) { j.Phase = phase })
			r, err := open(t, m).Start(t.Context(), onJob("checkpoint", ref))
			if err != nil || !r.Found || !strings.Contains(r.Note, "nothing to save") {
				t.Errorf("receipt %+v, %v, want found with nothing to save", r, err)
			}
			if j, _ := m.Job(t.Context(), ref); j.CheckpointAsked != "" {
				t.Errorf("the job was asked")
			}
		})
	}
	t.Run("an unknown phase may be running", func(t *testing.T) {
		m := contract.NewMemory(1)
		ref := m.RunJob(t, "llm", 1, 8)
		m.ChangeJob(ref, func(j *fleet.Job) { j.Phase = "" })
		if r, err := open(t, m).Start(t.Context(), onJob("checkpoint", ref)); err != nil || r.Found {
			t.Errorf("receipt %+v, %v, want a request", r, err)
		}
	})
}

// stoppedJob is a job on two nodes, of which gpu-a-01 is dead and keeps its pod.
func stoppedJob(t *testing.T, m *contract.Memory, a *actuator.Actuator) fleet.JobRef {
	t.Helper()
	ref := m.RunJob(t, "llm", 2, 8)
	m.Save(t, ref, "", fleet.Checkpoint{Step: 700, At: t0})
	m.Stick("gpu-a-01")
	m.Cordon(t, "gpu-a-01", true)
	if _, err := a.Start(t.Context(), onJob("stop", ref)); err != nil {
		t.Fatal(err)
	}
	m.Snapshot()
	m.Snapshot()
	return ref
}

func TestTwoGangsNeverRunAtOnce(t *testing.T) {
	m := contract.NewMemory(4)
	a := open(t, m)
	ref := stoppedJob(t, m, a)
	n, err := m.Node(t.Context(), "gpu-a-01")
	if err != nil {
		t.Fatal(err)
	}
	o := onJob("start", ref)
	o.BootID = n.BootID
	_, err = a.Start(t.Context(), o)
	wantErr(t, err, remedy.Conflict, "1 pod of the stopped train/llm may still run: train/llm-0 on gpu-a-01")

	m.Boot(t, "gpu-a-01") // the pod is still in the API, but its boot has ended
	r, err := a.Start(t.Context(), o)
	if err != nil || !strings.Contains(r.Note, "goes on from step 700") {
		t.Fatalf("receipt %+v, %v, want a start", r, err)
	}
	j, _ := m.Job(t.Context(), ref)
	if j.Resume != "step-700" || !cmp.Equal(j.Avoid, []string{"gpu-a-01"}) {
		t.Errorf("resumes from %q, avoids %v", j.Resume, j.Avoid)
	}
}

func TestAStartIsLimited(t *testing.T) {
	for name, tc := range map[string]struct {
		params string
		ill    string
		want   remedy.Ending
		avoid  []string
	}{
		"below the limit it starts":               {`{"attempts":4,"avoid":"node"}`, "gpu-a-01", "", []string{"gpu-a-01"}},
		"at the limit a person is needed":         {`{"attempts":3}`, "gpu-a-01", remedy.Rejected, nil},
		"without parameters there is no limit":    {``, "gpu-a-01", "", []string{"gpu-a-01"}},
		"recovery has no limit either":            {`{"avoid":"none"}`, "gpu-a-01", "", nil},
		"where no node is ill there is none":      {``, "", "", nil},
		"keys of another version are passed over": {`{"from":"latest-complete","colour":"red"}`, "gpu-a-01", "", []string{"gpu-a-01"}},
		"what can't be read is not guessed":       {`{"attempts":"many"}`, "gpu-a-01", remedy.Rejected, nil},
	} {
		t.Run(name, func(t *testing.T) {
			m := contract.NewMemory(2)
			ref := m.RunJob(t, "llm", 1, 8)
			m.ChangeJob(ref, func(j *fleet.Job) { j.Suspended, j.StoppedBy, j.Attempt = true, inc+"/1-stop/llm", 3 })
			m.Snapshot()
			m.Snapshot()
			o := onJob("start", ref)
			o.Params, o.Node = json.RawMessage(tc.params), tc.ill
			_, err := open(t, m).Start(t.Context(), o)
			if ending(err) != tc.want {
				t.Fatalf("start: %v, want ending %q", err, tc.want)
			}
			j, _ := m.Job(t.Context(), ref)
			if j.Suspended != (err != nil) {
				t.Errorf("suspended %v after %v", j.Suspended, err)
			}
			if d := cmp.Diff(j.Avoid, tc.avoid); d != "" {
				t.Errorf("avoids (-got +want):\n%s", d)
			}
		})
	}
}

func TestAStartLeavesTheJobsOfOthers(t *testing.T) {
	for name, by := range map[string]string{
		"that nobody of us stopped":         "",
		"that another incident stopped":     "gpu-ecc-b/1-stop/llm",
		"of an incident whose name is near": inc + "-2/1-stop/llm",
	} {
		t.Run(name, func(t *testing.T) {
			m := contract.NewMemory(1)
			ref := m.RunJob(t, "llm", 1, 8)
			m.ChangeJob(ref, func(j *fleet.Job) { j.Suspended, j.StoppedBy = true, by })
			r, err := open(t, m).Start(t.Context(), onJob("start", ref))
			if err != nil || !r.Found {
				t.Errorf("receipt %+v, %v, want found", r, err)
			}
			if j, _ := m.Job(t.Context(), ref); !j.Suspended {
				t.Error("the job was started")
			}
		})
	}
}

func TestAStartFindsWhatAnEarlierOrderStarted(t *testing.T) {
	m := contract.NewMemory(1)
	ref := m.RunJob(t, "llm", 1, 8)
	m.ChangeJob(ref, func(j *fleet.Job) { j.StoppedBy, j.StartedBy = inc+"/1-stop/llm", inc+"/2-start/llm" })
	r, err := open(t, m).Start(t.Context(), onJob("start", ref))
	if err != nil || !r.Found || !strings.Contains(r.Note, "started already") {
		t.Errorf("receipt %+v, %v, want found", r, err)
	}
}

// booted tells the boots of pods, as a backend may that knows them.
type booted struct{ *contract.Memory }

func (b booted) PodsOf(ctx context.Context, ref fleet.JobRef) ([]fleet.Pod, error) {
	pods, err := b.Memory.PodsOf(ctx, ref)
	for i := range pods {
		pods[i].BootID = "boot-0"
	}
	return pods, err
}

func TestAPodOfAnEndedBootKeepsNoJob(t *testing.T) {
	m := contract.NewMemory(4)
	ref := stoppedJob(t, m, open(t, m))
	if _, err := open(t, booted{m}).Start(t.Context(), onJob("start", ref)); err != nil {
		t.Errorf("start: %v, want none: the pod's boot has ended", err)
	}
}

func TestARebootDoesNotLoseWorkUnasked(t *testing.T) {
	m := contract.NewMemory(1)
	m.RunJob(t, "llm", 1, 8)
	m.Change("gpu-a-01", func(n *fleet.Node) { n.Hold, n.Unschedulable = mine, true })
	_, err := open(t, m).Start(t.Context(), onNode("reboot", "gpu-a-01"))
	wantErr(t, err, remedy.Conflict, "train/llm-0 still holds GPUs of gpu-a-01")
}

func TestARebootTakesPodsThatWereAskedToGo(t *testing.T) {
	m := contract.NewMemory(1)
	a := open(t, m)
	m.RunJob(t, "llm", 1, 8)
	m.Stick("gpu-a-01") // a dead node: what was asked to go stays in the API
	m.Change("gpu-a-01", func(n *fleet.Node) { n.Hold, n.Unschedulable = mine, true })
	if _, err := a.Start(t.Context(), onNode("drain", "gpu-a-01")); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Start(t.Context(), onNode("reboot", "gpu-a-01")); err != nil {
		t.Errorf("reboot: %v, want a start", err)
	}
}

// foreign has a repair of somebody else's under every name.
type foreign struct{ *contract.Memory }

func (foreign) Repair(_ context.Context, name string) (actuator.Repair, error) {
	return actuator.Repair{Name: name, Key: "gpu-ecc-b/1-reboot", BootID: "boot-0"}, nil
}

func TestARepairOfAnotherOrderIsNotOurs(t *testing.T) {
	m := contract.NewMemory(1)
	m.Change("gpu-a-01", func(n *fleet.Node) { n.Hold, n.Unschedulable = mine, true })
	_, err := open(t, foreign{m}).Start(t.Context(), onNode("reboot", "gpu-a-01"))
	wantErr(t, err, remedy.Rejected, "is of another order, gpu-ecc-b/1-reboot")
}

func TestARebootNeedsABootID(t *testing.T) {
	m := contract.NewMemory(1)
	m.Change("gpu-a-01", func(n *fleet.Node) { n.Hold, n.Unschedulable, n.BootID = mine, true, "" })
	_, err := open(t, m).Start(t.Context(), onNode("reboot", "gpu-a-01"))
	wantErr(t, err, remedy.Rejected, "boot id of gpu-a-01 is not known")
}

// flaky answers evictions of named pods with errors.
type flaky struct {
	*contract.Memory

	errs map[string]error
}

func (f flaky) Evict(ctx context.Context, p fleet.PodRef) error {
	if err := f.errs[p.UID]; err != nil {
		return err
	}
	return f.Memory.Evict(ctx, p)
}

func TestOneBadPodDoesNotKeepTheOthers(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		want remedy.Ending
	}{
		"an error that says nothing is unclear":    {errors.New("EOF"), remedy.Unclear},
		"what the cluster forbids is not retried":  {&remedy.Failure{Ending: remedy.Rejected, Err: errors.New("forbidden")}, remedy.Rejected},
		"a pod that has gone meanwhile is no harm": {&remedy.Failure{Ending: remedy.Gone, Err: errors.New("not found")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := contract.NewMemory(1)
			bad := m.RunPod(t, "gpu-a-01", contract.PodControlled)
			good := m.RunPod(t, "gpu-a-01", contract.PodControlled)
			m.Change("gpu-a-01", func(n *fleet.Node) { n.Hold, n.Unschedulable = mine, true })
			_, err := open(t, flaky{m, map[string]error{bad.UID: tc.err}}).Start(t.Context(), onNode("drain", "gpu-a-01"))
			if ending(err) != tc.want {
				t.Errorf("drain: %v (%s), want %q", err, ending(err), tc.want)
			}
			pods, _ := m.PodsOn(t.Context(), "gpu-a-01")
			for _, p := range pods {
				if p.UID == good.UID && !p.Terminating {
					t.Error("the other pod was not asked to go")
				}
			}
		})
	}
}
