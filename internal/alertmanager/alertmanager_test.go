package alertmanager

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// A member answers as Alertmanager does.
type member struct {
	url string

	mu       sync.Mutex
	down     bool
	config   string
	alerts   string
	silences []string // JSON
	did      []string
}

func newMember(t *testing.T) *member {
	t.Helper()
	m := &member{alerts: "[]", config: "route: {receiver: stoker}"}
	srv := httptest.NewServer(http.HandlerFunc(m.serve))
	t.Cleanup(srv.Close)
	m.url = srv.URL
	return m
}

func (m *member) serve(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down {
		http.Error(w, "starting", http.StatusServiceUnavailable)
		return
	}
	switch r.Method + " " + r.URL.Path {
	case "GET /api/v2/silences":
		fmt.Fprintf(w, "[%s]", strings.Join(m.silences, ","))
	case "GET /api/v2/alerts":
		_, _ = io.WriteString(w, m.alerts)
	case "GET /api/v2/status":
		_ = json.NewEncoder(w).Encode(map[string]any{"config": map[string]string{"original": m.config}})
	default:
		body, _ := io.ReadAll(r.Body)
		m.did = append(m.did, r.Method+" "+r.URL.Path+" "+string(body))
		_, _ = io.WriteString(w, `{"silenceID":"new"}`)
	}
}

