package dcgm

import (
	"cmp"
	"strconv"
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
func (t *thread) addHealth(into *fleet.Samples, places []place) error {
	t.s.during("checking health")
	found, err := t.engine.HealthCheck(t.w.gpuGroup)
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
				if gpu, ok := t.gpuOf(x.Entity); ok && gpu == p.gpu && x.System == w.bit && x.Health > worst {
					worst, code = x.Health, codeName(x.Code)
				}
			}
			into.Values = append(into.Values, fleet.Sample{
				Field: healthStatus, GPU: i, Value: float64(worst),
				Labels: append(append([]fleet.Label(nil), shown(t.labels[p.entity])...),
					fleet.Label{Name: "health_error_code", Value: code}, fleet.Label{Name: "health_watch", Value: w.name}),
			})
		}
	}
	return nil
}

// codeName names an error of the health checks. Their list grows with every release, so
// that a number says more than a wrong name.
func codeName(code uint32) string { return "DCGM_FR_" + strconv.Itoa(int(code)) }

// xidWindow is for how long XIDs are counted in the family that dcgm-exporter has.
const xidWindow = 5 * time.Minute

// A window is what happened lately.
type window struct {
	all []windowed
}

type windowed struct {
	entity GroupEntityPair
	code   int
	ts     int64 // us since 1970
}

func newWindow() *window { return &window{} }

func (w *window) add(e GroupEntityPair, code int, ts int64) {
	if len(w.all) < maxSeen {
		w.all = append(w.all, windowed{e, code, ts})
	}
}

// counts returns how many of each code an entity had in the window that ends at now.
func (w *window) counts(e GroupEntityPair, now time.Time) map[int]int {
	from := now.Add(-xidWindow).UnixMicro()
	out := map[int]int{}
	kept := w.all[:0]
	for _, x := range w.all {
		if cmp.Compare(x.ts, from) < 0 {
			continue
		}
		kept = append(kept, x)
		if x.entity == e {
			out[x.code]++
		}
	}
	w.all = kept
	return out
}
