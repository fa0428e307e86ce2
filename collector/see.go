package collector

import (
	"time"

	"stoker.dev/stoker/internal/fleet"
)

// healthField is the field in which dcgm-exporter shows DCGM's health checks, one
// series for each watch, and healthFail its worst value.
const (
	healthField = "DCGM_EXP_GPU_HEALTH_STATUS"
	healthWatch = "health_watch"
	healthError = "health_error_code"
	healthFail  = 20
	// healthAll is the watch that only sums up the others.
	healthAll = "ALL"

	maxWatches = 32 // of one GPU
)

// A Sighting is something that was just seen on a GPU and that others should hear of at
// once: an XID, an error of its NVLinks, that the driver has lost it, or that a health
// check fails. One of XID, NVLink, Lost and Watch is set.
type Sighting struct {
	Node   string
	BootID string // empty where it is not known
	GPU    int    // index
	UUID   string
	PCI    string
	At     time.Time // when it happened, as far as is known; else when it was seen

	XID       int
	NVLink    fleet.NVLinkError
	Instance  string // MIG instance of which the XID is; empty for the whole GPU, or where the source can't tell
	Lost      bool
	Watch     string // DCGM's word for what is checked, such as MEM
	ErrorCode string // of the check, such as DCGM_FR_VOLATILE_DBE_DETECTED
}

// sight notes something about a GPU to tell.
func (c *Collector) sight(g *gpu, at time.Time, s Sighting) {
	if c.o.See == nil {
		return
	}
	s.Node, s.BootID, s.GPU, s.UUID, s.PCI, s.At = c.node, c.book.bootID, g.index, g.uuid, g.pci, at
	c.sighted = append(c.sighted, s)
}

// sightEvent is sight for one of many: a storm must not grow without bound.
func (c *Collector) sightEvent(g *gpu, at time.Time, s Sighting) {
	if len(c.sighted) >= maxSighted {
		c.untold++
		return
	}
	c.sight(g, at, s)
}

// look finds what has changed for the worse since a source told last. What was so
// before is not told again, until it was better.
func (c *Collector) look(s *fleet.Samples) {
	v := view{staleAfter: c.o.StaleAfter}
	for _, g := range c.book.gpus {
		switch v.up(&gpuView{states: g.states}, s.At) {
		case fleet.False:
			if !g.lost {
				g.lost = true
				c.sight(g, s.At, Sighting{Lost: true})
			}
		case fleet.True:
			g.lost = false
		case fleet.Unknown:
		}
	}
	for _, v := range s.Values {
		if v.Field != healthField || v.GPU < 0 || v.GPU >= len(s.GPUs) {
			continue
		}
		watch, code := "", ""
		for _, l := range v.Labels {
			switch l.Name {
			case healthWatch:
				watch = l.Value
			case healthError:
				code = l.Value
			}
		}
		g := c.book.find(s.GPUs[v.GPU], s.At)
		if g == nil || watch == "" || watch == healthAll {
			continue
		}
		failed := v.Value >= healthFail
		if failed && !g.failed[watch] && len(g.failed) < maxWatches {
			c.sight(g, s.At, Sighting{Watch: watch, ErrorCode: code})
		}
		if g.failed == nil {
			g.failed = map[string]bool{}
		}
		if failed {
			g.failed[watch] = true
		} else {
			delete(g.failed, watch)
		}
	}
}
