package kubeget

import (
	"context"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cluster is a server with the folder of a service account for it.
func cluster(t *testing.T, h http.HandlerFunc) (folder string) {
	t.Helper()
	s := httptest.NewTLSServer(h)
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", u.Hostname())
	t.Setenv("KUBERNETES_SERVICE_PORT", u.Port())
	folder = t.TempDir()
	write(t, folder, "ca.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})))
	write(t, folder, "token", "first\n")
	return folder
}

func write(t *testing.T, folder, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func client(t *testing.T, folder string) *Client {
	t.Helper()
	c, err := InCluster(folder)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestReading(t *testing.T) {
	var got []string
	folder := cluster(t, func(w http.ResponseWriter, r *http.Request) {
		got = append(got, r.Method+" "+r.URL.String()+" "+r.Header.Get("Authorization")+" "+r.Header.Get("Accept"))
		switch r.URL.Path {
		case "/away":
			http.Redirect(w, r, "https://elsewhere.example.com/", http.StatusFound)
		case "/forbidden":
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write([]byte(`{"kind":"Status","message":"pods is forbidden"}`))
		case "/odd":
			w.WriteHeader(http.StatusBadGateway)
			_, _ = w.Write([]byte(`<html>`))
		default:
			_, _ = w.Write([]byte("0123456789"))
		}
	})
	c := client(t, folder)
	body, err := c.Get(t.Context(), "/api", url.Values{"a": {"b c"}}, "", 10)
	if err != nil || string(body) != "0123456789" {
		t.Errorf("got %q, %v", body, err)
	}
	// A token that was replaced is used at once.
	write(t, folder, "token", "second")
	if _, err := c.Get(t.Context(), "/api", nil, "application/json;as=x", 9); !errors.Is(err, ErrTooLong) {
		t.Errorf("err = %v, want that it is too long", err)
	}
	want := []string{"GET /api?a=b+c Bearer first application/json", "GET /api Bearer second application/json;as=x"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("asked\n%q, want\n%q", got, want)
	}
	for path, want := range map[string]string{
		"/forbidden": "403 Forbidden: pods is forbidden", "/odd": "502 Bad Gateway", "/away": "302 Found",
	} {
		_, err := c.Get(t.Context(), path, nil, "", 10)
		if s, ok := errors.AsType[*StatusError](err); !ok || s.Error() != want {
			t.Errorf("%s: err = %v, want %s", path, err, want)
		}
	}
}

func TestNoCluster(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := InCluster(t.TempDir()); !errors.Is(err, ErrNoCluster) {
		t.Errorf("err = %v", err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "::1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "443")
	folder := t.TempDir()
	if _, err := InCluster(folder); !errors.Is(err, ErrNoCluster) {
		t.Errorf("err = %v", err)
	}
	write(t, folder, "ca.crt", "none")
	if _, err := InCluster(folder); err == nil || !strings.HasSuffix(err.Error(), "no certificate in it") {
		t.Errorf("err = %v", err)
	}
}

// TestAStranger: the token is for the cluster alone, and for nobody who says to be it.
func TestAStranger(t *testing.T) {
	asked := false
	folder := cluster(t, func(http.ResponseWriter, *http.Request) { asked = true })
	other := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(other.Close)
	u, _ := url.Parse(other.URL)
	t.Setenv("KUBERNETES_SERVICE_PORT", u.Port())
	// Both test servers have one certificate; a name that it does not have stands for another one.
	t.Setenv("KUBERNETES_SERVICE_HOST", "localhost")
	if _, err := client(t, folder).Get(t.Context(), "/", nil, "", 10); err == nil || asked {
		t.Errorf("err = %v, asked %v; want a certificate that is refused", err, asked)
	}
}

func TestASlowCluster(t *testing.T) {
	free := make(chan struct{})
	folder := cluster(t, func(http.ResponseWriter, *http.Request) { <-free })
	defer close(free)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := client(t, folder).Get(ctx, "/", nil, "", 10); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("err = %v", err)
	}
}
