// Package kmsg reads XIDs from the kernel's log, the only place that has all of them. It
// owns the reading of the log and the place up to which it was read. It knows GPUs and
// NVSwitches by their addresses alone and nothing of how they do: other sources name them.
package kmsg

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/xid"
)

// Bounds of what is remembered.
const (
	maxPending = 20_000 // events that were read and not told, when nobody asks
	maxRecord  = 8 << 10
)

// Options are what a source may be told. The zero value is useful.
type Options struct {
	// Path is the kernel's log; /dev/kmsg when empty.
	Path string
	// Devices is the folder with a folder for each device of the PCI bus;
	// /sys/bus/pci/devices when empty.
	Devices string
}

// A Source is the source kmsg.
type Source struct {
	log   *slog.Logger
	o     Options
	clock func() (wall time.Time, sinceBoot time.Duration)
	wake  chan struct{}
	done  chan struct{} // closed when nobody reads the log any more

	mu      sync.Mutex
	file    log   // nil: not open
	failed  error // of the reading
	closed  bool
	opened  time.Duration      // since boot, when this process first did
	fresh   bool               // nothing was read before this process
	current bool               // all that was there when it was opened was read
	gpus    []fleet.SampledGPU // on the bus
	pending []event
	sxids   []fleet.SXIDEvent
	last    time.Time // of the newest event
	cursor  cursor
	told    cursor // the same, as of the last telling
	lost    int    // records that the kernel has dropped before they were read
	bad     int    // XID lines that can't be read
}

// A cursor is what outlives a restart, within one boot.
type cursor struct {
	Next  uint64 `json:"next"` // number of the first record that was not read
	Drift drift  `json:"drift"`
}

// A log is read record by record. Next waits for one, and says whether it had to: then all
// that was there before was read.
type log interface {
	next(buf []byte) (n int, waited bool, err error)
	Close() error
}

type event struct {
	pci    xid.PCI
	code   int
	at     time.Time
	kernel time.Time // by the kernel's clock
}

// New returns a source that has opened nothing yet.
func New(log *slog.Logger, o Options) *Source {
	o.Path = cmp.Or(o.Path, "/dev/kmsg")
	o.Devices = cmp.Or(o.Devices, "/sys/bus/pci/devices")
	return &Source{log: log.With("source", "kmsg"), o: o, clock: clock, fresh: true, wake: make(chan struct{}, 1)}
}

// Name returns what the source is called on the page.
func (s *Source) Name() string { return "kmsg" }

// Wake returns a channel that can be read when an XID was found.
func (s *Source) Wake() <-chan struct{} { return s.wake }

// Collect looks which GPUs there are and tells what was read of them.
func (s *Source) Collect(ctx context.Context, into *fleet.Samples) error {
	gpus, err := list(s.o.Devices)
	s.mu.Lock()
	s.gpus = gpus
	s.mu.Unlock()
	return errors.Join(s.CollectEvents(ctx, into), err)
}

// CollectEvents tells what was read, of the GPUs that were there when it was last looked.
func (s *Source) CollectEvents(_ context.Context, into *fleet.Samples) error {
	err := s.open()
	s.mu.Lock()
	into.GPUs = slices.Clone(s.gpus)
	found := s.pending
	s.pending = nil
	into.Switches, s.sxids = s.sxids, nil
	s.told = s.cursor
	into.Dropped, s.lost, s.bad = s.lost+s.bad, 0, 0
	s.mu.Unlock()
	for _, e := range found {
		bus := e.pci.BusID()
		at := slices.IndexFunc(into.GPUs, func(g fleet.SampledGPU) bool { return g.PCI == bus })
		if at < 0 {
			// It is not on the bus any more, or it is a part of the machine that we don't see.
			at = len(into.GPUs)
			into.GPUs = append(into.GPUs, fleet.SampledGPU{Index: -1, PCI: bus})
		}
		into.Events = append(into.Events, fleet.XIDEvent{GPU: at, XID: e.code, At: e.at, Kernel: e.kernel, Source: "kmsg"})
	}
	return err
}

