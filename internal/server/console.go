package server

import (
	"bytes"
	"cmp"
	"embed"
	"fmt"
	"html/template"
	"mime"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"stoker.dev/stoker/internal/remedy"
)

// The console is pages for people. They are made here, of what the loop shows, and work
// without a script; with it they follow by themselves. Nothing can be done on them yet:
// there is no route but GET.

//go:embed console
var consoleFiles embed.FS

// A site is the routes and what of them goes on by itself.
type site struct {
	http.Handler

	console *console
}

// Stop ends the streams and takes no new ones.
func (s *site) Stop() { s.console.end() }

// secure says what a browser may do with an answer: nothing but show it.
func secure(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
}

// credential is the token that a request brings. A browser can only send it as a
// password, and sends it with whatever another site makes it ask for: so it counts for
// reading alone.
func credential(r *http.Request) (string, bool) {
	if token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		return token, true
	}
	_, password, ok := r.BasicAuth()
	return password, ok && (r.Method == http.MethodGet || r.Method == http.MethodHead)
}

// challenge says how to bring a token. Only a browser is told of passwords, so that it
// asks for one.
func challenge(w http.ResponseWriter, r *http.Request) {
	if strings.Contains(r.Header.Get("Accept"), "text/html") {
		w.Header().Set("WWW-Authenticate", `Basic realm="stoker", charset="UTF-8"`)
		http.Error(w, "Stoker wants its token as the password; any user name will do.", http.StatusUnauthorized)
		return
	}
	w.Header().Set("WWW-Authenticate", `Bearer realm="stoker"`)
	http.Error(w, "a bearer token is needed and this is not it", http.StatusUnauthorized)
}

// routes adds the pages. Links within them are relative, so that a proxy may put them
// below any path.
func (c *console) routes(mux *http.ServeMux) {
	get := func(pattern string, h http.HandlerFunc) { mux.Handle("GET "+pattern, c.server.authenticated(h)) }
	get("/{$}", c.followed(&c.first, "now", "events"))
	get("/nodes", c.followed(&c.fleet, "fleet", "events/nodes"))
	get("/incidents", c.incidents)
	get("/incidents/{name}", c.incident)
	get("/nodes/{name}", c.thing("node"))
	get("/jobs/{namespace}/{name}", c.thing("job"))
	get("/events", c.events(&c.first))
	get("/events/nodes", c.events(&c.fleet))
	get("/assets/{name}", c.asset)
}

// A page is what the layout needs of every page.
type page struct {
	Base     string // from the page to the root: "", "../", …
	Title    string
	At       time.Time
	State    State
	Events   string // where its stream is; empty where a page does not follow
	Have     string // versions of the sections
	Sections []template.HTML
	Body     any
}

