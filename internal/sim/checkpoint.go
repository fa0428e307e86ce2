package sim

import "fmt"

// A saved is a complete checkpoint.
type saved struct {
	step int64 // iterations
	uri  string
	at   int64
}

// maxSaved is how many complete checkpoints a job keeps.
const maxSaved = 5

// named reports whether the checkpoint is the one that a pod is told to resume from.
func (c saved) named(resume string) bool {
	return resume == c.uri || resume == fmt.Sprintf("step-%d", c.step)
}

// save begins to write a checkpoint of the present iteration, beside the training. It
// is there when it is complete, and what was half written when the job ended is not.
// key is the request that it obeys; empty for those that the job writes by itself.
func (s *Simulation) save(j *job, key string) {
	if j.writing {
		if key != "" {
			j.saveNext = key
		}
		return
	}
	j.writing = true
	j.written++
	first, step := j.written == 1, s.iteration(j)
	s.while(j, j.spec.Write.Milliseconds(), func() {
		j.writing = false
		s.keep(j, saved{step: step, uri: fmt.Sprintf("sim://checkpoints/%s/%s/%d", j.ref.Namespace, j.ref.Name, step), at: s.now})
		if key != "" {
			j.answered = key
			s.tell(EventJob, "%s has saved iteration %d as it was asked", j.ref, step)
		} else if first {
			s.tell(EventJob, "%s has saved its first checkpoint, iteration %d", j.ref, step)
		}
		s.write(&j.version)
		if next := j.saveNext; next != "" {
			j.saveNext = ""
			s.save(j, next)
		}
	})
}

// keep adds a complete checkpoint. One of the same iteration takes the place of the
// other, and of too many the oldest goes.
func (s *Simulation) keep(j *job, c saved) {
	if k := len(j.saved) - 1; k >= 0 && j.saved[k].step == c.step {
		j.saved = j.saved[:k]
	}
	if len(j.saved) == maxSaved {
		j.saved = append(j.saved[:0], j.saved[1:]...)
	}
	j.saved = append(j.saved, c)
}

// answer obeys the newest request for a checkpoint after a moment, if the job trains then.
func (s *Simulation) answer(j *job) {
	key := j.asked
	s.while(j, s.cfg.between(s.cfg.Answer, concernAnswer, j.key, hash(key)), func() {
		if j.state == training && j.asked == key && j.answered != key {
			s.save(j, key)
		}
	})
}
