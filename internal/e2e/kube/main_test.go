// Package kube runs Stoker's own Kubernetes code, its store and its job adapters
// against a real API server, under an account that may do what the specs ask for and
// nothing else.
//
// All tests share one control plane and run one after the other.
package kube

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/actuator/jobs"
	"stoker.dev/stoker/deploy/crds"
	"stoker.dev/stoker/internal/e2e/cluster"
	"stoker.dev/stoker/internal/kube"
	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/internal/store"
)

const (
	own       = "stoker-own" // the namespace of repairs, leases and incidents
	account   = "stoker"
	testLabel = "e2e.stoker.dev/test"
	soon      = 60 * time.Second // for what takes a moment on a machine that has other things to do too
)

// A suite is the control plane and the account on it.
type suite struct {
	*cluster.Cluster

	config *rest.Config // of the account
}

var (
	once   sync.Once
	shared *suite
)

func theSuite(t *testing.T) *suite {
	t.Helper()
	once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 90*time.Minute) // the programs may have to be built
		defer cancel()
		c, err := cluster.New(ctx, cluster.Options{Log: os.Stderr})
		if err != nil {
			t.Fatal(err)
		}
		shared = &suite{Cluster: c}
		c.ApplyYAML(t, crds.Incidents)
		kubeconfig := c.ServiceAccountKubeconfig(t, own, account)
		shared.grant(t)
		if shared.config, err = kube.Config(kubeconfig, "stoker-e2e"); err != nil {
			t.Fatal(err)
		}
	})
	if shared == nil || shared.config == nil {
		t.Fatal("the control plane was not started, see the first test")
	}
	return shared
}

// grant lets the account do what the specs ask for.
func (s *suite) grant(t *testing.T) {
	t.Helper()
	lists := [][]actuator.Rule{kube.ReadRules, kube.LeaseRules, kube.EventRules, kube.IncidentRules}
	for _, a := range actuator.Actions {
		lists = append(lists, a.RBAC)
	}
	for _, j := range jobs.Adapters {
		lists = append(lists, j.RBAC)
	}
	var everywhere, here []rbacv1.PolicyRule
	for _, r := range slices.Concat(lists...) {
		rule := rbacv1.PolicyRule{APIGroups: []string{r.Group}, Resources: []string{r.Resource}, Verbs: r.Verbs}
		if r.Own {
			here = append(here, rule)
		} else {
			everywhere = append(everywhere, rule)
		}
	}
	meta := metav1.ObjectMeta{Name: account, Namespace: own}
	who := []rbacv1.Subject{{Kind: "ServiceAccount", Name: account, Namespace: own}}
	rbac := s.Client.RbacV1()
	_, err := rbac.ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: account}, Rules: everywhere}, metav1.CreateOptions{})
	if err == nil {
		_, err = rbac.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: account}, Subjects: who, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: account},
		}, metav1.CreateOptions{})
	}
	if err == nil {
		_, err = rbac.Roles(own).Create(t.Context(), &rbacv1.Role{ObjectMeta: meta, Rules: here}, metav1.CreateOptions{})
	}
	if err == nil {
		_, err = rbac.RoleBindings(own).Create(t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: meta, Subjects: who, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: account},
		}, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatalf("grant the account its rights: %v", err)
	}
	s.AwaitRights(t, own, account, cluster.Right{Verb: "list", Resource: "nodes"}, cluster.Right{Verb: "create", Group: store.Incidents.Group, Resource: "incidents", Namespace: own})
}

func (s *suite) client(t *testing.T) *kube.Client {
	t.Helper()
	c, err := kube.NewClient(s.config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// hands returns the cluster as the account sees it.
func (s *suite) hands(t *testing.T) *kube.Cluster {
	t.Helper()
	return kube.NewCluster(logger(t), s.client(t), kube.ClusterOptions{Namespace: own, Repairs: mustTemplates(t)})
}

// retried writes as the loop does: what the server states to be a conflict is tried again.
// kwok and the controllers write to the same objects, a heartbeat or a count, whenever they
// like; write reads anew each time.
func retried[T any](t *testing.T, write func() (T, error)) T {
	t.Helper()
	for deadline := time.Now().Add(soon); ; time.Sleep(100 * time.Millisecond) {
		is, err := write()
		if err == nil {
			return is
		}
		if endingOf(err) != remedy.Conflict || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func logger(t *testing.T) *slog.Logger {
	t.Helper()
	return slog.New(slog.NewTextHandler(t.Output(), nil))
}

// run runs a cache until the test ends.
func run(t *testing.T, c *kube.Cache) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-done })
	synced, cancelSync := context.WithTimeout(t.Context(), soon)
	defer cancelSync()
	if err := c.WaitSynced(synced); err != nil {
		t.Fatal(err)
	}
}

func TestMain(m *testing.M) { os.Exit(runAll(m)) }

func runAll(m *testing.M) int {
	code := m.Run()
	if shared == nil {
		return code
	}
	err := shared.Close()
	if err == nil {
		err = goleak.Find()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if code != 0 || os.Getenv(cluster.KeepEnv) != "" {
		fmt.Fprintf(os.Stderr, "logs, audit log and data are kept in %s\n", shared.Dir)
		return code
	}
	if err := os.RemoveAll(shared.Dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	return code
}
