package collector

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"stoker.dev/stoker/internal/fleet"
)

// errWatchdog is the cause with which the context of a collection ends that takes too long.
var errWatchdog = errors.New("no answer before the watchdog's deadline")

// stopGrace is how long Run waits for collections to end after its context has.
const stopGrace = 2 * time.Second

// Run collects from every source at once and then at each interval, each source by
// itself, until ctx ends. It returns when all collections have ended, or, a short time
// after ctx, an error that names the sources that have not; their goroutines end when
// the sources return.
func (c *Collector) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	errs := make([]error, len(c.sources))
	for i := range c.sources {
		wg.Go(func() { errs[i] = c.watch(ctx, i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// watch keeps one collection of source i going at a time.
//
//	idle ──interval──► collecting ──answer──► idle
//	                       └──deadline──► overdue ──answer──► idle
//
// While overdue the source is down; nothing else is asked of it. What it answers then
// is taken as of the time when it was asked.
func (c *Collector) watch(ctx context.Context, i int) error {
	overdue := fmt.Errorf("%w of %v", errWatchdog, c.o.Watchdog)
	tick := time.NewTicker(c.o.Interval)
	defer tick.Stop()
	for {
		late := time.NewTimer(c.o.Watchdog)
		answer := c.ask(ctx, i, overdue)
		for waiting := true; waiting; {
			select {
			case a := <-answer:
				c.record(i, a.samples, a.err)
				waiting = false
			case <-late.C:
				c.trip(i, overdue)
			case <-ctx.Done():
				late.Reset(stopGrace)
				select {
				case a := <-answer:
					if a.err == nil {
						c.record(i, a.samples, nil)
					}
					return nil
				case <-late.C:
					return fmt.Errorf("source %s: still collecting %v after the end", c.sources[i].Name(), stopGrace)
				}
			}
		}
		late.Stop()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// answer is what came of one collection.
type answer struct {
	samples *fleet.Samples
	err     error
}

// ask starts a collection on a goroutine of its own, which ends when the source
// returns, whether or not anybody still waits. Its context ends at the watchdog's
// deadline with the cause overdue.
func (c *Collector) ask(ctx context.Context, i int, overdue error) <-chan answer {
	out := make(chan answer, 1)
	go func() {
		ctx, cancel := context.WithTimeoutCause(ctx, c.o.Watchdog, overdue)
		defer cancel()
		into := &fleet.Samples{At: time.Now()}
		err := c.sources[i].Collect(ctx, into)
		out <- answer{into, err}
	}()
	return out
}
