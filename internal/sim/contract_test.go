package sim

import (
	"cmp"
	"fmt"
	"testing"
	"time"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/actuator/contract"
	"stoker.dev/stoker/internal/fleet"
)

func TestTheClusterKeepsTheContract(t *testing.T) {
	contract.Run(t, func(t *testing.T) contract.Backend {
		t.Helper()
		return &backend{run: start(t, Config{Seed: 7, Answer: Span{time.Hour, time.Hour}})}
	})
}

// A backend is a simulation as the contract wants it. Its jobs neither end nor save by
// themselves: what they would do is the test's to say.
type backend struct {
	*run
	prev fleet.Snapshot
	pods int
}

func (b *backend) Cluster() actuator.Cluster { return b.run.Cluster() }

func (b *backend) Nodes() []string { return b.NodeNames() }

func (b *backend) Until(t *testing.T, what string, ok func(fleet.Snapshot) bool) fleet.Snapshot {
	t.Helper()
	for range 3600 {
		b.by(time.Second)
		f, err := b.run.Cluster().Snapshot(t.Context(), b.Now(), b.prev)
		if err != nil {
			t.Fatal(err)
		}
		b.prev = f
		if err := b.check(); err != nil {
			t.Fatal(err)
		}
		if ok(f) {
			return f
		}
	}
	t.Fatalf("%s: not within an hour\n%s", what, b.log.String())
	return fleet.Snapshot{}
}

func (b *backend) RunJob(t *testing.T, name string, workers, gpus int) fleet.JobRef {
	t.Helper()
	spec := JobSpec{Namespace: "train", Name: name, Workers: workers, GPUs: gpus, Iterations: 1 << 40, Iteration: time.Second, CheckpointEvery: 1 << 30}
	if err := b.Submit(spec); err != nil {
		t.Fatal(err)
	}
	b.Until(t, name+" trains", func(fleet.Snapshot) bool { return b.byRef[spec.Ref()].state == training })
	return spec.Ref()
}

func (b *backend) RunPod(_ *testing.T, name string, kind contract.PodKind) fleet.PodRef {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.byName[name]
	b.pods++
	p := &pod{
		uid: b.uid(), name: fmt.Sprintf("%s-%d", kind, b.pods), namespace: "kube-system", node: n, running: true, blame: none,
		resident: kind == contract.PodResident, controlled: kind != contract.PodBare,
	}
	n.pods = append(n.pods, p)
	b.Simulation.pods[p.uid] = p
	return podFact(p).PodRef
}

func (b *backend) must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (b *backend) Refuse(t *testing.T, p fleet.PodRef) {
	t.Helper()
	b.must(t, b.People().Protect(p.UID, true))
}

func (b *backend) Allow(t *testing.T, p fleet.PodRef) {
	t.Helper()
	b.must(t, b.People().Protect(p.UID, false))
}

func (b *backend) Cordon(t *testing.T, node string, unschedulable bool) {
	t.Helper()
	if unschedulable {
		b.must(t, b.People().Cordon(node))
		return
	}
	b.must(t, b.People().Uncordon(node))
}

func (b *backend) Suspend(t *testing.T, ref fleet.JobRef, suspend bool) {
	t.Helper()
	if suspend {
		b.must(t, b.People().Suspend(ref))
		return
	}
	b.must(t, b.People().Unsuspend(ref))
}

func (b *backend) Save(_ *testing.T, ref fleet.JobRef, key string, c fleet.Checkpoint) {
	b.mu.Lock()
	defer b.mu.Unlock()
	j := b.byRef[ref]
	b.faked = true
	b.keep(j, saved{step: c.Step, uri: c.URI, at: c.At.Sub(b.cfg.Start).Milliseconds()})
	j.answered = cmp.Or(key, j.answered)
	b.write(&j.version)
}

func (b *backend) Recipe(_ *testing.T, ref fleet.JobRef, name, text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	j := b.byRef[ref]
	j.recipes = map[string]string{name: text}
	b.write(&j.version)
}

func (b *backend) Boot(_ *testing.T, node string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shutDown(b.byName[node], false)
}

func (b *backend) GPU(node string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.byName[node].gpus[0].uuid
}

func (b *backend) EndRepair(t *testing.T, name string) {
	t.Helper()
	b.Until(t, name+" has ended", func(fleet.Snapshot) bool { return b.repairs[name].Done })
}

func (b *backend) FailRepair(_ *testing.T, name, note string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.repairs[name]
	r.Failed, r.Note = true, note
	b.write(&r.Version)
}
