package server

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"stoker.dev/stoker/internal/remedy"
)

// Bounds of the streams.
const (
	maxStreams  = 100
	streamEvery = time.Second      // from one look at the world to the next; also the heartbeat
	writeWithin = 10 * time.Second // a client that takes longer is gone
)

// A console makes the pages.
type console struct {
	server *server
	pages  *template.Template
	every  time.Duration
	slots  chan struct{} // one for each stream

	endOnce sync.Once
	ended   chan struct{}

	first, fleet view
}

// A view is a page that can be followed. It is made once for everybody who looks at it:
// whoever asks makes it anew when it is too old, and the others get the same.
type view struct {
	make func(now time.Time) (*front, error)
	keep int // for how many half beats a front is good

	mu    sync.Mutex
	made  time.Time // on the wall; the page's own time may be virtual
	front *front
	count int // fronts made
}

// A front is a page as of one time, without what is written by time alone.
type front struct {
	at       time.Time
	title    string
	state    State
	sections []section
	parts    int // how many of the last sections are parts of a whole that can grow; none when negative
}

// A section is a part of the page that is replaced as a whole.
type section struct {
	html    []byte
	version string // of its content
}

func newConsole(s *server, mux *http.ServeMux) *console {
	c := &console{server: s, pages: parsePages(), every: streamEvery, slots: make(chan struct{}, maxStreams), ended: make(chan struct{})}
	c.first.make, c.first.keep = c.makeFirst, 1
	c.fleet.make, c.fleet.keep = c.makeFleet, 4 // it takes many times as long to make
	c.routes(mux)
	return c
}

func (c *console) end() { c.endOnce.Do(func() { close(c.ended) }) }

// versions names the content of all sections.
func (f *front) versions() string {
	var out []string
	for _, s := range f.sections {
		out = append(out, s.version)
	}
	return strings.Join(out, ".")
}

// sectionNames are the templates of the sections, in the order of the first page.
var sectionNames = []string{"banner", "waiting", "incidents-now", "actions"}

// maxRows bounds the rows of one list on the first page; the rest is a link away.
const maxRows = 40

// current returns a page that is not too old.
func (c *console) current(v *view) (*front, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.front != nil && time.Since(v.made) < c.every/2*time.Duration(v.keep) {
		return v.front, nil
	}
	f, err := v.make(c.server.now())
	if err != nil {
		c.server.log.Error("page not made", "err", err)
		return nil, err
	}
	v.made, v.front = time.Now(), f
	v.count++
	return f, nil
}

