package rules

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

const jobLadders = `
playbooks:
  - name: hot
    class: gpu-hot
    steps:
      - cordon: {}
      - checkpoint: {within: 15m}
      - stop: {}
      - start: {}
      - verify: {within: 30m}
      - release: {}
  - name: unready
    class: node-unready
    steps: [cordon: {}, drain: {}, reboot: {}, verify: {within: 30m}, release: {}]
  - name: stalled
    class: job-stalled
    steps: [checkpoint: {}, stop: {}, start: {attempts: 1, per: 24h}, watch: {within: 1h}]
`

func hotGPU() remedy.Evidence {
	return remedy.Evidence{Subject: gpu3, Class: remedy.ClassGPUHot, At: t0, Seen: t0, Source: "rules", Summary: "GPU 3 is hot", Labels: map[string]string{"alertname": "GPUHot"}}
}

func stalledJob() remedy.Evidence {
	return remedy.Evidence{
		Subject: remedy.Subject{Kind: remedy.SubjectJob, Namespace: "train", Name: "llm"}, Class: remedy.ClassJobStalled,
		At: t0, Seen: t0, Source: "rules", Labels: map[string]string{"alertname": "TrainingStalled"},
	}
}

// admitted opens the incident of the evidence beside earlier ones, with a configuration.
func admitted(t *testing.T, cfg string, e remedy.Evidence, earlier ...remedy.Incident) *patient {
	t.Helper()
	p := &patient{t: t, now: e.At.Add(2 * time.Second), f: cluster(e.At.Add(2 * time.Second)), cfg: compiled(t, cfg)}
	opened, notes := Correlate(p.now, p.f, earlier, []remedy.Evidence{e}, p.cfg)
	if len(opened) != 1 {
		t.Fatalf("%d incidents were opened, want 1; notes: %v", len(opened), notes)
	}
	p.in = opened[0]
	return p
}

// over is told of the incident's state.
func (p *patient) over() {
	p.told(changed(p.in.Evidence[len(p.in.Evidence)-1], func(e *remedy.Evidence) { e.Resolved = true }))
}

func TestCase_D9_AStateThatEndsInMidLadderTakesNothingMore(t *testing.T) {
	for name, tc := range map[string]struct {
		e    remedy.Evidence
		at   string // the step that runs when the state ends
		want []string
	}{
		"while jobs are asked to save: none is stopped": {hotGPU(), "checkpoint", []string{
			"cordon gpu-a-02: done", "checkpoint dev/eval train/llm: skipped, " + stateOver,
			"stop: skipped, " + stateOver, "start: skipped, no job was stopped", "verify gpu-a-02: done", "release gpu-a-02: done",
			"resolved: healed: every step of hot is done",
		}},
		"while jobs are stopped: they are started again": {hotGPU(), "stop", []string{
			"cordon gpu-a-02: done", "checkpoint dev/eval train/llm: done", "stop dev/eval train/llm: done",
			"start dev/eval train/llm: done", "verify gpu-a-02: done", "release gpu-a-02: done",
			"resolved: healed: every step of hot is done",
		}},
		"while the node is cordoned: it is verified and released": {hotGPU(), "cordon", []string{
			"cordon gpu-a-02: done", "checkpoint: skipped, " + stateOver, "stop: skipped, " + stateOver,
			"start: skipped, no job was stopped", "verify gpu-a-02: done", "release gpu-a-02: done",
			"resolved: healed: every step of hot is done",
		}},
		"while the node is drained: no more pods are asked to go, and it is not booted": {unready(), "drain", []string{
			"cordon gpu-a-02: done", "drain gpu-a-02: skipped, " + stateOver, "reboot: skipped, " + stateOver,
			"verify gpu-a-02: done", "release gpu-a-02: done", "resolved: healed: every step of unready is done",
		}},
		"while the node is booted: the boot is seen to its end": {unready(), "reboot", []string{
			"cordon gpu-a-02: done", "drain gpu-a-02: done", "reboot gpu-a-02: done",
			"verify gpu-a-02: done", "release gpu-a-02: done", "resolved: healed: every step of unready is done",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p := admitted(t, jobLadders, tc.e)
			p.advance()
			p.do(tc.at)
			p.over()
			p.advance() // the step that runs may be given up
			if len(p.orders) > 0 {
				p.reserve()
			}
			p.finish()
			wantHistory(t, p.in, tc.want...)
		})
	}
}