// open starts the reading unless somebody reads, and returns why nobody does.
func (s *Source) open() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.opened == 0 {
		_, s.opened = s.clock()
	}
	if s.closed {
		return os.ErrClosed
	}
	if s.file != nil {
		return nil
	}
	file, err := openLog(s.o.Path)
	if err == nil {
		err = s.failed
	}
	s.failed = nil
	if err != nil {
		if file != nil {
			_ = file.Close() // it was not read
		}
		return err
	}
	s.file, s.done = file, make(chan struct{})
	go s.read(file, s.done)
	return nil
}

// read reads records until the file is closed or fails.
func (s *Source) read(file log, done chan<- struct{}) {
	defer close(done)
	buf := make([]byte, maxRecord)
	for {
		n, waited, err := file.next(buf)
		for line := range bytes.Lines(buf[:n]) {
			// Lines that begin with a space belong to the record before.
			if len(line) > 1 && line[0] != ' ' {
				s.take(string(bytes.TrimRight(line, "\n")), waited)
				waited = false
			}
		}
		if err != nil && !overrun(err) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.file = nil
			if !s.closed {
				s.failed = fmt.Errorf("%s: %w", s.o.Path, err)
			}
			_ = file.Close() // it was only read
			return
		}
	}
}

// take takes in one record, which was waited for or not.
func (s *Source) take(line string, waited bool) {
	r, err := parseRecord(line)
	if err != nil {
		return // not of the kernel's form: nothing that we are looking for
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = s.current || waited
	if r.number < s.cursor.Next {
		return // read before
	}
	// Where nothing was ever read, what was there before us is history.
	history := s.fresh && !s.current && r.sinceBoot < s.opened
	if s.cursor.Next > 0 {
		s.lost += int(min(r.number-s.cursor.Next, 1<<20))
	}
	s.cursor.Next = r.number + 1
	wall, sinceBoot := s.clock()
	if waited {
		s.cursor.Drift.measure(sinceBoot-r.sinceBoot, sinceBoot)
	}
	if r.facility != 0 || history {
		return // what a process wrote may be anything
	}
	kernel := wall.Add(r.sinceBoot - sinceBoot)
	at := kernel.Add(s.cursor.Drift.By)
	if early := s.last.Sub(at); 0 <= early && early < time.Second {
		// Two of one time are two. What is far before the last one is of a clock that was set back.
		at = s.last.Add(1)
	}
	if e, err := xid.ParseKernelLine(r.text); err == nil {
		s.last = at
		if len(s.pending) < maxPending {
			s.pending = append(s.pending, event{e.PCI, e.Code, at, kernel})
		} else {
			s.bad++
		}
		select {
		case s.wake <- struct{}{}:
		default: // it is awake already
		}
		return
	} else if !errors.Is(err, xid.ErrNotXID) {
		s.bad++
		s.log.Warn("an XID can't be read", "err", err)
		return
	}
	e, err := xid.ParseSwitchLine(r.text)
	switch {
	case err == nil:
		s.last = at
		s.log.Info("sxid", "pci", e.PCI.BusID(), "sxid", e.Code, "severity", string(e.Severity), "link", e.Link, "text", e.Message)
		if len(s.sxids) >= maxPending {
			s.bad++
			return
		}
		s.sxids = append(s.sxids, fleet.SXIDEvent{
			PCI: e.PCI.BusID(), Switch: -1, SXID: e.Code, Severity: string(e.Severity), At: at, Source: "kmsg",
		})
	case !errors.Is(err, xid.ErrNotSXID):
		s.bad++
		s.log.Warn("an SXID can't be read", "err", err)
	}
}

// Cursor returns what was read.
func (s *Source) Cursor() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return json.Marshal(s.told) // what waits to be told is read again after a restart
}

// Resume takes what Cursor returned before a restart.
func (s *Source) Resume(data []byte) error {
	var c cursor
	if err := json.Unmarshal(data, &c); err != nil {
		return fmt.Errorf("cursor of source kmsg: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cursor, s.told, s.fresh = c, c, c.Next == 0
	return nil
}

// Close ends the reading.
func (s *Source) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	file, done := s.file, s.done
	s.mu.Unlock()
	if done == nil {
		return nil
	}
	if file != nil {
		_ = file.Close() // it was only read; the reader ends
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
