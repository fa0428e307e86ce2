package pods

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// FuzzIDs: whatever a plugin calls a device, the page stays one that can be read, and says of
// the device either which GPU it is or why that is not known.
func FuzzIDs(f *testing.F) {
	for _, id := range []string{"GPU-a0::1", "MIG-5f3c", "MIG-GPU-c2/3/0", "nvidia2/gi7/vgpu1", "gpu-1-mig-19-0-1", "k8s.gpu.nvidia.com/claim=dab5ab50-d59a-42a6-af16-cfd4628c0f7a-gpu-0", "=", "a\"\\\n"} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		l := lister(t, Options{Replicas: true})
		l.take(said(podOf("p", gpusOf("nvidia.com/gpu", id))), time.Now())
		page := l.page()
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(strings.NewReader(page))
		if err != nil {
			t.Fatalf("%v in\n%s", err, page)
		}
		known, missing := 0, 0
		if m := families["stoker_gpu_pod_info"]; m != nil {
			known = len(m.GetMetric())
		}
		if m := families["stoker_gpu_pod_missing_info"]; m != nil {
			missing = len(m.GetMetric())
		}
		if known+missing != 1 {
			t.Errorf("%d rows and %d missing for one device in\n%s", known, missing, page)
		}
	})
}

// BenchmarkBuild is what a lister does each second: 8 GPUs, 100 pods with a share each.
func BenchmarkBuild(b *testing.B) {
	l := New(slog.New(slog.DiscardHandler), Options{}, node)
	answer := said()
	for i := range 100 {
		answer.PodResources = append(answer.PodResources, podOf(fmt.Sprint("p", i), gpusOf("nvidia.com/gpu", "GPU-b1::"+fmt.Sprint(i))))
	}
	l.take(answer, time.Now())
	b.ReportAllocs()
	for b.Loop() {
		l.build()
	}
}
