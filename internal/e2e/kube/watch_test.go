package kube

import (
	"context"
	"encoding/json"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/internal/e2e/cluster"
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/kube"
	"stoker.dev/stoker/internal/observe"
	"stoker.dev/stoker/internal/remedy"
)

func TestCacheThroughARestartOfTheServer(t *testing.T) {
	s := theSuite(t)
	c := s.hands(t)
	cache := kube.NewCache(logger(t), s.client(t), c.Observers()...)
	run(t, cache)
	name := s.AddNodes(t, 1, cluster.Nodes{Prefix: "cut-"})[0]
	world := observe.NewWorld(logger(t), observe.Source{Name: observe.Cluster, Filler: cache, Needed: true})
	until := func(what string, within time.Duration, ok func(fleet.Snapshot) bool) fleet.Snapshot {
		t.Helper()
		for deadline := time.Now().Add(within); ; time.Sleep(50 * time.Millisecond) {
			f, err := world.Snapshot(t.Context(), time.Now().UTC())
			if err != nil {
				t.Fatal(err)
			}
			if ok(f) {
				return f
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: not within %v; the cluster was seen last %v ago", what, within, time.Since(f.Sources[observe.Cluster]))
			}
		}
	}
	begun := time.Now()
	s.SetAllocatableGPUs(t, name, 7)
	until("a lost GPU is seen", soon, func(f fleet.Snapshot) bool { return f.Nodes[name].Allocatable.GPUs == 7 })
	t.Logf("a change was seen after %v", time.Since(begun))

	s.APIServer.Stop(t)
	down := time.Now()
	time.Sleep(4 * time.Second)
	f, err := world.Snapshot(t.Context(), time.Now().UTC())
	if err != nil {
		t.Fatal(err)
	}
	if last := f.Sources[observe.Cluster]; last.After(down.Add(time.Second)) {
		t.Errorf("a server that does not run was seen alive %v after its end", last.Sub(down))
	}
	if f.Nodes[name].Allocatable.GPUs != 7 {
		t.Errorf("what was known is forgotten: %+v", f.Nodes[name])
	}
	s.APIServer.Start(t)
	up := time.Now()
	s.SetAllocatableGPUs(t, name, 6)
	until("what happened after the restart", soon, func(f fleet.Snapshot) bool {
		return f.Nodes[name].Allocatable.GPUs == 6 && f.Sources[observe.Cluster].After(up)
	})
	t.Logf("seen again %v after the restart", time.Since(up))

	// Nothing happens now, and the cluster is known to be alive all the same.
	quiet := time.Now()
	worst := time.Duration(0)
	for time.Since(quiet) < 35*time.Second {
		f, err := world.Snapshot(t.Context(), time.Now().UTC())
		if err != nil {
			t.Fatal(err)
		}
		worst = max(worst, f.At.Sub(f.Sources[observe.Cluster]))
		time.Sleep(200 * time.Millisecond)
	}
	t.Logf("oldest sign of life of a quiet cluster: %v", worst)
	if worst > 25*time.Second {
		t.Errorf("a quiet cluster was not known to be alive for %v", worst)
	}
}