func TestAVerificationBeginsWhenTheStateIsOver(t *testing.T) {
	upTo := func(t *testing.T) *patient {
		t.Helper()
		p := admitted(t, jobLadders, hotGPU())
		p.advance()
		p.do("start")
		p.end(remedy.Done, "")
		p.advance()
		if len(p.orders) > 0 || len(p.in.Waiting) != 1 || p.in.Waiting[0].Gate != "state" {
			t.Fatalf("orders %v and waiting %v while the GPU is hot, want to wait for the state", p.orders, p.in.Waiting)
		}
		return p
	}
	t.Run("and then goes on", func(t *testing.T) {
		p := upTo(t)
		p.over()
		p.advance()
		p.reserve()
		if cur := p.in.Current(); cur == nil || cur.Action != "verify" || len(p.in.Waiting) > 0 {
			t.Fatalf("step %+v, waiting %v; want verify to run", cur, p.in.Waiting)
		}
		p.finish()
		if p.in.Phase != remedy.PhaseResolved {
			t.Errorf("phase %s: %s", p.in.Phase, p.in.Reason)
		}
	})
	t.Run("and fails when it comes back", func(t *testing.T) {
		p := upTo(t)
		p.over()
		p.advance()
		p.reserve()
		again := hotGPU()
		again.At, again.Seen = p.now.Add(time.Minute), p.now.Add(time.Minute)
		p.now = again.At
		p.told(again)
		p.advance()
		if p.in.Phase != remedy.PhaseHeld || !strings.Contains(p.in.Reason, "came back") || !p.f.Nodes[ill].Unschedulable {
			t.Errorf("phase %s (%s), want held with the node cordoned", p.in.Phase, p.in.Reason)
		}
	})
	t.Run("and a person is needed when it lasts", func(t *testing.T) {
		p := upTo(t)
		p.now = p.now.Add(31 * time.Minute)
		p.advance()
		if p.in.Phase != remedy.PhaseHeld || !strings.Contains(p.in.Reason, "not over within 30m: GPU 3 is hot") {
			t.Errorf("phase %s (%s), want held", p.in.Phase, p.in.Reason)
		}
	})
	t.Run("and of an event it begins at once", func(t *testing.T) {
		p := newPatient(t, xid79())
		p.do("verify")
	})
}

func TestCase_J3_AJobThatStallsIsRestartedOnceAndThenAPersonIsAsked(t *testing.T) {
	first := admitted(t, jobLadders, stalledJob())
	first.advance()
	first.toWatch()
	wantSteps(t, first.in, "checkpoint train/llm: done", "stop train/llm: done", "start train/llm: done")
	first.over()
	first.advance()
	first.reserve()
	first.finish()
	if first.in.Phase != remedy.PhaseResolved {
		t.Fatalf("phase %s (%s), want resolved", first.in.Phase, first.in.Reason)
	}
	restarted := first.in.Ended(remedy.RoleStart).Ended
	again := func(after time.Duration) remedy.Evidence {
		e := stalledJob()
		e.At, e.Seen = restarted.Add(after), restarted.Add(after)
		return e
	}
	for name, tc := range map[string]struct {
		after   time.Duration
		earlier []remedy.Incident
		change  func(*patient)
		phase   remedy.Phase
		reason  string
	}{
		"within a day it is a person's": {
			40 * time.Minute, []remedy.Incident{first.in}, func(*patient) {}, remedy.PhaseHeld, "train/llm was restarted once within 24h, the last time 40m",
		},
		"after a day it is restarted again": {25 * time.Hour, []remedy.Incident{first.in}, func(*patient) {}, remedy.PhaseOpen, ""},
		"and restarts for the sake of a node do not count": {
			40 * time.Minute, []remedy.Incident{gpuRestart(first.in)}, func(p *patient) {
				p.job(llm, func(j *fleet.Job) { j.Attempt, j.StartedBy, j.Started = 7, "gpu-lost-x/1-start", restarted })
			}, remedy.PhaseOpen, "",
		},
		"nor those of another job": {
			40 * time.Minute, []remedy.Incident{otherJob(first.in)}, func(*patient) {}, remedy.PhaseOpen, "",
		},
		"and one that the store has forgotten is told by the job's mark": {
			40 * time.Minute, nil, func(p *patient) {
				p.job(llm, func(j *fleet.Job) { j.StartedBy, j.Started = first.in.Name+"/1-3-start", restarted })
			}, remedy.PhaseHeld, "train/llm was restarted once",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := admitted(t, jobLadders, again(tc.after), tc.earlier...)
			tc.change(p)
			p.advance()
			if p.in.Phase != tc.phase || !strings.Contains(p.in.Reason, tc.reason) {
				t.Errorf("phase %s (%s), want %s with %q", p.in.Phase, p.in.Reason, tc.phase, tc.reason)
			}
			if held := tc.phase == remedy.PhaseHeld; held != (len(p.orders) == 0) {
				t.Errorf("%d orders, held %v", len(p.orders), held)
			}
			if tc.phase == remedy.PhaseHeld {
				p.over()
				p.finish()
				wantHistory(t, p.in, "resolved: over by itself; nothing was done")
			}
		})
	}
}

