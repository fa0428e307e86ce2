// Package thread makes all calls of a native library on one goroutine that keeps to one
// thread of the system. Such calls can't be cancelled and may block for a minute, or for
// ever, when a driver hangs: everybody else waits for them no longer than they want to, and
// learns which call it is that hangs.
package thread

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"
)

// A Thread is one goroutine for such calls. Its methods may be called from any goroutine;
// Close is the last.
type Thread struct {
	whom string
	end  func()
	jobs chan job
	stop chan struct{} // closed by Close
	done chan struct{} // closed when the goroutine has ended

	start, ended sync.Once
	began        bool // set inside start, read after stop

	mu    sync.Mutex
	doing string    // the call that it is in
	since time.Time // when that began
}

type job struct {
	f     func() error
	reply chan error
}

// New returns a thread that starts with the first [Thread.Do]. Errors call the library by
// whom; end is the last that is done on the thread and may be nil.
func New(whom string, end func()) *Thread {
	return &Thread{whom: whom, end: end, jobs: make(chan job), stop: make(chan struct{}), done: make(chan struct{})}
}

// Do has f done on the thread, after what was asked for before, and waits until ctx ends at
// the latest. Then f may still run, or be skipped: it must write to nothing that the caller
// reads without having waited for it.
func (t *Thread) Do(ctx context.Context, f func() error) error {
	t.start.Do(func() {
		t.began = true
		go t.run()
	})
	j := job{f, make(chan error, 1)}
	select {
	case t.jobs <- j:
	case <-t.stop:
		return errors.New("closed")
	case <-ctx.Done():
		return t.overdue(ctx)
	}
	select {
	case err := <-j.reply:
		return err
	case <-ctx.Done():
		return t.overdue(ctx)
	}
}

// During notes which call the thread is about to make, for those who wait; empty: none.
func (t *Thread) During(what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.doing, t.since = what, time.Now()
}

// overdue is the error of who has not waited any longer.
func (t *Thread) overdue(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.doing == "" {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%s is %s since %s: %w", t.whom, t.doing, t.since.UTC().Format(time.RFC3339), context.Cause(ctx))
}

func (t *Thread) run() {
	// Libraries keep state of the thread, and a call that hangs holds it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(t.done)
	if t.end != nil {
		defer t.end()
	}
	for {
		select {
		case <-t.stop:
			return
		case j := <-t.jobs:
			err := j.f()
			t.During("")
			j.reply <- err
		}
	}
}

// Close ends the thread and waits for that until ctx ends. A call that hangs is left to
// itself.
func (t *Thread) Close(ctx context.Context) error {
	t.ended.Do(func() { close(t.stop) })
	t.start.Do(func() {}) // from now on nothing starts
	if !t.began {
		return nil
	}
	select {
	case <-t.done:
		return nil
	case <-ctx.Done():
		return t.overdue(ctx)
	}
}
