package collector

import (
	"compress/gzip"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A page is written and compressed once for each change of the view, however many read
// it. What the program tells of itself changes without one, so that a page is given out
// for this long at most.
const pageFor = time.Second

// Bounds of what is kept between two scrapes.
const (
	maxPooled = 4 << 20 // bytes of a page
	maxSpare  = 4       // pages that nobody reads
)

// The values of headers, made once: a scrape allocates nothing of its own.
var (
	contentTypes     = []string{contentType}
	openMetricsTypes = []string{openMetricsType}
	encodings        = []string{"gzip"}
	varies           = []string{"Accept, Accept-Encoding"}
)

// A rendering is a page as it was at one time. Its text is not changed while it has
// readers, and every other form of it is made when it is first asked for.
type rendering struct {
	of      *view
	at      time.Time
	plain   form
	open    form // as OpenMetrics
	readers int
}

// A form is a page in one format.
type form struct{ text, compressed body }

// empty forgets what was written.
func (f *form) empty() { f.text.empty(); f.compressed.empty() }

// A body is bytes and their number as a header has it.
type body struct {
	bytes  []byte
	length []string
}

// Write appends. It never fails.
func (b *body) Write(p []byte) (int, error) {
	b.bytes = append(b.bytes, p...)
	return len(p), nil
}

func (b *body) empty() { b.bytes, b.length = b.bytes[:0], nil }

// written reports whether all is.
func (b *body) written() bool { return b.length != nil }

// seal says that all is written.
func (b *body) seal() { b.length = []string{strconv.Itoa(len(b.bytes))} }

// renderings are the newest page and the room of those before it.
type renderings struct {
	mu     sync.Mutex
	newest *rendering
	spare  []*rendering
	zip    *gzip.Writer
}

// take returns the page as of now, which is to be given back, and one form of it. Who comes while it is
// written waits for that, which takes well under a millisecond, and for no source.
func (c *Collector) take(now time.Time, open, zipped bool) (*rendering, *form) {
	p := &c.pages
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.newest
	if v := c.view.Load(); r == nil || r.of != v || now.Before(r.at) || now.Sub(r.at) > pageFor {
		if r != nil && r.readers == 0 {
			p.keep(r)
		}
		r = &rendering{}
		if last := len(p.spare) - 1; last >= 0 {
			r = p.spare[last]
			p.spare = p.spare[:last]
		}
		p.newest = r
		r.of, r.at = v, now
		r.plain.empty()
		r.open.empty()
		r.plain.text.bytes = c.appendPage(r.plain.text.bytes, v, now)
		r.plain.text.seal()
	}
	f := &r.plain
	if open {
		f = &r.open
		if !f.text.written() {
			f.text.bytes = appendOpenMetrics(f.text.bytes, r.plain.text.bytes)
			f.text.seal()
		}
	}
	if zipped && !f.compressed.written() {
		p.compress(f)
	}
	r.readers++
	return r, f
}

// compress makes the compressed text. The fastest level makes a fifteenth of a page.
func (p *renderings) compress(f *form) {
	if p.zip == nil {
		p.zip, _ = gzip.NewWriterLevel(nil, gzip.BestSpeed) // fails for a level that there is not
	}
	p.zip.Reset(&f.compressed)
	_, _ = p.zip.Write(f.text.bytes) // a body's Write never fails
	_ = p.zip.Close()
	f.compressed.seal()
}

// giveBack ends a reading of a page.
func (c *Collector) giveBack(r *rendering) {
	p := &c.pages
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.readers--; r.readers == 0 && r != p.newest {
		p.keep(r)
	}
}

// keep keeps the room of a page that nobody reads.
func (p *renderings) keep(r *rendering) {
	r.of = nil // may be large
	if max(cap(r.plain.text.bytes), cap(r.open.text.bytes)) <= maxPooled && len(p.spare) < maxSpare {
		p.spare = append(p.spare, r)
	}
}

func (c *Collector) serveMetrics(w http.ResponseWriter, r *http.Request) {
	zipped := takesGzip(r.Header["Accept-Encoding"])
	open := !c.o.TextOnly && takesOpenMetrics(r.Header["Accept"])
	page, form := c.take(time.Now(), open, zipped)
	defer c.giveBack(page)
	h, b := w.Header(), &form.text
	h["Content-Type"] = contentTypes
	if open {
		h["Content-Type"] = openMetricsTypes
	}
	h["Vary"] = varies
	if zipped {
		b = &form.compressed
		h["Content-Encoding"] = encodings
	}
	h["Content-Length"] = b.length
	// The scraper has gone if this fails; there is nobody left to tell.
	_, _ = w.Write(b.bytes)
}

// takesGzip reports whether a client's Accept-Encoding has gzip and does not rule it out.
func takesGzip(accept []string) bool {
	for _, line := range accept {
		for part := range strings.SplitSeq(line, ",") {
			name, weight, _ := strings.Cut(part, ";")
			if strings.EqualFold(strings.TrimSpace(name), "gzip") {
				_, q, ok := strings.Cut(weight, "q=")
				return !ok || strings.Trim(strings.TrimSpace(q), "0.") != ""
			}
		}
	}
	return false
}
