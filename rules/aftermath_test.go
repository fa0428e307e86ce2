package rules

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// alone is the cluster with the gang on both nodes and nothing else.
func alone() fleet.Snapshot {
	f := cluster(t0)
	delete(f.Jobs, eval)
	delete(f.Pods, "pod-2")
	return f
}

func xidSeen(node string, gpu, code int, at time.Time) remedy.Evidence {
	return remedy.Evidence{
		Subject: remedy.Subject{Kind: remedy.SubjectNode, Node: node}, Class: remedy.ClassNone, At: at, Seen: at, Source: "rules",
		Summary: fmt.Sprintf("XID %d on GPU %d of %s", code, gpu, node),
		Labels:  map[string]string{"alertname": "GPUXidSeen", "xid": fmt.Sprint(code), "gpu": fmt.Sprint(gpu), "node": node},
	}
}

// TestCase_F1_TheEndOfAJobIsOneNoteAndTouchesNoNode: every GPU of a job that crashes
// logs XID 45, many times over.
func TestCase_F1_TheEndOfAJobIsOneNoteAndTouchesNoNode(t *testing.T) {
	var storm []remedy.Evidence
	for i := range 672 {
		storm = append(storm, xidSeen([]string{ill, well}[i%2], i%16/2, 45, t0.Add(time.Duration(i%5)*time.Second)))
	}
	for name, tc := range map[string]struct {
		f     fleet.Snapshot
		ev    []remedy.Evidence
		want  string // of the first note
		notes int
		opens int
	}{
		"by job and time": {alone(), storm, "train/llm has ended: XID 45 on 16 GPUs of gpu-a-02, gpu-a-03", 1, 0},
		"and the code that came with it decides": {
			alone(), append(storm[:20:20], xid79()), "train/llm has ended: XID 45 on 16 GPUs", 1, 1,
		},
		"of a job that has left the node since": {func() fleet.Snapshot {
			facts := fleet.NewFacts()
			j := alone().Jobs[llm]
			j.Places = nil
			facts.Jobs[llm], facts.Nodes = j, alone().Nodes
			return facts.Snapshot(t0.Add(10*time.Second), alone())
		}(), storm, "train/llm has ended", 1, 0},
		"of two jobs on a node nobody knows whose it is": {cluster(t0), []remedy.Evidence{xidSeen(ill, 1, 45, t0)}, "XID 45 on GPU 1 of gpu-a-02", 1, 0},
		"of a job that came later it is not": {func() fleet.Snapshot {
			f := alone()
			j := f.Jobs[llm]
			j.Places = []fleet.Place{{Nodes: []string{ill, well}, Since: t0.Add(time.Minute), Till: t0.Add(time.Hour)}}
			f.Jobs[llm] = j
			return f
		}(), []remedy.Evidence{xidSeen(ill, 1, 45, t0)}, "XID 45 on GPU 1 of gpu-a-02", 1, 0},
		"another code is told for itself": {alone(), []remedy.Evidence{xidSeen(ill, 1, 92, t0)}, "XID 92 on GPU 1 of gpu-a-02", 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			opened, notes := Correlate(t0.Add(10*time.Second), tc.f, nil, tc.ev, compiled(t, wholeLadder))
			if len(opened) != tc.opens || len(notes) != tc.notes {
				t.Fatalf("%d incidents and %d notes, want %d and %d: %v", len(opened), len(notes), tc.opens, tc.notes, notes)
			}
			if got := notes[0].Evidence.String(); !strings.HasPrefix(got, tc.want) {
				t.Errorf("noted %q, want %q", got, tc.want)
			}
		})
	}
}

func TestADeadProgramIsNotAskedToSave(t *testing.T) {
	whole := func(f *fleet.Snapshot) { // the gang holds every GPU of its nodes
		delete(f.Pods, "pod-2")
		delete(f.Jobs, eval)
		for uid, p := range f.Pods {
			p.GPUs = 8
			f.Pods[uid] = p
		}
	}
	const dead = "skipped, train/llm cannot save: on a GPU that is lost a program is dead or hangs"
	for name, tc := range map[string]struct {
		e      remedy.Evidence
		change func(*fleet.Snapshot)
		want   string
	}{
		"where it holds the lost GPU":           {xid79(), whole, "checkpoint: " + dead},
		"but where it may hold another one":     {xid79(), func(*fleet.Snapshot) {}, "checkpoint dev/eval train/llm: done"},
		"and where the fault leaves it running": {unready(), whole, "checkpoint train/llm: done"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPatient(t, tc.e)
			p.change(tc.change)
			p.do("stop")
			if got := history(p.in)[1]; got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if p.in.Lost() == 0 {
				t.Error("what is lost is not written down")
			}
		})
	}
}
