package scheduler

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// A Room is what is being made for one job: the gangs that go for it are asked to save,
// and taken off their nodes together once they have. One room is made at a time.
type Room struct {
	For     fleet.JobRef
	Since   time.Time
	Victims []fleet.JobRef
	Taken   bool
}

// candidates bounds how many of the jobs that wait are looked at in one plan.
const candidates = 8

// room goes on with the room that is made, or begins with one for the job that has
// waited longest and for which it is worth it.
func (p *plan) room() {
	if p.next.Room.For != (fleet.JobRef{}) {
		p.goOn()
		return
	}
	used := p.quotas()
	for _, w := range first(p.waiting(), candidates) {
		waited := p.waited(w.Ref)
		if waited < p.cfg.RoomAfter || p.next.Accounts[w.Ref].Stage != StageBusy || !p.may(w) {
			continue
		}
		free := p.free().copy()
		if free.fits(w) {
			continue // its queue places it, or keeps it for a reason of its own
		}
		victims, cost := p.victims(w, free, used)
		worth := time.Duration(p.cfg.Price * float64(w.GPUTime(waited)))
		if victims == nil || cost > worth && waited < p.cfg.Starved {
			continue
		}
		p.begin(w, victims, cost)
		return
	}
}

// begin asks those who have to go to save first.
func (p *plan) begin(w fleet.Job, victims []fleet.Job, cost time.Duration) {
	cause := fmt.Sprintf("%s has waited %s for %s; this costs %.1f GPU-hours", w.Ref,
		remedy.Duration(p.waited(w.Ref).Round(time.Minute)), amount(w), cost.Hours())
	room := Room{For: w.Ref, Since: p.now}
	p.prioritise(w, priorityRoom, cause)
	for _, v := range victims {
		room.Victims = append(room.Victims, v.Ref)
		if p.saves(v) {
			p.order("checkpoint", remedy.EffectAsk, v, p.cfg.SaveWithin, cause, nil)
		}
	}
	p.next.Room = room
}

// saves reports whether asking the job to save is worth the wait: it has saved before,
// and a while ago.
func (p *plan) saves(v fleet.Job) bool {
	return v.Checkpoint.Known() && v.Unsaved(p.now) > time.Minute
}

// goOn takes what is to go once it has saved or had its time, and ends the room when its
// job has started or it is not worth keeping.
func (p *plan) goOn() {
	r := p.next.Room
	w, there := p.fleet.Jobs[r.For]
	since := p.now.Sub(r.Since)
	if !there || w.Phase != fleet.JobPending || since > p.cfg.RoomFor {
		p.next.Room = Room{}
		if there && w.Priority == priorityRoom {
			p.prioritise(w, 0, "no room is kept for it any more")
		}
		return
	}
	if r.Taken {
		return
	}
	for _, ref := range r.Victims {
		v, ok := p.fleet.Jobs[ref]
		if ok && v.Phase == fleet.JobRunning && v.Unsaved(p.now) > time.Minute && v.Checkpoint.Known() && v.Checkpoint.At.Before(r.Since) && since < p.cfg.SaveWithin {
			return
		}
	}
	// What has changed since: one of them may have ended, and that may be enough.
	free := p.free().copy()
	var leave []fleet.Job
	for _, ref := range r.Victims {
		if v, ok := p.fleet.Jobs[ref]; ok && v.Phase == fleet.JobRunning && p.may(v) {
			if free.fits(w) {
				break
			}
			free.give(ref)
			leave = append(leave, v)
		}
	}
	if !free.fits(w) {
		p.next.Room = Room{}
		p.prioritise(w, 0, "room cannot be made for it any more")
		return
	}
	for _, v := range leave {
		p.preempt(v, fmt.Sprintf("%s has waited %s for %s", w.Ref, remedy.Duration(p.waited(w.Ref).Round(time.Minute)), amount(w)))
	}
	r.Taken = true
	p.next.Room = r
}

