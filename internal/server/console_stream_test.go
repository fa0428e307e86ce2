package server

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"stoker.dev/stoker/internal/remedy"
)

// changing is a loop whose incidents can be changed while it is asked.
type changing struct {
	*walker

	mu  sync.Mutex
	now []remedy.Incident
}

func (c *changing) Incidents() []remedy.Incident {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *changing) set(list []remedy.Incident) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = list
}

// quick is a site whose streams look at the world often.
func quick(t *testing.T, w Walker) *site {
	t.Helper()
	h, _ := handler(t, w, Options{State: approving})
	s := h.(*site)
	s.console.every = 10 * time.Millisecond
	return s
}

// A follower reads a stream.
type follower struct {
	t     *testing.T
	lines *bufio.Scanner
	body  func() error
}

func follow(t *testing.T, url, last string) *follower {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if last != "" {
		req.Header.Set("Last-Event-ID", last)
	}
	resp, err := http.DefaultClient.Do(req) //nolint:bodyclose // body closes it
	if err != nil {
		t.Fatal(err)
	}
	if got := resp.Header.Get("Content-Type"); resp.StatusCode != 200 || got != "text/event-stream" {
		t.Fatalf("stream answers %s, %s", resp.Status, got)
	}
	f := &follower{t: t, lines: bufio.NewScanner(resp.Body), body: resp.Body.Close}
	f.lines.Buffer(nil, 1<<20)
	return f
}

// beat reads one beat: the sections that came, by name, and the id after them.
func (f *follower) beat() (sections map[string]string, id string) {
	f.t.Helper()
	sections = map[string]string{}
	var event, data string
	for f.lines.Scan() {
		line := f.lines.Text()
		field, value, _ := strings.Cut(line, ": ")
		switch field {
		case "event":
			event = value
		case "id":
			id = value
		case "data":
			data += value + "\n"
		case "":
			if event == "now" {
				return sections, id
			}
			if event != "section" {
				f.t.Fatalf("event %q came", event)
			}
			_, rest, _ := strings.Cut(data, `id="`)
			name, _, _ := strings.Cut(rest, `"`)
			sections[name] = data
			event, data = "", ""
		default:
			f.t.Fatalf("line %q came", line)
		}
	}
	f.t.Fatalf("the stream ended: %v", f.lines.Err())
	return nil, ""
}

func TestAStreamSendsWhatHasChanged(t *testing.T) {
	w := &changing{walker: lived()}
	w.set(w.incidents)
	s := quick(t, w)
	srv := httptest.NewServer(s)
	defer srv.Close()
	defer s.Stop()

	f := follow(t, srv.URL+"/events", "")
	first, id := f.beat()
	if len(first) != len(sectionNames) {
		t.Errorf("who has nothing gets %d sections, want all %d", len(first), len(sectionNames))
	}
	if got, _ := f.beat(); len(got) != 0 {
		t.Errorf("nothing has changed, and %d sections came", len(got))
	}
	next := w.incidents[3] // waits for a gate
	next.Waiting = nil
	w.set([]remedy.Incident{w.incidents[0], w.incidents[1], w.incidents[2], next, w.incidents[4], w.incidents[5]})
	var got map[string]string
	for range 100 {
		if got, _ = f.beat(); len(got) > 0 {
			break
		}
	}
	if _, ok := got["actions"]; ok || !strings.Contains(got["waiting"], "n6") || strings.Contains(got["waiting"], "budget") || got["incidents-now"] == "" {
		t.Errorf("after a gate let go these came: %v", got)
	}
	_ = f.body()

	again := follow(t, srv.URL+"/events", id)
	if got, _ := again.beat(); got["actions"] != "" || got["waiting"] == "" {
		t.Errorf("who comes back gets %v, want what has changed since", got)
	}
	_ = again.body()
}

