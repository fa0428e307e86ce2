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
// after ctx, an error that names the sources that have not, and the state file if it is still
// being written; their goroutines end when the sources and the disk answer.
func (c *Collector) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	errs := make([]error, len(c.sources)+1)
	for i := range c.sources {
		wg.Go(func() { errs[i] = c.watch(ctx, i) })
	}
	wg.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.disk != nil && !c.disk.idle(stopGrace) {
		errs[len(c.sources)] = fmt.Errorf("%s: %w", c.o.State, errDisk)
	}
	return errors.Join(errs...)
}

// watch keeps one collection of source i going at a time.
//
//	idle ──interval, or an event──► collecting ──answer──► idle
//	                                    └──deadline──► overdue ──answer──► idle
//
// While overdue the source is down; nothing else is asked of it. What it answers then
// is taken as of the time when it was asked. Between two collections a source that can
// is asked for events alone, unless it is down.
func (c *Collector) watch(ctx context.Context, i int) error {
	overdue := fmt.Errorf("%w of %v", errWatchdog, c.o.Watchdog)
	tick := time.NewTicker(c.o.Interval)
	defer tick.Stop()
	teller, _ := c.sources[i].(EventTeller)
	var look <-chan time.Time
	var wake <-chan struct{}
	if teller != nil {
		events := time.NewTicker(c.o.Events)
		defer events.Stop()
		look, wake = events.C, teller.Wake()
	}
	full := true
	for {
		collect := c.sources[i].Collect
		if !full {
			collect = teller.CollectEvents
		}
		last, err := c.await(ctx, i, c.ask(ctx, collect, full, overdue), overdue)
		if err != nil {
			return err
		}
		if last {
			break
		}
		for full = false; !full; {
			select {
			case <-tick.C:
				full = true
			case <-look:
			case <-wake:
			case <-ctx.Done():
				return c.release(ctx, i)
			}
			if full || !c.down(i) {
				break
			}
		}
	}
	return c.release(ctx, i)
}

// await waits for an answer and takes it in. Last is true when ctx has ended.
func (c *Collector) await(ctx context.Context, i int, waiting <-chan answer, overdue error) (last bool, err error) {
	late := time.NewTimer(c.o.Watchdog)
	defer late.Stop()
	for {
		select {
		case a := <-waiting:
			c.record(i, a)
			return false, nil
		case <-late.C:
			c.trip(i, overdue)
		case <-ctx.Done():
			late.Reset(stopGrace)
			select {
			case a := <-waiting:
				if a.err == nil {
					c.record(i, a)
				}
				return true, nil
			case <-late.C:
				return true, fmt.Errorf("source %s: still collecting %v after the end", c.sources[i].Name(), stopGrace)
			}
		}
	}
}

// release lets a source that holds something give it back.
func (c *Collector) release(ctx context.Context, i int) error {
	closer, ok := c.sources[i].(Closer)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
	defer cancel()
	if err := closer.Close(ctx); err != nil {
		return fmt.Errorf("source %s: close: %w", c.sources[i].Name(), err)
	}
	return nil
}

// down reports whether source i has failed last: then only a collection helps.
func (c *Collector) down(i int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.told[i].err != nil
}

// answer is what came of one collection.
type answer struct {
	samples *fleet.Samples
	err     error
	full    bool // values too, not events alone
	took    time.Duration
}

// ask starts a collection on a goroutine of its own, which ends when the source
// returns, whether or not anybody still waits. Its context ends at the watchdog's
// deadline with the cause overdue.
func (c *Collector) ask(ctx context.Context, collect func(context.Context, *fleet.Samples) error, full bool, overdue error) <-chan answer {
	out := make(chan answer, 1)
	go func() {
		ctx, cancel := context.WithTimeoutCause(ctx, c.o.Watchdog, overdue)
		defer cancel()
		into := &fleet.Samples{At: time.Now()}
		err := collect(ctx, into)
		out <- answer{into, err, full, time.Since(into.At)}
	}()
	return out
}
