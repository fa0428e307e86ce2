package sim

import (
	"context"
	"maps"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// SetRecipe gives the pods of a stopped job values to read. Simulated programs read none.
func (c *Cluster) SetRecipe(ctx context.Context, was fleet.Job, key string, env map[string]string) (fleet.Job, error) {
	if err := c.enter(ctx); err != nil {
		return fleet.Job{}, err
	}
	s := c.s
	defer s.mu.Unlock()
	j, err := c.live(was)
	if err != nil {
		return fleet.Job{}, err
	}
	if j.state.over() {
		return fleet.Job{}, failf(remedy.Gone, "job %s has ended", j.ref)
	}
	all := maps.Clone(j.env)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, env)
	j.env, j.recipeBy = all, key
	s.write(&j.version)
	return s.jobFact(j), nil
}

// ClaimsOf reads the volume claims of a job, of which simulated ones have none.
func (c *Cluster) ClaimsOf(ctx context.Context, was fleet.Job) ([]actuator.Claim, error) {
	if err := c.enter(ctx); err != nil {
		return nil, err
	}
	defer c.s.mu.Unlock()
	_, err := c.live(was)
	return nil, err
}
