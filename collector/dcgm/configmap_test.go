package dcgm

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// A cluster is an API server that has one ConfigMap, or something else.
type cluster struct {
	mu     sync.Mutex
	answer http.HandlerFunc
	asked  []string
}

func (c *cluster) say(h http.HandlerFunc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer = h
}

// list makes the cluster have a list.
func (c *cluster) list(text string) {
	c.say(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "ConfigMap", "data": map[string]string{"metrics": text, "other": "x"}})
	})
}

func (c *cluster) status(code int, text string) {
	c.say(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		_, _ = w.Write([]byte(text))
	})
}

// newCluster starts one, with the folder of a service account for it.
func newCluster(t *testing.T) (c *cluster, account string) {
	t.Helper()
	c = &cluster{}
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		answer := c.answer
		c.asked = append(c.asked, r.Method+" "+r.URL.Path+" "+r.Header.Get("Authorization"))
		c.mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", u.Hostname())
	t.Setenv("KUBERNETES_SERVICE_PORT", u.Port())
	account = t.TempDir()
	for name, data := range map[string]string{
		"ca.crt": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})), "token": "secret\n",
	} {
		if err := os.WriteFile(filepath.Join(account, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return c, account
}

// follow follows the ConfigMap, quickly, until the test ends.
func follow(t *testing.T, account string, within time.Duration) *ConfigMap {
	t.Helper()
	m, err := NewConfigMap(slog.New(slog.NewTextHandler(t.Output(), nil)), "gpus:fields", account)
	if err != nil {
		t.Fatal(err)
	}
	m.every, m.retry, m.within = 5*time.Millisecond, 5*time.Millisecond, within
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); m.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	select {
	case <-m.First():
	case <-time.After(10 * time.Second):
		t.Fatal("it was not even tried")
	}
	return m
}

// want waits until the first field and the reason are these.
func (m *ConfigMap) want(t *testing.T, field, why string) {
	t.Helper()
	got, gotWhy := "", ""
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		got = ""
		if f := m.fields.Load(); f != nil {
			got = (*f)[0].Name
		}
		gotWhy = *m.why.Load()
		if got == field && gotWhy == why {
			return
		}
	}
	t.Fatalf("the list begins with %q, reason %q; want %q and %q", got, gotWhy, field, why)
}

const temperature, power = "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE"

// TestAListOfTheCluster: it is read with the account of the pod, and followed. Whatever happens
// to it, what was there stays in force, and the reason is known.
func TestAListOfTheCluster(t *testing.T) {
	c, account := newCluster(t)
	c.list(temperature + ", gauge, a\n")
	m := follow(t, account, mapAnswerIn)
	m.want(t, temperature, "")
	c.mu.Lock()
	if want := "GET /api/v1/namespaces/gpus/configmaps/fields Bearer secret"; c.asked[0] != want {
		t.Errorf("asked %q, want %q", c.asked[0], want)
	}
	c.mu.Unlock()
	c.list(power + ", gauge, b\n")
	m.want(t, power, "")
	for _, step := range []struct {
		do          func()
		field, want string
	}{
		{func() { c.status(403, `{"kind":"Status","message":"configmaps is forbidden"}`) }, power, "forbidden"},
		{func() { c.status(404, `{}`) }, power, "not-found"},
		{func() { c.status(500, `oops`) }, power, "cluster-refuses"},
		{func() { c.status(200, `<html>`) }, power, "odd-answer"},
		{func() { c.status(200, `{"data":{"other":"x"}}`) }, power, "no-key"},
		{func() { c.status(200, `{"data":{"metrics":"`+strings.Repeat("#", maxList+1)+`"}}`) }, power, "odd-answer"},
		{func() { c.status(500, `oops`) }, power, "cluster-refuses"},
		{func() { c.status(200, strings.Repeat(" ", maxConfigMap+1)) }, power, "odd-answer"},
		{func() { c.list("DCGM_FI_DEV_NONE, gauge, x\n") }, power, "no-field"},
		{func() { c.list("x\n" + temperature + ", gauge, a\n") }, temperature, "wrong-lines"},
		{func() { c.list(power + ", gauge, b\n") }, power, ""},
	} {
		step.do()
		m.want(t, step.field, step.want)
	}
	if err := os.Remove(filepath.Join(account, "token")); err != nil {
		t.Fatal(err)
	}
	m.want(t, power, "no-service-account")
}

// TestAListOfTheClusterThatComesLater: outside of a pod, and before the list is there, it is
// tried again until it is.
func TestAListOfTheClusterThatComesLater(t *testing.T) {
	c, account := newCluster(t)
	c.status(404, `{}`)
	ca := filepath.Join(account, "ca.crt")
	if err := os.Rename(ca, ca+".later"); err != nil {
		t.Fatal(err)
	}
	m := follow(t, account, mapAnswerIn)
	m.want(t, "", "no-service-account")
	if err := os.Rename(ca+".later", ca); err != nil {
		t.Fatal(err)
	}
	m.want(t, "", "not-found")
	c.list(temperature + ", gauge, a\n")
	m.want(t, temperature, "")
}

// TestASlowCluster: the first try ends, and with it the wait for it.
func TestASlowCluster(t *testing.T) {
	c, account := newCluster(t)
	free := make(chan struct{})
	defer close(free)
	c.say(func(http.ResponseWriter, *http.Request) { <-free })
	began := time.Now()
	m := follow(t, account, 100*time.Millisecond)
	if took := time.Since(began); took > mapAnswerIn {
		t.Errorf("the first try took %v", took)
	}
	m.want(t, "", "cluster-does-not-answer")
}

func TestNamesOfConfigMaps(t *testing.T) {
	for name, ok := range map[string]bool{
		"gpus:fields": true, "a:b.c-d": true, "": false, "fields": false, "a:b:c": false, ":b": false, "a:": false, "a:../secrets/b": false, "A:b": false,
	} {
		if _, err := NewConfigMap(slog.Default(), name, ""); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}