// makeFirst makes what happens now.
func (c *console) makeFirst(now time.Time) (*front, error) {
	o := c.server.survey(now)
	data := glanceAt(o)
	data.Persons, data.Gates = sortOut(o.Waiting)
	data.PersonsShown = data.Persons[:min(maxRows, len(data.Persons))]
	f := &front{at: now, title: data.Title, state: o.State, parts: -1}
	for _, name := range sectionNames {
		if err := c.section(f, name, data); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// makeFleet makes the grid of all GPUs.
func (c *console) makeFleet(now time.Time) (*front, error) {
	st, snap, incidents := c.server.state(now), c.server.loop.Fleet(), c.server.loop.Incidents()
	data := glanceAt(survey(now, st, snap, incidents))
	data.Persons, _ = sortOut(data.Waiting)
	g := gridOf(now, snap, incidents)
	data.Title = "Fleet – Stoker"
	f := &front{at: now, title: data.Title, state: st, parts: len(g.Groups)}
	if err := errors.Join(c.section(f, "banner", data), c.section(f, "legend", g)); err != nil {
		return nil, err
	}
	for _, part := range g.Groups {
		if err := c.section(f, "part", part); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// section adds what a template makes of the data to the front.
func (c *console) section(f *front, name string, data any) error {
	var b bytes.Buffer
	if err := c.pages.ExecuteTemplate(&b, name, data); err != nil {
		return fmt.Errorf("make the page: %w", err)
	}
	// A carriage return would end a line of the stream: it is text of others.
	html := bytes.ReplaceAll(b.Bytes(), []byte("\r"), []byte(" "))
	sum := sha256.Sum256(html)
	f.sections = append(f.sections, section{html: html, version: hex.EncodeToString(sum[:6])})
	return nil
}

// A glance is what the sections are made of.
type glance struct {
	overview

	Title        string
	Persons      []Wait // those that wait for a person, the oldest first
	PersonsShown []Wait
	Gates        []gate
	Groups       []class
}

func glanceAt(o overview) glance { return glance{overview: o, Title: title(o), Groups: group(o.Open)} }

// A gate is what waits for one thing other than a person.
type gate struct {
	ID    string
	Waits []Wait // as many as are shown, the oldest first
	All   int
	Fold  bool // they are so many that they hide what comes after
}

// fewWaits is how many waits can be read beside each other.
const fewWaits = 3

// sortOut parts what waits for a person from what waits for gates, one by one.
func sortOut(waits []Wait) (persons []Wait, gates []gate) {
	for _, w := range waits {
		if w.For == WaitPerson {
			persons = append(persons, w)
			continue
		}
		id := strings.ReplaceAll(string(w.For)+" "+w.Gate, " ", "-")
		i := slices.IndexFunc(gates, func(g gate) bool { return g.ID == id })
		if i < 0 {
			i = len(gates)
			gates = append(gates, gate{ID: id})
		}
		g := &gates[i]
		if g.All++; len(g.Waits) < maxRows {
			g.Waits = append(g.Waits, w)
		}
	}
	for i := range gates {
		gates[i].Fold = len(waits)-len(persons) > fewWaits
	}
	return persons, gates
}

// Bad reports whether the page cannot be believed.
func (g glance) Bad() bool { return len(g.Trouble) > 0 }

// Dry reports whether nothing is done.
func (g glance) Dry() bool { return g.State.Mode == modeDryRun }

// A class is the open incidents of one class; its name is empty where they are too few
// to be grouped.
type class struct {
	Name   remedy.Class
	Doc    string
	Open   []problem // as many as are shown
	All    int
	GPUs   int // the sum over its incidents
	Oldest time.Time
}

// groupFrom is how many open incidents make a list too long to read.
const groupFrom = 12

// group sorts incidents by class once they are many. The class with the worst comes first.
func group(open []problem) []class {
	if len(open) == 0 {
		return nil
	}
	var out []class
	for _, p := range open {
		name := p.Class
		if len(open) < groupFrom {
			name = ""
		}
		i := slices.IndexFunc(out, func(c class) bool { return c.Name == name })
		if i < 0 {
			i = len(out)
			out = append(out, class{Name: name, Doc: remedy.Classes[name].Doc, Oldest: p.Opened})
		}
		g := &out[i]
		g.All, g.GPUs = g.All+1, g.GPUs+p.GPUs
		if p.Opened.Before(g.Oldest) {
			g.Oldest = p.Opened
		}
	}
	most := max(3, maxRows/len(out))
	for _, p := range open {
		i := slices.IndexFunc(out, func(c class) bool { return c.Name == p.Class || c.Name == "" })
		if len(out[i].Open) < most {
			out[i].Open = append(out[i].Open, p)
		}
	}
	return out
}

// title is what the tab of a browser shows: what needs a person, else what is open.
func title(o overview) string {
	persons := 0
	for _, w := range o.Waiting {
		if w.For == WaitPerson {
			persons++
		}
	}
	switch {
	case persons == 1:
		return "1 waits for you – Stoker"
	case persons > 1:
		return fmt.Sprintf("%d wait for you – Stoker", persons)
	case len(o.Open) > 0:
		return fmt.Sprintf("%d open – Stoker", len(o.Open))
	}
	return "Stoker"
}

// events is the stream of what changes on a page: whole sections, then the time.
//
//	event: parts     data: how many parts there are now of a whole that can grow
//	event: section   data: the section's HTML, without what is written by time alone
//	event: now       data: the page's time, RFC 3339; id: the versions of all sections
//
// A client that comes back says with the id what it has.
func (c *console) events(v *view) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { c.follow(v, w, r) }
}

func (c *console) follow(v *view, w http.ResponseWriter, r *http.Request) {
	select {
	case <-c.ended:
		http.Error(w, "the service is being stopped", http.StatusServiceUnavailable)
		return
	default:
	}
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	default:
		w.Header().Set("Retry-After", "15")
		http.Error(w, fmt.Sprintf("%d pages follow already, which is the most; this one shows what is new when it is loaded again", cap(c.slots)), http.StatusServiceUnavailable)
		return
	}
	have := r.Header.Get("Last-Event-ID")
	if have == "" {
		have = r.URL.Query().Get("have")
	}
	s := stream{to: w, control: http.NewResponseController(w), have: strings.Split(have, ".")}
	// The server's own limits are for requests that end.
	if err := s.control.SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // a proxy that collects answers would keep it
	beat := time.NewTicker(c.every)
	defer beat.Stop()
	for {
		f, err := c.current(v)
		if err == nil {
			err = s.send(f)
		}
		if err != nil {
			return // the client has gone, or the error is logged
		}
		select {
		case <-r.Context().Done():
			return
		case <-c.ended:
			return
		case <-beat.C:
		}
	}
}

// A stream is one client that follows.
type stream struct {
	to      http.ResponseWriter
	control *http.ResponseController
	have    []string // versions of the sections that it has
}

// send writes the sections that the client does not have, and the time.
func (s *stream) send(f *front) error {
	var b bytes.Buffer
	if f.parts >= 0 && len(s.have) != len(f.sections) {
		fmt.Fprintf(&b, "event: parts\ndata: %d\n\n", f.parts)
	}
	for i, part := range f.sections {
		if i < len(s.have) && s.have[i] == part.version {
			continue
		}
		b.WriteString("event: section\n")
		for line := range bytes.SplitSeq(part.html, []byte("\n")) {
			fmt.Fprintf(&b, "data: %s\n", line)
		}
		b.WriteByte('\n')
	}
	id := f.versions()
	fmt.Fprintf(&b, "id: %s\nevent: now\ndata: %s\n\n", id, f.at.UTC().Format(time.RFC3339))
	if err := s.control.SetWriteDeadline(time.Now().Add(writeWithin)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("bound the write: %w", err)
	}
	if _, err := s.to.Write(b.Bytes()); err != nil {
		return fmt.Errorf("follow: %w", err)
	}
	if err := s.control.Flush(); err != nil {
		return fmt.Errorf("follow: %w", err)
	}
	s.have = strings.Split(id, ".")
	return nil
}
