// Package cluster runs a real Kubernetes control plane on loopback for tests:
// etcd, the API server with RBAC and an audit log, the controller manager, the
// scheduler, kwok in place of the kubelets, and Alertmanager. It owns these
// processes, their ports and one folder, and ends them by their process id.
//
// What hardware and users' code would do is played by actors: the [Trainer]
// answers checkpoint requests, the [Rebooter] reboots nodes. The package knows
// nothing of Stoker's own packages, only its annotations and how to run it.
package cluster

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"stoker.dev/stoker/internal/e2e/programs"
)

// KeepEnv names the environment variable that, when not empty, keeps the folder
// of every cluster: logs, audit log, data. That of a failed test is kept always.
const KeepEnv = "STOKER_E2E_KEEP"

const loopback = "127.0.0.1"

//go:embed audit-policy.yaml
var auditPolicy []byte

//go:embed stages.yaml
var stages []byte

// Options says how a cluster differs from the usual one. The zero value is the
// usual one: no Alertmanager, no nodes.
type Options struct {
	// Alertmanager is the content of Alertmanager's configuration file. Without it
	// no Alertmanager runs. See [FreePort] for a webhook's address.
	Alertmanager string
	// NodeGrace is how long a node may be silent before the controller manager
	// calls it unknown. 0 means Kubernetes' own default, 50 s. kwok sends a heartbeat every 5 s.
	NodeGrace time.Duration
	// APIServerArgs are further arguments of the API server, such as feature gates.
	APIServerArgs []string
	// Log gets progress: what is being built and which program is ready after how
	// long. nil discards it; [Start] sets it to the test's output.
	Log io.Writer
}

// A Cluster is a running control plane. Its fields do not change after [New].
type Cluster struct {
	// Dir holds everything that the cluster writes.
	Dir string
	// URL is the API server's.
	URL string
	// Config is the client configuration of [UserAdmin], who may do anything.
	Config *rest.Config
	// Kubeconfig is the path of a file that says the same as Config.
	Kubeconfig string
	// Client and Dynamic are clients of [UserAdmin].
	Client  kubernetes.Interface
	Dynamic dynamic.Interface
	// AlertmanagerURL is empty when no Alertmanager runs.
	AlertmanagerURL string
	// StartedIn is how long the start took, building not included.
	StartedIn time.Duration

	Etcd, APIServer, ControllerManager, Scheduler, Kwok *Server
	// Alertmanager is nil without [Options].Alertmanager.
	Alertmanager *Server

	creds   credentials
	mapper  *restmapper.DeferredDiscoveryRESTMapper
	clients []*http.Client
	audit   auditLog
	actors  actors

	mu        sync.Mutex
	servers   []*Server      // in the order of their start
	processes []*Process     // others, see StartStoker
	logs      map[string]int // how many, by name
	nodes     map[string]int // how many, by prefix
}

// Start runs a cluster for the length of a test. When the test fails, the folder
// with the logs is kept and its path printed.
func Start(t testing.TB, o Options) *Cluster {
	t.Helper()
	if o.Log == nil {
		o.Log = t.Output()
	}
	c, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		died := c.died()
		if err := c.Close(); err != nil {
			t.Errorf("close the cluster: %v", err)
		}
		if died != nil {
			t.Errorf("during the test: %v", died)
		}
		if t.Failed() || os.Getenv(KeepEnv) != "" {
			t.Logf("logs, audit log and data of the cluster are kept in %s", c.Dir)
			return
		}
		if err := os.RemoveAll(c.Dir); err != nil {
			t.Errorf("remove the cluster's folder: %v", err)
		}
	})
	return c
}

// New builds the programs where need be, starts a cluster and returns when it can
// run pods. ctx bounds the start only. The caller calls Close and removes Dir; after an
// error nothing runs, but the folder is kept and named in the error.
func New(ctx context.Context, o Options) (_ *Cluster, err error) {
	if o.Log == nil {
		o.Log = io.Discard
	}
	bin, err := programs.Build(ctx, o.Log)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "stoker-e2e-")
	if err != nil {
		return nil, err
	}
	start := time.Now()
	c := &Cluster{Dir: dir, logs: map[string]int{}, nodes: map[string]int{}}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w (logs are kept in %s)", errors.Join(err, c.Close()), dir)
		}
	}()
	if c.creds, err = newCredentials(dir); err != nil {
		return nil, err
	}
	c.audit.path = filepath.Join(dir, "audit.log")
	if err := c.startServers(ctx, bin, o, start); err != nil {
		return nil, err
	}
	if err := c.awaitServiceAccounts(ctx); err != nil {
		return nil, err
	}
	c.StartedIn = time.Since(start)
	_, _ = fmt.Fprintf(o.Log, "cluster ready after %.1f s in %s\n", c.StartedIn.Seconds(), dir)
	return c, nil
}

