package sim

import (
	"fmt"
	"time"
)

// Teams is a fleet that three teams share, with a queue and a quota each: some thirty
// jobs of 1 to 32 GPUs for every 8 nodes that come over the time, a few forgotten
// notebooks among them, and faults and noise at their rates, so many times accelerated.
// One node in eight is rented on the spot market.
func Teams(seed uint64, nodes, jobs int, over, horizon time.Duration, faults, noise float64) (Config, error) {
	c := Config{Seed: seed, Nodes: nodes, Market: Market{Spot: nodes / 8}, Operators: 2 * time.Hour}
	gpus := nodes * 8
	names := []string{"nlp", "speech", "vision"}
	for i, name := range names {
		share := gpus / 2
		if i > 0 {
			share = gpus / 4
		}
		c.Queues = append(c.Queues, QueueSpec{Name: name, Quota: share})
	}
	for i := range uint64(jobs) {
		r := func(n, of uint64) uint64 { return c.random(concernDemo, 5000+i, n) % of }
		j := JobSpec{
			Namespace: names[r(0, 4)%3], At: time.Duration(r(1, uint64(over.Milliseconds()))) * time.Millisecond,
			Workers: 1, GPUs: 1, Iteration: time.Duration(800+r(2, 2200)) * time.Millisecond,
		}
		var minutes uint64
		switch size := r(3, 100); {
		case size < 12: // a notebook that nobody looks at any more
			j.Name, j.Idle = fmt.Sprintf("notebook-%03d", i), true
			j.GPUs = 1 << r(4, 3)
			if j.GPUs == 1 {
				j.Share = 250 << r(6, 2) // a quarter or a half of one
			}
			j.MilliCPU, j.MemoryBytes = 4_000, 32<<30
			minutes = 180 + r(5, 300)
		case size < 45:
			j.Name = fmt.Sprintf("tune-%03d", i)
			j.GPUs = 1 << r(4, 2)
			if j.GPUs == 1 && r(6, 2) == 0 {
				j.Share = 500
			}
			minutes = 15 + r(5, 60)
		case size < 75:
			j.Name = fmt.Sprintf("train-%03d", i)
			j.GPUs = 4 << r(4, 2)
			minutes = 30 + r(5, 120)
		default:
			j.Name = fmt.Sprintf("llm-%03d", i)
			j.GPUs, j.Workers = 8, min(2<<r(4, 2), max(1, nodes/2))
			minutes = 60 + r(5, 150)
		}
		j.Iterations = max(1, int64(time.Duration(minutes*8/5)*time.Minute/j.Iteration))
		c.Jobs = append(c.Jobs, j)
	}
	return c, c.Draw(horizon, faults, noise)
}
