package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/actuator/jobs"
	"stoker.dev/stoker/actuator/jobs/manifest"
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/observe"
	"stoker.dev/stoker/internal/remedy"
)

var (
	nodeResource  = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	podResource   = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	claimResource = schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"}
	jobResource   = schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}
)

// Cluster reads and changes a real cluster on behalf of actions. Reads are live;
// every write is one request under a precondition. It may be used by several goroutines.
type Cluster struct {
	log      *slog.Logger
	client   *Client
	nodes    observe.Nodes
	pods     observe.Pods
	adapters map[string]framework // by the Kind of a job's reference
	repairs  atomic.Pointer[Templates]
	own      string // our namespace
}

var _ actuator.Cluster = (*Cluster)(nil)

type framework struct {
	jobs.Adapter

	resource schema.GroupVersionResource
}

// ClusterOptions says how a cluster is read and changed.
type ClusterOptions struct {
	Namespace string      // our own, where repairs run
	Repairs   Templates   // an action without one cannot be repaired by
	PoolKeys  []string    // labels that name a node's pool; nil means [observe.PoolKeys]
	Adapters  []jobs.Spec // nil means [jobs.Adapters]
}

// NewCluster returns the cluster behind a client.
func NewCluster(log *slog.Logger, client *Client, o ClusterOptions) *Cluster {
	if o.PoolKeys == nil {
		o.PoolKeys = observe.PoolKeys
	}
	if o.Adapters == nil {
		o.Adapters = jobs.Adapters
	}
	c := &Cluster{log: log, client: client, nodes: observe.Nodes{PoolKeys: o.PoolKeys}, adapters: map[string]framework{}, own: o.Namespace}
	c.SetRepairs(o.Repairs)
	for _, s := range o.Adapters {
		c.pods.Owners = append(c.pods.Owners, s.Kind)
		c.adapters[s.Kind.String()] = framework{s.New(), s.Resource}
	}
	return c
}

// SetRepairs puts other templates in force for the repairs that are yet to be created.
func (c *Cluster) SetRepairs(t Templates) { c.repairs.Store(&t) }

// Observers are what a [Cache] needs to see the cluster as this one does, in the order
// that observers rely on: nodes, pods, jobs.
func (c *Cluster) Observers() []observe.Observer {
	out := []observe.Observer{c.nodes, c.pods}
	for _, kind := range c.pods.Owners {
		out = append(out, c.adapters[kind.String()].Adapter)
	}
	return out
}

// Node reads one node.
func (c *Cluster) Node(ctx context.Context, name string) (fleet.Node, error) {
	obj, err := c.client.Get(ctx, nodeResource, "", name)
	if err != nil {
		return fleet.Node{}, err
	}
	return c.nodes.Node(obj.Object, time.Now().UTC()), nil
}

// MarkNode writes hold and unschedulable in one change, if the node is still n. A node
// whose hold could not be read is left alone.
func (c *Cluster) MarkNode(ctx context.Context, n fleet.Node, hold fleet.Hold, unschedulable bool) (fleet.Node, error) {
	if observe.HoldUnreadable(n) {
		return fleet.Node{}, failure(remedy.Rejected, "mark node %s: %s", n.Name, n.OptOut)
	}
	marks := map[string]any{remedy.MarkHold: nil, remedy.MarkWhy: nil}
	if hold.Any() {
		data, err := json.Marshal(hold)
		if err != nil {
			return fleet.Node{}, failure(remedy.Rejected, "mark node %s: %w", n.Name, err)
		}
		marks[remedy.MarkHold] = string(data)
		if hold.Why != "" {
			marks[remedy.MarkWhy] = hold.Why
		}
	}
	var cordon any // null: a node that may be used has no such field
	if unschedulable {
		cordon = true
	}
	obj, err := c.merge(ctx, nodeResource, "", n.Name, n.UID, n.Version, map[string]any{
		"metadata": map[string]any{"annotations": marks},
		"spec":     map[string]any{"unschedulable": cordon},
	})
	if err != nil {
		return fleet.Node{}, err
	}
	return c.nodes.Node(obj.Object, time.Now().UTC()), nil
}

