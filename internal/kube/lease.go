package kube

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

// Times of the lease: how long it is valid without renewal, how long its holder tries
// to renew it, and how often it is tried. Another replica leads at the latest this
// validity after a leader was lost, and at once after one has ended in order.
const (
	leaseValid   = 15 * time.Second
	leaseRenewed = 10 * time.Second
	leaseTried   = 2 * time.Second
)

// ElectionOptions names the lease and who asks for it.
type ElectionOptions struct {
	Namespace string
	Name      string
	// Identity is this replica's, for ever its own: a restarted one is another. What it
	// says is what the other replicas learn of the leader, such as where to reach it.
	Identity string
	// Valid, Renewed and Tried are the times of the lease, as above; zero means those.
	Valid, Renewed, Tried time.Duration
}

// An Election lets one replica at a time lead, by a Lease. A leader that was stopped
// and woken may believe for a moment that it leads still; only the preconditions of
// its writes keep it from harm.
type Election struct {
	log   *slog.Logger
	lock  *seenLock
	times [3]time.Duration // valid, renewed, tried
}

// NewElection returns an election. It asks for nothing until it runs.
func NewElection(log *slog.Logger, cfg *rest.Config, o ElectionOptions) (*Election, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.Timeout = max(time.Second, cmp.Or(o.Renewed, leaseRenewed)/2) // one request must not use up the time to renew
	client, err := coordination.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("election: %w", err)
	}
	return newElection(log, client, o)
}

func newElection(log *slog.Logger, client coordination.LeasesGetter, o ElectionOptions) (*Election, error) {
	times := [3]time.Duration{cmp.Or(o.Valid, leaseValid), cmp.Or(o.Renewed, leaseRenewed), cmp.Or(o.Tried, leaseTried)}
	if o.Namespace == "" || o.Name == "" || o.Identity == "" {
		return nil, fmt.Errorf("election: namespace %q, name %q and identity %q have to be given", o.Namespace, o.Name, o.Identity)
	}
	return &Election{log: log, times: times, lock: &seenLock{valid: times[0], Interface: &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name},
		Client:     client,
		LockConfig: resourcelock.ResourceLockConfig{Identity: o.Identity},
	}}}, nil
}

// Leader returns the identity of whoever leads, as far as this replica has seen; empty
// when nobody has renewed the lease in time.
func (e *Election) Leader() string { return e.lock.holder(time.Now()) }

// Leads reports whether this replica leads, as far as it knows.
func (e *Election) Leads() bool { return e.Leader() == e.lock.Identity() }

// Run takes part in the election until ctx ends, and calls lead each time that this
// replica leads. The context of lead ends when the lease was lost or ctx has ended;
// Run waits for lead to return before it gives the lease back and lets another lead.
// When lead returns on its own, Run gives the lease back and returns its error.
func (e *Election) Run(ctx context.Context, lead func(context.Context) error) error {
	for ctx.Err() == nil {
		lost, err := e.term(ctx, lead)
		if ctx.Err() == nil && !lost {
			return err
		}
		if lost {
			e.log.Warn("leadership was lost", "lease", e.lock.Describe(), "err", err)
		}
	}
	return nil
}

// term is one candidacy and, when it wins, one leadership.
func (e *Election) term(ctx context.Context, lead func(context.Context) error) (lost bool, err error) {
	// What renews the lease has to outlive ctx until lead has returned.
	running, stop := context.WithCancel(klog.NewContext(context.WithoutCancel(ctx), logr.FromSlogHandler(e.log.Handler())))
	defer stop()
	e.lock.won.Store(false)
	ended := make(chan error, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name: e.lock.Describe(), Lock: e.lock, ReleaseOnCancel: true,
		LeaseDuration: e.times[0], RenewDeadline: e.times[1], RetryPeriod: e.times[2],
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				work, cancel := context.WithCancel(leading)
				defer cancel()
				defer context.AfterFunc(ctx, cancel)()
				err := lead(work)
				lost = leading.Err() != nil && running.Err() == nil
				ended <- err
				stop()
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return false, fmt.Errorf("election: %w", err)
	}
	// A candidate just goes away; of a leader, lead is ended first, as above.
	defer context.AfterFunc(ctx, func() {
		if !e.lock.won.Load() {
			stop()
		}
	})()
	elector.Run(running)
	if !e.lock.won.Load() {
		return false, nil
	}
	err = <-ended // after it, lost is set
	return lost, err
}

// seenLock is a lock that remembers whom it has seen holding it, and since when that
// has not changed.
type seenLock struct {
	resourcelock.Interface

	valid time.Duration
	won   atomic.Bool // in this term

	mu     sync.Mutex
	record resourcelock.LeaderElectionRecord
	at     time.Time // by our own clock: clocks of replicas may differ
}

func (l *seenLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	r, raw, err := l.Interface.Get(ctx)
	if err == nil {
		l.saw(*r)
	}
	return r, raw, err
}

func (l *seenLock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	err := l.Interface.Create(ctx, r)
	if err == nil {
		l.saw(r)
	}
	return err
}

func (l *seenLock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	err := l.Interface.Update(ctx, r)
	if err == nil {
		l.saw(r)
	}
	return err
}

// RecordEvent is called by the elector in the one goroutine that decides, before it
// starts the leadership.
func (l *seenLock) RecordEvent(what string) {
	if what == "became leader" {
		l.won.Store(true)
	}
}

func (l *seenLock) saw(r resourcelock.LeaderElectionRecord) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.HolderIdentity != l.record.HolderIdentity || !r.RenewTime.Equal(&l.record.RenewTime) {
		l.record, l.at = r, time.Now()
	}
}

func (l *seenLock) holder(now time.Time) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.at) >= l.valid {
		return ""
	}
	return l.record.HolderIdentity
}