func (c *console) show(w http.ResponseWriter, name string, p page) {
	var b bytes.Buffer
	if err := c.pages.ExecuteTemplate(&b, name, p); err != nil {
		c.server.log.Error("page not made", "page", name, "err", err)
		http.Error(w, "the page could not be made: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(fill(b.Bytes(), p.At)) // a client that has gone
}

// followed is a page that goes on by itself where scripts run.
func (c *console) followed(v *view, name, events string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		f, err := c.current(v)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		p := page{Title: f.title, At: f.at, State: f.state, Events: events, Have: f.versions(), Body: signs}
		for _, s := range f.sections {
			p.Sections = append(p.Sections, template.HTML(s.html)) // made by the same templates
		}
		c.show(w, name, p)
	}
}

// maxListed bounds the incidents of the list.
const maxListed = 500

// A listing is the list of incidents, narrowed.
type listing struct {
	Class   string
	Open    []problem
	OpenAll int
	Closed  []remedy.Incident // newest first
}

func (c *console) incidents(w http.ResponseWriter, r *http.Request) {
	now := c.server.now()
	all := c.server.loop.Incidents()
	l := listing{Class: r.URL.Query().Get("class")}
	if l.Class != "" {
		all = slices.DeleteFunc(all, func(in remedy.Incident) bool { return string(in.Class) != l.Class })
	}
	o := survey(now, c.server.state(now), c.server.loop.Fleet(), all)
	l.OpenAll, l.Open = len(o.Open), o.Open[:min(maxListed, len(o.Open))]
	for _, in := range all {
		if in.Phase.Closed() {
			l.Closed = append(l.Closed, in)
		}
	}
	slices.SortStableFunc(l.Closed, func(a, b remedy.Incident) int { return b.Closed.Compare(a.Closed) })
	l.Closed = l.Closed[:min(maxListed, len(l.Closed))]
	c.show(w, "incidents", page{Title: fmt.Sprintf("%d open – Stoker", l.OpenAll), At: now, State: o.State, Body: l})
}

// A story is one incident.
type story struct {
	problem

	Doc   string // what the class means
	Rungs []rung
	Text  string // the explanation
}

// A rung is one step of an incident, done or to come.
type rung struct {
	remedy.StepRecord

	Place  string // "3 of 8"; "recovery" where it is not on the ladder
	State  string // one word
	Within remedy.Duration
}

// Says is the note of the step, where its orders do not say the same.
func (r rung) Says() string {
	for _, o := range r.Orders {
		if o.Outcome != nil && o.Outcome.Note == r.Note {
			return ""
		}
	}
	return r.Note
}

func (c *console) incident(w http.ResponseWriter, r *http.Request) {
	now, name := c.server.now(), r.PathValue("name")
	all, f := c.server.loop.Incidents(), c.server.loop.Fleet()
	i := slices.IndexFunc(all, func(in remedy.Incident) bool { return in.Name == name })
	if i < 0 {
		c.missing(w, "../", fmt.Sprintf("There is no incident %q. It may have been closed and forgotten.", name))
		return
	}
	st := c.server.state(now)
	text, err := Explain(now, f, all, "incident", name, st.Mode)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	in := all[i]
	s := story{problem: problem{Incident: in}, Doc: remedy.Classes[in.Class].Doc, Rungs: rungs(in), Text: text}
	s.GPUs, s.Jobs = holdings(f).concerns(f, in, map[place]int{})
	if wait, waits := waiting(st, in); waits && !in.Phase.Closed() {
		s.Wait = &wait
	}
	c.show(w, "incident", page{Base: "../", Title: in.Name + " – Stoker", At: now, State: st, Body: s})
}

// rungs are the steps that were taken and those that are to come.
func rungs(in remedy.Incident) []rung {
	var out []rung
	for _, s := range in.Steps {
		r := rung{StepRecord: s, Place: "recovery", State: string(s.Ending)}
		if s.Rung >= 0 {
			r.Place = fmt.Sprintf("%d of %d", s.Rung+1, len(in.Ladder))
		}
		switch {
		case s.Skipped:
			r.State = "skipped"
		case s.Running():
			r.State = "runs"
		}
		out = append(out, r)
	}
	from := in.Rung
	if in.Current() != nil {
		from++
	}
	if in.Phase != remedy.PhaseOpen && in.Phase != remedy.PhaseActing {
		from = len(in.Ladder)
	}
	for i := from; i < len(in.Ladder); i++ {
		r := rung{StepRecord: remedy.StepRecord{Rung: i, Action: in.Ladder[i].Action}, Place: fmt.Sprintf("%d of %d", i+1, len(in.Ladder)), State: "to come", Within: in.Ladder[i].Within}
		if i == in.Rung && len(in.Waiting) > 0 {
			r.State = "waits"
		}
		out = append(out, r)
	}
	return out
}

// A subject is one node or job and what is said of it.
type subject struct {
	Kind, Name, Text string
	Open             []problem
}

func (c *console) thing(kind string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		now, name, base := c.server.now(), r.PathValue("name"), "../"
		if ns := r.PathValue("namespace"); ns != "" {
			name, base = ns+"/"+name, "../../"
		}
		st := c.server.state(now)
		f, all := c.server.loop.Fleet(), c.server.loop.Incidents()
		text, err := Explain(now, f, all, kind, name, st.Mode)
		if err != nil {
			c.missing(w, base, fmt.Sprintf("There is no %s %q in the cluster as it is seen now, and no incident is about it.", kind, name))
			return
		}
		s := subject{Kind: kind, Name: name, Text: text}
		for _, p := range survey(now, st, f, all).Open {
			if kind == "node" && p.Subject.Node == name || kind == "job" && touches(p.Incident, name) {
				s.Open = append(s.Open, p)
			}
		}
		c.show(w, "thing", page{Base: base, Title: name + " – Stoker", At: now, State: st, Body: s})
	}
}

