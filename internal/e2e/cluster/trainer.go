package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// The annotations by which a job is asked for a checkpoint and answers.
const (
	CheckpointRequest = "stoker.dev/checkpoint-request"
	CheckpointAck     = "stoker.dev/checkpoint-ack"
	CheckpointStep    = "stoker.dev/checkpoint-step"
	CheckpointURI     = "stoker.dev/checkpoint-uri"
	CheckpointTime    = "stoker.dev/checkpoint-time"
)

// TrainerOptions says how users' training code behaves. The zero value answers
// every request at once.
type TrainerOptions struct {
	// Delay is how long a checkpoint takes to write.
	Delay time.Duration
	// Step is the step that is saved. 0 means 18200.
	Step int
	// Deaf says for which jobs nobody answers. nil means none. It is called
	// from the trainer's goroutine.
	Deaf func(job *batchv1.Job) bool
}

// An Ack is one checkpoint that a [Trainer] has written and told of.
type Ack struct {
	Namespace, Job string
	Key            string // of the request
	Time           time.Time
}

// A Trainer plays the training code of every job of the cluster: asked for a
// checkpoint by [CheckpointRequest] while the job runs, it writes one and says so
// in the job's annotations.
type Trainer struct {
	*actor
	client kubernetes.Interface
	o      TrainerOptions

	// asked is when each request was seen first. Only the actor's goroutine uses it.
	asked map[request]time.Time

	mu   sync.Mutex
	acks []Ack
}

// request is one demand for a checkpoint.
type request struct {
	job types.UID
	key string
}

// StartTrainer starts a trainer that works until the test ends or it is stopped.
func (c *Cluster) StartTrainer(t testing.TB, o TrainerOptions) *Trainer {
	t.Helper()
	client, err := c.clientOf(UserTrainer)
	if err != nil {
		t.Fatal(err)
	}
	tr := &Trainer{client: client, o: o, asked: map[request]time.Time{}}
	tr.actor = c.actors.add(startActor(tr.look))
	t.Cleanup(tr.Stop)
	return tr
}

// Acks returns what the trainer has answered so far, oldest first.
func (tr *Trainer) Acks() []Ack {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return slices.Clone(tr.acks)
}

func (tr *Trainer) look(ctx context.Context, now time.Time) error {
	jobs, err := tr.client.BatchV1().Jobs("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var errs []error
	for _, job := range jobs.Items {
		r := request{job.UID, job.Annotations[CheckpointRequest]}
		if r.key == "" || r.key == job.Annotations[CheckpointAck] || !runs(&job) || tr.o.Deaf != nil && tr.o.Deaf(&job) {
			continue
		}
		if _, seen := tr.asked[r]; !seen {
			tr.asked[r] = now
		}
		if now.Sub(tr.asked[r]) >= tr.o.Delay {
			errs = append(errs, tr.answer(ctx, &job, r.key, now))
		}
	}
	return errors.Join(errs...)
}

// runs reports whether a job's training code is there to be asked.
func runs(job *batchv1.Job) bool {
	suspended := job.Spec.Suspend != nil && *job.Spec.Suspend
	return !suspended && job.Status.Ready != nil && *job.Status.Ready > 0
}

func (tr *Trainer) answer(ctx context.Context, job *batchv1.Job, key string, now time.Time) error {
	step := cmp.Or(tr.o.Step, 18200)
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": job.UID, // the server refuses when it is another job of that name
		"annotations": map[string]string{
			CheckpointAck:  key,
			CheckpointStep: strconv.Itoa(step),
			CheckpointURI:  fmt.Sprintf("/ckpt/%s/step-%d", job.Name, step),
			CheckpointTime: now.UTC().Format(time.RFC3339),
		},
	}})
	if err != nil {
		return err
	}
	tr.mu.Lock() // who sees the answer finds it written down
	defer tr.mu.Unlock()
	if _, err := tr.client.BatchV1().Jobs(job.Namespace).Patch(ctx, job.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("acknowledge checkpoint %s of job %s/%s: %w", key, job.Namespace, job.Name, err)
	}
	tr.acks = append(tr.acks, Ack{Namespace: job.Namespace, Job: job.Name, Key: key, Time: now})
	return nil
}
