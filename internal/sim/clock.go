package sim

import (
	"container/heap"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
)

// An event is something that will happen.
type event struct {
	at       int64  // ms since the start
	sequence uint64 // of what happens at the same time, what was planned first is first
	do       func()
}

// A calendar holds what will happen, soonest first.
type calendar []event

func (c calendar) Len() int { return len(c) }

func (c calendar) Less(i, j int) bool {
	if c[i].at != c[j].at {
		return c[i].at < c[j].at
	}
	return c[i].sequence < c[j].sequence
}

func (c calendar) Swap(i, j int) { c[i], c[j] = c[j], c[i] }

// Push adds an event; it is for the heap alone.
func (c *calendar) Push(x any) { *c = append(*c, x.(event)) }

// Pop removes the last event; it is for the heap alone.
func (c *calendar) Pop() any {
	old := *c
	e := old[len(old)-1]
	old[len(old)-1] = event{}
	*c = old[:len(old)-1]
	return e
}

// before takes out the next event that is not after ms.
func (c *calendar) before(ms int64) (event, bool) {
	if len(*c) == 0 || (*c)[0].at > ms {
		return event{}, false
	}
	return heap.Pop(c).(event), true
}

// at plans something for a time. What is planned cannot be taken back: it looks, when
// it happens, whether it still applies.
func (s *Simulation) at(ms int64, do func()) {
	s.sequence++
	heap.Push(&s.events, event{at: ms, sequence: s.sequence, do: do})
}

func (s *Simulation) after(ms int64, do func()) { s.at(s.now+ms, do) }

// A concern has random numbers of its own, so that more of one kind of thing does not
// change the others.
type concern uint64

const (
	concernUID concern = iota + 1
	concernIteration
	concernEvery
	concernWrite
	concernLoad
	concernContainer
	concernGrace
	concernAnswer
	concernBoot
	concernPlugin
	concernRepair
	concernNotice
	concernFault
	concernStorm
	concernTelemetry
	concernDemo
	concernBlip
	concernRate
	concernPeople
	concernMarket
	concernReset
)

// random is a number that depends on nothing but the seed, the concern, who asks and
// how often it has asked: not on what else has happened.
func (c *Config) random(about concern, key, n uint64) uint64 {
	var p rand.PCG
	p.Seed(mix(c.Seed^mix(uint64(about))), mix(key^mix(n)))
	return p.Uint64()
}

// between draws from a span, in milliseconds.
func (c *Config) between(of Span, about concern, key, n uint64) int64 {
	low, high := of.Min.Milliseconds(), of.Max.Milliseconds()
	return low + int64(c.random(about, key, n)%uint64(high-low+1))
}

// uid returns a name that was never used before.
func (s *Simulation) uid() string {
	s.uids++
	a, b := s.cfg.random(concernUID, s.uids, 0), s.cfg.random(concernUID, s.uids, 1)
	return fmt.Sprintf("%08x-%04x-4%03x-%04x-%012x", a>>32, a>>16&0xffff, a&0xfff, 0x8000|b>>48&0x3fff, b&0xffffffffffff)
}

// mix spreads a number over all bits (splitmix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func hash(s string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s))
	return h.Sum64()
}
