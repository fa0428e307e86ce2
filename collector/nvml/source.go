//go:build cgo && linux

package nvml

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"stoker.dev/stoker/collector/thread"
	"stoker.dev/stoker/internal/fleet"
)

// Bounds and times.
const (
	maxPending = 20_000
	waitFor    = 500 * time.Millisecond // of one wait for events; the end comes so late at most
)

// A Source is the source nvml.
type Source struct {
	log    *slog.Logger
	lib    nvml.Interface
	thread *thread.Thread
	wake   chan struct{}

	// Of the thread.
	open    bool
	symbols map[string]bool   // functions that the library has or lacks
	linked  map[string]linked // by UUID
	waiting sync.WaitGroup    // for events
	stop    chan struct{}     // closed by Close
	ended   sync.Once

	mu      sync.Mutex
	pending []event
	dropped int          // events that are of no GPU that is known, or one too many
	last    map[part]int // XID
	// instances are the MIG instances of the last reading.
	instances map[part]bool
	known     []fleet.SampledGPU // as they were when they were well but for Up, by index
	back      map[string]bool    // UUIDs of those that were lost, until their XIDs are asked for anew
}

// A part is a GPU, or a MIG instance of it.
type part struct{ uuid, instance string }

type event struct {
	gpu fleet.SampledGPU
	xid int
	at  time.Time
}

// New returns a source over the library of the system, which is opened when it is asked.
func New(log *slog.Logger) *Source { return newSource(log, nvml.New()) }

func newSource(log *slog.Logger, lib nvml.Interface) *Source {
	s := &Source{
		log: log.With("source", "nvml"), lib: lib, stop: make(chan struct{}), wake: make(chan struct{}, 1),
		symbols: map[string]bool{}, linked: map[string]linked{}, last: map[part]int{}, instances: map[part]bool{}, back: map[string]bool{},
	}
	s.thread = thread.New("the driver", s.end)
	return s
}

// Name returns what the source is called on the page.
func (s *Source) Name() string { return "nvml" }

// Wake returns a channel that can be read when an XID has come.
func (s *Source) Wake() <-chan struct{} { return s.wake }

// Collect reads everything, or gives up when ctx ends.
func (s *Source) Collect(ctx context.Context, into *fleet.Samples) error {
	got := fleet.Samples{At: into.At}
	err := s.thread.Do(ctx, func() error { return s.collect(&got) })
	if err == nil {
		*into = got
	}
	s.tell(into)
	return err
}

// CollectEvents tells of XIDs alone, without asking the driver anything.
func (s *Source) CollectEvents(_ context.Context, into *fleet.Samples) error {
	s.tell(into)
	return nil
}

func (s *Source) tell(into *fleet.Samples) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.pending {
		at := -1
		for i, g := range into.GPUs {
			if g.UUID == e.gpu.UUID && g.Instance == e.gpu.Instance {
				at = i
			}
		}
		if at < 0 {
			at = len(into.GPUs)
			into.GPUs = append(into.GPUs, e.gpu)
		}
		into.Events = append(into.Events, fleet.XIDEvent{GPU: at, XID: e.xid, At: e.at, Source: "nvml"})
	}
	into.Dropped += s.dropped
	s.pending, s.dropped = nil, 0
}

// Close ends both goroutines. A call that hangs is left to itself.
func (s *Source) Close(ctx context.Context) error {
	s.ended.Do(func() { close(s.stop) })
	return s.thread.Close(ctx)
}

// check makes an error of what a call returned.
func check(call string, r nvml.Return) error {
	if r == nvml.SUCCESS {
		return nil
	}
	return fmt.Errorf("%s: %s", call, returnText(r))
}

// returnText is the library's text for a result, which it may have only when it is open.
func returnText(r nvml.Return) string {
	if text, ok := returnTexts[r]; ok {
		return text
	}
	return "result " + strconv.Itoa(int(r))
}

