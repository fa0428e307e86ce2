package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/loop"
	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/internal/server"
)

// began is when the gallery was opened; the scenes are made around it.
var began = time.Now().UTC().Truncate(time.Second)

// scenes are the states, by the path that they are shown at.
var scenes = map[string]scene{
	"calm":   {nodes: 8, mode: "auto"},
	"person": {nodes: 24, mode: "approve", incidents: persons, watchdog: server.Watchdog{Wanted: true, Seen: began}},
	"dry":    {nodes: 8, mode: "dry-run", incidents: would},
	"late": {
		nodes: 8, mode: "auto", incidents: persons, silent: true,
		watchdog: server.Watchdog{Wanted: true, Seen: began.Add(-12 * time.Minute), Late: true, Why: "Alertmanager has sent none for 12 min"},
	},
	"many":   {nodes: 1000, mode: "auto", incidents: many(200)},
	"moving": {nodes: 8, mode: "auto", incidents: moving},
	"empty":  {mode: "auto"},
	"fleet":  {nodes: 44, mode: "auto", incidents: persons, mixed: true},
	"crowd":  {nodes: 1000, mode: "auto", incidents: many(200), mixed: true},
}

// A scene is a loop that only shows.
type scene struct {
	nodes     int
	mode      string
	incidents func(now time.Time) []remedy.Incident
	watchdog  server.Watchdog
	silent    bool // telemetry has stopped
	mixed     bool // its GPUs do all sorts of things, and other ones every two seconds
}

// State says what the service is in.
func (s scene) State(time.Time) server.State {
	return server.State{Mode: s.mode, Identity: "stoker-1", Leader: "stoker-0", Watchdog: s.watchdog}
}

// Ingest refuses.
func (s scene) Ingest(context.Context, time.Time, []remedy.Evidence) error {
	return errors.New("this is a picture")
}

// Journal has nothing.
func (s scene) Journal() []loop.Entry { return nil }

// Incidents are those of the scene.
func (s scene) Incidents() []remedy.Incident {
	if s.incidents == nil {
		return nil
	}
	return s.incidents(time.Now().UTC())
}

// Fleet has nodes with a job on every two of them.
func (s scene) Fleet() fleet.Snapshot {
	now := time.Now().UTC()
	f := fleet.Snapshot{
		At: now.Add(-time.Second), Nodes: map[string]fleet.Node{}, Pods: map[string]fleet.Pod{}, Jobs: map[fleet.JobRef]fleet.Job{},
		Sources: map[string]time.Time{"kubernetes": now.Add(-2 * time.Second), "telemetry": now.Add(-7 * time.Second)},
	}
	if s.silent {
		f.Sources["telemetry"] = began.Add(-9 * time.Minute)
	}
	for i := range s.nodes {
		name := nodeName(i)
		f.Nodes[name] = fleet.Node{
			Name: name, Ready: fleet.Condition{Status: fleet.True, Since: began.Add(-48 * time.Hour)}, Unschedulable: i%9 == 2,
			Capacity: fleet.Resources{GPUs: 8}, Allocatable: fleet.Resources{GPUs: 8}, Telemetry: fleet.Condition{Status: fleet.True},
		}
		ref := jobName(i / 2)
		f.Jobs[ref] = fleet.Job{Ref: ref, Phase: fleet.JobRunning, Workers: 2, Each: fleet.Resources{GPUs: 8}}
		uid := fmt.Sprint("pod-", i)
		f.Pods[uid] = fleet.Pod{PodRef: fleet.PodRef{UID: uid, Node: name}, Job: ref, GPUs: 8}
	}
	if s.mixed {
		mix(now, f)
	}
	return f
}

func nodeName(i int) string { return fmt.Sprintf("gpu-%c-%02d", 'a'+i/20%26, i) }

func jobName(i int) fleet.JobRef {
	return fleet.JobRef{Kind: "Job.batch", Namespace: "train", Name: fmt.Sprintf("llm-70b-pretrain-%d", i)}
}

var ladder = []remedy.Step{
	{Action: "cordon", Role: remedy.RoleHold, Within: remedy.Duration(2 * time.Minute)},
	{Action: "checkpoint", Role: remedy.RoleSave, Within: remedy.Duration(2 * time.Minute)},
	{Action: "stop", Role: remedy.RoleStop, Within: remedy.Duration(10 * time.Minute)},
	{Action: "start", Role: remedy.RoleStart, Within: remedy.Duration(10 * time.Minute)},
	{Action: "drain", Role: remedy.RoleNone, Within: remedy.Duration(10 * time.Minute)},
	{Action: "reboot", Role: remedy.RoleRenew, Within: remedy.Duration(20 * time.Minute)},
	{Action: "verify", Role: remedy.RoleVerify, Within: remedy.Duration(30 * time.Minute)},
	{Action: "release", Role: remedy.RoleRelease, Within: remedy.Duration(10 * time.Minute)},
}

// incident is one about a GPU of the i-th node, opened some time before the gallery.
func incident(class remedy.Class, i int, before time.Duration, told string) remedy.Incident {
	s := remedy.Subject{Kind: remedy.SubjectGPU, Node: nodeName(i), UUID: fmt.Sprintf("GPU-%08d", i), Index: fmt.Sprint(i % 8)}
	in := remedy.Incident{
		Name: remedy.IncidentName(class, s, 1), Occurrence: 1, Subject: s, Class: class, Phase: remedy.PhaseOpen,
		Playbook: string(class), Ladder: ladder, Opened: began.Add(-before), Reason: "opened: " + told,
		Evidence: []remedy.Evidence{{Subject: s, Class: class, At: began.Add(-before - 4*time.Second), Seen: began.Add(-before), Source: "rules, alertmanager", Summary: told}}, EvidenceCount: 1,
	}
	return in
}

