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
)

// Bounds of what an engine may tell of.
const (
	maxGPUs     = 256
	maxEntities = 1024 // of one group
)

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

// A thread makes all calls of the library. Everything in it belongs to one goroutine.
type thread struct {
	s    *Source
	o    *Options
	log  *slog.Logger
	lib  *Library
	wake *os.File
	init bool

	engine  *Engine
	at      time.Time // of the job
	retryAt time.Time
	pause   time.Duration
	failure error // of the last try to connect
	names   int   // that were given to field groups

	w      *watches // nil: to be made
	known  []knownGPU
	here   map[string]bool // UUIDs that this engine has told of
	tape   *tape
	labels map[GroupEntityPair]labels
	window *window
	values Values
	events Values
	cut    int // events that there was no room for

	listed  time.Time // when the list of fields was changed that was read last
	listErr string    // what was wrong with it
}

func newThread(s *Source) *thread {
	t := &thread{
		s: s, o: &s.o, log: s.log, tape: newTape(s.o.Overlap), here: map[string]bool{},
		labels: map[GroupEntityPair]labels{}, window: newWindow(s.o.XIDWindow),
	}
	if !t.o.Compatible {
		t.o.Fields = Right(t.o.Fields)
	}
	s.mu.Lock()
	t.known = slices.Clone(s.cursor.GPUs)
	s.mu.Unlock()
	return t
}

// reload reads the list of fields if it has changed.
func (t *thread) reload() {
	if t.o.FieldsFile == "" {
		return
	}
	var fields []Field
	info, err := os.Stat(t.o.FieldsFile)
	if err == nil {
		if info.ModTime().Equal(t.listed) {
			return
		}
		fields, err = ReadFields(t.o.FieldsFile)
	}
	if err != nil {
		if err.Error() != t.listErr {
			t.log.Warn("list of fields can't be used, the one before stays in force", "err", err)
		}
		t.listErr = err.Error()
		return
	}
	t.listed, t.listErr = info.ModTime(), ""
	if !t.o.Compatible {
		fields = Right(fields)
	}
	if !slices.Equal(fields, t.o.Fields) {
		t.log.Info("fields are read from a list", "file", t.o.FieldsFile, "fields", len(fields))
		t.o.Fields = fields
		t.forget()
		clear(t.labels)
	}
}

// do is what a job asks for.
func (t *thread) do(j *job) error {
	defer t.s.during("")
	t.at = j.at
	t.begin(j.at)
	if j.full {
		t.reload()
	}
	for again := true; ; again = false {
		if err := t.ready(); err != nil {
			return err
		}
		err := t.read(j)
		if err == nil {
			return nil
		}
		switch code := codeOf(err); {
		case code.gone():
			// The engine is another one. What was made in the old one is gone.
			t.drop()
			if again {
				continue
			}
		case code == StGpusDetached:
			t.state(stateDetached)
			t.forget()
		case code == StNvmlNotLoaded:
			t.state(stateNoDriver)
			t.forget()
		case code == StTimeout:
			// It hangs, and works again afterwards with what was made in it.
		default:
			t.forget()
		}
		return err
	}
}

// begin notes when the source first looked.
func (t *thread) begin(at time.Time) {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	if t.s.cursor.Begin.IsZero() {
		t.s.cursor.Begin = at
	}
}

func (t *thread) state(st nodeState) {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	t.s.self.state = st
	t.s.self.connected = t.engine != nil
}

// ready makes sure that there is a library, a connection and watches.
func (t *thread) ready() error {
	if t.engine == nil {
		if t.at.Before(t.retryAt) {
			return t.failure
		}
		if err := t.connect(); err != nil {
			t.pause = min(max(2*t.pause, t.o.FirstRetry), maxRetry)
			t.retryAt, t.failure = t.at.Add(t.pause), err
			return err
		}
		t.pause, t.failure = 0, nil
	}
	if t.w != nil {
		return nil
	}
	w, err := t.setup()
	if err == nil {
		t.w = w
		return nil
	}
	w.remove(t)
	switch code := codeOf(err); {
	case code.gone():
		t.drop()
	case code == StNvmlNotLoaded:
		t.state(stateNoDriver)
	case code == StGpusDetached:
		t.state(stateDetached)
	default:
		t.state(stateNoEngine)
	}
	return err
}

// connect opens the library, once, and finds an engine.
func (t *thread) connect() error {
	if t.lib == nil {
		t.s.during("opening the library")
		lib, err := Open(t.o.Libraries...)
		if err != nil {
			t.state(stateNoLibrary)
			return err
		}
		t.lib = lib
		if t.wake = lib.Wake(); t.wake != nil {
			go t.s.waker(t.wake)
		}
	}
	if !t.init {
		t.s.during("starting the library")
		if err := t.lib.Init(); err != nil {
			t.state(stateNoLibrary)
			return err
		}
		t.init = true
	}
	engine, err := t.find()
	if err == nil {
		err = t.fits(engine)
	}
	if err != nil {
		t.state(stateNoEngine)
		return err
	}
	t.engine = engine
	t.s.mu.Lock()
	t.s.self.connects++
	t.s.self.connected = true
	t.s.mu.Unlock()
	t.log.Info("connected to an engine", "embedded", engine.Embedded())
	return nil
}