func TestMoreThanOneRestartHasGrowingPauses(t *testing.T) {
	cfg := strings.ReplaceAll(jobLadders, "attempts: 1", "attempts: 3")
	at := t0.Add(time.Hour)
	for name, tc := range map[string]struct {
		ago   []time.Duration
		waits bool
	}{
		"the second waits for five minutes": {[]time.Duration{4 * time.Minute}, true},
		"and comes then":                    {[]time.Duration{6 * time.Minute}, false},
		"the third waits for ten":           {[]time.Duration{30 * time.Minute, 9 * time.Minute}, true},
		"and comes then too":                {[]time.Duration{30 * time.Minute, 11 * time.Minute}, false},
	} {
		t.Run(name, func(t *testing.T) {
			e := stalledJob()
			e.At, e.Seen = at, at
			p := admitted(t, cfg, e)
			p.now = at
			for i, ago := range tc.ago {
				p.in.Restarts = append(p.in.Restarts, remedy.Restart{Incident: fmt.Sprint(i), At: at.Add(-ago)})
			}
			p.advance()
			if waits := len(p.in.Waiting) == 1 && p.in.Waiting[0].Gate == "restarts"; waits != tc.waits || waits != (len(p.orders) == 0) {
				t.Errorf("waiting %v with %d orders, want waits %v", p.in.Waiting, len(p.orders), tc.waits)
			}
		})
	}
}

func TestAnIncidentAboutAJobEnds(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*patient)
		want   []string
	}{
		"untouched when the job was started anew since": {
			func(p *patient) { p.job(llm, func(j *fleet.Job) { j.Started = t0.Add(time.Second) }) },
			[]string{"resolved: train/llm has been started anew since; it was not stopped"},
		},
		"untouched when the job has failed for good": {
			func(p *patient) { p.job(llm, func(j *fleet.Job) { j.Phase = fleet.JobFailed }) },
			[]string{"resolved: train/llm has failed for good: the API lets no job run again that has ended; create it anew to go on from step 18200"},
		},
		"when the state ends before the job was stopped": {
			func(p *patient) { p.advance(); p.do("checkpoint"); p.over(); p.advance() },
			[]string{
				"checkpoint train/llm: skipped, " + stateOver, "stop: skipped, " + stateOver, "start: skipped, no job was stopped", "watch: skipped, no job was started",
				"resolved: over by itself before the job was stopped",
			},
		},
		"when a person starts it after a step had failed": {
			func(p *patient) {
				p.advance()
				p.do("stop")
				p.end(remedy.Rejected, "forbidden")
				p.advance()
				p.job(llm, func(j *fleet.Job) { j.Started = p.now })
			},
			[]string{"checkpoint train/llm: done", "stop train/llm: rejected, forbidden", "resolved: train/llm has been started anew since"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := admitted(t, jobLadders, stalledJob())
			tc.change(p)
			p.finish()
			wantHistory(t, p.in, tc.want...)
		})
	}
}

func TestAJobIsWatchedForItsFaultToComeBack(t *testing.T) {
	p := admitted(t, jobLadders, stalledJob())
	p.advance()
	p.toWatch()
	p.over()
	p.advance()
	p.reserve()
	again := stalledJob()
	again.At, again.Seen = p.now.Add(10*time.Minute), p.now.Add(10*time.Minute)
	p.now = again.At
	p.told(again)
	p.advance()
	if p.in.Phase != remedy.PhaseHeld || !strings.Contains(p.in.Reason, "watch of train/llm ended rejected: the fault came back") {
		t.Errorf("phase %s (%s), want held", p.in.Phase, p.in.Reason)
	}
	if j := p.f.Jobs[llm]; j.Suspended {
		t.Error("the job was stopped a second time")
	}
}

// gpuRestart is an incident of a node that has started the job, else like in.
func gpuRestart(in remedy.Incident) remedy.Incident {
	in = in.Clone()
	in.Name, in.Class, in.Subject = "gpu-lost-x", remedy.ClassGPULost, gpu3
	return in
}

func otherJob(in remedy.Incident) remedy.Incident {
	in = in.Clone()
	in.Name, in.Subject.Name = "job-stalled-other", "other"
	return in
}

func wantSteps(t *testing.T, in remedy.Incident, want ...string) {
	t.Helper()
	got := history(in)
	if strings.Join(got[:len(got)-1], "\n") != strings.Join(want, "\n") {
		t.Errorf("history is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
