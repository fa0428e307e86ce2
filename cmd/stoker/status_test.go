package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/internal/server"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func calm() server.Status {
	return server.Status{
		At: t0, Healthy: true, State: server.State{Mode: "auto", Identity: "stoker-0", Leader: "stoker-0", Leading: true},
		Sources:   []server.SourceAge{{Name: "kubernetes", At: t0.Add(-3 * time.Second)}},
		Fleet:     server.FleetCount{Nodes: 8, Available: 8, GPUs: 64},
		Incidents: map[remedy.Phase]int{remedy.PhaseResolved: 4}, Waiting: []server.Wait{}, Trouble: []string{},
	}
}

func broken() server.Status {
	st := calm()
	st.Healthy, st.Trouble = false, []string{"telemetry last answered more than 1 min ago", strings.Repeat("long ", 30)}
	st.State.Leader, st.State.Leading = "stoker-1", false
	st.State.Watchdog = server.Watchdog{Wanted: true, Late: true, Why: "none for 12 min"}
	st.Sources = append(st.Sources, server.SourceAge{Name: "telemetry", At: t0.Add(-9 * time.Minute), Late: true})
	st.Incidents[remedy.PhaseHeld], st.GPUsHit, st.LostGPUHours = 1, 8, 1.55
	st.Waiting = []server.Wait{
		{For: server.WaitPerson, Subject: "gpu-a-11/gpu-3", Step: "reboot 6/8", Since: t0.Add(-29 * time.Minute), GPUs: 8},
		{For: server.WaitGate, Gate: "budget a-very-long-name-of-a-budget", Subject: strings.Repeat("node", 12), Step: "checkpoint 2/8", Since: t0.Add(-100 * time.Hour), GPUs: 1024},
	}
	return st
}

func TestStatus(t *testing.T) {
	for name, tc := range map[string]struct {
		status server.Status
		args   []string
		exit   int
		want   string
	}{
		"a calm service": {calm(), []string{"--check"}, 0, `status     healthy at 2026-03-01T12:00:00Z
mode       auto
leader     stoker-0, which has answered
sources    kubernetes 3s old
watchdog   none is set up
fleet      8 of 8 nodes take work, 0 held, telemetry lost on 0; 64 GPUs
incidents  none open; 0 GPUs hit now, 0.0 GPU-h lost in 24 h

Nothing waits for a person.
`},
		"one in trouble": {broken(), nil, 0, `status     NOT HEALTHY at 2026-03-01T12:00:00Z
trouble    telemetry last answered more than 1 min ago
           long long long long long long long long long long long long long …
mode       auto
leader     stoker-1; stoker-0 has answered
sources    kubernetes 3s old
           telemetry 9m0s old, late
watchdog   LATE: none for 12 min
fleet      8 of 8 nodes take work, 0 held, telemetry lost on 0; 64 GPUs
incidents  1 held; 8 GPUs hit now, 1.6 GPU-h lost in 24 h

WAITS FOR               SINCE    SUBJECT                     STEP            GPUS
person                  29m0s    gpu-a-11/gpu-3              reboot 6/8      8
gate budget a-very-l…  100h0m0s  nodenodenodenodenodenod…  checkpoint 2/8  1024
`},
		"one in trouble, for a probe": {broken(), []string{"--check"}, 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			body, err := json.Marshal(tc.status)
			if err != nil {
				t.Fatal(err)
			}
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/api/v1/status" {
					t.Errorf("%s was asked for", r.URL)
				}
				_, _ = w.Write(body)
			}))
			defer srv.Close()
			var out, notes bytes.Buffer
			err = run(t.Context(), append([]string{"status", "--server", srv.URL}, tc.args...), &out, &notes)
			if got := exitCode(err); got != tc.exit {
				t.Errorf("exit %d (%v), want %d", got, err, tc.exit)
			}
			if tc.want != "" && strings.Join(strings.Fields(out.String()), " ") != strings.Join(strings.Fields(tc.want), " ") {
				t.Errorf("got\n%swant\n%s", out.String(), tc.want)
			}
			for line := range strings.Lines(out.String()) {
				if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 80 {
					t.Errorf("%d columns: %s", n, line)
				}
			}
			var raw bytes.Buffer
			if err := run(t.Context(), []string{"status", "--server", srv.URL, "-o", "json"}, &raw, &notes); err != nil || !bytes.Equal(raw.Bytes(), body) {
				t.Errorf("json is %s, %v; want what the API answers", raw.Bytes(), err)
			}
			if err := run(t.Context(), []string{"status", "--server", srv.URL, "-o", "xml"}, &raw, &notes); exitCode(err) != 2 {
				t.Errorf("output xml: %v, want a mistake in usage", err)
			}
		})
	}
}