// startServers starts all programs, each as soon as what it needs is there.
func (c *Cluster) startServers(ctx context.Context, bin programs.Paths, o Options, start time.Time) error {
	ready := func(s *Server) error {
		if err := s.awaitReady(ctx); err != nil {
			return err
		}
		_, _ = fmt.Fprintf(o.Log, "%s ready after %.1f s\n", s.name, time.Since(start).Seconds())
		return nil
	}
	ports, err := newPorts()
	if err != nil {
		return err
	}
	c.URL = fmt.Sprintf("https://%s:%d", loopback, ports.apiServer)

	if o.Alertmanager != "" {
		if c.Alertmanager, err = c.alertmanager(bin, ports, o.Alertmanager); err != nil {
			return err
		}
		c.AlertmanagerURL = fmt.Sprintf("http://%s:%d", loopback, ports.alertmanager)
	}
	if c.Etcd, err = c.etcd(bin, ports); err != nil {
		return err
	}
	if err := ready(c.Etcd); err != nil {
		return err
	}
	if c.APIServer, err = c.apiServer(bin, ports, o); err != nil {
		return err
	}
	if err := ready(c.APIServer); err != nil {
		return err
	}
	if err := c.connect(); err != nil {
		return err
	}
	if c.ControllerManager, err = c.controllerManager(bin, ports, o); err != nil {
		return err
	}
	if c.Scheduler, err = c.scheduler(bin, ports); err != nil {
		return err
	}
	if c.Kwok, err = c.kwok(bin, ports); err != nil {
		return err
	}
	for _, s := range c.servers {
		if s == c.Etcd || s == c.APIServer {
			continue
		}
		if err := ready(s); err != nil {
			return err
		}
	}
	return nil
}

// connect makes the admin's clients, which need the API server's certificate.
func (c *Cluster) connect() error {
	c.Config = c.creds.restConfig(c.URL, c.creds.tokens[UserAdmin])
	var err error
	if c.Kubeconfig, err = c.creds.kubeconfig(c.URL, UserAdmin, metav1.NamespaceDefault, c.creds.tokens[UserAdmin]); err != nil {
		return err
	}
	httpClient, err := c.httpClient(c.Config)
	if err != nil {
		return err
	}
	if c.Client, err = kubernetes.NewForConfigAndClient(c.Config, httpClient); err != nil {
		return err
	}
	if c.Dynamic, err = dynamic.NewForConfigAndClient(c.Config, httpClient); err != nil {
		return err
	}
	d, err := discovery.NewDiscoveryClientForConfigAndClient(c.Config, httpClient)
	if err != nil {
		return err
	}
	c.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(d))
	return nil
}

// httpClient returns an HTTP client whose connections Close closes.
func (c *Cluster) httpClient(cfg *rest.Config) (*http.Client, error) {
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clients = append(c.clients, client)
	return client, nil
}

// clientOf returns a client of one of the token users.
func (c *Cluster) clientOf(user string) (kubernetes.Interface, error) {
	cfg := c.creds.restConfig(c.URL, c.creds.tokens[user])
	client, err := c.httpClient(cfg)
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfigAndClient(cfg, client)
}

// awaitServiceAccounts waits until pods can be created in the default namespace.
// That takes the controller manager, so it is also the proof that this one works.
func (c *Cluster) awaitServiceAccounts(ctx context.Context) error {
	return c.await(ctx, "the service account of the default namespace", readyWithin, func(ctx context.Context) (bool, string, error) {
		_, err := c.Client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, "not there", nil
		}
		return err == nil, "there", err
	})
}

// died says which programs have ended though nobody here ended them, or nil.
func (c *Cluster) died() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, s := range c.servers {
		if died := s.Process().died(); died != "" {
			errs = append(errs, errors.New(died))
		}
	}
	return errors.Join(errs...)
}

// Close ends every actor and every program, the last started first, and returns
// when they are gone. The folder stays. Closing twice does nothing more.
func (c *Cluster) Close() error {
	c.actors.stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, p := range slices.Backward(c.processes) {
		errs = append(errs, p.Kill())
	}
	// Nothing here is worth a graceful end: the data goes with the folder.
	for _, s := range slices.Backward(c.servers) {
		errs = append(errs, s.Process().Kill())
	}
	for _, client := range c.clients {
		utilnet.CloseIdleConnectionsFor(client.Transport)
	}
	return errors.Join(errs...)
}

// newServer starts one program and adds it to those that Close ends.
func (c *Cluster) newServer(name, path string, ready func(context.Context) error, args ...string) (*Server, error) {
	s := &Server{name: name, path: path, args: args, dir: c.Dir, ready: ready}
	if err := s.start(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.servers = append(c.servers, s)
	return s, nil
}

// write writes a file into the cluster's folder and returns its path.
func (c *Cluster) write(name string, data []byte) (string, error) {
	path := filepath.Join(c.Dir, name)
	return path, os.WriteFile(path, data, 0o600)
}

// logPath returns a path in the cluster's folder for the log of one more process
// called name: name.log, name-2.log, …
func (c *Cluster) logPath(name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.logs[name]++
	if n := c.logs[name]; n > 1 {
		name = fmt.Sprintf("%s-%d", name, n)
	}
	return filepath.Join(c.Dir, strings.ReplaceAll(name, "/", "-")+".log")
}
