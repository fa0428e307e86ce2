package scheduler

import (
	"fmt"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// usageFresh is how old a job's usage may be. What is older is not known, and not known
// is not idle.
const usageFresh = 3 * time.Minute

// idle goes on with the reclaim of idle holders: told, then lowered, then taken, the last
// only when somebody waits whom the GPUs would help.
//
//	busy ──IdleFor──► told ──LowerAfter──► lowered ──ReclaimAfter, somebody waits──► taken
//	  ▲                 │                     │                                        │
//	  └──── BusyOver ───┴─────────────────────┴──────────── runs again, and works ─────┘
func (p *plan) idle() {
	for _, ref := range p.refs {
		j := p.fleet.Jobs[ref]
		a := p.next.Accounts[ref]
		if j.Phase != fleet.JobRunning || j.Usage.At.IsZero() || p.now.Sub(j.Usage.At) > usageFresh || !p.may(j) {
			continue
		}
		rests := j.Usage.Mean < p.cfg.IdleUnder && j.Usage.Over >= p.cfg.IdleFor
		lasts := p.now.Sub(a.Since)
		switch {
		case a.Stage != StageBusy && j.Usage.Mean > p.cfg.BusyOver && j.Usage.Over >= p.cfg.IdleFor/2:
			a.Stage, a.Since = StageBusy, p.now
			p.prioritise(j, 0, "it works again")
		case !rests:
		case a.Stage == StageBusy:
			a.Stage, a.Since = StageTold, p.now
			text := fmt.Sprintf("it has used %.0f %% of %s for %s; when somebody waits for them it is the first to go", 100*j.Usage.Mean, amount(j), remedy.Duration(j.Usage.Over))
			p.order("tell", remedy.EffectAsk, j, time.Minute, text, setting{Text: text})
		case a.Stage == StageTold && lasts >= p.cfg.LowerAfter:
			a.Stage, a.Since = StageLowered, p.now
			p.prioritise(j, priorityIdle, "its priority is lowered: it was told that it is idle, and still is")
		case (a.Stage == StageLowered || a.Stage == StageTaken) && lasts >= p.cfg.ReclaimAfter:
			who, helps := p.helped(j)
			if !helps {
				break
			}
			a.Stage, a.Since = StageTaken, p.now
			p.next.Accounts[ref] = a
			p.preempt(j, fmt.Sprintf("it has used %.0f %% of %s for %s, and %s waits", 100*j.Usage.Mean, amount(j), remedy.Duration(j.Usage.Over), who))
			continue
		}
		p.next.Accounts[ref] = a
	}
}

// helped finds a job that waits, is no idle holder itself, and could start on what this
// job would give back beside what is free.
func (p *plan) helped(j fleet.Job) (fleet.JobRef, bool) {
	free := p.free()
	var waiting []fleet.Job
	for _, w := range p.waiting() {
		if p.next.Accounts[w.Ref].Stage == StageBusy && p.waited(w.Ref) >= time.Minute && !free.fits(w) {
			waiting = append(waiting, w)
		}
	}
	free.give(j.Ref)
	defer free.take(j.Ref)
	for _, w := range waiting {
		if free.fits(w) {
			return w.Ref, true
		}
	}
	return fleet.JobRef{}, false
}
