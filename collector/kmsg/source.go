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
	"io"
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
	file    io.ReadCloser // nil: not open
	failed  error         // of the reading
	closed  bool
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
	Begin time.Time `json:"begin"` // what is older is history
	Next  uint64    `json:"next"`  // number of the first record that was not read
}

type event struct {
	pci  xid.PCI
	code int
	at   time.Time
}

// New returns a source that has opened nothing yet.
func New(log *slog.Logger, o Options) *Source {
	o.Path = cmp.Or(o.Path, "/dev/kmsg")
	o.Devices = cmp.Or(o.Devices, "/sys/bus/pci/devices")
	return &Source{log: log.With("source", "kmsg"), o: o, clock: clock, wake: make(chan struct{}, 1)}
}

// Name returns what the source is called on the page.
func (s *Source) Name() string { return "kmsg" }

// Wake returns a channel that can be read when an XID was found.
func (s *Source) Wake() <-chan struct{} { return s.wake }

// Collect tells which GPUs there are and what was read of them.
func (s *Source) Collect(ctx context.Context, into *fleet.Samples) error {
	return s.CollectEvents(ctx, into)
}

// CollectEvents is Collect: the log has no values.
func (s *Source) CollectEvents(_ context.Context, into *fleet.Samples) error {
	err := s.open(into.At)
	gpus, listErr := list(s.o.Devices)
	into.GPUs = gpus
	s.mu.Lock()
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
		into.Events = append(into.Events, fleet.XIDEvent{GPU: at, XID: e.code, At: e.at, Source: "kmsg"})
	}
	return errors.Join(err, listErr)
}

// open starts the reading unless somebody reads, and returns why nobody does.
func (s *Source) open(now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cursor.Begin.IsZero() {
		s.cursor.Begin = now
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
func (s *Source) read(file io.ReadCloser, done chan<- struct{}) {
	defer close(done)
	buf := make([]byte, maxRecord)
	for {
		n, err := file.Read(buf)
		for line := range bytes.Lines(buf[:n]) {
			// Lines that begin with a space belong to the record before.
			if len(line) > 1 && line[0] != ' ' {
				s.take(string(bytes.TrimRight(line, "\n")))
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

// take takes in one record.
func (s *Source) take(line string) {
	r, err := parseRecord(line)
	if err != nil {
		return // not of the kernel's form: nothing that we are looking for
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.number < s.cursor.Next {
		return // read before
	}
	if s.cursor.Next > 0 {
		s.lost += int(min(r.number-s.cursor.Next, 1<<20))
	}
	s.cursor.Next = r.number + 1
	if r.facility != 0 {
		return // a process wrote it, which may write what it likes
	}
	wall, sinceBoot := s.clock()
	at := wall.Add(r.sinceBoot - sinceBoot)
	if at.Before(s.cursor.Begin) {
		return // history
	}
	if !at.After(s.last) {
		at = s.last.Add(1) // two of one time are two
	}
	if e, err := xid.ParseKernelLine(r.text); err == nil {
		s.last = at
		if len(s.pending) < maxPending {
			s.pending = append(s.pending, event{e.PCI, e.Code, at})
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
	s.cursor, s.told = c, c
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
