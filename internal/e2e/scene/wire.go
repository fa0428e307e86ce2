package scene

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"stoker.dev/stoker/internal/e2e/cluster"
)

// A Wire lies between the service and the API server and passes everything on. A test
// can lay a trap on it: what is to happen right before or right after one write, at
// points that no clock could hit.
type Wire struct {
	Kubeconfig string // for the service
	next       http.RoundTripper

	mu   sync.Mutex
	trap *Trap
	// closing was taken off the wire and springs in a moment. Until then no other write passes:
	// the step that the trap was laid for is to be the one that runs.
	closing *Trap
}

// A Trap waits for one write and springs once.
type Trap struct {
	match func(Write) bool
	when  Moment
	do    func()
	done  chan struct{} // closed when do has returned
}

// A Moment is a point in the life of a request.
type Moment string

// The moments at which a trap springs.
const (
	BeforeIt Moment = "before its effect"                // the request never reaches the server
	Unheard  Moment = "after its effect, with no answer" // the server has done it and the service never hears of it
	Heard    Moment = "while it runs"                    // shortly after the service has the answer, before it writes anything else
	Answered Moment = "before the answer"                // the server has done it; the service hears of it after do
	Delayed  Moment = "on its way"                       // it reaches the server after do
)

// lag is how long a trap waits after an answer was passed on.
const lag = 100 * time.Millisecond

var errTrapped = errors.New("cut off by the test")

// NewWire starts a wire for the length of the test.
func (f *Fixture) NewWire(t *testing.T) *Wire {
	t.Helper()
	server, err := url.Parse(f.URL)
	if err != nil {
		t.Fatal(err)
	}
	// The service's own token passes through; nothing of the admin's is lent to it.
	next, err := rest.TransportFor(&rest.Config{Host: f.URL, TLSClientConfig: rest.TLSClientConfig{CAFile: f.Config.CAFile}})
	if err != nil {
		t.Fatal(err)
	}
	w := &Wire{next: next}
	srv := httptest.NewUnstartedServer(&httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(server) },
		Transport:     w,
		FlushInterval: -1, // watches
		ErrorLog:      log.New(io.Discard, "", 0),
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) {
			panic(http.ErrAbortHandler) // the connection is cut, as it is when a server dies
		},
	})
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	srv.StartTLS()
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
		utilnet.CloseIdleConnectionsFor(next)
	})

	cfg, err := clientcmd.LoadFromFile(f.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cfg.Clusters {
		c.Server = srv.URL
		c.CertificateAuthorityData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	}
	w.Kubeconfig = filepath.Join(f.Folder, f.ID+"-wire.kubeconfig")
	if err := clientcmd.WriteToFile(*cfg, w.Kubeconfig); err != nil {
		t.Fatal(err)
	}
	return w
}

// Lay lays a trap. There may be one at a time.
func (w *Wire) Lay(t *testing.T, when Moment, match func(Write) bool, do func()) *Trap {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.trap != nil {
		t.Fatal("there is another trap on the wire")
	}
	w.trap = &Trap{match: match, when: when, do: do, done: make(chan struct{})}
	return w.trap
}

// Sprung reports whether the trap's do has returned.
func (tr *Trap) Sprung() bool {
	select {
	case <-tr.done:
		return true
	default:
		return false
	}
}

// waiting returns the trap if it waits for this write.
func (w *Wire) waiting(what Write) *Trap {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.trap == nil || !w.trap.match(what) {
		return nil
	}
	return w.trap
}

// take removes a trap from the wire. It reports false when it has sprung meanwhile.
func (w *Wire) take(tr *Trap) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.trap != tr {
		return false
	}
	w.trap = nil
	if tr.when == Heard {
		w.closing = tr
	}
	return true
}

// pass waits until a trap that is closing has sprung. It returns an error for a write that
// had to wait, since whoever sent it is gone by then.
func (w *Wire) pass() error {
	w.mu.Lock()
	tr := w.closing
	w.mu.Unlock()
	if tr == nil {
		return nil
	}
	<-tr.done
	return errTrapped
}

// spring does what the trap was laid for.
func (w *Wire) spring(tr *Trap) {
	tr.do()
	w.mu.Lock()
	w.closing = nil
	w.mu.Unlock()
	close(tr.done)
}