// missing answers with a page, so that the way back is there.
func (c *console) missing(w http.ResponseWriter, base, text string) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(http.StatusNotFound)
	now := c.server.now()
	c.show(w, "missing", page{Base: base, Title: "Not found – Stoker", At: now, State: c.server.state(now), Body: text})
}

func (c *console) asset(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	data, err := consoleFiles.ReadFile("console/" + name)
	if kind := mime.TypeByExtension(path.Ext(name)); err == nil && kind != "" && path.Ext(name) != ".html" {
		w.Header().Set("Content-Type", kind)
		_, _ = w.Write(data) // a client that has gone
		return
	}
	http.NotFound(w, r)
}

// parsePages reads the templates. They are compiled in: a mistake in them is a bug.
func parsePages() *template.Template {
	funcs := template.FuncMap{
		"age":     func(t time.Time) template.HTML { return moment("age", t) },
		"left":    func(t time.Time) template.HTML { return moment("left", t) },
		"at":      func(t time.Time) template.HTML { return moment("at", t) },
		"took":    func(s remedy.StepRecord) string { return took(s.Ended.Sub(s.Reserved)) },
		"plural":  plural,
		"hours":   func(h float64) string { return fmt.Sprintf("%.1f GPU-h", h) },
		"step":    func(name string) string { return strings.Replace(name, "/", " of ", 1) },
		"ending":  func(e remedy.Ending) string { return cmp.Or(string(e), "runs") },
		"settled": remedy.Ending.Settled,
	}
	return template.Must(template.New("console").Funcs(funcs).ParseFS(consoleFiles, "console/*.html"))
}

// took is how long something lasted, to the tenth of a second while that matters.
func took(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return words(d)
}

// moment is a time whose text depends on when it is read; [fill], and the script, write
// it. So a section stays the same while only time passes.
func moment(class string, t time.Time) template.HTML {
	if t.IsZero() {
		return "not known"
	}
	return template.HTML(`<time class="` + class + `" datetime="` + t.UTC().Format(time.RFC3339) + `"></time>`) // nothing of others is in it
}

// fill writes into a page what its moments are at now.
func fill(html []byte, now time.Time) []byte {
	const open, mid, end = `<time class="`, `" datetime="`, `"></time>`
	out := make([]byte, 0, len(html)+len(html)/8)
	for {
		before, rest, ok := bytes.Cut(html, []byte(open))
		out = append(out, before...)
		if !ok {
			return out
		}
		out = append(out, open...)
		html = rest
		class, rest, ok := bytes.Cut(html, []byte(mid))
		if !ok {
			continue
		}
		stamp, _, ok := bytes.Cut(rest, []byte(end))
		t, err := time.Parse(time.RFC3339, string(stamp))
		if !ok || err != nil {
			continue
		}
		out = append(out, class...)
		out = append(out, mid...)
		out = append(out, stamp...)
		out = append(out, `">`...)
		out = append(out, read(string(class), t, now)...)
		html = rest[len(stamp)+len(`">`):]
	}
}

// read is what a moment says at now. The script says the same.
func read(class string, t, now time.Time) string {
	switch class {
	case "age":
		return words(now.Sub(t))
	case "left":
		if d := t.Sub(now); d >= 0 {
			return "in " + words(d)
		}
		return words(now.Sub(t)) + " over"
	}
	if t.Format(time.DateOnly) == now.UTC().Format(time.DateOnly) {
		return t.Format(time.TimeOnly)
	}
	return t.Format("01-02 15:04:05")
}
