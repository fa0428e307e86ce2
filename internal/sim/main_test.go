package sim

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/sim/truth"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A run is a simulation and what it has told.
type run struct {
	*Simulation
	t    testing.TB
	log  strings.Builder
	seen map[*job]bool // by check
	// faked says that the test has claimed progress that no job has made.
	faked bool
}

func start(t testing.TB, cfg Config) *run {
	t.Helper()
	r := &run{t: t, seen: map[*job]bool{}}
	cfg.Tell = func(e Event) { fmt.Fprintf(&r.log, "%s %-6s %s\n", e.At.Format(time.TimeOnly), e.Kind, e.Text) }
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.Simulation = s
	return r
}

// to steps to so long after the start.
func (r *run) to(d time.Duration) {
	r.t.Helper()
	if err := r.Step(r.cfg.Start.Add(d)); err != nil {
		r.t.Fatal(err)
	}
}

// by steps on by so long.
func (r *run) by(d time.Duration) { r.t.Helper(); r.to(r.Elapsed() + d) }

// until steps second by second until it holds, for so long at most.
func (r *run) until(what string, most time.Duration, holds func() bool) {
	r.t.Helper()
	for end := r.Elapsed() + most; !holds(); r.by(time.Second) {
		if r.Elapsed() > end {
			r.t.Fatalf("not within %v: %s\n%s", most, what, r.log.String())
		}
	}
}

func (r *run) job(name string) fleet.Job {
	r.t.Helper()
	ns, name, _ := strings.Cut(name, "/")
	j, err := r.cluster.Job(r.t.Context(), fleet.JobRef{Kind: JobKind, Namespace: ns, Name: name})
	if err != nil {
		r.t.Fatal(err)
	}
	return j
}

