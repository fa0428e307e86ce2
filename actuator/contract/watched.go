package contract

import (
	"context"
	"errors"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/internal/fleet"
)

// watched counts the writes that a cluster has taken, and can lose the answer to the
// next one, as a cut connection does.
type watched struct {
	actuator.Cluster

	writes int
	lose   bool
}

var errCut = errors.New("connection cut")

func (w *watched) wrote(err error) error {
	if err != nil {
		return err
	}
	w.writes++
	if w.lose {
		w.lose = false
		return errCut
	}
	return nil
}

func (w *watched) MarkNode(ctx context.Context, n fleet.Node, hold fleet.Hold, unschedulable bool) (fleet.Node, error) {
	m, err := w.Cluster.MarkNode(ctx, n, hold, unschedulable)
	return m, w.wrote(err)
}

func (w *watched) Evict(ctx context.Context, p fleet.PodRef) error {
	return w.wrote(w.Cluster.Evict(ctx, p))
}

func (w *watched) AskCheckpoint(ctx context.Context, j fleet.Job, key string) (fleet.Job, error) {
	m, err := w.Cluster.AskCheckpoint(ctx, j, key)
	return m, w.wrote(err)
}

func (w *watched) StopJob(ctx context.Context, j fleet.Job, key string) (fleet.Job, error) {
	m, err := w.Cluster.StopJob(ctx, j, key)
	return m, w.wrote(err)
}

func (w *watched) StartJob(ctx context.Context, j fleet.Job, key string, with actuator.Restart) (fleet.Job, error) {
	m, err := w.Cluster.StartJob(ctx, j, key, with)
	return m, w.wrote(err)
}

func (w *watched) SetRecipe(ctx context.Context, j fleet.Job, key string, env map[string]string) (fleet.Job, error) {
	m, err := w.Cluster.SetRecipe(ctx, j, key, env)
	return m, w.wrote(err)
}

func (w *watched) CreateRepair(ctx context.Context, r actuator.Repair) (actuator.Repair, error) {
	m, err := w.Cluster.CreateRepair(ctx, r)
	return m, w.wrote(err)
}
