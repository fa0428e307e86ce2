package kube

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func candidate(t *testing.T, client *fake.Clientset, identity string) *Election {
	t.Helper()
	e, err := newElection(slog.New(slog.NewTextHandler(t.Output(), nil)), client.CoordinationV1(), ElectionOptions{
		Namespace: "own", Name: "stoker", Identity: identity,
	})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func holder(t *testing.T, client *fake.Clientset) string {
	t.Helper()
	l, err := client.Tracker().Get(coordinationv1.SchemeGroupVersion.WithResource("leases"), "own", "stoker")
	if err != nil {
		t.Fatal(err)
	}
	if id := l.(*coordinationv1.Lease).Spec.HolderIdentity; id != nil {
		return *id
	}
	return ""
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !f(); {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not in time", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestLeaderEndsItsWorkBeforeItGivesTheLeaseBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		e := candidate(t, client, "one")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var atEnd atomic.Value
		started := make(chan struct{})
		done := make(chan error, 1)
		go func() {
			done <- e.Run(ctx, func(ctx context.Context) error {
				close(started)
				<-ctx.Done()
				time.Sleep(100 * time.Millisecond) // what it still has in hand
				atEnd.Store(holder(t, client))
				return nil
			})
		}()
		<-started
		if got := e.Leader(); got != "one" || !e.Leads() {
			t.Errorf("leader is %q, want one", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		if got := atEnd.Load(); got != "one" {
			t.Errorf("while the work ended the lease was held by %q, want one", got)
		}
		if got := holder(t, client); got != "" {
			t.Errorf("the lease is held by %q after the end", got)
		}
	})
}

func TestFollowerKnowsTheLeaderAndFollowsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		one, two := candidate(t, client, "one"), candidate(t, client, "two")
		firstCtx, stopFirst := context.WithCancel(t.Context())
		defer stopFirst()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var leading atomic.Int32
		work := func(ctx context.Context) error {
			if n := leading.Add(1); n != 1 {
				t.Errorf("%d replicas lead", n)
			}
			defer leading.Add(-1)
			<-ctx.Done()
			return nil
		}
		done := make(chan error, 2)
		go func() { done <- one.Run(firstCtx, work) }()
		eventually(t, "one leads", one.Leads)
		go func() { done <- two.Run(ctx, work) }()
		eventually(t, "two knows one", func() bool { return two.Leader() == "one" })
		if two.Leads() {
			t.Error("both lead")
		}
		stopFirst()
		eventually(t, "two leads", two.Leads)
		cancel()
		for range 2 {
			if err := <-done; err != nil {
				t.Errorf("Run: %v", err)
			}
		}
	})
}

func TestLeaderThatCannotRenewStopsAndComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		var down atomic.Bool
		client.PrependReactor("*", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			return down.Load(), nil, errors.New("no answer")
		})
		e := candidate(t, client, "one")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var starts, ends atomic.Int32
		done := make(chan error, 1)
		go func() {
			done <- e.Run(ctx, func(ctx context.Context) error {
				starts.Add(1)
				<-ctx.Done()
				ends.Add(1)
				return nil
			})
		}()
		eventually(t, "it leads", func() bool { return starts.Load() == 1 })
		down.Store(true)
		eventually(t, "it stops leading", func() bool { return ends.Load() == 1 })
		eventually(t, "it knows of no leader", func() bool { return e.Leader() == "" })
		down.Store(false)
		eventually(t, "it leads again", func() bool { return starts.Load() == 2 })
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func TestElectionEndsWithTheWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		e := candidate(t, client, "one")
		broken := errors.New("cannot go on")
		if err := e.Run(t.Context(), func(context.Context) error { return broken }); !errors.Is(err, broken) {
			t.Errorf("Run: %v, want the work's error", err)
		}
		if got := holder(t, client); got != "" {
			t.Errorf("the lease is still held by %q", got)
		}
	})
}

func TestCandidateEndsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(&coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: "own", Name: "stoker"},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("other"), LeaseDurationSeconds: new(int32(60)), RenewTime: &metav1.MicroTime{Time: time.Now()}},
		})
		e := candidate(t, client, "one")
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := e.Run(ctx, func(context.Context) error { t.Error("it led"); return nil }); err != nil {
			t.Errorf("Run: %v", err)
		}
		if got := holder(t, client); got != "other" {
			t.Errorf("the lease is held by %q, want other", got)
		}
	})
}

func TestElectionNeedsNames(t *testing.T) {
	if _, err := newElection(slog.New(slog.DiscardHandler), nil, ElectionOptions{Namespace: "own", Name: "stoker"}); err == nil {
		t.Error("a replica without an identity takes part")
	}
}