func (m *member) set(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

func alertJSON(name, labels, status string, updated time.Time) string {
	return fmt.Sprintf(`{"labels":{"alertname":%q%s},"annotations":{},"receivers":[{"name":"stoker"}],"fingerprint":"f",
		"startsAt":"2026-03-01T11:50:00Z","endsAt":"2026-03-01T12:30:00Z","updatedAt":%q,"status":{"state":"active","silencedBy":[],"inhibitedBy":[],"mutedBy":[]%s}}`,
		name, labels, updated.Format(time.RFC3339), status)
}

const hot = `,"class":"gpu-hot","node":"a","gpu":"1","UUID":"GPU-1"`

func silenceJSON(id, by, comment, matcher string) string {
	return fmt.Sprintf(`{"id":%q,"createdBy":%q,"comment":%q,"startsAt":"2026-03-01T11:00:00Z","endsAt":"2026-03-01T12:10:00Z","updatedAt":"2026-03-01T11:00:00Z",
		"status":{"state":"active"},"matchers":[%s]}`, id, by, comment, matcher)
}

const nodeA = `{"name":"node","value":"a","isRegex":false,"isEqual":true}`

func source(t *testing.T, incidents *[]remedy.Incident, o Options) *Source {
	t.Helper()
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	return New(slog.New(slog.NewTextHandler(t.Output(), nil)), prometheus.NewPedanticRegistry(), &http.Client{Transport: tr},
		func() []remedy.Incident { return *incidents }, t0, o)
}

func fill(t *testing.T, s *Source, now time.Time) fleet.Alerting {
	t.Helper()
	f := fleet.NewFacts()
	if err := s.Fill(t.Context(), now, f); err != nil {
		t.Fatal(err)
	}
	return f.Alerts
}

func TestWhatAlertsCount(t *testing.T) {
	m := newMember(t)
	m.alerts = "[" + strings.Join([]string{
		alertJSON("Watchdog", "", "", t0.Add(-20*time.Second)),
		alertJSON("Hot", hot, "", t0),
		alertJSON("OursSilenced", `,"class":"node-unready","node":"a"`, `,"state":"suppressed","silencedBy":["ours"]`, t0),
		alertJSON("Silenced", `,"class":"gpu-hot","node":"b","gpu":"1"`, `,"state":"suppressed","silencedBy":["theirs"]`, t0),
		alertJSON("Inhibited", `,"class":"gpu-hot","node":"c","gpu":"1"`, `,"state":"suppressed","inhibitedBy":["x"]`, t0),
		strings.Replace(alertJSON("NotForUs", `,"class":"gpu-hot","node":"d","gpu":"1"`, "", t0), `"name":"stoker"`, `"name":"mail"`, 1),
	}, ",") + "]"
	m.silences = []string{
		silenceJSON("ours", "stoker", "incident x-1: Stoker is healing", nodeA),
		silenceJSON("theirs", "ann", "firmware", nodeA),
	}
	s := source(t, &[]remedy.Incident{}, Options{URLs: []string{m.url}, Receiver: "stoker", Watchdog: 5 * time.Minute})
	if err := s.Refresh(t.Context(), t0); err != nil {
		t.Fatal(err)
	}
	ev, err := s.Evidence(t.Context(), t0)
	if err != nil || len(ev) != 2 || ev[0].Subject.Node != "a" || ev[1].Class != remedy.ClassNodeUnready {
		t.Errorf("evidence %+v, %v; want that of Hot and OursSilenced", ev, err)
	}
	if again, _ := s.Evidence(t.Context(), t0); len(again) != 0 {
		t.Errorf("told again without having asked: %+v", again)
	}
	got := fill(t, s, t0)
	if !got.Wanted || !got.Told.Equal(t0) || len(got.Silences) != 1 || got.Silences[0].ID != "theirs" || got.Silences[0].By != "ann: firmware" {
		t.Errorf("alerting %+v, want the silence of ann alone", got)
	}
	if got.Path.Status != fleet.True || !got.Watchdog.Equal(t0.Add(-20*time.Second)) {
		t.Errorf("path %+v proved at %v, want it proved 20 s ago", got.Path, got.Watchdog)
	}
}

func TestThePath(t *testing.T) {
	m := newMember(t)
	s := source(t, &[]remedy.Incident{}, Options{URLs: []string{m.url}, Watchdog: 5 * time.Minute})
	want := func(what string, now time.Time, want fleet.Truth) {
		t.Helper()
		if got := fill(t, s, now).Path.Status; got != want {
			t.Errorf("%s: the path is %q, want %q", what, got, want)
		}
	}
	want("before anything was heard", t0, fleet.Unknown)
	want("when nothing was heard for long", t0.Add(6*time.Minute), fleet.False)
	if err := s.Refresh(t.Context(), t0); err != nil {
		t.Fatal(err)
	}
	want("when Alertmanager has no Watchdog", t0, fleet.False)
	s.Proved(t0)
	want("when it came by itself", t0.Add(5*time.Minute), fleet.True)
	want("when it is late", t0.Add(5*time.Minute+time.Second), fleet.False)
	m.set(func() { m.alerts = "[" + alertJSON("Watchdog", "", "", t0.Add(8*time.Minute)) + "]" })
	if err := s.Refresh(t.Context(), t0.Add(8*time.Minute)); err != nil {
		t.Fatal(err)
	}
	want("when Alertmanager has it again", t0.Add(8*time.Minute), fleet.True)

	none := source(t, &[]remedy.Incident{}, Options{})
	if got := fill(t, none, t0.Add(time.Hour)); got.Wanted || got.Path.Status != fleet.Unknown {
		t.Errorf("%+v where nothing is configured, want nothing awaited", got)
	}
}

func TestAStateIsOverWhenItsAlertIsGone(t *testing.T) {
	m := newMember(t)
	in := remedy.Incident{
		Name: "hot-a", Class: remedy.ClassGPUHot, Phase: remedy.PhaseActing, Subject: remedy.Subject{Kind: remedy.SubjectGPU, Node: "a", Index: "1", UUID: "GPU-1"},
		Evidence: []remedy.Evidence{{Class: remedy.ClassGPUHot, Source: "alertmanager", At: t0, Subject: remedy.Subject{Kind: remedy.SubjectGPU, Node: "a", UUID: "GPU-1"}}},
	}
	incidents := []remedy.Incident{in}
	s := source(t, &incidents, Options{URLs: []string{m.url}})
	now := t0
	list := func(alerts ...string) []remedy.Evidence {
		t.Helper()
		now = now.Add(time.Minute)
		m.set(func() { m.alerts = "[" + strings.Join(alerts, ",") + "]" })
		if err := s.Refresh(t.Context(), now); err != nil {
			t.Fatal(err)
		}
		ev, err := s.Evidence(t.Context(), now)
		if err != nil {
			t.Fatal(err)
		}
		return ev
	}
	dog := alertJSON("Watchdog", "", "", t0)
	over := func(ev []remedy.Evidence) bool {
		return len(ev) == 1 && ev[0].Resolved && ev[0].SameEvent(in.Evidence[0])
	}

	if ev := list(dog, alertJSON("Hot", hot, "", t0)); len(ev) != 1 || ev[0].Resolved {
		t.Errorf("%+v while it fires", ev)
	}
	if ev := list(); len(ev) != 0 {
		t.Errorf("%+v from a list without the Watchdog, which proves nothing", ev)
	}
	if ev := list(dog); len(ev) != 0 {
		t.Errorf("%+v from the first list without it", ev)
	}
	if ev := list(dog); !over(ev) {
		t.Errorf("%+v from the second list without it, want that it is over", ev)
	}
	incidents[0].Class = remedy.ClassGPULost
	if ev := list(dog); len(ev) != 0 {
		t.Errorf("%+v of an event, which is not over because its alert is", ev)
	}
}

func TestMembers(t *testing.T) {
	a, b := newMember(t), newMember(t)
	a.down = true
	b.silences = []string{silenceJSON("s", "ann", "x", nodeA)}
	s := source(t, &[]remedy.Incident{}, Options{URLs: []string{a.url, b.url}, Receiver: "stoker"})
	if err := s.Refresh(t.Context(), t0); err == nil || !strings.Contains(err.Error(), a.url) {
		t.Errorf("err = %v, want one that names the member that is down", err)
	}
	if got := fill(t, s, t0); len(got.Silences) != 1 || !got.Told.Equal(t0) {
		t.Errorf("%+v, want what the other member knows", got)
	}
	b.set(func() { b.down = true })
	_ = s.Refresh(t.Context(), t0.Add(time.Minute))
	if got := fill(t, s, t0.Add(time.Minute)); len(got.Silences) != 1 || !got.Told.Equal(t0) {
		t.Errorf("%+v, want the old answer with its age", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.Run(ctx, func() bool { return true }) // returns
}

func TestMutes(t *testing.T) {
	m := newMember(t)
	m.config = `
route:
  receiver: mail
  routes:
    - receiver: pager
      matchers: [severity="critical"]
      continue: true
      mute_time_intervals: [march]
    - receiver: stoker
      match_re: {class: gpu-.*}
      routes:
        - matchers: ['pool="dev"']
          mute_time_intervals: [march]
        - matchers: ['pool="late"']
          active_time_intervals: [april]
receivers: [{name: mail}, {name: pager}, {name: stoker}]
time_intervals:
  - {name: march, time_intervals: [{months: [march]}]}
  - {name: april, time_intervals: [{months: [april]}]}
`
	s := source(t, &[]remedy.Incident{}, Options{URLs: []string{m.url}, Receiver: "stoker"})
	if err := s.Refresh(t.Context(), t0); err != nil {
		t.Fatal(err)
	}
	muted := func(now time.Time, pool string) string {
		in := remedy.Incident{Class: remedy.ClassGPULost, Evidence: []remedy.Evidence{{Labels: map[string]string{"pool": pool, "severity": "critical"}}}}
		return in.Muted(fill(t, s, now))
	}
	for _, tc := range []struct {
		now  time.Time
		pool string
		want string
	}{
		{t0, "prod", ""},
		{t0, "dev", `it is within "march"`},
		{t0.AddDate(0, 1, 0), "dev", ""},
		{t0, "late", `it is outside of ["april"]`},
		{t0.AddDate(0, 1, 0), "late", ""},
	} {
		if got := muted(tc.now, tc.pool); got != tc.want {
			t.Errorf("pool %s in %s: muted %q, want %q", tc.pool, tc.now.Month(), got, tc.want)
		}
	}
	m.set(func() { m.config = "route: {matchers: ['a~~b']}" })
	if err := s.Refresh(t.Context(), t0); err == nil || !strings.Contains(err.Error(), "its configuration: route") {
		t.Errorf("err = %v for a configuration that cannot be read", err)
	}
}

func TestOwnSilences(t *testing.T) {
	m := newMember(t)
	held := remedy.StepRecord{Role: remedy.RoleHold, Ending: remedy.Done}
	at := func(name, node string, phase remedy.Phase, steps ...remedy.StepRecord) remedy.Incident {
		return remedy.Incident{Name: name, Class: remedy.ClassGPULost, Phase: phase, Steps: steps, Subject: remedy.Subject{Kind: remedy.SubjectNode, Node: node}}
	}
	incidents := []remedy.Incident{
		at("new", "a", remedy.PhaseActing, held),
		at("kept", "b", remedy.PhaseActing, held),
		at("renewed", "c", remedy.PhaseOpen, held),
		at("nothing-done", "d", remedy.PhaseActing),
		at("needs-a-person", "e", remedy.PhaseHeld, held),
		at("closed", "f", remedy.PhaseResolved, held),
	}
	long := func(s string) string { return strings.Replace(s, "T12:10:00Z", "T12:29:00Z", 1) }
	m.silences = []string{
		long(silenceJSON("k", "stoker", "incident kept: x", nodeA)),
		silenceJSON("r", "stoker", "incident renewed: x", nodeA),
		silenceJSON("twice", "stoker", "incident renewed: x", nodeA),
		silenceJSON("c", "stoker", "incident closed: x", nodeA),
		silenceJSON("p", "stoker", "incident needs-a-person: x", nodeA),
		silenceJSON("ann", "ann", "incident closed: not ours", nodeA),
	}
	s := source(t, &incidents, Options{URLs: []string{m.url}, Silence: true})
	if err := s.Keep(t.Context(), t0); err != nil || len(m.did) > 0 {
		t.Errorf("%v, %v before it is known what there is", m.did, err)
	}
	if err := s.Refresh(t.Context(), t0); err != nil {
		t.Fatal(err)
	}
	if err := s.Keep(t.Context(), t0); err != nil {
		t.Fatal(err)
	}
	var posts, deletes []string
	for _, d := range m.did {
		if strings.HasPrefix(d, "DELETE") {
			deletes = append(deletes, strings.TrimSpace(strings.TrimPrefix(d, "DELETE /api/v2/silence/")))
			continue
		}
		posts = append(posts, d)
	}
	if len(posts) != 2 || !strings.Contains(posts[0], `"comment":"incident new: Stoker is healing gpu-lost on a`) || !strings.Contains(posts[0], `"value":"a"`) ||
		!strings.Contains(posts[1], `"id":"r"`) || !strings.Contains(posts[1], `"endsAt":"2026-03-01T12:30:00.000Z"`) {
		t.Errorf("set: %s\nwant one for new and one that renews r", strings.Join(posts, "\n"))
	}
	if len(deletes) != 3 || !strings.Contains(fmt.Sprint(deletes), "twice") || !strings.Contains(fmt.Sprint(deletes), "c") || !strings.Contains(fmt.Sprint(deletes), "p") {
		t.Errorf("lifted: %v, want twice, c and p", deletes)
	}
}
