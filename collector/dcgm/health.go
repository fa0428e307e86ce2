package dcgm

import (
	"slices"
	"time"

	"stoker.dev/stoker/internal/fleet"
)

// watchNames are what the engine's health checks look at, as dcgm-exporter names them.
var watchNames = []struct {
	name string
	bit  uint32
}{
	{"PCIE", 1},
	{"NVLINK", 2},
	{"PMU", 4},
	{"MCU", 8},
	{"MEM", 0x10},
	{"SM", 0x20},
	{"INFOROM", 0x40},
	{"THERMAL", 0x80},
	{"POWER", 0x100},
	{"DRIVER", 0x200},
	{"ALL", HealthAll},
}

// addHealth shows what the engine's checks say of each GPU. Of one that can't be asked
// they say nothing, which is not the same as good.
func (r *reader) addHealth(into *fleet.Samples, places []place) error {
	r.s.thread.During("checking health")
	found, err := r.engine.HealthCheck(r.w.gpuGroup)
	if err != nil {
		return err
	}
	for i, p := range places {
		if p.entity.EntityGroupId != FE_GPU || into.GPUs[i].Up != fleet.True {
			continue
		}
		for _, w := range watchNames {
			worst, code := uint32(0), "DCGM_FR_OK"
			for _, x := range found {
				if gpu, ok := r.gpuOf(x.Entity); ok && gpu == p.gpu && x.System == w.bit && x.Health > worst {
					worst, code = x.Health, codeName(x.Code)
				}
			}
			into.Values = append(into.Values, fleet.Sample{
				Field: healthStatus, GPU: i, Value: float64(worst),
				Labels: append(append([]fleet.Label(nil), r.labels[p.entity]...),
					fleet.Label{Name: "health_error_code", Value: code}, fleet.Label{Name: "health_watch", Value: w.name}),
			})
		}
	}
	return nil
}

// A window is what happened lately.
type window struct {
	width time.Duration
	all   []windowed
}

type windowed struct {
	entity GroupEntityPair
	code   int
	ts     int64 // us since 1970
}

func newWindow(width time.Duration) *window { return &window{width: width} }

// add reports whether there was room.
func (w *window) add(e GroupEntityPair, code int, ts int64) (ok bool) {
	if len(w.all) >= maxSeen {
		return false
	}
	w.all = append(w.all, windowed{e, code, ts})
	return true
}

// forget drops what is before the window that ends at now, in us since 1970.
func (w *window) forget(now int64) {
	from := now - w.width.Microseconds()
	w.all = slices.DeleteFunc(w.all, func(x windowed) bool { return x.ts < from })
}

// counts returns how many of each code an entity had in the window that ends at now.
func (w *window) counts(e GroupEntityPair, now time.Time) map[int]int {
	w.forget(now.UnixMicro())
	out := map[int]int{}
	for _, x := range w.all {
		if x.entity == e {
			out[x.code]++
		}
	}
	return out
}
