package sim

import (
	"fmt"
	"time"
)

// Demo is the cluster of the demonstration: 8 nodes of 8 GPUs, one of them rented on the
// spot market, and what happens to it in two hours. Two gangs hold six nodes, the small
// jobs share one, and one is spare until a notebook takes it that does nothing. What is
// drawn comes from the seed.
//
//	14 to 20 min   a GPU of the large gang falls off the bus
//	26 to 28 min   the program of a small job hangs
//	40 to 44 min   the spot node is announced to go
//	52 to 60 min   the program of the other gang crashes, and its GPUs log XID 45
//	49 to 51 min   two jobs come that ask for half of a GPU
//	60 to 63 min   a GPU of the shared node has a memory error
//	66 min         the notebook takes the node that is spare again
//	78 to 86 min   the telemetry of a node is lost
//	88 min         a job comes that needs a whole node
func Demo(seed uint64) Config {
	c := Config{Seed: seed, Market: Market{Spot: 1}}
	draw := func(n uint64, of Span) time.Duration {
		d := time.Duration(c.between(of, concernDemo, n, 0)) * time.Millisecond
		return d.Round(time.Second)
	}
	// hours of training at a fixed pace, whatever the pace of an iteration
	job := func(n uint64, team, name string, at Span, workers, gpus int, lasts Span) JobSpec {
		iteration := draw(100+n, Span{800 * time.Millisecond, 3 * time.Second})
		return JobSpec{
			Namespace: team, Name: name, At: draw(n, at), Workers: workers, GPUs: gpus,
			Iteration: iteration, Iterations: int64(draw(200+n, lasts) / iteration),
		}
	}
	minutes := func(low, high int) Span {
		return Span{time.Duration(low) * time.Minute, time.Duration(high) * time.Minute}
	}
	c.Queues = []QueueSpec{{Name: "nlp", Quota: 32}, {Name: "speech", Quota: 16}, {Name: "vision", Quota: 16}}
	start := Span{0, 20 * time.Second}
	c.Jobs = []JobSpec{
		job(0, "nlp", "llm-7b", start, 4, 8, minutes(170, 200)),
		job(1, "vision", "vit-large", start, 2, 8, minutes(150, 180)),
		job(2, "speech", "asr-conformer", start, 1, 4, minutes(60, 80)),
		job(3, "nlp", "reranker", start, 1, 2, minutes(40, 60)),
		job(4, "vision", "segment", minutes(1, 3), 1, 1, minutes(25, 40)),
		job(5, "speech", "vocoder", minutes(2, 5), 1, 1, minutes(30, 50)),
		job(6, "nlp", "embed-small", minutes(45, 50), 1, 1, minutes(20, 30)),
		job(7, "vision", "detect", minutes(65, 66), 1, 2, minutes(45, 50)),
		job(8, "speech", "wakeword", minutes(75, 80), 1, 1, minutes(20, 30)),
		job(9, "vision", "notebook", minutes(66, 67), 1, 8, minutes(600, 700)),
		job(10, "nlp", "finetune", minutes(87, 89), 1, 8, minutes(20, 30)),
	}
	c.Jobs[9].Idle = true
	for _, half := range []JobSpec{
		job(11, "speech", "dialogue", minutes(49, 50), 1, 1, minutes(20, 26)),
		job(12, "vision", "sketch", minutes(50, 51), 1, 1, minutes(20, 26)),
	} {
		half.Share = 500
		c.Jobs = append(c.Jobs, half)
	}
	c.Faults = []Fault{
		{At: draw(301, minutes(14, 20)), Kind: GPULost, Job: "nlp/llm-7b"},
		{At: draw(302, minutes(52, 60)), Kind: JobCrash, Job: "vision/vit-large"},
		{At: draw(303, minutes(78, 86)), Kind: TelemetryLost, Job: "vision/vit-large", For: draw(304, minutes(9, 12))},
		{At: draw(305, minutes(26, 28)), Kind: JobHang, Job: "speech/asr-conformer"},
		{At: draw(306, minutes(40, 44)), Kind: SpotNotice, Node: c.spotNode()},
		{At: draw(307, minutes(60, 63)), Kind: GPUECC, Job: "nlp/embed-small"},
	}
	return c
}

// spotNode is the name of the demonstration's spot node.
func (c *Config) spotNode() string {
	d := *c
	d.Nodes, d.NodesPerRack = 8, 4
	return d.nodeName(d.Nodes - 1)
}

// Crowd is a cluster of any size with many jobs that come over the hours, for figures
// of speed and for properties that must hold whatever happens.
func Crowd(seed uint64, nodes, jobs int, over time.Duration) Config {
	c := Config{Seed: seed, Nodes: nodes}
	for i := range uint64(jobs) {
		r := func(n uint64) uint64 { return c.random(concernDemo, 1000+i, n) }
		workers, gpus := 1, 1<<(r(0)%4)
		if gpus == 8 {
			workers = min(1<<(r(1)%4), nodes)
		}
		c.Jobs = append(c.Jobs, JobSpec{
			Namespace: fmt.Sprintf("team-%d", r(2)%3), Name: fmt.Sprintf("job-%04d", i),
			At:      time.Duration(r(3)%uint64(over.Milliseconds())) * time.Millisecond,
			Workers: workers, GPUs: gpus,
			Iterations: 200 + int64(r(4)%20_000), Iteration: time.Duration(500+r(5)%2500) * time.Millisecond,
		})
	}
	return c
}
