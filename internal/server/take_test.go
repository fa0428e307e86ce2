package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/internal/remedy"
)

const pushed = `[{"labels":{"alertname":"GPUXidGpuLost","class":"gpu-lost","node":"n1","gpu":"3","UUID":"GPU-3","xid":"79"},
 "annotations":{"summary":"XID 79 on GPU 3 of n1","event_time":"1772366340.000"},"startsAt":"2026-03-01T11:59:00Z"}]`

func TestCollectorsSpeakForTheirOwnNode(t *testing.T) {
	speaks := func(_ context.Context, token string) (string, error) {
		switch token {
		case "of.n1.x":
			return "n1", nil
		case "of.n2.x":
			return "n2", nil
		case "api.server.away":
			return "", errors.New("no answer")
		}
		return "", fmt.Errorf("%w here", ErrNoSuchBearer)
	}
	for name, tc := range map[string]struct {
		token string
		body  string
		want  int
		text  string
		taken int
	}{
		"its own node":                             {"of.n1.x", pushed, 200, "1 alerts taken in", 1},
		"another node":                             {"of.n2.x", pushed, 403, `the collector of node n2 may not speak for node "n1"`, 0},
		"the service's own token is for all":       {"s3cret", pushed, 200, "1 alerts", 1},
		"a token of nobody":                        {"a.b.c", pushed, 401, "not valid here", 0},
		"no token":                                 {"", pushed, 401, "bearer token", 0},
		"a review that is not answered":            {"api.server.away", pushed, 503, "send it again", 0},
		"a list that is none":                      {"of.n1.x", `{"alerts":[]}`, 400, "list of alerts at byte", 0},
		"an alert about nothing costs only itself": {"of.n1.x", strings.Replace(pushed, "[{", `[{"labels":{"class":"gpu-lost"}},{`, 1), 200, "2 alerts", 1},
		"one of the past is over":                  {"of.n1.x", strings.Replace(pushed, `"startsAt"`, `"endsAt":"2026-03-01T11:59:30Z","startsAt"`, 1), 200, "1 alerts", 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := &walker{}
			h, _ := handler(t, w, Options{TokenFile: tokenFile(t), Speaks: speaks})
			req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/api/v2/alerts", strings.NewReader(tc.body))
			if tc.token != "" {
				req.Header.Set("Authorization", "Bearer "+tc.token)
			}
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, req)
			if rec.Code != tc.want || !strings.Contains(rec.Body.String(), tc.text) || len(w.got) != tc.taken {
				t.Errorf("%d %q with %d taken in, want %d %q with %d", rec.Code, rec.Body, len(w.got), tc.want, tc.text, tc.taken)
			}
			if tc.taken == 1 {
				e := w.got[0]
				if e.Source != "collector" || e.Class != remedy.ClassGPULost || !e.At.Equal(t0.Add(-time.Minute)) || e.Resolved != strings.Contains(tc.body, "endsAt") {
					t.Errorf("evidence %+v", e)
				}
			}
		})
	}
}

func TestAFollowerPassesOn(t *testing.T) {
	token := tokenFile(t)
	leader := &walker{}
	lh, _ := handler(t, leader, Options{TokenFile: token, Leading: func() bool { return true }})
	by := ""
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		by = r.Header.Get(passedBy)
		lh.ServeHTTP(w, r)
	}))
	defer srv.Close()
	address := strings.TrimPrefix(srv.URL, "http://")
	gone := httptest.NewServer(http.NotFoundHandler())
	goneAt := strings.TrimPrefix(gone.URL, "http://")
	gone.Close()
	other, _ := handler(t, &walker{}, Options{TokenFile: token, Leading: func() bool { return false }, Leader: func() string { return address }})
	otherSrv := httptest.NewServer(other)
	defer otherSrv.Close()

	for name, tc := range map[string]struct {
		leader string
		body   string
		want   int
		text   string
	}{
		"to the leader, whose answer it is":  {address, payload, 200, "1 alerts taken in"},
		"and so is its refusal":              {address, "{", 400, "webhook payload"},
		"nobody leads":                       {"", payload, 503, "no leader is known"},
		"a leader that has gone":             {goneAt, payload, 503, "does not answer"},
		"it is passed on once":               {strings.TrimPrefix(otherSrv.URL, "http://"), payload, 503, "me has passed this on, and this replica does not lead either"},
		"what is not ours to pass on is not": {address, "", 401, "bearer token"},
	} {
		t.Run(name, func(t *testing.T) {
			leader.got, by = nil, ""
			w := &walker{}
			h, _ := handler(t, w, Options{TokenFile: token, Identity: "me", Leading: func() bool { return false }, Leader: func() string { return tc.leader }})
			req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/webhook/alertmanager", strings.NewReader(tc.body))
			if tc.body != "" {
				req.Header.Set("Authorization", "Bearer s3cret")
			}
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, req)
			if rec.Code != tc.want || !strings.Contains(rec.Body.String(), tc.text) || len(w.got) != 0 {
				t.Errorf("%d %q with %d kept, want %d %q", rec.Code, rec.Body, len(w.got), tc.want, tc.text)
			}
			if tc.want == 200 && (len(leader.got) != 1 || by != "me") {
				t.Errorf("the leader got %d, passed on by %q", len(leader.got), by)
			}
			if tc.want == 503 && rec.Header().Get("Retry-After") == "" {
				t.Error("it is not said when to try again")
			}
		})
	}
}

func TestTheWatchdogIsTold(t *testing.T) {
	var proved []time.Time
	h, _ := handler(t, &walker{}, Options{Proved: func(now time.Time) { proved = append(proved, now) }})
	send := func(path, body string) {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(body)))
		if rec.Code != 200 {
			t.Fatalf("%d %s", rec.Code, rec.Body)
		}
	}
	dog := strings.Replace(payload, "GPUXidGpuLost", "Watchdog", 1)
	send("/webhook/alertmanager", payload)
	send("/webhook/alertmanager", strings.Replace(dog, `"status":"firing","labels"`, `"status":"resolved","labels"`, 1))
	send("/api/v2/alerts", strings.Replace(pushed, "GPUXidGpuLost", "Watchdog", 1))
	if len(proved) != 0 {
		t.Errorf("proved at %v by what is no proof", proved)
	}
	send("/webhook/alertmanager", dog)
	if len(proved) != 1 || !proved[0].Equal(t0) {
		t.Errorf("proved at %v, want once at %v", proved, t0)
	}
}
