package dcgm

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"stoker.dev/stoker/internal/fleet"
)

// Bounds of what an engine may tell of.
const (
	maxGPUs     = 256
	maxEntities = 1024 // of one group
)

// shyFor is for how long a GPU is not asked again who it is, after that call has hung.
const shyFor = 10 * time.Minute

// nobody is the UUID of all GPUs that the engine was told to pretend.
const nobody = "GPU-00000000-0000-0000-0000-000000000000"

// connectWithin is how long the library tries to reach one address.
const connectWithin = time.Second

// A nodeState is how far the source has come, one of a closed list.
type nodeState string

// The states.
const (
	stateNoLibrary nodeState = "no-library" // libdcgm can't be opened
	stateNoEngine  nodeState = "no-engine"  // no engine answers, or it refuses us
	stateNoDriver  nodeState = "no-driver"  // the engine runs without the driver's library
	stateDetached  nodeState = "detached"   // the engine has let the driver go, as for an upgrade
	stateSilent    nodeState = "silent"     // the engine answers and has no value of any GPU: it asks the driver nothing any more
	stateOK        nodeState = "ok"
)

var states = []nodeState{stateNoLibrary, stateNoEngine, stateNoDriver, stateDetached, stateSilent, stateOK}

// A reader makes all calls of the library. Everything in it belongs to the thread.
type reader struct {
	s    *Source
	o    *Options
	log  *slog.Logger
	lib  *Library
	wake *os.File
	init bool

	engine  *Engine
	version string    // of the engine
	at      time.Time // of this reading
	retryAt time.Time
	pause   time.Duration
	failure error // of the last try to connect
	names   int   // that were given to field groups

	w       *watches // nil: to be made
	known   []knownGPU
	here    map[string]bool      // UUIDs that this engine has told of
	shy     map[uint32]time.Time // until when a GPU is not asked who it is
	rebind  bool                 // the driver was attached since the watches were made
	now     int64                // us since 1970, by the engine's clock; 0: not known
	tape    *tape
	severed bool // the engine that was read last has gone
	labels  map[GroupEntityPair]labels
	window  *window
	clocks  *clocks
	peers   peers
	fabric  fabric
	values  Values
	events  Values

	given   []Field  // before any list was read
	inForce *[]Field // what o.Fields was made of
	file    fileList
}

func newReader(s *Source) *reader {
	r := &reader{
		s: s, o: &s.o, log: s.log, tape: newTape(s.o.Overlap), here: map[string]bool{}, shy: map[uint32]time.Time{},
		labels: map[GroupEntityPair]labels{}, window: newWindow(s.o.XIDWindow),
		clocks: newClocks(s.o.ClockWindow, s.o.Compatible),
	}
	r.given, r.inForce = r.o.Fields, &r.given
	r.file.path = r.o.FieldsFile
	r.o.Fields = arranged(r.o.Fields, r.o.Compatible)
	return r
}

// do reads events and, if full, everything, after whatever has to come before.
func (r *reader) do(into *fleet.Samples, full bool) error {
	r.at = into.At
	r.begin(into.At)
	if full {
		r.reload()
	}
	for again := true; ; again = false {
		if err := r.ready(); err != nil {
			return err
		}
		err := r.read(into, full)
		if err == nil {
			return nil
		}
		switch code := codeOf(err); {
		case code.gone():
			// The engine is another one. What was made in the old one is gone.
			r.drop()
			if again {
				continue
			}
		case code == StGpusDetached:
			r.state(stateDetached)
			r.forget()
		case code == StNvmlNotLoaded:
			r.state(stateNoDriver)
			r.forget()
		case code == StTimeout:
			// It hangs, and works again afterwards with what was made in it.
		default:
			r.forget()
		}
		return err
	}
}

// begin notes when the source first looked, and what was known before a restart.
func (r *reader) begin(at time.Time) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	if r.s.cursor.Begin.IsZero() {
		r.s.cursor.Begin = at
	}
	if r.known == nil {
		r.known = slices.Clone(r.s.cursor.GPUs)
	}
}