// merge writes under uid and version, and nothing at all without them.
func (c *Cluster) merge(ctx context.Context, res schema.GroupVersionResource, namespace, name, uid string, version fleet.Version, patch map[string]any) (*unstructured.Unstructured, error) {
	if uid == "" || version == 0 {
		return nil, failure(remedy.Rejected, "%s: uid and version of what was read are not known", describe("patch", res, namespace, name))
	}
	return c.client.Merge(ctx, res, namespace, name, uid, strconv.FormatUint(uint64(version), 10), patch)
}

// PodsOn reads the pods on a node that have not ended.
func (c *Cluster) PodsOn(ctx context.Context, node string) ([]fleet.Pod, error) {
	return c.listPods(ctx, "", "", "spec.nodeName="+node, func(fleet.Pod) bool { return true })
}

// PodsOf reads the pods of a job that have not ended, also when the job itself is gone.
func (c *Cluster) PodsOf(ctx context.Context, job fleet.JobRef) ([]fleet.Pod, error) {
	f, obj, err := c.read(ctx, job)
	selector := ""
	switch {
	case err == nil:
		if selector, err = f.Pods(obj.Object); err != nil {
			return nil, err
		}
	case endingOf(err) != remedy.Gone:
		return nil, err
	}
	return c.listPods(ctx, job.Namespace, selector, "", func(p fleet.Pod) bool { return p.Job == job })
}

func (c *Cluster) listPods(ctx context.Context, namespace, labels, fields string, keep func(fleet.Pod) bool) ([]fleet.Pod, error) {
	objs, err := c.client.List(ctx, podResource, namespace, labels, fields)
	if err != nil {
		return nil, err
	}
	var out []fleet.Pod
	for i := range objs {
		if p, runs := c.pods.Pod(objs[i].Object); runs && keep(p) {
			out = append(out, p)
		}
	}
	return out, nil
}

// Evict asks one pod to go, by its uid. A disruption budget that refuses is a Conflict
// that names it.
func (c *Cluster) Evict(ctx context.Context, p fleet.PodRef) error {
	if p.UID == "" {
		return failure(remedy.Rejected, "evict pod %s/%s: its uid is not known", p.Namespace, p.Name)
	}
	eviction := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion":    "policy/v1",
		"kind":          "Eviction",
		"metadata":      map[string]any{"namespace": p.Namespace, "name": p.Name},
		"deleteOptions": map[string]any{"preconditions": map[string]any{"uid": p.UID}},
	}}
	err := c.client.call(ctx, describe("evict", podResource, p.Namespace, p.Name), func(ctx context.Context) error {
		_, err := c.client.of(podResource, p.Namespace).Create(ctx, eviction, metav1.CreateOptions{FieldManager: fieldManager}, "eviction")
		return err
	})
	if err == nil {
		return nil
	}
	if why := budgetsOf(err); why != "" {
		return failure(remedy.Conflict, "evict pod %s/%s: %s: %w", p.Namespace, p.Name, why, err)
	}
	return c.client.another(ctx, err, podResource, p.Namespace, p.Name, p.UID)
}

// budgetsOf returns what disruption budgets have said against an eviction.
func budgetsOf(err error) string {
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) || status.Status().Details == nil {
		return ""
	}
	var said []string
	for _, cause := range status.Status().Details.Causes {
		if cause.Type == policyv1.DisruptionBudgetCause {
			said = append(said, cause.Message)
		}
	}
	return strings.Join(said, "; ")
}

// read finds the adapter of a job and reads its object.
func (c *Cluster) read(ctx context.Context, ref fleet.JobRef) (framework, *unstructured.Unstructured, error) {
	f, ok := c.adapters[ref.Kind]
	if !ok {
		return f, nil, failure(remedy.Rejected, "job %s is a %q, which no adapter knows", ref, ref.Kind)
	}
	obj, err := c.client.Get(ctx, f.resource, ref.Namespace, ref.Name)
	return f, obj, err
}

// Job reads one job.
func (c *Cluster) Job(ctx context.Context, ref fleet.JobRef) (fleet.Job, error) {
	f, obj, err := c.read(ctx, ref)
	if err != nil {
		return fleet.Job{}, err
	}
	return f.Job(obj.Object, time.Now().UTC()), nil
}

// AskCheckpoint asks the training code to save now.
func (c *Cluster) AskCheckpoint(ctx context.Context, j fleet.Job, key string) (fleet.Job, error) {
	return c.change(ctx, j, func(f framework, obj map[string]any) (jobs.Change, error) { return f.AskCheckpoint(obj, key) })
}

