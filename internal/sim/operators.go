package sim

import (
	"math"
	"slices"
	"time"
)

// attend lets people see, after a time that is drawn, that a node is ill. What Stoker
// holds they leave to it.
func (s *Simulation) attend(i int, n *node) {
	if s.cfg.Operators == 0 {
		return
	}
	wait := s.cfg.exponential(s.cfg.Operators, concernPeople, uint64(n.index), uint64(i))
	s.after(wait.Milliseconds(), func() {
		if c := s.record.Cases()[i]; !c.Active || c.Node != n.name || n.hold.Any() || n.vacant {
			return
		}
		s.tell(EventPerson, "a person finds that %s is ill, drains it and boots it", n.name)
		n.unschedulable = true
		s.record.Notice(s.since(), n.name)
		s.change(n)
		for _, p := range slices.Clone(n.pods) {
			if !p.resident {
				s.evacuate(p.job)
				s.terminate(p)
			}
		}
		s.after(time.Minute.Milliseconds(), func() {
			if !n.hold.Any() { // else Stoker has come in between, and boots it
				s.shutDown(n, true)
			}
			s.giveBack(n)
		})
	})
}

// giveBack lets people uncordon a node once it is whole and Stoker does not hold it.
func (s *Simulation) giveBack(n *node) {
	s.after(time.Minute.Milliseconds(), func() {
		if !n.up || !n.plugin || n.hold.Any() {
			s.giveBack(n)
			return
		}
		if n.unschedulable {
			n.unschedulable = false
			s.tell(EventPerson, "a person uncordons %s", n.name)
			s.change(n)
		}
	})
}

// exponential draws a time with that mean, in whole milliseconds and at least one.
func (c *Config) exponential(mean time.Duration, about concern, key, n uint64) time.Duration {
	u := float64(c.random(about, key, n)>>11+1) / (1 << 53) // above 0, at most 1
	return max(time.Millisecond, time.Duration(-math.Log(u)*float64(mean))).Truncate(time.Millisecond)
}