func (r *reader) state(st nodeState) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	r.s.self.state = st
	r.s.self.connected = r.engine != nil
}

// ready makes sure that there is a library, a connection and watches.
func (r *reader) ready() error {
	if r.engine == nil {
		if r.at.Before(r.retryAt) {
			return r.failure
		}
		if err := r.connect(); err != nil {
			r.pause = min(max(2*r.pause, r.o.FirstRetry), maxRetry)
			r.retryAt, r.failure = r.at.Add(r.pause), err
			return err
		}
		r.pause, r.failure = 0, nil
	}
	if r.w != nil {
		return nil
	}
	w, err := r.setup()
	if err == nil {
		r.w = w
		return nil
	}
	out := w.remove(r)
	switch code := codeOf(err); {
	case code.gone() || code == StTimeout || !out:
		// What the last call has made nobody knows; with the connection it is given back.
		r.drop()
	case code == StNvmlNotLoaded:
		r.state(stateNoDriver)
	case code == StGpusDetached:
		r.state(stateDetached)
	default:
		r.state(stateNoEngine)
	}
	return err
}

// connect opens the library, once, and finds an engine.
func (r *reader) connect() error {
	if r.lib == nil {
		r.s.thread.During("opening the library")
		lib, err := Open(r.o.Libraries...)
		if err != nil {
			r.state(stateNoLibrary)
			return err
		}
		r.lib = lib
		if r.wake = lib.Wake(); r.wake != nil {
			go r.s.waker(r.wake)
		}
	}
	if !r.init {
		r.s.thread.During("starting the library")
		if err := r.lib.Init(); err != nil {
			r.state(stateNoLibrary)
			return err
		}
		r.init = true
	}
	engine, err := r.find()
	if err == nil {
		err = r.fits(engine)
	}
	if err != nil {
		r.state(stateNoEngine)
		return err
	}
	r.engine = engine
	r.s.mu.Lock()
	r.s.self.connects++
	r.s.self.connected = true
	r.s.mu.Unlock()
	r.log.Info("connected to an engine", "embedded", engine.Embedded())
	return nil
}

// find returns the first engine that answers. One is started here only if none does: a
// second one on a node would be in the first one's way.
func (r *reader) find() (*Engine, error) {
	var errs []error
	for _, address := range r.o.Addresses {
		if isSocket(address) {
			if _, err := os.Stat(strings.TrimPrefix(address, "unix://")); err != nil {
				errs = append(errs, fmt.Errorf("connect to %s: %w", address, err))
				continue
			}
		}
		r.s.thread.During("connecting")
		engine, err := r.lib.Connect(address, connectWithin)
		if err == nil {
			return engine, nil
		}
		errs = append(errs, err)
		if code := codeOf(err); code == StVerMismatch || code == StTimeout {
			return nil, errors.Join(errs...) // there is one
		}
	}
	if !r.o.Embed {
		return nil, errors.Join(errs...)
	}
	r.s.thread.During("starting an engine")
	engine, err := r.lib.Embed()
	if err != nil {
		return nil, errors.Join(append(errs, err)...)
	}
	return engine, nil
}

// fits refuses an engine of another major version: the two talk past each other.
func (r *reader) fits(e *Engine) error {
	r.s.thread.During("asking for versions")
	ours, err := r.lib.Version()
	if err != nil {
		return errors.Join(err, e.Disconnect())
	}
	theirs, err := e.Version()
	if err != nil {
		return errors.Join(err, e.Disconnect())
	}
	r.s.mu.Lock()
	r.s.self.library, r.s.self.engine = ours, theirs
	r.s.mu.Unlock()
	r.version = theirs
	a, _, _ := strings.Cut(ours, ".")
	b, _, _ := strings.Cut(theirs, ".")
	if a != b {
		return errors.Join(fmt.Errorf("the library is DCGM %s and the engine %s: their major versions must be equal", ours, theirs), e.Disconnect())
	}
	return nil
}