// climb takes the first n steps of the ladder; with run, the next one runs.
func climb(in remedy.Incident, node, n int, run bool) remedy.Incident {
	at := in.Opened
	for i := 0; i < n || run && i == n; i++ {
		t := remedy.Target{Node: in.Subject.Node}
		note := in.Subject.Node + " takes no new work"
		if i > 0 && i < 4 {
			t = remedy.Target{Job: jobName(node / 2)}
			note = "step 18200 of 12:04:11 UTC"
		}
		o := remedy.OrderRecord{Order: remedy.Order{
			Key: fmt.Sprint(in.Name, i), Incident: in.Name, Action: ladder[i].Action, Role: ladder[i].Role, Target: t,
			Cause: in.Evidence[0].Summary, Actor: "stoker", Reserved: at, Deadline: at.Add(time.Duration(ladder[i].Within)),
		}, Receipt: &remedy.Receipt{At: at, Note: "2 pods are to go"}}
		rec := remedy.StepRecord{
			Rung: i, Action: ladder[i].Action, Role: ladder[i].Role, Reserved: at, Deadline: o.Order.Deadline,
			Gates: []remedy.GateResult{{Gate: "mode", Pass: true, Reason: "auto"}, {Gate: "budget fleet", Pass: true, Reason: "1 of 24 nodes is out, 2 may be"}},
		}
		if i < n {
			at = at.Add(20 * time.Second)
			o.Outcome = &remedy.Outcome{Ending: remedy.Done, Note: note}
			rec.Ended, rec.Ending = at, remedy.Done
		}
		rec.Orders = []remedy.OrderRecord{o}
		in.Steps = append(in.Steps, rec)
	}
	in.Rung = n
	if run || n > 0 {
		in.Phase = remedy.PhaseActing
	}
	return in
}

func persons(time.Time) []remedy.Incident {
	wait := incident(remedy.ClassGPULost, 2, 4*time.Minute, "XID 79 on GPU 2 of gpu-a-02: it has fallen off the bus")
	wait.Waiting = []remedy.GateResult{{Gate: "mode", Reason: "cordon of gpu-a-02 waits for a person: the mode of the service is approve"}}

	held := climb(incident(remedy.ClassGPULost, 11, 51*time.Minute, "XID 79 on GPU 3 of gpu-a-11: it has fallen off the bus"), 11, 5, false)
	held.Phase, held.Reason = remedy.PhaseHeld, "reboot of gpu-a-11 is late after 20m: it has not come back with a new boot"
	last := held.Steps[4]
	last.Rung, last.Action, last.Ending, last.Note = 5, "reboot", remedy.Late, "gpu-a-11 has not come back with a new boot"
	last.Orders = []remedy.OrderRecord{last.Orders[0]}
	last.Orders[0].Order.Action, last.Orders[0].Outcome = "reboot", &remedy.Outcome{Ending: remedy.Late, Note: last.Note}
	last.Reserved = last.Ended
	last.Ended = last.Reserved.Add(20 * time.Minute)
	held.Steps = append(held.Steps, last)
	held.Losses = []remedy.Loss{{Job: jobName(5), GPUHours: 1.6, Cause: "unsaved work", Step: 18200}}

	budget := incident(remedy.ClassGPULost, 14, 9*time.Minute, "XID 79 on GPU 6 of gpu-a-14: it has fallen off the bus")
	budget.Waiting = []remedy.GateResult{{Gate: "budget fleet", Reason: "2 of 24 nodes are out, 2 may be"}}

	acting := climb(incident(remedy.ClassGPUECC, 17, 95*time.Second, "XID 95 on GPU 1 of gpu-a-17: an ECC error that was not contained"), 17, 2, true)

	told := incident(remedy.ClassTelemetryLost, 20, 3*time.Hour, "No telemetry from dcgm on gpu-b-20")
	told.Playbook, told.Ladder, told.Subject = "", nil, remedy.Subject{Kind: remedy.SubjectNode, Node: nodeName(20)}
	return []remedy.Incident{told, held, budget, wait, acting}
}

func would(time.Time) []remedy.Incident {
	in := incident(remedy.ClassGPULost, 2, 4*time.Minute, "XID 79 on GPU 2 of gpu-a-02: it has fallen off the bus")
	in.Waiting = []remedy.GateResult{{Gate: "mode", Reason: "would cordon gpu-a-02: the mode of the service is dry-run"}}
	return []remedy.Incident{in}
}

// many are n incidents of several classes, as a bad day has them.
func many(n int) func(time.Time) []remedy.Incident {
	classes := []remedy.Class{remedy.ClassGPULost, remedy.ClassGPUECC, remedy.ClassGPUNVLink, remedy.ClassGPUHot}
	return func(time.Time) []remedy.Incident {
		var out []remedy.Incident
		for i := range n {
			in := incident(classes[i%7%len(classes)], i*5, time.Duration(n-i)*time.Minute, fmt.Sprintf("fault %d", i))
			if i%3 == 0 {
				in.Waiting = []remedy.GateResult{{Gate: "budget fleet", Reason: "100 of 1000 nodes are out, 100 may be"}}
			} else {
				in = climb(in, i*5, i%8, true)
			}
			out = append(out, in)
		}
		return out
	}
}

// moving takes a step every two seconds, up the ladder and again from its foot.
func moving(now time.Time) []remedy.Incident {
	n := int(now.Sub(began)/(2*time.Second)) % 7
	return []remedy.Incident{climb(incident(remedy.ClassGPULost, 3, time.Minute, "XID 79 on GPU 3 of gpu-a-03: it has fallen off the bus"), 3, n, true)}
}