// StopJob takes the whole gang off its nodes and keeps the object.
func (c *Cluster) StopJob(ctx context.Context, j fleet.Job, key string) (fleet.Job, error) {
	return c.change(ctx, j, func(f framework, obj map[string]any) (jobs.Change, error) { return f.Stop(obj, key) })
}

// StartJob lets a stopped job run again. Where the API does not take all of with, the
// job that is returned shows what it has taken.
func (c *Cluster) StartJob(ctx context.Context, j fleet.Job, key string, with actuator.Restart) (fleet.Job, error) {
	return c.change(ctx, j, func(f framework, obj map[string]any) (jobs.Change, error) { return f.Start(obj, key, with) })
}

// SetRecipe gives the pods of a stopped job, when they run again, these values to read.
func (c *Cluster) SetRecipe(ctx context.Context, j fleet.Job, key string, env map[string]string) (fleet.Job, error) {
	return c.change(ctx, j, func(f framework, obj map[string]any) (jobs.Change, error) { return f.Recipe(obj, key, env) })
}

// ClaimsOf reads the volume claims that the job's pods mount. One that is not there
// lacks just that.
func (c *Cluster) ClaimsOf(ctx context.Context, j fleet.Job) ([]actuator.Claim, error) {
	f, obj, err := c.read(ctx, j.Ref)
	if err != nil {
		return nil, err
	}
	names := f.Claims(obj.Object)
	if len(names) > maxClaims {
		return nil, failure(remedy.Rejected, "job %s mounts %d volume claims, and %d is the limit", j.Ref, len(names), maxClaims)
	}
	out := make([]actuator.Claim, len(names))
	for i, name := range names {
		out[i].Name = name
		claim, err := c.client.Get(ctx, claimResource, j.Ref.Namespace, name)
		switch {
		case err != nil && endingOf(err) == remedy.Gone:
			out[i].Lacks = "is not there"
		case err != nil:
			return nil, err
		case claim.GetDeletionTimestamp() != nil:
			out[i].Lacks = "is being deleted"
		case manifest.String(claim.Object, "status", "phase") != "Bound":
			out[i].Lacks = "is " + cmp.Or(manifest.String(claim.Object, "status", "phase"), "in no phase")
		}
	}
	return out, nil
}

// maxClaims bounds how many claims of one job are read.
const maxClaims = 64

// change reads the job again, since an adapter needs all of it, has the adapter say
// what to write, and writes it if the job is still j.
func (c *Cluster) change(ctx context.Context, j fleet.Job, act func(framework, map[string]any) (jobs.Change, error)) (fleet.Job, error) {
	f, obj, err := c.read(ctx, j.Ref)
	if err != nil {
		return fleet.Job{}, err
	}
	is := f.Job(obj.Object, time.Now().UTC())
	switch {
	case is.UID != j.UID:
		return fleet.Job{}, failure(remedy.Gone, "job %s is another one now, with uid %s", j.Ref, is.UID)
	case is.Version != j.Version:
		return fleet.Job{}, failure(remedy.Conflict, "job %s was changed: it has version %d, not %d", j.Ref, is.Version, j.Version)
	}
	do, err := act(f, obj.Object)
	if err != nil {
		return fleet.Job{}, err
	}
	changed, err := c.merge(ctx, f.resource, j.Ref.Namespace, j.Ref.Name, j.UID, j.Version, do.Patch)
	if err != nil && do.Else != nil && invalid(err) {
		c.log.LogAttrs(ctx, slog.LevelWarn, "job changed by less than asked", slog.String("job", j.Ref.String()), slog.String("note", do.Else.Note), slog.Any("err", err))
		changed, err = c.merge(ctx, f.resource, j.Ref.Namespace, j.Ref.Name, j.UID, j.Version, do.Else.Patch)
	}
	if err != nil {
		return fleet.Job{}, err
	}
	return f.Job(changed.Object, time.Now().UTC()), nil
}

// invalid reports whether the API has refused what was written as not allowed there.
func invalid(err error) bool {
	status := apierrors.APIStatus(nil)
	return errors.As(err, &status) && status.Status().Code == http.StatusUnprocessableEntity
}

func endingOf(err error) remedy.Ending {
	if f, ok := errors.AsType[*remedy.Failure](err); ok {
		return f.Ending
	}
	return remedy.Unclear
}