var returnTexts = map[nvml.Return]string{
	nvml.ERROR_LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 is not there",
	nvml.ERROR_DRIVER_NOT_LOADED: "the driver is not loaded",
	nvml.ERROR_GPU_IS_LOST:       "the GPU is lost",
	nvml.ERROR_NOT_SUPPORTED:     "not supported",
}

// collect reads values, once the library is open.
func (s *Source) collect(into *fleet.Samples) error {
	if !s.open {
		s.thread.During("opening the library")
		if err := check("nvmlInit", s.lib.Init()); err != nil {
			return err
		}
		s.open = true
		s.waiting.Go(s.events)
	}
	return s.read(into)
}

// end gives the library back, after the waiting has ended: it is not closed under it.
func (s *Source) end() {
	s.waiting.Wait()
	if s.open {
		_ = s.lib.Shutdown() // there is nothing left to do about it
	}
}

// events waits for XIDs until the source is closed.
func (s *Source) events() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	set, r := s.lib.EventSetCreate()
	if err := check("nvmlEventSetCreate", r); err != nil {
		s.log.Warn("XIDs are not seen", "err", err)
		return
	}
	defer func() { _ = set.Free() }() // there is nothing left to do about it
	registered := map[string]nvml.Device{}
	for {
		select {
		case <-s.stop:
			return
		default:
		}
		s.register(set, registered)
		data, r := set.Wait(uint32(waitFor.Milliseconds()))
		switch {
		case r == nvml.SUCCESS && data.EventType == nvml.EventTypeXidCriticalError:
			s.found(data, registered)
		case r == nvml.SUCCESS || r == nvml.ERROR_TIMEOUT:
		default:
			// A lost GPU makes every wait fail at once.
			select {
			case <-s.stop:
				return
			case <-time.After(waitFor):
			}
		}
	}
}

// register asks for the XIDs of GPUs that were not asked for before, by UUID, and anew of
// those that have come back.
func (s *Source) register(set nvml.EventSet, registered map[string]nvml.Device) {
	s.mu.Lock()
	known, back := s.known, s.back
	s.back = map[string]bool{}
	s.mu.Unlock()
	for _, g := range known {
		if registered[g.UUID] != nil && !back[g.UUID] {
			continue
		}
		d, code := s.lib.DeviceGetHandleByUUID(g.UUID)
		if code == nvml.SUCCESS {
			code = d.RegisterEvents(nvml.EventTypeXidCriticalError, set)
		}
		if err := check("nvmlDeviceRegisterEvents", code); err != nil {
			s.log.Debug("XIDs of a GPU are not seen", "gpu", g.Index, "err", err)
			if back[g.UUID] {
				s.mu.Lock()
				s.back[g.UUID] = true
				s.mu.Unlock()
			}
			continue
		}
		registered[g.UUID] = d
	}
}

// found notes an XID. Whose it is, is known from when it was asked for: a GPU that an XID
// has taken away does not say who it is.
func (s *Source) found(data nvml.EventData, registered map[string]nvml.Device) {
	now := time.Now()
	uuid := ""
	for is, d := range registered {
		if d == data.Device {
			uuid = is
		}
	}
	if uuid == "" {
		uuid, _ = data.Device.GetUUID() // empty where it can't say so
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	counted := false
	for _, g := range s.known {
		if g.UUID == uuid && data.EventData > 0 && data.EventData <= 99_999 && len(s.pending) < maxPending {
			counted = true
			g.Up = fleet.Unknown
			// A library of before MIG leaves the number 0.
			if id := strconv.FormatUint(uint64(data.GpuInstanceId), 10); s.instances[part{uuid, id}] {
				g.Instance = id
			}
			s.last[part{uuid, g.Instance}] = int(data.EventData)
			s.pending = append(s.pending, event{g, int(data.EventData), now})
		}
	}
	if !counted {
		s.dropped++
		s.log.Debug("an XID can't be counted", "xid", data.EventData)
	}
	select {
	case s.wake <- struct{}{}:
	default: // it is awake already
	}
}
