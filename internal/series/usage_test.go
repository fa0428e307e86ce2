package series

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"stoker.dev/stoker/internal/fleet"
)

func TestUsageIsTheMeanOfAJobsPodsAndSaysForHowLong(t *testing.T) {
	db, err := Open("", Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	tg, err := db.Target(labels.Label{Name: "instance", Value: "n"})
	if err != nil {
		t.Fatal(err)
	}
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	now := start
	for ; now.Before(start.Add(20 * time.Minute)); now = now.Add(10 * time.Second) {
		page := ""
		add := func(pod string, gpu int, v float64) {
			page += fmt.Sprintf("DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu=\"%d\",namespace=\"t\",pod=\"%s\"} %g\n", gpu, pod, v)
		}
		add("a-0", 0, 0.8)
		add("a-0", 1, 0.6)
		add("a-1", 2, 0.1)
		if now.Sub(start) >= 17*time.Minute {
			add("late-0", 3, 0)
		}
		page += "DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu=\"4\"} 0\n"
		if _, err := tg.Append(t.Context(), now, []byte("# TYPE DCGM_FI_PROF_GR_ENGINE_ACTIVE gauge\n"+page)); err != nil {
			t.Fatal(err)
		}
	}
	now = now.Add(-10 * time.Second)
	ref := func(name string) fleet.JobRef { return fleet.JobRef{Namespace: "t", Name: name} }
	f := fleet.NewFacts()
	for pod, job := range map[string]string{"a-0": "a", "a-1": "a", "late-0": "late", "silent-0": "silent"} {
		f.Pods[pod] = fleet.Pod{PodRef: fleet.PodRef{UID: pod, Namespace: "t", Name: pod}, Job: ref(job), GPUs: 1}
		f.Jobs[ref(job)] = fleet.Job{Ref: ref(job)}
	}
	u := NewUsage(db)
	if err := u.Fill(t.Context(), now, f); err != nil {
		t.Fatal(err)
	}
	if got := f.Jobs[ref("a")].Usage; math.Abs(got.Mean-0.4) > 1e-9 || got.Over != 10*time.Minute || !got.At.Equal(now) {
		t.Errorf("a job of two pods: %+v, want 0.4 over 10m", got)
	}
	if got := f.Jobs[ref("late")].Usage; got.Over > 4*time.Minute || got.Over < 2*time.Minute {
		t.Errorf("a job that has run for three minutes: %+v", got)
	}
	if got := f.Jobs[ref("silent")].Usage; !got.At.IsZero() {
		t.Errorf("a job of which no series tell: %+v, want not known", got)
	}
}

// TestTheUsageOfAGPUIsThatOfWhoHasIt holds for both ways in which collectors tell who that
// is, for a GPU that two share, and for a pod that has ended.
func TestTheUsageOfAGPUIsThatOfWhoHasIt(t *testing.T) {
	db, err := Open("", Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	tg, err := db.Target(labels.Label{Name: "instance", Value: "n"})
	if err != nil {
		t.Fatal(err)
	}
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	now := start
	for ; now.Before(start.Add(15 * time.Minute)); now = now.Add(10 * time.Second) {
		page := "# TYPE DCGM_FI_PROF_GR_ENGINE_ACTIVE gauge\n" +
			"DCGM_FI_PROF_GR_ENGINE_ACTIVE{node=\"n\",UUID=\"a\",namespace=\"t\",pod=\"labelled\"} 0.9\n" +
			"DCGM_FI_PROF_GR_ENGINE_ACTIVE{node=\"n\",UUID=\"b\"} 0.3\n" +
			"DCGM_FI_PROF_GR_ENGINE_ACTIVE{node=\"n\",UUID=\"c\"} 0\n" +
			"# TYPE stoker_gpu_pod_info gauge\n" +
			"stoker_gpu_pod_info{node=\"n\",UUID=\"b\",namespace=\"t\",pod=\"told\",shared=\"true\"} 1\n" +
			"stoker_gpu_pod_info{node=\"n\",UUID=\"d\",namespace=\"t\",pod=\"unseen\"} 1\n" +
			"stoker_gpu_pod_info{node=\"n\",UUID=\"c\",namespace=\"t\",pod=\"ended\"} 1\n"
		if now.Sub(start) >= 12*time.Minute {
			page += "stoker_gpu_pod_info{node=\"n\",UUID=\"b\",namespace=\"t\",pod=\"young\",shared=\"true\"} 1\n"
		}
		if _, err := tg.Append(t.Context(), now, []byte(page)); err != nil {
			t.Fatal(err)
		}
	}
	now = now.Add(-10 * time.Second)
	f := fleet.NewFacts()
	f.Nodes["n"] = fleet.Node{Name: "n", GPUs: []fleet.GPU{{UUID: "a"}, {UUID: "b"}, {UUID: "c"}, {UUID: "d"}}}
	for _, pod := range []string{"labelled", "told", "young", "unseen"} {
		ref := fleet.JobRef{Namespace: "t", Name: pod}
		f.Pods[pod] = fleet.Pod{PodRef: fleet.PodRef{UID: pod, Namespace: "t", Name: pod, Node: "n"}, Job: ref, GPUs: 1}
		f.Jobs[ref] = fleet.Job{Ref: ref}
	}
	if err := NewUsage(db).Fill(t.Context(), now, f); err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct {
		mean  float64
		over  time.Duration
		known bool
	}{
		{0.9, 10 * time.Minute, true},
		{0.3, 3 * time.Minute, true},
		{0, 0, false},
		{0, 0, false},
	} {
		g := f.Nodes["n"].GPUs[i]
		if math.Abs(g.Usage.Mean-want.mean) > 1e-9 || g.Usage.Over != want.over || g.Usage.At.IsZero() == want.known {
			t.Errorf("GPU %s was used %+v; want %+v", g.UUID, g.Usage, want)
		}
	}
	if got := f.Jobs[fleet.JobRef{Namespace: "t", Name: "told"}].Usage; math.Abs(got.Mean-0.3) > 1e-9 || got.Over != 10*time.Minute {
		t.Errorf("a job whose pod is told of beside the values: %+v, want 0.3 over 10m", got)
	}
}