func (r *run) node(name string) fleet.Node {
	r.t.Helper()
	n, err := r.cluster.Node(r.t.Context(), name)
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

func (r *run) pods(name string) []fleet.Pod {
	r.t.Helper()
	ns, name, _ := strings.Cut(name, "/")
	pods, err := r.cluster.PodsOf(r.t.Context(), fleet.JobRef{Kind: JobKind, Namespace: ns, Name: name})
	if err != nil {
		r.t.Fatal(err)
	}
	return pods
}

func (r *run) samples(tm *Telemetry) (fleet.Samples, error) {
	into := fleet.Samples{At: r.Now()}
	err := tm.Collect(r.t.Context(), &into)
	return into, err
}

func (r *run) telemetry(node string) *Telemetry {
	r.t.Helper()
	tm, err := r.Telemetry(node)
	if err != nil {
		r.t.Fatal(err)
	}
	return tm
}

// check counts everything anew and compares it with what the simulation keeps: each GPU
// is held by one pod, or by several that have no more than the whole of it and of its
// memory; gangs are whole; and the accounts add up exactly.
func (r *run) check() error {
	s := r.Simulation
	s.mu.Lock()
	defer s.mu.Unlock()
	var uses [numUses]int
	for _, n := range s.nodes {
		var held, cut uint64
		used, memory := make([]int, len(n.gpus)), make([]int, len(n.gpus))
		for _, p := range n.pods {
			if p.job != nil && (p.held() != p.job.spec.each() || bits.OnesCount64(p.gpus) != p.job.spec.GPUs) {
				return fmt.Errorf("%s holds %d of %b, asked for %d", p.name, p.held(), p.gpus, p.job.spec.each())
			}
			if p.gpus&held != 0 && (p.job.spec.Share == 0 || p.gpus&cut == 0) {
				return fmt.Errorf("a GPU of %s is held by %s and another pod, and not in parts", n.name, p.name)
			}
			held |= p.gpus
			if p.job != nil && p.job.spec.Share > 0 {
				cut |= p.gpus
			}
			for mask := p.gpus; mask != 0; mask &= mask - 1 {
				g := bits.TrailingZeros64(mask)
				used[g], memory[g] = used[g]+p.job.spec.share(), memory[g]+p.job.spec.GPUMemory
			}
			uses[p.use] += p.held()
			if s.pods[p.uid] != p {
				return fmt.Errorf("%s is on %s and not in the cluster", p.name, n.name)
			}
			for g := range n.gpus {
				if slices.Contains(n.gpus[g].holders, p) != (p.gpus&(1<<g) != 0) {
					return fmt.Errorf("GPU %d of %s does not know that %s holds it", g, n.name, p.name)
				}
			}
		}
		if held != n.held || cut != n.cut {
			return fmt.Errorf("%s: GPUs %b are held, %b in parts; by pods %b and %b", n.name, n.held, n.cut, held, cut)
		}
		rest := 0
		for g := range n.gpus {
			if on := n.gpus[g]; on.used != used[g] || on.used > truth.Whole || on.memory != memory[g] || on.memory > usableMiB {
				return fmt.Errorf("%s: GPU %d has %d and %d MiB in use, by its pods %d and %d MiB", n.name, g, on.used, on.memory, used[g], memory[g])
			}
			rest += truth.Whole - used[g]
		}
		for u, c := range n.booked {
			uses[u] += c
		}
		if sum(n.booked[:]) != rest {
			return fmt.Errorf("%s: %d thousandths are booked as held by nobody, %d are", n.name, sum(n.booked[:]), rest)
		}
		want := noRoom
		if n.takes() {
			want = n.free()
		}
		if s.room.at[n.index] != want {
			return fmt.Errorf("%s: the scheduler sees room for %d, there is %d", n.name, s.room.at[n.index], want)
		}
	}
	for u, want := range uses {
		if got := s.ledger.GPUs(truth.Use(u)); got != want {
			return fmt.Errorf("%d GPUs are booked as %s, %d are", got, truth.Use(u), want)
		}
	}
	total := truth.GPUTime(s.now * int64(len(s.nodes)*s.cfg.GPUsPerNode) * truth.Whole)
	if got := s.ledger.Total(); got != total {
		return fmt.Errorf("all uses add up to %d thousandths of GPU-ms, there were %d", got, total)
	}
	var useful truth.GPUTime
	pods := 0
	for _, j := range s.jobs {
		r.seen[j] = true
	}
	for j := range r.seen {
		if !j.spec.Idle {
			useful += truth.GPUTime(max(j.best, s.progress(j)) * int64(j.demand()))
		}
		bound := 0
		for _, p := range j.pods {
			if p.gang == j.gang && p.node != nil {
				bound++
			}
		}
		current := len(j.current())
		pods += len(j.pods)
		switch {
		case j.state == waiting && (bound != 0 || current != j.spec.Workers):
			return fmt.Errorf("%s waits with %d of %d pods, %d of them placed", j.ref, current, j.spec.Workers, bound)
		case j.state.active() && (bound != j.spec.Workers || current != j.spec.Workers):
			return fmt.Errorf("%s has %d of %d pods placed", j.ref, bound, j.spec.Workers)
		}
		waits := false
		for _, q := range s.queues {
			for _, o := range q.jobs {
				waits = waits || o == j
			}
		}
		if waits != (j.state == waiting) {
			return fmt.Errorf("%s: in a queue: %t, in state %d", j.ref, waits, j.state)
		}
	}
	// At half the pace, half of the time is progress; each change of pace may cost a
	// millisecond of it to rounding.
	slow := s.ledger.Sum(truth.Slow) / 2
	if got := s.ledger.Sum(truth.Useful) + slow; !r.faked && (got < useful || got > useful && slow == 0 || got-useful > 1000*truth.Whole) {
		return fmt.Errorf("%d GPU-ms were useful by the ledger, %d by the jobs' progress", got, useful)
	}
	for _, p := range s.pods {
		if p.job == nil {
			pods++
		}
	}
	if pods != len(s.pods) {
		return fmt.Errorf("%d pods are in the cluster, %d belong to somebody", len(s.pods), pods)
	}
	return nil
}

func sum(v []int) int {
	n := 0
	for _, x := range v {
		n += x
	}
	return n
}