// TestCacheOfAServerThatHangs freezes the server: its connections stay open, and
// nothing answers.
func TestCacheOfAServerThatHangs(t *testing.T) {
	s := theSuite(t)
	c := s.hands(t)
	cache := kube.NewCache(logger(t), s.client(t), c.Observers()...)
	run(t, cache)
	name := s.AddNodes(t, 1, cluster.Nodes{Prefix: "hang-"})[0]
	world := observe.NewWorld(logger(t), observe.Source{Name: observe.Cluster, Filler: cache, Needed: true})
	snapshot := func() fleet.Snapshot {
		t.Helper()
		f, err := world.Snapshot(t.Context(), time.Now().UTC())
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	n, err := c.Node(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	p := s.APIServer.Process()
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	frozen := time.Now()
	thawed := false
	thaw := func() {
		if !thawed {
			thawed = true
			if err := p.Signal(syscall.SIGCONT); err != nil {
				t.Error(err)
			}
		}
	}
	defer thaw()
	_, err = c.MarkNode(t.Context(), n, fleet.Hold{}.With("a", time.Now()), true)
	wantEnding(t, err, remedy.Unclear)
	if d := time.Since(frozen); d > 20*time.Second {
		t.Errorf("a call waited %v for an answer", d)
	}
	time.Sleep(time.Until(frozen.Add(25 * time.Second)))
	if last := snapshot().Sources[observe.Cluster]; last.After(frozen.Add(time.Second)) {
		t.Errorf("a frozen server was seen alive %v after it had been frozen", last.Sub(frozen))
	}
	thaw()
	up := time.Now()
	for {
		if f := snapshot(); f.Sources[observe.Cluster].After(up) {
			break
		}
		if time.Since(up) > soon {
			t.Fatalf("the server was not seen alive %v after it had thawed", soon)
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Logf("seen alive %v after it had thawed", time.Since(up))
	// What became of the call that had no answer is looked up: it was carried out, or not.
	is, err := c.Node(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the node is held: %v", is.Hold.Has("a"))
}

func TestElectionOfTwoReplicas(t *testing.T) {
	s := theSuite(t)
	replica := func(identity string) (*kube.Election, func()) {
		e, err := kube.NewElection(logger(t), s.config, kube.ElectionOptions{Namespace: own, Name: "stoker", Identity: identity})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() {
			done <- e.Run(ctx, func(ctx context.Context) error {
				<-ctx.Done()
				return nil
			})
		}()
		stopped := false
		stop := func() {
			if stopped {
				return
			}
			stopped = true
			cancel()
			if err := <-done; err != nil {
				t.Errorf("replica %s: %v", identity, err)
			}
		}
		t.Cleanup(stop)
		return e, stop
	}
	wait := func(what string, ok func() bool) time.Duration {
		t.Helper()
		begun := time.Now()
		for !ok() {
			if time.Since(begun) > soon {
				t.Fatalf("%s: not within %v", what, soon)
			}
			time.Sleep(20 * time.Millisecond)
		}
		return time.Since(begun)
	}
	one, stopOne := replica("one")
	wait("one leads", one.Leads)
	two, _ := replica("two")
	wait("two knows who leads", func() bool { return two.Leader() == "one" })
	stopOne()
	t.Logf("two led %v after one had ended", wait("two leads", two.Leads))
	lease, err := s.Client.CoordinationV1().Leases(own).Get(t.Context(), "stoker", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if *lease.Spec.HolderIdentity != "two" {
		t.Errorf("the lease is held by %q", *lease.Spec.HolderIdentity)
	}
}

func TestEventsOnTheObjects(t *testing.T) {
	s := theSuite(t)
	e, err := kube.NewEvents(logger(t), s.config)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	node := s.Node(t, s.AddNodes(t, 1, cluster.Nodes{Prefix: "told-"})[0])
	s.Namespace(t, "told")
	o := remedy.Order{Key: "a/1/cordon", Incident: "a", Action: "cordon", Target: remedy.Target{Node: node.Name, UID: string(node.UID)}, Cause: "XID 79", Actor: "stoker"}
	e.Started(o, []remedy.GateResult{{Gate: "budget", Pass: true, Reason: "0 of 8 are out"}})
	o.Action, o.Target = "stop", remedy.Target{Job: fleet.JobRef{Kind: "Job.batch", Namespace: "told", Name: "llm"}, UID: "u"}
	e.Ended(o, remedy.Outcome{Ending: remedy.Done, Note: "4 pods are gone"})
	for _, want := range []struct{ namespace, kind, name, reason, text string }{
		{"default", "Node", node.Name, "CordonStarted", "XID 79. Gates: budget: 0 of 8 are out. Incident a, by stoker"},
		{"told", "Job", "llm", "StopDone", "4 pods are gone. Incident a, by stoker"},
	} {
		var got []corev1.Event
		s.Await(t, "an event on "+want.name, soon, func(ctx context.Context) (bool, string, error) {
			list, err := s.Client.CoreV1().Events(want.namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + want.name + ",involvedObject.kind=" + want.kind + ",reason=" + want.reason})
			if err != nil {
				return false, "", err
			}
			got = list.Items
			return len(got) == 1, "none", nil
		})
		if got[0].Message != want.text {
			t.Errorf("event says %q, want %q", got[0].Message, want.text)
		}
	}
}

func TestRepairRunsOnItsNode(t *testing.T) {
	s := theSuite(t)
	c := s.hands(t)
	name := s.AddNodes(t, 1, cluster.Nodes{Prefix: "repair-", Taints: []corev1.Taint{{Key: "nvidia.com/gpu", Effect: corev1.TaintEffectNoExecute}}})[0]
	n := retried(t, func() (fleet.Node, error) {
		n, err := c.Node(t.Context(), name)
		if err != nil {
			return n, err
		}
		return c.MarkNode(t.Context(), n, fleet.Hold{Cordoned: true}.With("a", time.Now()), true)
	})
	s.StartRebooter(t, cluster.RebooterOptions{Namespace: own})
	rep := repairOf(n)
	if _, err := c.CreateRepair(t.Context(), rep); err != nil {
		t.Fatal(err)
	}
	s.Await(t, "the node to have a new boot", soon, func(ctx context.Context) (bool, string, error) {
		is, err := c.Node(ctx, name)
		return err == nil && is.BootID != n.BootID, is.BootID, err
	})
	s.Await(t, "the repair to have ended", soon, func(ctx context.Context) (bool, string, error) {
		r, err := c.Repair(ctx, rep.Name)
		return err == nil && r.Note == "has ended well" && !r.Failed, r.Note, err
	})
	pod := s.JobPods(t, own, rep.Name)[0]
	env, err := json.Marshal(pod.Spec.Containers[0].Env)
	if err != nil {
		t.Fatal(err)
	}
	if pod.Spec.NodeName != name || !strings.Contains(string(env), n.BootID) {
		t.Errorf("the repair ran on %s with %s", pod.Spec.NodeName, env)
	}
}

func repairOf(n fleet.Node) actuator.Repair {
	return actuator.Repair{Name: "reboot-" + n.Name, Action: "reboot", Key: "a/5/reboot", Node: n.Name, BootID: n.BootID}
}