// forget has the watches made anew before the next reading.
func (r *reader) forget() {
	r.peers = peers{} // there may be other GPUs
	if w := r.w; w != nil {
		r.w = nil
		if !w.remove(r) {
			r.drop()
		}
	}
}

// drop gives the connection up, and with it all that was made in the engine.
func (r *reader) drop() {
	r.w = nil
	if r.engine == nil {
		return
	}
	r.s.thread.During("disconnecting")
	if err := r.engine.Disconnect(); err != nil && codeOf(err) != StConnectionNotValid {
		r.log.Debug("disconnect", "err", err)
	}
	r.engine, r.severed = nil, true
	clear(r.here)
	r.state(stateNoEngine)
	r.log.Warn("connection to the engine was given up")
}

// close gives everything back.
func (r *reader) close() {
	r.forget()
	if r.engine != nil {
		r.s.thread.During("disconnecting")
		if err := r.engine.Disconnect(); err != nil {
			r.log.Debug("disconnect", "err", err)
		}
	}
	r.values.Free()
	r.events.Free()
	if r.wake != nil {
		_ = r.wake.Close() // ends the waker; nothing was written
	}
	if r.lib != nil {
		r.lib.Close()
	}
}

// waker passes on that the library has told of an XID, until the file is closed.
func (s *Source) waker(f *os.File) {
	var count [8]byte
	for {
		if _, err := f.Read(count[:]); err != nil {
			return
		}
		select {
		case s.wake <- struct{}{}:
		default: // it is awake already
		}
	}
}

// groupName returns a name that no other client of the engine has.
func (r *reader) groupName() string {
	r.names++
	return "stoker-" + strconv.Itoa(os.Getpid()) + "-" + strconv.FormatInt(time.Now().UnixNano(), 36) + "-" + strconv.Itoa(r.names)
}

// identify learns who a GPU is and reports whether that is known.
func (r *reader) identify(id uint32) (bool, error) {
	if r.at.Before(r.shy[id]) {
		return false, nil
	}
	r.s.thread.During(fmt.Sprintf("asking who GPU %d is", id))
	a, err := r.engine.GetDeviceAttributes(id)
	if codeOf(err) == StTimeout {
		// This call asks the driver, which hangs on a sick GPU: the others must not pay for it.
		r.log.Warn("GPU does not say who it is", "gpu", id, "err", err)
		r.shy[id] = r.at.Add(shyFor)
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if a.UUID == "" || a.UUID == nobody {
		return slices.ContainsFunc(r.known, func(g knownGPU) bool { return g.ID == id }), nil
	}
	// A GPU that was under this number may be under another one now, or gone.
	r.known = slices.DeleteFunc(r.known, func(g knownGPU) bool {
		return g.UUID == a.UUID || g.PCI != "" && g.PCI == a.PCI
	})
	if len(r.known) < maxGPUs {
		r.known = append(r.known, knownGPU{id, a.UUID, a.PCI, a.Name, a.Serial})
	}
	slices.SortFunc(r.known, func(x, y knownGPU) int { return cmp.Or(cmp.Compare(x.ID, y.ID), cmp.Compare(x.UUID, y.UUID)) })
	r.here[a.UUID] = true
	r.s.mu.Lock()
	r.s.cursor.GPUs = slices.Clone(r.known)
	r.s.mu.Unlock()
	return true, nil
}

// who returns the identity of the GPU that the engine has under a number now. One that
// this engine can't identify keeps the identity that the number had before.
func (r *reader) who(id uint32) (knownGPU, bool) {
	at := -1
	for i, g := range r.known {
		if g.ID == id && (at < 0 || r.here[g.UUID]) {
			at = i
		}
	}
	if at < 0 {
		return knownGPU{ID: id}, false
	}
	return r.known[at], true
}
