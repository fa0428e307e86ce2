package kube

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"stoker.dev/stoker/internal/remedy"
)

func events(t *testing.T, s *server) *Events {
	t.Helper()
	e, err := NewEvents(slog.New(slog.NewTextHandler(t.Output(), nil)), s.config())
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestEventsTellWhatWasDone(t *testing.T) {
	s := newServer(t)
	echo := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(201)
		sent := s.sent("POST")
		_, _ = w.Write(sent[len(sent)-1].Body)
	}
	s.on("POST /api/v1/namespaces/default/events", echo)
	s.on("POST /api/v1/namespaces/train/events", echo)
	e := events(t, s)
	defer e.Close()
	node := remedy.Order{
		Key: "gpu-lost-a/1/cordon", Incident: "gpu-lost-a", Action: "cordon", Target: remedy.Target{Node: "gpu-a-02", UID: "n-2"},
		Cause: "XID 79 on gpu-a-02/gpu-0, playbook gpu-lost", Actor: "stoker",
	}
	job := node
	job.Action, job.Target = "stop", remedy.Target{Job: llm2, UID: "j-1"}
	e.Started(node, []remedy.GateResult{{Gate: "budget", Pass: true, Reason: "0 of 8 nodes are out, 1 may be"}})
	e.Ended(job, remedy.Outcome{Ending: remedy.Late, Note: "2 pods of train/llm-2 may still run"})
	eventually(t, "two events", func() bool { return len(s.sent("POST")) == 2 })

	want := map[string]corev1.Event{
		"default": {
			Type: "Normal", Reason: "CordonStarted", InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "gpu-a-02", UID: "n-2"},
			Message: "XID 79 on gpu-a-02/gpu-0, playbook gpu-lost. Gates: budget: 0 of 8 nodes are out, 1 may be. Incident gpu-lost-a, by stoker",
		},
		"train": {
			Type: "Warning", Reason: "StopLate", InvolvedObject: corev1.ObjectReference{APIVersion: "batch/v1", Kind: "Job", Namespace: "train", Name: "llm-2", UID: "j-1"},
			Message: "2 pods of train/llm-2 may still run. Incident gpu-lost-a, by stoker",
		},
	}
	for _, r := range s.sent("POST") {
		var got corev1.Event
		if err := json.Unmarshal(r.Body, &got); err != nil {
			t.Fatal(err)
		}
		short := corev1.Event{Type: got.Type, Reason: got.Reason, InvolvedObject: got.InvolvedObject, Message: got.Message}
		if d := cmp.Diff(want[got.Namespace], short); d != "" {
			t.Errorf("event differs (-want +got):\n%s", d)
		}
		if got.Annotations[remedy.MarkKey] != node.Key || got.Source.Component != "stoker" {
			t.Errorf("event has annotations %v and source %v", got.Annotations, got.Source)
		}
	}
}

func TestEventsNeverBlock(t *testing.T) {
	s := newServer(t)
	s.on("POST /api/v1/namespaces/default/events", silent)
	e := events(t, s)
	begun := time.Now()
	for range 10_000 {
		e.Started(remedy.Order{Action: "cordon", Target: remedy.Target{Node: "a"}, Cause: "c"}, nil)
	}
	if d := time.Since(begun); d > 5*time.Second {
		t.Errorf("10,000 events that nobody takes took %v", d)
	}
	s.CloseClientConnections()
	e.Close()
}

func TestEventOfNothing(t *testing.T) {
	if r := reference(remedy.Target{}); r != nil {
		t.Errorf("reference = %v, want none", r)
	}
	if r := reference(remedy.Target{Node: "a"}); r.UID != "a" {
		t.Errorf("uid = %q, want the name, as kubelets do", r.UID)
	}
}

func TestCut(t *testing.T) {
	long := strings.Repeat("ä", 1000)
	if got := cut(long, maxMessage); len(got) > maxMessage || !strings.HasSuffix(got, "ä…") {
		t.Errorf("cut to %d bytes, ending in %q", len(got), got[len(got)-8:])
	}
	if got := cut("short", maxMessage); got != "short" {
		t.Errorf("cut %q", got)
	}
}