// find returns the first engine that answers. One is started here only if none does: a
// second one on a node would be in the first one's way.
func (t *thread) find() (*Engine, error) {
	var errs []error
	for _, address := range t.o.Addresses {
		if isSocket(address) {
			if _, err := os.Stat(strings.TrimPrefix(address, "unix://")); err != nil {
				errs = append(errs, fmt.Errorf("connect to %s: %w", address, err))
				continue
			}
		}
		t.s.during("connecting")
		engine, err := t.lib.Connect(address, connectWithin)
		if err == nil {
			return engine, nil
		}
		errs = append(errs, err)
		if code := codeOf(err); code == StVerMismatch || code == StTimeout {
			return nil, errors.Join(errs...) // there is one
		}
	}
	if !t.o.Embed {
		return nil, errors.Join(errs...)
	}
	t.s.during("starting an engine")
	engine, err := t.lib.Embed()
	if err != nil {
		return nil, errors.Join(append(errs, err)...)
	}
	return engine, nil
}

// fits refuses an engine of another major version: the two talk past each other.
func (t *thread) fits(e *Engine) error {
	t.s.during("asking for versions")
	ours, err := t.lib.Version()
	if err != nil {
		return errors.Join(err, e.Disconnect())
	}
	theirs, err := e.Version()
	if err != nil {
		return errors.Join(err, e.Disconnect())
	}
	t.s.mu.Lock()
	t.s.self.library, t.s.self.engine = ours, theirs
	t.s.mu.Unlock()
	a, _, _ := strings.Cut(ours, ".")
	b, _, _ := strings.Cut(theirs, ".")
	if a != b {
		return errors.Join(fmt.Errorf("the library is DCGM %s and the engine %s: their major versions must be equal", ours, theirs), e.Disconnect())
	}
	return nil
}

// forget has the watches made anew before the next reading.
func (t *thread) forget() {
	if t.w != nil {
		t.w.remove(t)
		t.w = nil
	}
}

// drop gives the connection up. The engine is asked for nothing: it has gone.
func (t *thread) drop() {
	t.w = nil
	if t.engine == nil {
		return
	}
	t.s.during("disconnecting")
	if err := t.engine.Disconnect(); err != nil && codeOf(err) != StConnectionNotValid {
		t.log.Debug("disconnect", "err", err)
	}
	t.engine = nil
	clear(t.here)
	t.state(stateNoEngine)
	t.log.Warn("the engine has gone")
}

// close gives everything back.
func (t *thread) close() {
	t.forget()
	if t.engine != nil {
		t.s.during("disconnecting")
		if err := t.engine.Disconnect(); err != nil {
			t.log.Debug("disconnect", "err", err)
		}
	}
	t.s.during("")
	t.values.Free()
	t.events.Free()
	if t.wake != nil {
		_ = t.wake.Close() // ends the waker; nothing was written
	}
	if t.lib != nil {
		t.lib.Close()
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
func (t *thread) groupName() string {
	t.names++
	return "stoker-" + strconv.Itoa(os.Getpid()) + "-" + strconv.FormatInt(time.Now().UnixNano(), 36) + "-" + strconv.Itoa(t.names)
}

// identify learns who a GPU is and reports whether that is known.
func (t *thread) identify(id uint32) (bool, error) {
	t.s.during(fmt.Sprintf("asking who GPU %d is", id))
	a, err := t.engine.GetDeviceAttributes(id)
	if err != nil {
		return false, err
	}
	if a.UUID == "" {
		return slices.ContainsFunc(t.known, func(g knownGPU) bool { return g.ID == id }), nil
	}
	// A GPU that was under this number may be under another one now, or gone.
	t.known = slices.DeleteFunc(t.known, func(g knownGPU) bool {
		return g.UUID == a.UUID || g.PCI != "" && g.PCI == a.PCI
	})
	if len(t.known) < maxGPUs {
		t.known = append(t.known, knownGPU{id, a.UUID, a.PCI, a.Name, a.Serial})
	}
	slices.SortFunc(t.known, func(x, y knownGPU) int { return cmp.Or(cmp.Compare(x.ID, y.ID), cmp.Compare(x.UUID, y.UUID)) })
	t.here[a.UUID] = true
	t.s.mu.Lock()
	t.s.cursor.GPUs = slices.Clone(t.known)
	t.s.mu.Unlock()
	return true, nil
}

// who returns the identity of the GPU that the engine has under a number now. One that
// this engine can't identify keeps the identity that the number had before.
func (t *thread) who(id uint32) (knownGPU, bool) {
	at := -1
	for i, g := range t.known {
		if g.ID == id && (at < 0 || t.here[g.UUID]) {
			at = i
		}
	}
	if at < 0 {
		return knownGPU{ID: id}, false
	}
	return t.known[at], true
}