// RoundTrip passes one request on to the API server. A write that the server refuses
// springs no trap, since it has no effect.
func (w *Wire) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method == http.MethodGet {
		return w.next.RoundTrip(req)
	}
	if err := w.pass(); err != nil {
		return nil, err
	}
	var body []byte
	if req.Body != nil { // a deletion may have none
		var err error
		if body, err = io.ReadAll(req.Body); err != nil {
			return nil, err
		}
	}
	req.Body = io.NopCloser(bytes.NewReader(body))
	tr := w.waiting(parseWrite(req.Method, req.URL.Path, body))
	switch {
	case tr == nil:
		return w.next.RoundTrip(req)
	case tr.when == BeforeIt:
		if w.take(tr) {
			w.spring(tr)
		}
		return nil, errTrapped
	}
	req = req.WithContext(context.WithoutCancel(req.Context())) // it goes on when the service has gone
	if tr.when == Delayed {
		if w.take(tr) {
			w.spring(tr)
		}
		return w.next.RoundTrip(req)
	}
	resp, err := w.next.RoundTrip(req)
	if err != nil || resp.StatusCode >= 300 || !w.take(tr) {
		return resp, err
	}
	switch tr.when {
	case Heard:
		time.AfterFunc(lag, func() { w.spring(tr) })
		return resp, nil
	case Answered:
		w.spring(tr)
		return resp, nil
	case Unheard, BeforeIt, Delayed:
	}
	_, err = io.Copy(io.Discard, resp.Body)
	w.spring(tr)
	return nil, errors.Join(errTrapped, err, resp.Body.Close())
}

// parseWrite reads what a request to the API server asks for, from
// /api/v1/[namespaces/NS/]RESOURCE[/NAME[/SUB]] and the same under /apis/GROUP.
func parseWrite(method, path string, body []byte) Write {
	out := Write{body: body, Verb: map[string]string{
		http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete",
	}[method]}
	parts := strings.Split(strings.Trim(path, "/"), "/")
	skip := 2
	if parts[0] == "apis" {
		skip = 3
	}
	if len(parts) <= skip {
		return out
	}
	parts = parts[skip:]
	if parts[0] == "namespaces" && len(parts) > 2 {
		out.namespace, parts = parts[1], parts[2:]
	}
	for i, to := range []*string{&out.Resource, &out.name, &out.subresource} {
		if i < len(parts) {
			*to = parts[i]
		}
	}
	return out
}

// Effecting matches the write that has an effect.
func (f *Fixture) Effecting(e Effect) func(Write) bool {
	return func(w Write) bool { return EffectOf(w, f.System) == e }
}

// Reserving matches the write of an incident that says that a step will now be started.
func Reserving(action string) func(Write) bool {
	return func(w Write) bool {
		if w.Resource != "incidents" || w.Verb == "delete" {
			return false
		}
		in, ok := written(w.body)
		return ok && in.runs(action)
	}
}

// written reads the incident out of a write: the object, or a JSON patch that sets its
// status.
func written(body []byte) (Incident, bool) {
	var o struct {
		Status Incident `json:"status"`
	}
	if json.Unmarshal(body, &o) == nil {
		return o.Status, true
	}
	var ops []struct {
		Path  string          `json:"path"`
		Value json.RawMessage `json:"value"`
	}
	if json.Unmarshal(body, &ops) != nil {
		return Incident{}, false
	}
	for _, op := range ops {
		if op.Path == "/status" {
			err := json.Unmarshal(op.Value, &o.Status)
			return o.Status, err == nil
		}
	}
	return Incident{}, false
}

// ServeOver starts a replica that reaches the API server over the wire alone.
func (f *Fixture) ServeOver(t *testing.T, w *Wire, c Settings) *Service {
	t.Helper()
	s := f.Replica(t, c, cluster.FreePort(t), w.Kubeconfig)
	s.Start(t)
	return s
}

// AwaitSprung waits until a trap for a step has sprung, and fails the test at once when the
// incident of the node ends before.
func (f *Fixture) AwaitSprung(t *testing.T, tr *Trap, node, action string) {
	t.Helper()
	f.Await(t, "the trap at "+action+" to spring", Soon, func(ctx context.Context) (bool, string, error) {
		if tr.Sprung() {
			return true, "", nil
		}
		all, err := f.Stored(ctx, "gpu-lost", node)
		if err != nil || len(all) == 0 {
			return false, "no incident", err
		}
		in := all[len(all)-1]
		if in.Over() {
			t.Fatalf("the incident ended before it came to %s: %s", action, in)
		}
		return false, in.String(), nil
	})
}
