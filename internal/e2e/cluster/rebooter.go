package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// ActionLabel is on every repair job and says what it does; ActionReboot is the
// value that means a reboot of the pod's node, ActionReset that of a reset of a GPU.
const (
	ActionLabel  = "stoker.dev/action"
	ActionReboot = "reboot"
	ActionReset  = "reset"
)

// An Ending says how a repair pod ends.
type Ending string

// The endings. The zero value is EndsWell.
const (
	EndsWell Ending = ""
	// EndsBadly fails the pod; the node is left as it was.
	EndsBadly Ending = "badly"
	// EndsUnrebooted lets the pod succeed though the node has not been rebooted.
	EndsUnrebooted Ending = "unrebooted"
	// EndsNever lets the pod run on.
	EndsNever Ending = "never"
)

// RebooterOptions says how repairs go. The zero value reboots at once.
type RebooterOptions struct {
	// Namespace is that of the repair jobs. "" means stoker-system.
	Namespace string
	// Delay is how long a repair pod runs before it acts.
	Delay time.Duration
	// Down is how long a rebooting node sends no heartbeat and is not ready.
	Down time.Duration
	// End says how the repair pod of an action on a node ends. nil means well.
	// It is called from the rebooter's goroutine.
	End func(action, node string) Ending
}

// A Reboot is one repair that a [Rebooter] has ended.
type Reboot struct {
	Action, Node, Pod string
	Ending            Ending
	BootID            string // the new one, empty when the node was not rebooted
	Time              time.Time
}

// A Rebooter plays the machines under repair pods, that is pods in the repair namespace
// which have, or whose job has, [ActionLabel]. A reboot changes the node's boot id,
// offers all its GPUs again, and frees pods that could not die; then the pod
// succeeds. After a reset the node offers all its GPUs again, in the same boot. Of any
// other action the pod only succeeds.
type Rebooter struct {
	*actor
	client kubernetes.Interface
	o      RebooterOptions

	// repairs are the pods in hand, only for the actor's goroutine.
	repairs map[types.UID]*repair

	mu      sync.Mutex
	reboots []Reboot
}

// repair is how far the repair by one pod has come.
type repair struct {
	due    time.Time // of the next step
	bootID string    // chosen once, so that a step can be repeated
	down   bool
	ended  bool
}

// StartRebooter starts a rebooter that works until the test ends or it is stopped.
func (c *Cluster) StartRebooter(t testing.TB, o RebooterOptions) *Rebooter {
	t.Helper()
	client, err := c.clientOf(UserRebooter)
	if err != nil {
		t.Fatal(err)
	}
	o.Namespace = cmp.Or(o.Namespace, "stoker-system")
	r := &Rebooter{client: client, o: o, repairs: map[types.UID]*repair{}}
	r.actor = c.actors.add(startActor(r.look))
	t.Cleanup(r.Stop)
	return r
}

// Reboots returns the repairs that have ended so far, oldest first.
func (r *Rebooter) Reboots() []Reboot {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.reboots)
}

func (r *Rebooter) look(ctx context.Context, now time.Time) error {
	pods, err := r.client.CoreV1().Pods(r.o.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	jobs, err := r.client.BatchV1().Jobs(r.o.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	actionOf := map[types.UID]string{}
	for _, job := range jobs.Items {
		actionOf[job.UID] = job.Labels[ActionLabel]
	}
	var errs []error
	for _, pod := range pods.Items {
		action := pod.Labels[ActionLabel]
		if owner := metav1.GetControllerOf(&pod); action == "" && owner != nil {
			action = actionOf[owner.UID]
		}
		if action == "" || pod.Status.Phase != corev1.PodRunning || pod.DeletionTimestamp != nil {
			continue
		}
		if err := r.advance(ctx, now, pod, action); err != nil {
			errs = append(errs, fmt.Errorf("%s of node %s by pod %s: %w", action, pod.Spec.NodeName, pod.Name, err))
		}
	}
	return errors.Join(errs...)
}

// advance takes the repair by one pod a step further if that is due. After an
// error the same step is taken again.
func (r *Rebooter) advance(ctx context.Context, now time.Time, pod corev1.Pod, action string) error {
	do := r.repairs[pod.UID]
	if do == nil {
		do = &repair{due: now.Add(r.o.Delay), bootID: newBootID()}
		r.repairs[pod.UID] = do
	}
	if do.ended || now.Before(do.due) {
		return nil
	}
	node := pod.Spec.NodeName
	ending := EndsWell
	if r.o.End != nil {
		ending = r.o.End(action, node)
	}
	switch ending {
	case EndsNever:
		return nil
	case EndsBadly:
		return r.end(ctx, now, pod, do, Reboot{Action: action, Node: node, Pod: pod.Name, Ending: ending}, 1)
	case EndsUnrebooted:
		return r.end(ctx, now, pod, do, Reboot{Action: action, Node: node, Pod: pod.Name, Ending: ending}, 0)
	case EndsWell:
	}
	if action == ActionReset {
		if err := r.offer(ctx, node, nil); err != nil {
			return err
		}
	}
	if action != ActionReboot {
		return r.end(ctx, now, pod, do, Reboot{Action: action, Node: node, Pod: pod.Name}, 0)
	}
	if r.o.Down > 0 && !do.down {
		if err := r.takeDown(ctx, node); err != nil {
			return err
		}
		do.down, do.due = true, now.Add(r.o.Down)
		return nil
	}
	if err := r.bringUp(ctx, node, do.bootID); err != nil {
		return err
	}
	return r.end(ctx, now, pod, do, Reboot{Action: action, Node: node, Pod: pod.Name, BootID: do.bootID}, 0)
}

// end ends the repair pod and writes down what was done.
func (r *Rebooter) end(ctx context.Context, now time.Time, pod corev1.Pod, do *repair, done Reboot, exitCode int32) error {
	r.mu.Lock() // who sees that the pod has ended finds it written down
	defer r.mu.Unlock()
	if err := endPod(ctx, r.client, pod, exitCode, "", ""); err != nil {
		return err
	}
	do.ended = true
	done.Time = now
	r.reboots = append(r.reboots, done)
	return nil
}

// takeDown makes a node not ready, and kwok leave it so.
func (r *Rebooter) takeDown(ctx context.Context, node string) error {
	if err := silence(ctx, r.client, node, true); err != nil {
		return err
	}
	now := metav1.Now()
	return patchNode(ctx, r.client, node, "status", map[string]any{"status": map[string]any{"conditions": []any{
		corev1.NodeCondition{
			Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady", Message: "rebooting",
			LastHeartbeatTime: now, LastTransitionTime: now,
		},
	}}})
}

// bringUp makes a node what it is after a reboot.
func (r *Rebooter) bringUp(ctx context.Context, node, bootID string) error {
	if err := r.offer(ctx, node, map[string]any{"bootID": bootID}); err != nil {
		return err
	}
	return silence(ctx, r.client, node, false)
}

// offer lets a node offer all its GPUs, and tell what else is new.
func (r *Rebooter) offer(ctx context.Context, node string, info map[string]any) error {
	n, err := r.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil // its pods will go too
	}
	if err != nil {
		return err
	}
	status := map[string]any{"allocatable": n.Status.Capacity}
	if info != nil {
		status["nodeInfo"] = info
	}
	return patchNode(ctx, r.client, node, "status", map[string]any{"status": status})
}
