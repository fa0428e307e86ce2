package dcgm

import (
	"slices"
	"time"

	"stoker.dev/stoker/internal/fleet"
)

// Profiling is read through hardware that a debugger may hold, and the engine may go on
// with zeros or nothing at all where it should say so.
const (
	fieldEngineActive Short = 1001
	fieldGPUUtil      Short = 203
	busyOver                = 90 // %, over which the engine can't have been idle

	rewatchEvery = time.Minute // at most
	doubtsEnough = 3           // readings in a row with a doubt, before the watch is begun anew
)

// A profilingState is how it stands with the profiling fields of a GPU, one of a closed list.
type profilingState string

// The states.
const (
	profilingOK       profilingState = "ok"
	profilingBlank    profilingState = "blank"        // there is no value
	profilingDoubted  profilingState = "not-believed" // 0, while the GPU is busy
	profilingPaused   profilingState = "paused"       // another program holds it
	profilingRefused  profilingState = "refused"      // the engine does not watch it
	profilingUnwanted profilingState = "unwanted"     // no field of the list is of profiling
)

// paused reports whether a result says that another program holds the hardware.
func (r Result) paused() bool { return r == StPaused || r == StProfilingLibrary || r == StInUse }

// profile says how profiling stands on each GPU and drops what can't be believed: that
// the engines were idle all the time while the GPU was busy.
func (r *reader) profile(into *fleet.Samples, places []place) {
	w := r.w
	state := map[uint32]profilingState{}
	doubted := map[uint32]bool{}
	for i := range places {
		p := &places[i]
		if p.entity.EntityGroupId != FE_GPU || into.GPUs[i].Up != fleet.True {
			continue
		}
		switch {
		case len(w.whole.profiling) == 0:
			state[p.gpu] = profilingUnwanted
		case p.profiled > 0 && p.idle && p.busy > busyOver:
			state[p.gpu], doubted[p.gpu] = profilingDoubted, true
		case p.profiled > 0:
			state[p.gpu] = profilingOK
		case p.paused || w.whole.why.paused():
			state[p.gpu] = profilingPaused
		case len(w.whole.profilingOn) == 0:
			state[p.gpu] = profilingRefused
		default:
			state[p.gpu] = profilingBlank
		}
		if st := state[p.gpu]; st == profilingOK || st == profilingUnwanted || st == profilingRefused {
			delete(w.doubts, p.gpu)
		} else if w.doubts[p.gpu]++; w.doubts[p.gpu] >= doubtsEnough {
			w.rewatch = true
		}
	}
	if len(doubted) > 0 {
		ids := map[string]bool{}
		for _, f := range r.o.Fields {
			if f.ID.profiling() {
				ids[f.Name] = true
			}
		}
		into.Values = slices.DeleteFunc(into.Values, func(v fleet.Sample) bool {
			return v.GPU >= 0 && ids[v.Field] && doubted[places[v.GPU].gpu]
		})
	}
	r.s.mu.Lock()
	r.s.self.profiling = state
	r.s.mu.Unlock()
}

// watchProfilingAnew ends the watches of profiling fields and begins them again, if there
// is a reason to: after an XID 31 they may only tell zeros, and what was refused because
// another program had it may be free.
func (r *reader) watchProfilingAnew() error {
	w := r.w
	if !w.rewatch || r.at.Sub(w.rewatched) < rewatchEvery {
		return nil
	}
	w.rewatch, w.rewatched = false, r.at
	clear(w.doubts)
	r.log.Debug("profiling is watched anew")
	r.s.mu.Lock()
	r.s.self.rewatches++
	r.s.mu.Unlock()
	r.s.thread.During("watching profiling anew")
	for _, p := range w.parts {
		if len(p.profiling) == 0 {
			continue
		}
		for _, f := range p.profilingOn {
			at := slices.IndexFunc(w.on, func(x watch) bool { return x == f })
			if err := r.engine.UnwatchFields(f.group, f.fields); err != nil && broken(err) {
				return err
			}
			if err := r.engine.FieldGroupDestroy(f.fields); err != nil && broken(err) {
				return err
			}
			w.on = slices.Delete(w.on, at, at+1)
		}
		if err := r.watchProfiling(w, p); err != nil {
			return err
		}
	}
	return nil
}

// watchProfiling begins the watches of a part's profiling fields.
func (r *reader) watchProfiling(w *watches, p *part) error {
	p.profilingOn, p.profiled, p.why = nil, nil, StOk
	for some := range slices.Chunk(p.profiling, 128) {
		before := len(w.on)
		for _, f := range some {
			delete(w.refused, f)
		}
		on, err := r.watch(w, p.group, some, r.o.Watch, 0, keepSamples)
		if err != nil {
			return err
		}
		p.profiled = append(p.profiled, on...)
		p.profilingOn = append(p.profilingOn, w.on[before:]...)
		for _, f := range some {
			if why := w.refused[f]; why != StOk {
				p.why = why
				w.rewatch = w.rewatch || why.paused()
			}
		}
	}
	return nil
}
