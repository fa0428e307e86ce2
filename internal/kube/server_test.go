package kube

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		http.DefaultClient.CloseIdleConnections()
	}))
}

// A server answers what the test says for "METHOD path" and remembers what it was sent.
type server struct {
	*httptest.Server

	mu       sync.Mutex
	answers  map[string][]http.HandlerFunc // one after the other; the last one stays
	requests []request
}

type request struct {
	Method, Path, Query, Type string
	Body                      []byte
}

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{answers: map[string][]http.HandlerFunc{}}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return s
}

func (s *server) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(err)
	}
	route := r.Method + " " + r.URL.Path
	s.mu.Lock()
	s.requests = append(s.requests, request{r.Method, r.URL.Path, r.URL.RawQuery, r.Header.Get("Content-Type"), body})
	list := s.answers[route]
	if len(list) > 1 {
		s.answers[route] = list[1:]
	}
	s.mu.Unlock()
	if len(list) == 0 {
		status(http.StatusNotFound, metav1.StatusReasonNotFound, "thing not found", &metav1.StatusDetails{Name: "thing"})(w, r)
		return
	}
	list[0](w, r)
}

// on sets the answers to a route.
func (s *server) on(route string, answers ...http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[route] = answers
}

// sent returns the requests with that method.
func (s *server) sent(method string) []request {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []request
	for _, r := range s.requests {
		if r.Method == method {
			out = append(out, r)
		}
	}
	return out
}

func (s *server) config() *rest.Config { return &rest.Config{Host: s.URL, QPS: -1} }

func (s *server) client(t *testing.T, timeout time.Duration) *Client {
	t.Helper()
	c, err := newClient(s.config(), timeout)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func answer(code int, v any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		if err := json.NewEncoder(w).Encode(v); err != nil {
			panic(err)
		}
	}
}

func status(code int32, reason metav1.StatusReason, message string, details *metav1.StatusDetails) http.HandlerFunc {
	return answer(int(code), metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Code: code, Reason: reason, Message: message, Details: details,
	})
}

func text(code int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body) // the client may be gone
	}
}

func retryAfter(seconds string, h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", seconds)
		h(w, r)
	}
}

// hangUp closes the connection instead of answering.
func hangUp(w http.ResponseWriter, _ *http.Request) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	_ = conn.Close()
}

// half answers well and closes the connection in the middle of it.
func half(w http.ResponseWriter, _ *http.Request) {
	conn, buf, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	_, _ = buf.WriteString("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{\"kind\":")
	_ = buf.Flush()
	_ = conn.Close()
}

// silent does not answer while the client waits.
func silent(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
