// Package dcgm reads GPUs through NVIDIA's libdcgm. It owns a thin binding, which opens
// the library at run time, the connection to an engine, and what is remembered of GPUs
// that the engine can't ask any more.
//
// The library's calls can't be cancelled and block for a minute, or for ever, when the
// engine or the driver hangs. So all of them are made by one goroutine on a thread of its
// own, and everybody else waits for it no longer than they want to. The package never
// reads a GPU's values live, which can kill the engine, and it changes nothing on the node
// but the groups and watches of its own connection.
package dcgm

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"stoker.dev/stoker/collector/thread"
	"stoker.dev/stoker/internal/fleet"
)

// Options are what a source may be told. The zero value is useful.
type Options struct {
	// Libraries are the files that are tried; [Libraries] when empty.
	Libraries []string
	// Addresses are where an engine is looked for, in this order: host, host:port or the
	// path of a unix socket. The engine's own defaults when empty.
	Addresses []string
	// Embed starts an engine in this process when none answers. A process that is killed
	// with an engine in it can leave GPUs hanging.
	Embed bool
	// Fields are what is read; [DefaultFields] when empty.
	Fields []Field
	// FieldsFile is a list of fields that is read instead, anew when the file has changed.
	// One of which nothing can be used leaves those in force that were there before.
	FieldsFile string
	// ConfigMap is one that comes before both once it is there. Who made it runs it.
	ConfigMap *ConfigMap
	// Compatible leaves the types as the list has them, though some are wrong, and counts
	// clock events as dcgm-exporter does: the samples that have one.
	Compatible bool
	// XIDWindow is for how long XIDs stay in DCGM_EXP_XID_ERRORS_COUNT; 5m when zero.
	XIDWindow time.Duration
	// ClockWindow is the same for DCGM_EXP_CLOCK_EVENTS_COUNT.
	ClockWindow time.Duration
	// Watch is how often the engine reads the fields; 1s when zero.
	Watch time.Duration
	// ValuesFor is the age over which a value is not shown, by the engine's clock: a sick GPU
	// can keep it from reading the others. Ten times Watch, and 15s at least, when zero.
	ValuesFor time.Duration
	// Devices, SwitchDevices and CPUDevices are of which GPUs and MIG instances, NVSwitches
	// and their links, CPUs and cores values are shown.
	Devices, SwitchDevices, CPUDevices Selection
	// XIDFor is for how long the last XID is shown as the value of its field; for ever when
	// zero, as dcgm-exporter does.
	XIDFor time.Duration
	// Overlap is how far events are read again before what was read: the engine may learn
	// of them late. 60s when zero.
	Overlap time.Duration
	// FirstRetry is how long the first pause is after an engine was not found; 1s when
	// zero. It doubles up to 30s.
	FirstRetry time.Duration
}

func (o *Options) defaults() {
	if len(o.Addresses) == 0 {
		o.Addresses = []string{"localhost:5555", "/tmp/nv-hostengine"}
	}
	if len(o.Fields) == 0 {
		o.Fields = DefaultFields()
	}
	if o.XIDWindow == 0 {
		o.XIDWindow = 5 * time.Minute
	}
	if o.ClockWindow == 0 {
		o.ClockWindow = 5 * time.Minute
	}
	if o.Watch == 0 {
		o.Watch = time.Second
	}
	if o.ValuesFor == 0 {
		o.ValuesFor = max(10*o.Watch, 15*time.Second)
	}
	if o.Overlap == 0 {
		o.Overlap = time.Minute
	}
	if o.FirstRetry == 0 {
		o.FirstRetry = time.Second
	}
}

const maxRetry = 30 * time.Second

// A Source is the source dcgm. Its methods may be called from any goroutine; Close is the
// last.
type Source struct {
	log    *slog.Logger
	o      Options
	thread *thread.Thread
	r      *reader       // belongs to the thread
	wake   chan struct{} // an XID may be waiting

	mu      sync.Mutex
	cursor  cursor
	pending []event // found and not yet told
	cut     int     // what there was no room for, and is not yet told
	self    self
}

// A self is what the source tells of itself.
type self struct {
	library, engine string // versions
	connected       bool
	connects        uint64
	gap             time.Duration // for which events may be lost
	state           nodeState
	gpus            map[EntityStatus]int
	absent          map[absence]int // of how many entities, of which field, why
	hasFile         bool
	file            string                   // why the list in the file is not as it was meant
	ages            map[uint32]time.Duration // of each GPU's newest value
	profiling       map[uint32]profilingState
	rewatches       uint64
}

