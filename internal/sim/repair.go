package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/internal/sim/truth"
)

// A repair is a repair's object, as its job's status would tell.
type repair struct{ actuator.Repair }

// Repair reads one repair.
func (c *Cluster) Repair(ctx context.Context, name string) (actuator.Repair, error) {
	if err := c.enter(ctx); err != nil {
		return actuator.Repair{}, err
	}
	defer c.s.mu.Unlock()
	r, ok := c.s.repairs[name]
	if !ok {
		return actuator.Repair{}, failf(remedy.Gone, "there is no repair %s", name)
	}
	return r.Repair, nil
}

// How long it takes from a repair's object to what it does.
var repairDelay = Span{3 * time.Second, 9 * time.Second}

// CreateRepair creates a repair, which does its work a few seconds later: "reboot" by
// the node's own means, "power-cycle" from outside, "reset" of one GPU. What it does not
// know fails.
func (c *Cluster) CreateRepair(ctx context.Context, r actuator.Repair) (actuator.Repair, error) {
	if err := c.enter(ctx); err != nil {
		return actuator.Repair{}, err
	}
	s := c.s
	defer s.mu.Unlock()
	if have, ok := s.repairs[r.Name]; ok {
		return have.Repair, failf(remedy.Conflict, "repair %s is there already", r.Name)
	}
	n, ok := s.byName[r.Node]
	if !ok {
		return actuator.Repair{}, failf(remedy.Rejected, "repair %s: there is no node %s", r.Name, r.Node)
	}
	r.Done, r.Failed, r.Note = false, false, ""
	rep := &repair{r}
	s.repairs[r.Name] = rep
	s.write(&rep.Version)
	s.judge(truth.Repair, n.name, s.record.Ill(n.name), "nothing is wrong with the node")
	s.after(s.cfg.between(repairDelay, concernRepair, hash(r.Name), 0), func() { s.carryOut(rep, n) })
	return rep.Repair, nil
}

func (s *Simulation) carryOut(r *repair, n *node) {
	if r.Failed {
		return
	}
	switch {
	case r.BootID != "" && r.BootID != n.bootID:
		r.Note = "the node is in another boot; nothing was done"
	case r.Action == "reboot" && !n.up:
		return // a pod on a node that is down does not start; its object waits
	case r.Action == "reboot":
		s.shutDown(n, false)
	case r.Action == "power-cycle":
		s.shutDown(n, true)
	case r.Action == "reset" && !n.up:
		return
	case r.Action == "reset":
		s.reset(r, n)
	default:
		r.Failed, r.Note = true, fmt.Sprintf("no such action: %q", r.Action)
	}
	s.write(&r.Version)
}

// How long a reset takes, with the device plugin that has to look again; assumed.
var resetTakes = Span{25 * time.Second, 50 * time.Second}

// reset resets one GPU, as the driver's tool does: not while a process has it open, and
// not when it has fallen off the bus.
func (s *Simulation) reset(r *repair, n *node) {
	g := slices.IndexFunc(n.gpus, func(g gpu) bool { return g.uuid == r.GPU })
	end := func(failed bool, format string, args ...any) {
		r.Done, r.Failed, r.Note = !failed, failed, fmt.Sprintf(format, args...)
		s.write(&r.Version)
	}
	switch {
	case g < 0:
		end(true, "no GPU %s", r.GPU)
		return
	case n.held&(1<<g) != 0:
		end(true, "GPU %d is in use by another client", g)
		return
	case n.off&(1<<g) != 0:
		end(true, "GPU %d does not answer on the bus", g)
		return
	}
	boot := n.boot
	s.after(s.cfg.between(resetTakes, concernReset, hash(r.Name), 0), func() {
		fault, lost := n.faults[g]
		switch {
		case n.boot != boot:
			end(true, "the node has gone down")
			return
		case !lost:
		case s.cfg.Faults[fault].Stubborn, n.gpus[g].incurable:
			s.tell(EventNode, "a reset of GPU %d of %s does not help", g, n.name)
			end(true, "GPU %d is as it was", g)
			return
		default:
			s.settleNode(n)
			s.cure(n, g)
		}
		s.tell(EventNode, "GPU %d of %s has been reset", g, n.name)
		end(false, "has reset GPU %d", g)
		s.change(n)
	})
}

// cure ends the fault of a GPU that is back.
func (s *Simulation) cure(n *node, g int) {
	n.lost &^= 1 << g
	n.off &^= 1 << g
	s.record.End(n.faults[g], s.since())
	delete(n.faults, g)
}
