package alerts

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
)

// BenchmarkEvaluation is one evaluation of all files every 10 s over fleets of nodes with
// 8 GPUs, all of them held by pods, after 5 minutes of samples.
func BenchmarkEvaluation(b *testing.B) {
	const every = 10 * time.Second
	families := []string{
		"DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_TEMP",
		"DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE",
	}
	for _, nodes := range []int{8, 1000} {
		b.Run(fmt.Sprintf("GPUs=%d", 8*nodes), func(b *testing.B) {
			var series []labels.Labels
			for gpu := range 8 * nodes {
				for _, f := range families {
					series = append(series, labels.FromStrings(model.MetricNameLabel, f, "gpu", fmt.Sprint(gpu%8), "UUID", fmt.Sprintf("GPU-%06d", gpu),
						"pci_bus_id", fmt.Sprintf("00000000:%d0:00.0", gpu%8), "modelName", "NVIDIA H100 80GB HBM3", "hostname", fmt.Sprintf("node-%04d", gpu/8),
						"namespace", "ml", "pod", fmt.Sprintf("train-%d", gpu/8), "container", "train"))
				}
			}
			p := newProcess(b, Files(), testCase{}, every)
			now := time.Duration(0)
			tick := func() {
				b.StopTimer()
				now += every
				for _, s := range series {
					p.inputs = append(p.inputs, input{now, s, 0.8})
				}
				p.feed(b, now)
				b.StartTimer()
				if _, err := p.ev.Evidence(b.Context(), at(now)); err != nil {
					b.Fatal(err)
				}
			}
			for now < 5*time.Minute {
				tick()
			}
			b.ReportAllocs()
			for b.Loop() {
				tick()
			}
		})
	}
}