type absence struct {
	field  string
	reason string
}

// A cursor is what outlives a restart.
type cursor struct {
	// Begin is when the source first looked: XIDs before it are history.
	Begin time.Time     `json:"begin"`
	GPUs  []knownGPU    `json:"gpus"`
	Last  []lastXIDView `json:"last"`
}

type knownGPU struct {
	ID     uint32 `json:"id"`
	UUID   string `json:"uuid"`
	PCI    string `json:"pci,omitempty"`
	Model  string `json:"model,omitempty"`
	Serial string `json:"serial,omitempty"`
}

type lastXIDView struct {
	Group FieldEntityGroup `json:"group"`
	ID    uint32           `json:"id"`
	UUID  string           `json:"uuid,omitempty"` // of the GPU: numbers move
	Code  int              `json:"code"`
	At    int64            `json:"at"` // us since 1970
}

// New returns a source that has opened nothing yet: that, too, is tried again and again.
func New(log *slog.Logger, o Options) *Source {
	o.defaults()
	s := &Source{log: log.With("source", "dcgm"), o: o, wake: make(chan struct{}, 1)}
	s.r = newReader(s)
	s.thread = thread.New("the engine", s.r.close)
	return s
}

// Name returns what the source is called on the page.
func (s *Source) Name() string { return "dcgm" }

// Wake returns a channel that has something to read when the engine has told of an XID.
func (s *Source) Wake() <-chan struct{} { return s.wake }

// Collect reads everything. It returns when ctx ends at the latest; what the engine
// answers after that is dropped, but for events, which are told the next time.
func (s *Source) Collect(ctx context.Context, into *fleet.Samples) error {
	return s.ask(ctx, into, true)
}

// CollectEvents reads which GPUs there are and what has happened to them.
func (s *Source) CollectEvents(ctx context.Context, into *fleet.Samples) error {
	return s.ask(ctx, into, false)
}

func (s *Source) ask(ctx context.Context, into *fleet.Samples, full bool) error {
	got := fleet.Samples{At: into.At}
	err := s.thread.Do(ctx, func() error { return s.r.do(&got, full) })
	if err == nil {
		*into = got
	}
	s.tell(into)
	return err
}

// drop notes that there was no room for some samples. They are told with the events, so
// that a reading that nobody waited for takes none of it along.
func (s *Source) drop(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut += n
}

// tell adds the events that were found to what is returned.
func (s *Source) tell(into *fleet.Samples) {
	s.mu.Lock()
	found := s.pending
	into.Dropped += s.cut
	s.pending, s.cut = nil, 0
	s.mu.Unlock()
	for _, e := range found {
		if e.field == fieldFatalSXID || e.field == fieldSXID {
			severity := "fatal"
			if e.field == fieldSXID {
				severity = "nonfatal"
			}
			into.Switches = append(into.Switches, fleet.SXIDEvent{
				PCI: e.address, Switch: int(e.number), SXID: e.code, Severity: severity, At: e.at, Source: "dcgm",
			})
			continue
		}
		place := -1
		for i, g := range into.GPUs {
			if g.UUID == e.gpu.UUID && (g.UUID != "" || g.Index == e.gpu.Index) && g.Instance == "" {
				place = i
				break
			}
		}
		if place < 0 {
			place = len(into.GPUs)
			into.GPUs = append(into.GPUs, e.gpu)
		}
		if e.field == fieldNVLink {
			into.NVLinkErrors = append(into.NVLinkErrors, fleet.NVLinkEvent{GPU: place, Error: nvlinkErrors[e.code], At: e.at, Source: "dcgm"})
			continue
		}
		into.Events = append(into.Events, fleet.XIDEvent{GPU: place, XID: e.code, At: e.at, Source: "dcgm"})
	}
}

// Close ends the connection and waits for that until ctx ends. A call that hangs is left
// to itself.
func (s *Source) Close(ctx context.Context) error { return s.thread.Close(ctx) }

// Cursor returns since when events count, and who the GPUs are and were.
func (s *Source) Cursor() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return json.Marshal(s.cursor)
}

// Resume takes what Cursor returned before a restart.
func (s *Source) Resume(data []byte) error {
	var c cursor
	if err := json.Unmarshal(data, &c); err != nil {
		return fmt.Errorf("cursor of source dcgm: %w", err)
	}
	if len(c.GPUs) > maxGPUs || len(c.Last) > maxEntities {
		return fmt.Errorf("cursor of source dcgm: over %d GPUs or %d entities", maxGPUs, maxEntities)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cursor = c
	return nil
}