// victims are the gangs that have to go so that the job can start, the cheapest that were
// found, and what that costs in GPU-time. Nil when there are none that may be taken.
func (p *plan) victims(w fleet.Job, free *freeGPUs, used map[string]int) ([]fleet.Job, time.Duration) {
	type choice struct {
		job  fleet.Job
		cost time.Duration
	}
	var may []choice
	for _, ref := range p.refs {
		if v := p.fleet.Jobs[ref]; p.mayTake(v) {
			may = append(may, choice{v, p.costOf(v)})
		}
	}
	// The cheapest for each GPU that it gives back comes first, and before all who are larger
	// than who waits: a large gang that goes for a small job does not find its place again.
	slices.SortStableFunc(may, func(a, b choice) int {
		larger := func(c choice) int { return min(1, max(0, c.job.MilliGPUs()-w.MilliGPUs())) }
		return cmp.Or(cmp.Compare(larger(a), larger(b)),
			cmp.Compare(float64(a.cost)/float64(a.job.MilliGPUs()), float64(b.cost)/float64(b.job.MilliGPUs())))
	})
	var taken []choice
	for _, c := range may {
		if free.fits(w) {
			break
		}
		if free.helps(p.fleet, c.job.Ref, w) {
			free.give(c.job.Ref)
			taken = append(taken, c)
		}
	}
	if !free.fits(w) {
		return nil, 0
	}
	// Who was taken and is not needed after all stays, the dearest first.
	var out []choice
	for i := len(taken) - 1; i >= 0; i-- {
		c := taken[i]
		free.take(c.job.Ref)
		if free.fits(w) {
			continue
		}
		free.give(c.job.Ref)
		out = append(out, c)
	}
	// Who has not held much goes only if it finds another place at once.
	free.place(w)
	var jobs []fleet.Job
	var cost time.Duration
	for _, c := range out {
		if (!p.long(w, c.job) || !p.right(w, c.job, used)) && !free.place(c.job) {
			return nil, 0
		}
		jobs, cost = append(jobs, c.job), cost+c.cost
	}
	return jobs, cost
}

// long reports whether a running gang has held so much that it may have to wait for one
// that has not: more than the other would in an hour, and twice of what it has held.
func (p *plan) long(w, v fleet.Job) bool {
	a := p.next.Accounts[v.Ref]
	if p.rests(v) {
		return true
	}
	return a.Held >= 2*p.next.Accounts[w.Ref].Held && a.Held >= w.GPUTime(p.cfg.Long)<<min(2*a.Times, 16) && p.waited(w.Ref) >= p.cfg.Starved
}

// rests reports whether the job is an idle holder that was told and lowered: it is the
// first to go, whosever it is.
func (p *plan) rests(v fleet.Job) bool {
	s := p.next.Accounts[v.Ref].Stage
	return s == StageLowered || s == StageTaken
}

// mayTake reports whether a running gang may be taken off its nodes at all: it has run
// for a while, and was left alone for a while since the last time.
func (p *plan) mayTake(v fleet.Job) bool {
	a := p.next.Accounts[v.Ref]
	if v.Phase != fleet.JobRunning || v.Started.IsZero() || v.GPUs() == 0 || !p.may(v) {
		return false
	}
	return p.rests(v) || p.now.Sub(v.Started) >= p.cfg.MinRun && (a.Preempted.IsZero() || p.now.Sub(a.Preempted) >= p.cfg.Pause)
}

// right reports whether the team of who waits has a better right to the GPUs than the one
// that has them: they are of one queue, it stays within its quota, or the other is over it.
func (p *plan) right(w, v fleet.Job, used map[string]int) bool {
	over := func(queue string, more int) bool {
		q, known := p.fleet.Queues[queue]
		return known && q.Quota > 0 && used[queue]+more > 1000*q.Quota
	}
	return p.rests(v) || v.Queue == w.Queue || !over(w.Queue, w.MilliGPUs()) || over(v.Queue, 0)
}

// costOf is the GPU-time that is lost when the gang goes now: what it has not saved and
// cannot save in time, and a new start. Of a job without a known checkpoint nobody knows
// what it has saved: it is taken to save as often as the others do, so that who does not
// tell gains nothing by it.
func (p *plan) costOf(v fleet.Job) time.Duration {
	if p.rests(v) {
		return 0
	}
	unsaved := v.Unsaved(p.now)
	if !v.Checkpoint.Known() {
		unsaved = min(unsaved, p.usualAge())
	} else if p.saves(v) {
		unsaved = min(unsaved, time.Minute) // it is asked to save first
	}
	return v.GPUTime(unsaved + p.cfg.Restart)
}

// usualAge is the median of what the jobs that tell of checkpoints have not saved.
func (p *plan) usualAge() time.Duration {
	var ages []time.Duration
	for _, ref := range p.refs {
		if j := p.fleet.Jobs[ref]; j.Phase == fleet.JobRunning && j.Checkpoint.Known() {
			ages = append(ages, j.Unsaved(p.now))
		}
	}
	if len(ages) == 0 {
		return 5 * time.Minute
	}
	slices.Sort(ages)
	return ages[len(ages)/2]
}

// quotas counts what each queue has now, in thousandths of GPUs.
func (p *plan) quotas() map[string]int {
	used := map[string]int{}
	for _, ref := range p.refs {
		if j := p.fleet.Jobs[ref]; j.Phase == fleet.JobRunning {
			used[j.Queue] += j.MilliGPUs()
		}
	}
	return used
}

// amount is what a job wants of GPUs, in words.
func amount(j fleet.Job) string {
	if j.Each.Share > 0 {
		return fmt.Sprintf("%.4g GPUs", float64(j.MilliGPUs())/1000)
	}
	return fmt.Sprintf("%d GPUs", j.GPUs())
}

func first(jobs []fleet.Job, n int) []fleet.Job { return jobs[:min(len(jobs), n)] }