// TestAStreamOutlivesTheServersLimits holds that the limits for requests that end do not
// cut what does not.
func TestAStreamOutlivesTheServersLimits(t *testing.T) {
	s := quick(t, lived())
	srv := httptest.NewUnstartedServer(s)
	srv.Config.ReadTimeout, srv.Config.WriteTimeout = 500*time.Millisecond, 500*time.Millisecond
	srv.Start()
	defer srv.Close()
	defer s.Stop()
	f := follow(t, srv.URL+"/events", "")
	for start := time.Now(); time.Since(start) < 1500*time.Millisecond; {
		f.beat()
	}
	_ = f.body()
}

func TestStreamsAreBoundedAndFreed(t *testing.T) {
	s := quick(t, lived())
	s.console.slots = make(chan struct{}, 3)
	srv := httptest.NewServer(s)
	defer srv.Close()
	defer s.Stop()
	var open []*follower
	for range 3 {
		f := follow(t, srv.URL+"/events", "")
		f.beat()
		open = append(open, f)
	}
	rec := get(t, s, "/events")
	if rec.Code != 503 || rec.Header().Get("Retry-After") == "" || !strings.Contains(rec.Body.String(), "3 pages follow already") {
		t.Errorf("one too many: %d %s", rec.Code, rec.Body)
	}
	_ = open[0].body()
	eventually(t, "a place is free", func() bool { return len(s.console.slots) == 2 })
	f := follow(t, srv.URL+"/events", "")
	f.beat()
	for _, f := range append(open[1:], f) {
		_ = f.body()
	}
	eventually(t, "all places are free", func() bool { return len(s.console.slots) == 0 })
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for start := time.Now(); time.Since(start) < 20*time.Second; time.Sleep(time.Millisecond) {
		if is() {
			return
		}
	}
	t.Fatalf("%s: not within 20 s", what)
}

// TestThePageIsMadeOnceForAll holds that what a page costs does not grow with those who
// look at it.
func TestThePageIsMadeOnceForAll(t *testing.T) {
	s := quick(t, lived())
	s.console.every = time.Hour // one beat
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	for range 50 {
		wg.Go(func() {
			s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/events", nil).WithContext(ctx))
		})
	}
	eventually(t, "all follow", func() bool { return len(s.console.slots) == 50 })
	get(t, s, "/")
	cancel()
	wg.Wait()
	if s.console.first.count != 1 {
		t.Errorf("the page was made %d times for 50 streams and a reader, want once", s.console.first.count)
	}
}

// TestTimeAloneChangesNoSection holds that ages are written by who reads: a page of
// incidents that grow older sends nothing.
func TestTimeAloneChangesNoSection(t *testing.T) {
	c := &console{pages: parsePages(), server: &server{loop: lived(), opts: Options{State: approving}}}
	later := t0.Add(45 * time.Second)
	for name, makes := range map[string]func(time.Time) (*front, error){"now": c.makeFirst, "fleet": c.makeFleet} {
		before, err := makes(t0)
		if err != nil {
			t.Fatal(err)
		}
		after, err := makes(later)
		if err != nil {
			t.Fatal(err)
		}
		if before.versions() != after.versions() || !after.at.Equal(later) {
			t.Errorf("%s: versions %s at %v, and %s 45 s before", name, after.versions(), after.at, before.versions())
		}
	}
}

func TestServeEndsStreamsAtOnce(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	h := Handler(slog.New(slog.NewTextHandler(t.Output(), nil)), prometheus.NewRegistry(), lived(), func() time.Time { return t0 }, Options{State: approving})
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, l, h) }()
	f := follow(t, fmt.Sprintf("http://%s/events", l.Addr()), "")
	f.beat()
	start := time.Now()
	cancel()
	if err := <-done; err != nil {
		t.Errorf("serve: %v", err)
	}
	if d := time.Since(start); d > 3*time.Second {
		t.Errorf("ended after %v, want at once", d)
	}
	_ = f.body()
	http.DefaultClient.CloseIdleConnections()
	if rec := get(t, h, "/events"); rec.Code != 503 {
		t.Errorf("a stream after the end: %d, want 503", rec.Code)
	}
}
