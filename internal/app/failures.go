package app

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/observe"
	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/rules"
)

// Bounds of reading logs.
const (
	logsATick  = 4                // containers in one tick
	logsWithin = 3 * time.Second  // for all of them
	logsKept   = 1000             // answers that are remembered
	logsAgain  = 30 * time.Second // until one that could not be read is tried again
)

// A logReader reads the end of a container's log.
type logReader interface {
	LogTail(ctx context.Context, p fleet.PodRef, container string, previous bool) (string, error)
}

// failures is a witness of jobs that have failed, in the fleet as it was last seen: a
// tick looks at the fleet before it asks its witnesses. One goroutine at a time asks it.
type failures struct {
	world  *observe.World
	maxAge atomic.Int64 // [time.Duration] of evidence; a changed configuration brings another
	logs   string       // see FailuresConfig
	reader logReader
	read   map[string]logTail // by pod and end of its container
}

// A logTail is what was read of one log, or when that was tried in vain.
type logTail struct {
	text string
	err  error
	at   time.Time
}

func newFailures(world *observe.World, maxAge time.Duration, logs string, reader logReader) *failures {
	f := &failures{world: world, logs: logs, reader: reader, read: map[string]logTail{}}
	f.maxAge.Store(int64(maxAge))
	return f
}

// Evidence makes failures a witness of the loop. A log that cannot be read is an error
// beside the evidence, which then says what is known without it.
func (f *failures) Evidence(ctx context.Context, now time.Time) ([]remedy.Evidence, error) {
	s := f.world.Last()
	maxAge := time.Duration(f.maxAge.Load())
	s, err := f.withLogs(ctx, now, s, maxAge)
	return rules.FailedJobs(now, s, maxAge), err
}

// withLogs returns the snapshot with the ends of logs where they may be read and nothing
// else says why.
func (f *failures) withLogs(ctx context.Context, now time.Time, s fleet.Snapshot, maxAge time.Duration) (fleet.Snapshot, error) {
	if f.logs != logsAsked && f.logs != logsAll {
		return s, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, logsWithin, errors.New("logs did not come in time"))
	defer cancel()
	var errs []error
	left, cloned := logsATick, false
	for _, ref := range slices.SortedFunc(maps.Keys(s.Jobs), fleet.JobRef.Compare) {
		j := s.Jobs[ref]
		if len(j.Failures) == 0 || f.logs == logsAsked && !j.ReadLogs {
			continue
		}
		j.Failures = slices.Clone(j.Failures)
		for i := range j.Failures {
			p := &j.Failures[i]
			if now.Sub(p.At) > maxAge || rules.Classify(*p, s.Nodes[p.Pod.Node]).Reason != remedy.FailUnknown {
				continue
			}
			_, runs := s.Pods[p.Pod.UID] // then its container was started again
			tail, err := f.tail(ctx, now, *p, runs, &left)
			p.Log = tail
			if err != nil {
				errs = append(errs, err)
			}
		}
		if !cloned {
			s.Jobs, cloned = maps.Clone(s.Jobs), true
		}
		s.Jobs[ref] = j
	}
	return s, errors.Join(errs...)
}

// tail is the end of one log: read once, and again after a while where that failed.
func (f *failures) tail(ctx context.Context, now time.Time, p fleet.Failure, previous bool, left *int) (string, error) {
	key := p.Pod.UID + "/" + p.Container + "/" + p.At.UTC().Format(time.RFC3339)
	t, known := f.read[key]
	if known && (t.err == nil || now.Sub(t.at) < logsAgain) || *left == 0 || p.Container == "" {
		return t.text, t.err
	}
	*left--
	if len(f.read) >= logsKept {
		clear(f.read) // reading some again is better than growing
	}
	text, err := f.reader.LogTail(ctx, p.Pod, p.Container, previous)
	f.read[key] = logTail{text: text, err: err, at: now}
	return text, err
}
