package series

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"stoker.dev/stoker/internal/fleet"
)

func TestFillTellsWhichPodsHoldWhichGPU(t *testing.T) {
	db := open(t, Options{})
	tg := target(t, db)
	tm := NewTelemetry(db)
	held := func(at time.Time) map[string][]fleet.PodName {
		out := map[string][]fleet.PodName{}
		for _, g := range fill(t, tm, at).GPUs {
			if len(g.Pods) > 0 {
				out[g.UUID] = g.Pods
			}
		}
		return out
	}
	want := func(at time.Time, w map[string][]fleet.PodName) {
		t.Helper()
		if d := cmp.Diff(w, held(at)); d != "" {
			t.Errorf("holders (-want +got):\n%s", d)
		}
	}
	a, b := fleet.PodName{Namespace: "dev", Name: "eval-0"}, fleet.PodName{Namespace: "train", Name: "llm-0"}

	// Our own series, and the labels of another exporter: the same pod twice is one.
	mustAppend(t, tg, t0, healthy+
		"stoker_gpu_pod_info{"+gpu0+",namespace=\"train\",pod=\"llm-0\",container=\"a\"} 1\n"+
		"stoker_gpu_pod_info{"+gpu0+",namespace=\"dev\",pod=\"eval-0\",container=\"b\"} 1\n"+
		"DCGM_FI_DEV_FB_USED{"+gpu0+",namespace=\"train\",pod=\"llm-0\"} 40000\n"+
		"DCGM_FI_DEV_FB_USED{"+gpu1+"} 4\n")
	want(t0, map[string][]fleet.PodName{"GPU-a": {a, b}})

	// A pod has gone, and another has come on the other GPU.
	at := t0.Add(15 * time.Second)
	mustAppend(t, tg, at, healthy+"stoker_gpu_pod_info{"+gpu0+",namespace=\"train\",pod=\"llm-0\"} 1\nDCGM_FI_DEV_FB_USED{"+gpu1+",namespace=\"dev\",pod=\"eval-0\"} 9\n")
	want(at, map[string][]fleet.PodName{"GPU-a": {b}, "GPU-b": {a}})

	// A GPU that is lost is told of no more; who held it when it was lost still does.
	at = t0.Add(30 * time.Second)
	mustAppend(t, tg, at, "stoker_collector_source_up{node=\"n1\",source=\"dcgm\"} 1\nstoker_node_boot_info{node=\"n1\",boot_id=\"boot-1\"} 1\n"+
		"stoker_gpu_up{"+gpu0+"} 0\nstoker_gpu_up{"+gpu1+"} 1\n")
	want(at, map[string][]fleet.PodName{"GPU-a": {b}})
}
