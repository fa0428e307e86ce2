package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/internal/sim/truth"
)

// Market says what the nodes cost and how many of them are rented on the spot market.
// The price of the spot pool changes every hour, and its capacity can be out.
type Market struct {
	Spot int // nodes of the spot pool: the last ones
	// OnDemand is the price of a GPU-hour in the pool that is always to be had; default 2.
	OnDemand float64
	// Errors is the share of tries to rent a spot node that end in a capacity error, 0 to
	// 1; default 0.4. After three of them in a row an on-demand node is rented instead.
	Errors float64
}

func (m *Market) defaults(nodes int) error {
	if m.OnDemand == 0 {
		m.OnDemand = 2
	}
	if m.Errors == 0 {
		m.Errors = 0.4
	}
	if m.Spot < 0 || m.Spot > nodes || m.OnDemand < 0 || m.Errors < 0 || m.Errors > 1 {
		return fmt.Errorf("market: %d of %d nodes are spot, a GPU-hour costs %g, %g of the tries fail: not possible", m.Spot, nodes, m.OnDemand, m.Errors)
	}
	return nil
}

// The pool of nodes that may be taken away, and the label by which a node says so.
const (
	poolSpot      = "spot"
	labelCapacity = "stoker.dev/capacity-type"
)

const (
	noticeFor = 2 * time.Minute // from a notice to the end of the node
	rentTries = 3               // at the spot market, before an on-demand node is taken
)

// spotPrice is what a GPU-hour of the spot pool costs in an hour since the start: a
// quarter to three fifths of the on-demand price.
func (c *Config) spotPrice(hour int64) float64 {
	return c.Market.OnDemand * (0.25 + 0.35*float64(c.random(concernMarket, 0, uint64(hour))%1000)/1000)
}

// settleCost adds what the node has cost since it was last asked.
func (s *Simulation) settleCost(n *node) {
	const hour = int64(time.Hour / time.Millisecond)
	for at := n.paidTo; at < s.now; {
		end := min(s.now, (at/hour+1)*hour)
		price := s.cfg.Market.OnDemand
		if n.spot {
			price = s.cfg.spotPrice(at / hour)
		}
		if !n.vacant {
			s.cost += price * float64(len(n.gpus)) * float64(end-at) / float64(hour)
		}
		at = end
	}
	n.paidTo = s.now
}

// notice announces that a spot node will go.
func (s *Simulation) notice(i int, n *node) {
	if !n.up || !n.spot || n.noticed != none {
		return
	}
	s.record.Begin(i, s.since(), n.name, 0, n.unschedulable)
	n.noticed, n.noticedAt, n.toldOver = i, s.now, false
	s.tell(EventNode, "%s will be taken away in %s", n.name, span(noticeFor))
	s.change(n)
	s.after(noticeFor.Milliseconds(), func() { s.takeAway(n) })
}

// takeAway ends a spot node. Its object goes with it, and soon after that its pods'.
func (s *Simulation) takeAway(n *node) {
	s.settleCost(n)
	n.blame = n.noticed
	s.goDown(n)
	s.tell(EventNode, "%s is taken away", n.name)
	n.vacant = true
	delete(s.byName, n.name)
	s.change(n)
	s.after(unseenAfter, func() {
		for _, p := range slices.Clone(n.pods) {
			if p.resident {
				s.remove(p)
			} else {
				s.gone(p)
			}
		}
	})
	s.rent(n, 1)
}

// rent asks the market for another node in the place of one that went.
func (s *Simulation) rent(n *node, try int) {
	wait := s.cfg.between(Span{time.Minute, 3 * time.Minute}, concernMarket, uint64(n.index)+1, uint64(s.now))
	s.after(wait, func() {
		luck := float64(s.cfg.random(concernMarket, uint64(n.index)+1, uint64(s.now))%1000) / 1000
		switch {
		case luck >= s.cfg.Market.Errors:
			s.arrive(n, true)
		case try < rentTries:
			s.tell(EventNode, "there is no spot capacity for %s", n.name)
			s.rent(n, try+1)
		default:
			s.tell(EventNode, "there is no spot capacity for %s, %d times: an on-demand node is rented", n.name, try)
			s.after(s.cfg.between(s.cfg.Boot, concernMarket, uint64(n.index)+1, uint64(s.now)), func() { s.arrive(n, false) })
		}
	})
}

// arrive brings another machine into a place: it has the name and none of the marks of
// the one before.
func (s *Simulation) arrive(n *node, spot bool) {
	s.settleCost(n)
	n.vacant, n.spot = false, spot
	n.uid = s.uid()
	n.hold, n.unschedulable, n.optOut = fleet.Hold{}, false, ""
	s.byName[n.name] = n
	for g := range n.gpus {
		n.gpus[g].incurable, n.gpus[g].hot = false, none
	}
	if n.noticed != none {
		s.record.End(n.noticed, s.since())
		n.noticed = none
	}
	n.pool(&s.cfg)
	s.tell(EventNode, "%s is rented, %s", n.name, n.labels[labelCapacity])
	s.comeUp(n)
	s.addResident(n)
}

// pool writes the labels that say how the node is rented.
func (n *node) pool(c *Config) {
	labels := make(map[string]string, len(n.labels))
	for k, v := range n.labels {
		labels[k] = v
	}
	labels["stoker.dev/pool"], labels[labelCapacity] = c.Pool, "on-demand"
	if n.spot {
		labels["stoker.dev/pool"], labels[labelCapacity] = poolSpot, poolSpot
	}
	n.labels = labels
}

// Evidence tells of notices, as a termination handler does by a taint on the node, and
// once of each when it is over.
func (c *Cluster) Evidence(ctx context.Context, now time.Time) ([]remedy.Evidence, error) {
	if err := c.enter(ctx); err != nil {
		return nil, err
	}
	s := c.s
	defer s.mu.Unlock()
	var out []remedy.Evidence
	for _, n := range s.nodes {
		over := n.noticed == none || n.vacant
		if n.noticedAt == 0 || over && n.toldOver {
			continue
		}
		n.toldOver = over
		out = append(out, remedy.Evidence{
			Resolved: over,
			Subject:  remedy.Subject{Kind: remedy.SubjectNode, Node: n.name}, Class: remedy.ClassNodeNotice, BootID: n.bootID,
			At: s.time(n.noticedAt), Seen: now, Source: Source, Summary: fmt.Sprintf("%s is announced to go in %s", n.name, span(noticeFor)),
			Labels: map[string]string{"node": n.name, "notice": poolSpot},
		})
	}
	return out, nil
}

// isSpot reports whether node i is rented on the spot market at the start.
func (c *Config) isSpot(i int) bool { return i >= c.Nodes-c.Market.Spot }

// spotNotices are the only faults that want a spot node.
func (c *Config) checkSpot(f Fault) string {
	if f.Kind == truth.SpotNotice && f.Node != "" && !c.isSpot(nodeNumber(c, f.Node)) {
		return f.Node + " is not of the spot pool"
	}
	return ""
}
