package cluster

import (
	"context"
	"sync"
	"time"
)

// lookEvery is how often an actor looks at the cluster. Actors are level
// triggered: what they missed while the API server was away they find later.
const lookEvery = 200 * time.Millisecond

// An actor is one goroutine that looks at the cluster until it is stopped.
type actor struct {
	cancel context.CancelFunc
	gone   chan struct{}

	mu      sync.Mutex
	lastErr error
}

// startActor calls look every 200 ms until the actor is stopped. A look has 10 s.
// Its error is kept until the next look; the server may be away on purpose.
func startActor(look func(ctx context.Context, now time.Time) error) *actor {
	ctx, cancel := context.WithCancel(context.Background())
	a := &actor{cancel: cancel, gone: make(chan struct{})}
	go func() {
		defer close(a.gone)
		tick := time.NewTicker(lookEvery)
		defer tick.Stop()
		for {
			lookCtx, done := context.WithTimeout(ctx, 10*time.Second)
			err := look(lookCtx, time.Now())
			done()
			a.mu.Lock()
			a.lastErr = err
			a.mu.Unlock()
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
	return a
}

// Stop ends the actor and returns when it does nothing more.
func (a *actor) Stop() {
	a.cancel()
	<-a.gone
}

// Err returns the error of the newest look, or nil.
func (a *actor) Err() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lastErr
}

// actors are all actors of a cluster.
type actors struct {
	mu  sync.Mutex
	all []*actor
}

func (s *actors) add(a *actor) *actor {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, a)
	return a
}

func (s *actors) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.all {
		a.Stop()
	}
}
