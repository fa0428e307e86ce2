package contract

import (
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

const (
	incA = "gpu-lost-a"
	incB = "gpu-ecc-b"
)

// scenarios are what holds for every cluster.
var scenarios = []struct {
	name string
	run  func(*bench)
}{
	{"a cordoned node is marked and closed in one write, and released as it was", func(b *bench) {
		before := b.node()
		o := b.order("cordon", incA, b.on())
		r := b.do(o)
		n := b.node()
		want := fleet.Hold{Incidents: map[string]time.Time{incA: o.Reserved}, Cordoned: true, Why: o.Cause}
		if d := cmp.Diff(n.Hold, want, cmpopts.EquateApproxTime(time.Second)); d != "" || !n.Unschedulable {
			b.Errorf("unschedulable %v, hold (-got +want):\n%s", n.Unschedulable, d)
		}
		if r.Version <= before.Version || b.watched.writes != 1 {
			b.Errorf("version %d after %d, with %d writes, want a later one with one write", r.Version, before.Version, b.watched.writes)
		}
		b.do(b.order("release", incA, b.on()))
		if n := b.node(); n.Unschedulable || n.Hold.Any() || n.Hold.Cordoned {
			b.Errorf("after its release the node is unschedulable %v, held %+v", n.Unschedulable, n.Hold)
		}
	}},
	{"a node that a person cordoned stays cordoned after its release (H1)", func(b *bench) {
		b.Cordon(b.T, b.Nodes()[0], true)
		b.do(b.order("cordon", incA, b.on()))
		b.do(b.order("release", incA, b.on()))
		if n := b.node(); !n.Unschedulable || n.Hold.Any() {
			b.Errorf("after its release the node is unschedulable %v, held %+v", n.Unschedulable, n.Hold)
		}
	}},
	{"a node with two holds is released with the last one (L9)", func(b *bench) {
		b.do(b.order("cordon", incA, b.on()))
		b.do(b.order("cordon", incB, b.on()))
		b.do(b.order("release", incA, b.on()))
		if n := b.node(); !n.Unschedulable || n.Hold.Has(incA) || !n.Hold.Has(incB) || !n.Hold.Cordoned {
			b.Errorf("after the first release the node is unschedulable %v, held %+v", n.Unschedulable, n.Hold)
		}
		b.do(b.order("release", incB, b.on()))
		if n := b.node(); n.Unschedulable || n.Hold.Any() {
			b.Errorf("after the last release the node is unschedulable %v, held %+v", n.Unschedulable, n.Hold)
		}
	}},
	{"a person who uncordons a held node has the last word", func(b *bench) {
		o := b.order("cordon", incA, b.on())
		r := b.do(o)
		b.Cordon(b.T, b.Nodes()[0], false)
		if out := b.end(o, r); out.Ending != remedy.Yielded {
			b.Errorf("cordon ended %s (%s), want yielded", out.Ending, out.Note)
		}
		b.refused(o, remedy.Yielded)
		b.refused(b.order("drain", incA, b.on()), remedy.Yielded)
		b.refused(b.order("reboot", incA, b.on()), remedy.Yielded)
		b.do(b.order("release", incA, b.on()))
		if n := b.node(); n.Unschedulable || n.Hold.Any() {
			b.Errorf("after its release the node is unschedulable %v, held %+v", n.Unschedulable, n.Hold)
		}
	}},
	{"a write to what has changed since it was read is a conflict", func(b *bench) {
		n := b.node()
		b.Cordon(b.T, n.Name, true)
		if _, err := b.Cluster().MarkNode(b.Context(), n, fleet.Hold{}, false); ending(err) != remedy.Conflict {
			b.Errorf("mark of a node that has changed: %v (%s), want a conflict", err, ending(err))
		}
		ref := b.RunJob(b.T, "llm", 1, 8)
		j := b.job(ref)
		b.Save(b.T, ref, "", fleet.Checkpoint{Step: 1, At: b.Now()})
		for name, write := range map[string]func() error{
			"ask":   func() error { _, err := b.Cluster().AskCheckpoint(b.Context(), j, "k"); return err },
			"stop":  func() error { _, err := b.Cluster().StopJob(b.Context(), j, "k"); return err },
			"start": func() error { _, err := b.Cluster().StartJob(b.Context(), j, "k", actuator.Restart{}); return err },
		} {
			if err := write(); ending(err) != remedy.Conflict {
				b.Errorf("%s of a job that has changed: %v (%s), want a conflict", name, err, ending(err))
			}
		}
	}},
	{"a pod is evicted by its uid only", func(b *bench) {
		p := b.RunPod(b.T, b.Nodes()[0], PodControlled)
		other := p
		other.UID = "another"
		if err := b.Cluster().Evict(b.Context(), other); ending(err) != remedy.Gone {
			b.Errorf("evict another uid: %v (%s), want gone", err, ending(err))
		}
		pods, err := b.Cluster().PodsOn(b.Context(), p.Node)
		if err != nil {
			b.Fatal(err)
		}
		if !slices.ContainsFunc(pods, func(q fleet.Pod) bool { return q.UID == p.UID && !q.Terminating }) {
			b.Errorf("the pod was asked to go")
		}
	}},
	{"a job is asked to save, and its answer ends the step", func(b *bench) {
		ref := b.RunJob(b.T, "llm", 2, 8)
		o := b.order("checkpoint", incA, b.of(ref))
		r := b.start(o)
		f := b.Until(b.T, "a later snapshot", func(f fleet.Snapshot) bool { return f.At.After(r.At) && f.Jobs[ref].CheckpointAsked == o.Key })
		if out, ok := b.door.Check(b.Now(), f, o, r); ok {
			b.Fatalf("ended %s (%s) without an answer", out.Ending, out.Note)
		}
		at := b.Now()
		b.Save(b.T, ref, o.Key, fleet.Checkpoint{Step: 18200, URI: "s3://b/18200", At: at})
		out := b.end(o, r)
		if out.Ending != remedy.Done || !strings.Contains(out.Note, "step 18200") {
			b.Errorf("ended %s (%s), want done with the step", out.Ending, out.Note)
		}
		want := fleet.Checkpoint{Step: 18200, URI: "s3://b/18200", At: at}
		if d := cmp.Diff(b.job(ref).Checkpoint, want, cmpopts.EquateApproxTime(time.Second)); d != "" {
			b.Errorf("newest checkpoint (-got +want):\n%s", d)
		}
	}},
	{"a stopped gang is gone whole, and starts from its checkpoint away from the ill node", func(b *bench) {
		ref := b.RunJob(b.T, "llm", 4, 8)
		ill := b.Nodes()[0]
		old := b.Until(b.T, "the gang on the ill node", func(f fleet.Snapshot) bool { return len(f.PodsOf(ref)) == 4 }).PodsOf(ref)
		if !slices.ContainsFunc(old, func(p fleet.Pod) bool { return p.Node == ill }) {
			ill = old[0].Node
		}
		b.do(b.order("cordon", incA, remedy.Target{Node: ill}))
		b.Save(b.T, ref, "", fleet.Checkpoint{Step: 700, URI: "s3://b/700", At: b.Now()})

		stop := b.order("stop", incA, b.of(ref))
		r := b.do(stop)
		if len(r.Pods) != 4 {
			b.Errorf("the receipt names %d pods, want 4", len(r.Pods))
		}
		for _, p := range r.Pods {
			if n, err := b.Cluster().Node(b.Context(), p.Node); err != nil || p.BootID != n.BootID || p.BootID == "" {
				b.Errorf("the receipt has pod %s in boot %q of %s, %v", p.Name, p.BootID, p.Node, err)
			}
		}
		if pods, err := b.Cluster().PodsOf(b.Context(), ref); err != nil || len(pods) != 0 {
			b.Errorf("pods after the stop: %v, %v", pods, err)
		}
		if j := b.job(ref); !j.Suspended || j.StoppedBy != stop.Key {
			b.Errorf("job suspended %v by %q", j.Suspended, j.StoppedBy)
		}

		start := b.order("start", incA, b.of(ref))
		start.Node = ill
		b.do(start)
		f := b.Until(b.T, "the gang runs again", func(f fleet.Snapshot) bool {
			return f.Jobs[ref].Phase == fleet.JobRunning && len(f.PodsOf(ref)) == 4
		})
		for _, p := range f.PodsOf(ref) {
			if p.Node == ill || slices.ContainsFunc(old, func(o fleet.Pod) bool { return o.UID == p.UID }) {
				b.Errorf("pod %s (%s) on %s after the start", p.Name, p.UID, p.Node)
			}
		}
		j := b.job(ref)
		if j.Suspended || j.StartedBy != start.Key || j.Attempt != 1 || j.Resume != "s3://b/700" {
			b.Errorf("job suspended %v, started by %q, attempt %d, resumes from %q", j.Suspended, j.StartedBy, j.Attempt, j.Resume)
		}
		if !slices.Contains(j.Avoid, ill) {
			b.Errorf("job avoids %v, want %s among them", j.Avoid, ill)
		}
		b.Suspend(b.T, ref, true) // a person, after our start
		if again := b.start(start); !again.Found || !b.job(ref).Suspended {
			b.Errorf("started again: receipt %+v, suspended %v", again, b.job(ref).Suspended)
		}
		if b.watched.writes != 3 {
			b.Errorf("%d writes, want 3: cordon, stop, start", b.watched.writes)
		}
	}},
	{"a job that stalls is stopped and started alone, and watched until it has run for a time (J3)", func(b *bench) {
		const stalled = "job-stalled-a"
		ref := b.RunJob(b.T, "llm", 2, 8)
		other := b.RunJob(b.T, "eval", 1, 8)
		b.Save(b.T, ref, "", fleet.Checkpoint{Step: 700, URI: "s3://b/700", At: b.Now()})
		order := func(action string) remedy.Order {
			o := b.order(action, stalled, b.of(ref))
			o.Node = "" // the incident is about the job
			return o
		}
		b.do(order("stop"))
		b.do(order("start"))
		watch := order("watch")
		watch.Params = []byte(`{"for":"2s"}`)
		r := b.start(watch)
		out := b.end(watch, r)
		if j := b.job(ref); out.Ending != remedy.Done || j.Phase != fleet.JobRunning || j.Resume != "s3://b/700" || len(j.Avoid) > 0 {
			b.Errorf("watch ended %s (%s) with the job %s from %q, avoiding %v", out.Ending, out.Note, j.Phase, j.Resume, j.Avoid)
		}
		if j := b.job(other); j.Suspended || j.StoppedBy != "" || j.Attempt != 0 {
			b.Errorf("another job was touched: %+v", j)
		}
		again := order("watch")
		r = b.start(again)
		b.Suspend(b.T, ref, true)
		if out := b.end(again, r); out.Ending != remedy.Yielded {
			b.Errorf("suspended by a person, watch ended %s (%s), want yielded", out.Ending, out.Note)
		}
	}},
	{"a stopped job gets what its own recipe says, once, and runs with it", func(b *bench) {
		ref := b.RunJob(b.T, "llm", 2, 8)
		b.Recipe(b.T, ref, "oom", "BATCH_SIZE=8, LOADER_WORKERS=2")
		order := func() remedy.Order {
			o := b.order("recipe", incA, b.of(ref))
			o.Params = []byte(`{"name":"oom","allow":["BATCH_SIZE","LOADER_WORKERS"]}`)
			return o
		}
		if r := b.start(order()); !r.Found || len(b.job(ref).Env) > 0 {
			b.Errorf("receipt %+v and environment %v of a job that we have not stopped", r, b.job(ref).Env)
		}
		b.do(b.order("stop", incA, b.of(ref)))
		narrow := order()
		narrow.Params = []byte(`{"name":"oom","allow":["BATCH_SIZE"]}`)
		if said := b.refused(narrow, remedy.Rejected); !strings.Contains(said, "LOADER_WORKERS") || len(b.job(ref).Env) > 0 {
			b.Errorf("refused with %q, environment %v; want the name that is not allowed, and nothing set", said, b.job(ref).Env)
		}
		o := order()
		b.do(o)
		b.do(b.order("start", incA, b.of(ref)))
		f := b.Until(b.T, "the gang runs again", func(f fleet.Snapshot) bool { return f.Jobs[ref].Phase == fleet.JobRunning })
		want := map[string]string{"BATCH_SIZE": "8", "LOADER_WORKERS": "2"}
		for what, j := range map[string]fleet.Job{"live": b.job(ref), "as seen": f.Jobs[ref]} {
			if d := cmp.Diff(j.Env, want); d != "" || j.RecipeBy != o.Key {
				b.Errorf("%s, by %q, the environment (-got +want):\n%s", what, j.RecipeBy, d)
			}
		}
	}},
	{"a job whose nodes are whole is inspected at once, and one that mounts nothing waits for no claim", func(b *bench) {
		ref := b.RunJob(b.T, "llm", 2, 8)
		o := b.order("inspect", incA, b.of(ref))
		if out := b.end(o, b.start(o)); out.Ending != remedy.Done || !strings.Contains(out.Note, "2 nodes of train/llm whole") && !strings.Contains(out.Note, "2 nodes of") {
			b.Errorf("inspect ended %s (%s), want done with two nodes", out.Ending, out.Note)
		}
		b.do(b.order("claims", incA, b.of(ref)))
		if b.watched.writes != 0 {
			b.Errorf("%d writes of what only looks", b.watched.writes)
		}
	}},
	{"a job that a person suspended is not ours to start", func(b *bench) {
		ref := b.RunJob(b.T, "llm", 1, 8)
		b.Suspend(b.T, ref, true)
		b.do(b.order("stop", incA, b.of(ref)))
		b.do(b.order("start", incA, b.of(ref)))
		if j := b.job(ref); !j.Suspended || b.watched.writes != 0 {
			b.Errorf("suspended %v after %d writes, want true after none", j.Suspended, b.watched.writes)
		}
	}},
	{"a person who starts a job that we stopped has the last word", func(b *bench) {
		ref := b.RunJob(b.T, "llm", 1, 8)
		stop := b.order("stop", incA, b.of(ref))
		r := b.do(stop)
		b.Suspend(b.T, ref, false)
		if out := b.end(stop, r); out.Ending != remedy.Yielded {
			b.Errorf("stop ended %s (%s), want yielded", out.Ending, out.Note)
		}
		if again := b.start(stop); !again.Found || b.job(ref).Suspended {
			b.Errorf("stopped again: receipt %+v, suspended %v", again, b.job(ref).Suspended)
		}
		b.refused(b.order("start", incA, b.of(ref)), remedy.Yielded)
	}},
	{"a drained node has its own pods only", func(b *bench) {
		node := b.Nodes()[0]
		gone := b.RunPod(b.T, node, PodControlled)
		stays := b.RunPod(b.T, node, PodResident)
		b.do(b.order("cordon", incA, b.on()))
		r := b.do(b.order("drain", incA, b.on()))
		if boot := b.node().BootID; len(r.Pods) != 1 || r.Pods[0].UID != gone.UID || r.Pods[0].BootID != boot {
			b.Errorf("the receipt has pods %v, want %s in boot %s", r.Pods, gone.Name, boot)
		}
		pods, err := b.Cluster().PodsOn(b.Context(), node)
		if err != nil {
			b.Fatal(err)
		}
		if has(pods, gone) || !has(pods, stays) {
			b.Errorf("pods after the drain: %v", pods)
		}
	}},
	{"a budget that refuses is named and asked again, and the other pods go (D2, D6)", func(b *bench) {
		node := b.Nodes()[0]
		kept := b.RunPod(b.T, node, PodControlled)
		free := b.RunPod(b.T, node, PodControlled)
		b.Refuse(b.T, kept)
		b.do(b.order("cordon", incA, b.on()))
		o := b.order("drain", incA, b.on())
		r := b.start(o)
		f := b.Until(b.T, "the free pod is gone", func(f fleet.Snapshot) bool { return f.At.After(r.At) && len(f.Left([]fleet.PodRef{free})) == 0 })
		out, ok := b.door.Check(b.Now(), f, o, r)
		if !ok || out.Ending != remedy.Conflict || !strings.Contains(out.Note, kept.Name) {
			b.Fatalf("ended %v: %s (%s), want a conflict that names %s", ok, out.Ending, out.Note, kept.Name)
		}
		writes := b.watched.writes
		b.start(o)
		if b.watched.writes != writes {
			b.Errorf("%d evictions on the second try, want none", b.watched.writes-writes)
		}
		b.Allow(b.T, kept)
		b.do(o)
	}},
	{"a pod that nobody makes anew keeps the drain from touching anything (S11)", func(b *bench) {
		node := b.Nodes()[0]
		b.RunPod(b.T, node, PodControlled)
		bare := b.RunPod(b.T, node, PodBare)
		b.do(b.order("cordon", incA, b.on()))
		if said := b.refused(b.order("drain", incA, b.on()), remedy.Rejected); !strings.Contains(said, bare.Name) {
			b.Errorf("drain: %s, want the pod's name", said)
		}
	}},
	{"a node is booted once, and is done when it is back", func(b *bench) {
		b.do(b.order("cordon", incA, b.on()))
		o := b.order("reboot", incA, b.on())
		o.BootID = b.node().BootID
		r := b.start(o)
		if r.Found || r.BootID != o.BootID {
			b.Errorf("receipt %+v, want the boot %s", r, o.BootID)
		}
		if again := b.start(o); !again.Found {
			b.Errorf("second receipt %+v, want found", again)
		}
		if b.watched.writes != 2 {
			b.Errorf("%d writes, want 2: cordon and one repair", b.watched.writes)
		}
		b.Boot(b.T, o.Target.Node)
		if out := b.end(o, r); out.Ending != remedy.Done {
			b.Errorf("ended %s (%s), want done", out.Ending, out.Note)
		}
		other := b.order("reboot", incA, b.on())
		other.BootID = o.BootID
		if again := b.do(other); !again.Found || b.watched.writes != 2 {
			b.Errorf("receipt %+v after %d writes, want found: the node has been booted since the fault", again, b.watched.writes)
		}
	}},
	{"a repair that failed is told when it is looked at, and not made anew", func(b *bench) {
		b.do(b.order("cordon", incA, b.on()))
		o := b.order("reboot", incA, b.on())
		r := b.start(o)
		name := strings.TrimPrefix(r.Note, "repair ")
		b.FailRepair(b.T, name, "no answer from the BMC")
		if said := b.refused(o, remedy.Rejected); !strings.Contains(said, name) {
			b.Errorf("reboot: %s, want the repair's name", said)
		}
	}},
	{"a GPU is reset once, when nothing holds it, and is done when its repair says so", func(b *bench) {
		o := b.ready("reset")
		r := b.start(o)
		if r.Found || r.Ended {
			b.Errorf("receipt %+v, want a repair that has begun", r)
		}
		if again := b.start(o); !again.Found || again.Ended {
			b.Errorf("second receipt %+v, want one that is found and has not ended", again)
		}
		if b.watched.writes != 2 {
			b.Errorf("%d writes, want 2: cordon and one repair", b.watched.writes)
		}
		b.EndRepair(b.T, strings.TrimPrefix(r.Note, "repair "))
		if out := b.end(o, b.start(o)); out.Ending != remedy.Done {
			b.Errorf("ended %s (%s), want done", out.Ending, out.Note)
		}
	}},
	{"a GPU is not reset under pods that nobody has spared", func(b *bench) {
		b.RunJob(b.T, "llm", 6, 8)
		o := b.ready("reset")
		if said := b.refused(o, remedy.Conflict); !strings.Contains(said, "llm") {
			b.Errorf("reset: %s, want the pod's name", said)
		}
		pods, err := b.Cluster().PodsOn(b.Context(), o.Target.Node)
		if err != nil {
			b.Fatal(err)
		}
		for _, p := range pods {
			o.Spare = append(o.Spare, p.PodRef)
		}
		b.start(o)
	}},
	{"a reset of which the repair failed is told, and not made anew", func(b *bench) {
		o := b.ready("reset")
		name := strings.TrimPrefix(b.start(o).Note, "repair ")
		b.FailRepair(b.T, name, "in use by another client")
		if said := b.refused(o, remedy.Rejected); !strings.Contains(said, name) {
			b.Errorf("reset: %s, want the repair's name", said)
		}
	}},
	{"a drain leaves alone what is spared, and for a GPU what holds none", func(b *bench) {
		node := b.Nodes()[0]
		stays, goes := b.RunPod(b.T, node, PodControlled), b.RunPod(b.T, node, PodControlled)
		b.do(b.order("cordon", incA, b.on()))
		left := func(o remedy.Order, want ...fleet.PodRef) {
			b.Helper()
			b.do(o)
			pods, err := b.Cluster().PodsOn(b.Context(), node)
			for _, p := range []fleet.PodRef{stays, goes} {
				if err != nil || has(pods, p) != slices.ContainsFunc(want, func(w fleet.PodRef) bool { return w.UID == p.UID }) {
					b.Errorf("on the node are %v (%v), want %v", pods, err, want)
				}
			}
		}
		of := b.on()
		of.GPU = b.GPU(node)
		left(b.order("drain", incA, of), stays, goes)
		o := b.order("drain", incA, b.on())
		o.Spare = []fleet.PodRef{stays}
		left(o, stays)
	}},
	{"a repair has one name once", func(b *bench) {
		n := b.node()
		rep := actuator.Repair{Name: "reboot-contract", Action: "reboot", Key: incA + "/1-reboot", Node: n.Name, BootID: n.BootID}
		if _, err := b.Cluster().Repair(b.Context(), rep.Name); ending(err) != remedy.Gone {
			b.Errorf("read what is not there: %v (%s), want gone", err, ending(err))
		}
		if _, err := b.Cluster().CreateRepair(b.Context(), rep); err != nil {
			b.Fatal(err)
		}
		if _, err := b.Cluster().CreateRepair(b.Context(), rep); ending(err) != remedy.Conflict {
			b.Errorf("create it again: %v (%s), want a conflict", err, ending(err))
		}
		got, err := b.Cluster().Repair(b.Context(), rep.Name)
		if d := cmp.Diff(got, rep, cmpopts.IgnoreFields(actuator.Repair{}, "Version", "Note")); err != nil || d != "" {
			b.Errorf("read: %v (-got +want):\n%s", err, d)
		}
	}},
}

func has(pods []fleet.Pod, p fleet.PodRef) bool {
	return slices.ContainsFunc(pods, func(q fleet.Pod) bool { return q.UID == p.UID })
}

// ready brings the cluster to where the action has something to do, and orders it.
// An action that is not here has no contract, which the test reports.
func (b *bench) ready(action string) remedy.Order {
	b.Helper()
	switch action {
	case "cordon":
		return b.order(action, incA, b.on())
	case "checkpoint", "stop":
		return b.order(action, incA, b.of(b.RunJob(b.T, "llm", 2, 8)))
	case "start":
		ref := b.RunJob(b.T, "llm", 2, 8)
		b.do(b.order("stop", incA, b.of(ref)))
		return b.order(action, incA, b.of(ref))
	case "drain":
		b.RunPod(b.T, b.Nodes()[0], PodControlled)
		b.do(b.order("cordon", incA, b.on()))
		return b.order(action, incA, b.on())
	case "watch":
		ref := b.RunJob(b.T, "llm", 2, 8)
		b.do(b.order("stop", incA, b.of(ref)))
		b.do(b.order("start", incA, b.of(ref)))
		return b.order(action, incA, b.of(ref))
	case "inspect", "claims":
		return b.order(action, incA, b.of(b.RunJob(b.T, "llm", 2, 8)))
	case "recipe":
		ref := b.RunJob(b.T, "llm", 2, 8)
		b.Recipe(b.T, ref, "oom", "BATCH_SIZE=8")
		b.do(b.order("stop", incA, b.of(ref)))
		o := b.order(action, incA, b.of(ref))
		o.Params = []byte(`{"name":"oom","allow":["BATCH_SIZE"]}`)
		return o
	case "reboot", "verify", "release":
		b.do(b.order("cordon", incA, b.on()))
		return b.order(action, incA, b.on())
	case "reset":
		b.do(b.order("cordon", incA, b.on()))
		to := b.on()
		to.GPU = b.GPU(to.Node)
		o := b.order(action, incA, to)
		o.BootID = b.node().BootID
		return o
	}
	b.Fatalf("the contract does not know what %s needs: add it to ready", action)
	return remedy.Order{}
}

func repeat(b *bench, action string) {
	o := b.ready(action)
	before := b.watched.writes
	b.watched.lose = true
	for try := 0; ; try++ {
		_, err := b.door.Start(b.Context(), o)
		if b.watched.writes > before || err == nil {
			if e := ending(err); b.watched.writes > before && e != remedy.Unclear {
				b.Fatalf("start whose answer was lost: %v (%s), want unclear", err, e)
			}
			break
		}
		if ending(err) != remedy.Conflict || try == 20 {
			b.Fatalf("start: %v", err)
		}
		b.Until(b.T, "the next try", func(fleet.Snapshot) bool { return true })
	}
	b.watched.lose = false
	after := b.watched.writes
	want := before + 1
	if looks(action) {
		want = before
	}
	if after != want {
		b.Errorf("%d writes, want %d", after-before, want-before)
	}
	for range 2 {
		if r := b.start(o); !r.Found {
			b.Errorf("receipt %+v, want found", r)
		}
	}
	if b.watched.writes != after {
		b.Errorf("%d writes when started again, want none", b.watched.writes-after)
	}
}

// looks reports whether the action only looks.
func looks(action string) bool {
	return slices.Contains([]string{"verify", "watch", "inspect", "claims"}, action)
}

// absent asks for what is not there, and for what has the name and not the uid.
func absent(b *bench, action string) {
	info, _ := actuator.Actions.Info(action)
	if looks(action) && action != "claims" {
		to := remedy.Target{Node: "not-there"}
		if info.Scope == remedy.ScopeJobs {
			to = remedy.Target{Job: fleet.JobRef{Kind: "Job.batch", Namespace: "train", Name: "not-there"}}
		}
		o := b.order(action, incA, to)
		if out := b.end(o, b.start(o)); out.Ending != remedy.Gone {
			b.Errorf("ended %s (%s), want gone", out.Ending, out.Note)
		}
		return
	}
	missing, other := remedy.Target{Node: "not-there"}, b.on()
	if info.Scope == remedy.ScopeJobs {
		ref := b.RunJob(b.T, "llm", 1, 8)
		missing, other = remedy.Target{Job: fleet.JobRef{Kind: ref.Kind, Namespace: ref.Namespace, Name: "not-there"}}, b.of(ref)
	}
	other.UID = "another"
	b.refused(b.order(action, incA, missing), remedy.Gone)
	b.refused(b.order(action, incA, other), remedy.Gone)
}
