package server

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// lived is a world with something of everything: a held incident, one that waits for a
// gate, one that waits for a person, one that acts, one that is told only, a closed one.
func lived() *walker {
	at := func(m int) time.Time { return t0.Add(time.Duration(m) * time.Minute) }
	job := fleet.JobRef{Kind: "Job.batch", Namespace: "train", Name: "llm-2"}
	gpu := func(node string) remedy.Subject {
		return remedy.Subject{Kind: remedy.SubjectGPU, Node: node, UUID: "GPU-" + node, Index: "3"}
	}
	ladder := []remedy.Step{{Action: "cordon", Role: remedy.RoleHold}, {Action: "stop", Role: remedy.RoleStop}, {Action: "drain"}}
	step := func(rung int, action string, role remedy.Role, t remedy.Target, from, to int) remedy.StepRecord {
		s := remedy.StepRecord{
			Rung: rung, Action: action, Role: role, Reserved: at(from), Deadline: at(from + 10),
			Orders: []remedy.OrderRecord{{Order: remedy.Order{
				Key: fmt.Sprint(action, from), Incident: "acting", Action: action, Role: role, Target: t, Cause: "XID 79 on GPU 3", Actor: "stoker",
			}}},
			Gates: []remedy.GateResult{{Gate: "mode", Pass: true, Reason: "auto"}},
		}
		if to != 0 {
			s.Ended, s.Ending = at(to), remedy.Done
			s.Orders[0].Outcome = &remedy.Outcome{Ending: remedy.Done, Note: "it is so"}
		}
		return s
	}
	w := &walker{incidents: []remedy.Incident{
		{Name: "closed", Subject: gpu("n5"), Class: remedy.ClassGPULost, Phase: remedy.PhaseResolved, Opened: at(-300), Closed: at(-240), Reason: "healed", Ladder: ladder, Rung: 3},
		{Name: "told", Subject: remedy.Subject{Kind: remedy.SubjectNode, Node: "n4"}, Class: remedy.ClassTelemetryLost, Phase: remedy.PhaseOpen, Opened: at(-200)},
		{
			Name: "held", Subject: gpu("n3"), Class: remedy.ClassGPULost, Phase: remedy.PhaseHeld, Opened: at(-60), Ladder: ladder, Rung: 2, Reason: "drain is late",
			Steps: []remedy.StepRecord{step(0, "cordon", remedy.RoleHold, remedy.Target{Node: "n3"}, -60, -40)}, Losses: []remedy.Loss{{Job: job, GPUHours: 1.5, Cause: "unsaved work"}},
		},
		{Name: "gated", Subject: gpu("n2"), Class: remedy.ClassGPULost, Phase: remedy.PhaseOpen, Opened: at(-30), Ladder: ladder, Playbook: "gpu-lost", Waiting: []remedy.GateResult{{Gate: "budget fleet", Reason: "1 of 8 nodes is out, 1 may be"}}},
		{
			Name: "acting", Subject: gpu("n1"), Class: remedy.ClassGPULost, Phase: remedy.PhaseActing, Opened: at(-5), Ladder: ladder, Rung: 1, Playbook: "gpu-lost",
			Evidence:      []remedy.Evidence{{Subject: gpu("n1"), Class: remedy.ClassGPULost, At: at(-5), Seen: at(-5), Source: "rules", Summary: "<b>XID 79</b>\rdata: x"}},
			EvidenceCount: 1, Reason: "<script>alert(1)</script>\revent: evil",
			Steps: []remedy.StepRecord{step(0, "cordon", remedy.RoleHold, remedy.Target{Node: "n1"}, -5, -4), step(1, "stop", remedy.RoleStop, remedy.Target{Job: job}, -4, 0)},
		},
		{Name: "asks", Subject: gpu("n6"), Class: remedy.ClassGPULost, Phase: remedy.PhaseOpen, Opened: at(-4), Ladder: ladder, Waiting: []remedy.GateResult{{Gate: "mode", Reason: "cordon of n6 waits for a person\revent: evil"}}},
	}}
	w.fleet = fleet.Snapshot{
		At: t0.Add(-time.Second), Nodes: map[string]fleet.Node{}, Pods: map[string]fleet.Pod{},
		Jobs:    map[fleet.JobRef]fleet.Job{job: {Ref: job, Phase: fleet.JobRunning, Workers: 2, Each: fleet.Resources{GPUs: 8}}},
		Sources: map[string]time.Time{"kubernetes": t0.Add(-3 * time.Second), "telemetry": t0.Add(-8 * time.Second)},
	}
	for i := 1; i <= 8; i++ {
		name := fmt.Sprint("n", i)
		w.fleet.Nodes[name] = fleet.Node{Name: name, Ready: fleet.Condition{Status: fleet.True}, Unschedulable: i == 3, Capacity: fleet.Resources{GPUs: 8}, Telemetry: fleet.Condition{Status: fleet.True}}
	}
	for i := 1; i <= 2; i++ { // the job is on n1 and n2
		uid := fmt.Sprint("p", i)
		w.fleet.Pods[uid] = fleet.Pod{PodRef: fleet.PodRef{UID: uid, Node: fmt.Sprint("n", i)}, Job: job, GPUs: 8}
	}
	return w
}

func approving(time.Time) State {
	return State{Mode: "approve", Identity: "stoker-1", Leader: "stoker-0", Watchdog: Watchdog{Wanted: true, Seen: t0.Add(-18 * time.Second)}}
}

func get(t *testing.T, h http.Handler, path string) *httptest.ResponseRecorder {
	t.Helper()
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, nil))
	return rec
}

// inOrder fails unless the parts are in the text, one after the other.
func inOrder(t *testing.T, text string, parts ...string) {
	t.Helper()
	rest := text
	for _, p := range parts {
		i := strings.Index(rest, p)
		if i < 0 {
			t.Fatalf("%q is not in the text after what comes before it:\n%s", p, text)
		}
		rest = rest[i+len(p):]
	}
}

func TestTheFirstPageAnswersInOrder(t *testing.T) {
	h, _ := handler(t, lived(), Options{State: approving})
	rec := get(t, h, "/")
	if rec.Code != 200 || rec.Header().Get("Content-Type") != "text/html; charset=utf-8" {
		t.Fatalf("answer %d %v", rec.Code, rec.Header())
	}
	inOrder(
		t, plain(rec.Body.String()),
		"2 wait for you – Stoker", "Mode approve", "led by stoker-0; this is stoker-1", "kubernetes 3 s old", "telemetry 8 s old", "Watchdog 18 s ago",
		"2 wait for a person, the oldest for 40 min", "5 incidents open, 40 GPUs hit now", "7 of 8 nodes take work", "1.5 GPU-h lost to incidents of the last 24 h",
		"What waits", "! a person for 40 min", "n3/gpu-3", "drain is late", "! a person for 4 min", "n6/gpu-3 · gpu-lost at cordon 1 of 3", "‖ gate budget fleet for 30 min", "1 of 8 nodes is out", "16 GPUs hit · train/llm-2",
		"What is broken", "n3/gpu-3", "! held", "n6/gpu-3", "n4", "told only: no playbook", "n2/gpu-3", "n1/gpu-3", "16 GPUs, 1 job", "5 min", "acting", "stop 2 of 3", "in 6 min",
		"Last actions", "11:56:00 stop train/llm-2 ▶ runs", "XID 79 on GPU 3 · by stoker", "11:56:00 cordon n1 ✓ done", "it is so", "11:20:00 cordon n3",
	)
	if strings.Contains(rec.Body.String(), "<script>alert") || strings.Contains(rec.Body.String(), "<b>XID") {
		t.Error("what others write reaches the page as markup")
	}
}

var tags = regexp.MustCompile(`<[^>]*>`)

// plain is the text of a page, with single spaces.
func plain(page string) string {
	return strings.Join(strings.Fields(html.UnescapeString(tags.ReplaceAllString(page, ""))), " ")
}

func TestThePageSaysWhenItCannotBeBelieved(t *testing.T) {
	for name, tc := range map[string]struct {
		state  func(State) State
		fleet  func(*fleet.Snapshot)
		bad    bool
		healed string // in the page
	}{
		"all is well":                          {bad: false, healed: "Watchdog 18 s ago"},
		"a Watchdog that is late":              {state: func(s State) State { s.Watchdog.Late, s.Watchdog.Why = true, "none for 9 min"; return s }, bad: true, healed: "the Watchdog alert is late: none for 9 min"},
		"no Watchdog is told, not red":         {state: func(s State) State { s.Watchdog = Watchdog{}; return s }, healed: "no Watchdog is set up"},
		"a Watchdog that has yet to come":      {state: func(s State) State { s.Watchdog.Seen = time.Time{}; return s }, healed: "Watchdog not seen yet"},
		"nobody leads":                         {state: func(s State) State { s.Leader = ""; return s }, bad: true, healed: "no replica leads"},
		"nothing is observed":                  {fleet: func(f *fleet.Snapshot) { *f = fleet.Snapshot{} }, bad: true, healed: "has not been observed yet"},
		"telemetry is late":                    {fleet: func(f *fleet.Snapshot) { f.Sources["telemetry"] = t0.Add(-61 * time.Second) }, bad: true, healed: "⚠ telemetry 1 min old, late"},
		"the loop stands":                      {fleet: func(f *fleet.Snapshot) { f.At = t0.Add(-2 * time.Minute) }, bad: true, healed: "last observed more than 1 min ago"},
		"a node without telemetry is told":     {fleet: func(f *fleet.Snapshot) { lose(f, "n4") }, healed: "0 held by Stoker, ⚠ 1 without telemetry"},
		"the telemetry of half of them":        {fleet: func(f *fleet.Snapshot) { lose(f, "n1", "n2", "n3", "n4") }, bad: true, healed: "the telemetry of 4 of 8 nodes is lost"},
		"a dry run is striped and not red":     {state: func(s State) State { s.Mode = "dry-run"; return s }, healed: "Dry run: nothing is done"},
		"a dry run says that nothing is asked": {state: func(s State) State { s.Mode = "dry-run"; return s }, healed: "◌ would have"},
	} {
		t.Run(name, func(t *testing.T) {
			w, st := lived(), approving(t0)
			if tc.fleet != nil {
				tc.fleet(&w.fleet)
			}
			if tc.state != nil {
				st = tc.state(st)
			}
			h, _ := handler(t, w, Options{State: func(time.Time) State { return st }})
			body := get(t, h, "/").Body.String()
			if got := strings.Contains(body, `class="banner bad`); got != tc.bad {
				t.Errorf("red %v, want %v", got, tc.bad)
			}
			if got, want := strings.Contains(body, ` dry"`), st.Mode == "dry-run"; got != want {
				t.Errorf("striped %v, want %v", got, want)
			}
			if !strings.Contains(plain(body), tc.healed) {
				t.Errorf("%q is not on the page:\n%s", tc.healed, plain(body))
			}
			var status Status
			if err := json.Unmarshal(get(t, h, "/api/v1/status").Body.Bytes(), &status); err != nil {
				t.Fatal(err)
			}
			if got := len(status.Trouble) > 0; got != tc.bad || status.Healthy {
				t.Errorf("status tells of trouble %v, healthy %v; want trouble %v, and not healthy since a person is waited for", status.Trouble, status.Healthy, tc.bad)
			}
		})
	}
}

func lose(f *fleet.Snapshot, nodes ...string) {
	for _, name := range nodes {
		n := f.Nodes[name]
		n.Telemetry.Status = fleet.False
		f.Nodes[name] = n
	}
}

func TestAnEmptyWorldIsSaidAndNotLeftBlank(t *testing.T) {
	h, _ := handler(t, &walker{fleet: fleet.Snapshot{At: t0, Sources: map[string]time.Time{"kubernetes": t0}}}, Options{State: approving})
	inOrder(t, plain(get(t, h, "/").Body.String()), "0 wait for a person", "0 incidents open", "Nothing waits for a person.", "No incident is open.", "None yet.")
	var status Status
	if err := json.Unmarshal(get(t, h, "/api/v1/status").Body.Bytes(), &status); err != nil || !status.Healthy || status.Waiting == nil || status.Trouble == nil {
		t.Errorf("status %+v, %v; want healthy, with empty lists", status, err)
	}
}

func TestStatusCountsAndOrdersWhatWaits(t *testing.T) {
	h, _ := handler(t, lived(), Options{State: approving})
	var got Status
	if err := json.Unmarshal(get(t, h, "/api/v1/status").Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	var waits []string
	for _, w := range got.Waiting {
		waits = append(waits, fmt.Sprint(w.Incident, " ", w.For, " ", w.GPUs, " ", t0.Sub(w.Since)))
	}
	if want := []string{"held person 8 40m0s", "asks person 8 4m0s", "gated gate 16 30m0s"}; !reflect.DeepEqual(waits, want) {
		t.Errorf("waits %q, want %q", waits, want)
	}
	if want := map[remedy.Phase]int{"open": 3, "acting": 1, "held": 1, "resolved": 1}; !reflect.DeepEqual(got.Incidents, want) {
		t.Errorf("incidents %v, want %v", got.Incidents, want)
	}
	// n1 and n2 share a job: its GPUs are counted once.
	if got.GPUsHit != 40 {
		t.Errorf("%d GPUs are hit, want 40: those of n1, n2, n3, n4 and n6", got.GPUsHit)
	}
	if got.Fleet != (FleetCount{Nodes: 8, Available: 7, GPUs: 64}) {
		t.Errorf("fleet %+v", got.Fleet)
	}
}

func TestAnIncidentIsToldWhole(t *testing.T) {
	h, _ := handler(t, lived(), Options{State: approving})
	inOrder(
		t, plain(get(t, h, "/incidents/acting").Body.String()),
		"n1/gpu-3 · gpu-lost", "acting since 11:55:00 UTC (5 min)", "The GPU no longer answers on the bus.", "16 GPUs, train/llm-2", "gpu-lost", "nothing so far",
		"Evidence", "11:55:00", "told by rules", "cordon 1 of 3", "done", "1 min", "gate mode: auto", "stop 2 of 3", "runs", "must end in 6 min", "drain 3 of 3", "to come",
		"stoker explain incident/acting", "acting: gpu-lost on n1/gpu-3",
	)
	inOrder(t, plain(get(t, h, "/incidents/held").Body.String()), "1.5 GPU-h of train/llm-2: unsaved work")
	inOrder(t, plain(get(t, h, "/incidents").Body.String()), "Open: 5", "n3/gpu-3", "Closed, newest first", "n5/gpu-3", "07:00:00", "healed")
	inOrder(t, plain(get(t, h, "/incidents?class=telemetry-lost").Body.String()), "of class telemetry-lost", "Open: 1", "None is kept")
	if rec := get(t, h, "/incidents/nope"); rec.Code != 404 || !strings.Contains(plain(rec.Body.String()), `There is no incident "nope"`) {
		t.Errorf("an incident that is not there: %d %s", rec.Code, rec.Body)
	}
	if rec := get(t, h, "/jobs/train/nope"); rec.Code != 404 {
		t.Errorf("a job that is not there: %d", rec.Code)
	}
}

func TestManyIncidentsAreGroupedWorstFirst(t *testing.T) {
	h, _ := handler(t, crowd(1000, 200), Options{State: approving})
	body := get(t, h, "/").Body.String()
	if len(body) > 500_000 {
		t.Errorf("the page has %d bytes, want under 500 kB", len(body))
	}
	inOrder(t, plain(body), "200 incidents open", "gpu-ecc · 100 incidents", "these are the worst 20", "gpu-lost · 100 incidents")
	if n := strings.Count(body, "<tr>"); n > 2*maxRows {
		t.Errorf("%d rows, want a bound", n)
	}
}

// crowd is a fleet with many open incidents of two classes.
func crowd(nodes, open int) *walker {
	w := &walker{fleet: fleet.Snapshot{At: t0, Nodes: map[string]fleet.Node{}, Pods: map[string]fleet.Pod{}, Jobs: map[fleet.JobRef]fleet.Job{}, Sources: map[string]time.Time{"kubernetes": t0}}}
	for i := range nodes {
		name := fmt.Sprintf("gpu-%04d", i)
		w.fleet.Nodes[name] = fleet.Node{Name: name, Ready: fleet.Condition{Status: fleet.True}, Capacity: fleet.Resources{GPUs: 8}}
		for g := range 8 {
			uid := fmt.Sprint(name, "-", g)
			w.fleet.Pods[uid] = fleet.Pod{PodRef: fleet.PodRef{UID: uid, Node: name}, Job: fleet.JobRef{Namespace: "train", Name: fmt.Sprint("job-", i/4)}, GPUs: 1}
		}
	}
	for i := range open {
		class := []remedy.Class{remedy.ClassGPULost, remedy.ClassGPUECC}[i%2]
		in := lived().incidents[4]
		in.Name, in.Class, in.Opened = fmt.Sprint("incident-", i), class, t0.Add(-time.Duration(i+1)*time.Minute)
		in.Subject.Node = fmt.Sprintf("gpu-%04d", i*nodes/open)
		w.incidents = append(w.incidents, in)
	}
	return w
}

func BenchmarkFirstPage(b *testing.B) {
	w := crowd(1000, 200)
	c := console{pages: parsePages(), server: &server{loop: w, now: func() time.Time { return t0 }, opts: Options{State: approving}}}
	var f *front
	for b.Loop() {
		var err error
		if f, err = c.makeFirst(t0); err != nil {
			b.Fatal(err)
		}
	}
	size := 0
	for _, part := range f.sections {
		size += len(part.html)
	}
	b.ReportMetric(float64(size), "bytes/page")
}

var (
	links = regexp.MustCompile(`(?:href|src|data-events)="([^"]*)"`)
	asset = regexp.MustCompile(`^(https?:)?//`)
)

// TestEveryPageOnlyReads follows every link from the first page, under a path of a proxy:
// all are relative, all are there, nothing changes, and no page takes a POST.
func TestEveryPageOnlyReads(t *testing.T) {
	w := lived()
	before, err := json.Marshal(w.incidents)
	if err != nil {
		t.Fatal(err)
	}
	inner, _ := handler(t, w, Options{State: approving})
	srv := httptest.NewServer(http.StripPrefix("/stoker", inner))
	defer srv.Close()
	defer inner.(interface{ Stop() }).Stop()
	seen, queue := map[string]bool{}, []string{srv.URL + "/stoker/"}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		if seen[at] {
			continue
		}
		seen[at] = true
		resp, err := http.Get(at)
		if err != nil {
			t.Fatal(err)
		}
		var body strings.Builder
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			fmt.Fprintln(&body, lines.Text())
			if strings.HasPrefix(lines.Text(), "event: now") {
				break // a stream does not end
			}
		}
		resp.Body.Close()
		if resp.StatusCode != 200 {
			t.Errorf("%s: %s", at, resp.Status)
		}
		for header, want := range map[string]string{"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"} {
			if got := resp.Header.Get(header); got != want {
				t.Errorf("%s: %s is %q, want %q", at, header, got, want)
			}
		}
		if csp := resp.Header.Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") || !strings.Contains(csp, "frame-ancestors 'none'") || strings.Contains(csp, "unsafe") {
			t.Errorf("%s: policy %q", at, csp)
		}
		if post, err := http.Post(at, "text/plain", strings.NewReader("x")); err != nil || post.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("POST %s: %v %v, want 405", at, post, err)
		} else {
			post.Body.Close()
		}
		if !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html") {
			continue
		}
		if strings.Contains(body.String(), " style=") || strings.Contains(body.String(), "<style") {
			t.Errorf("%s has style in the page, which its policy forbids", at)
		}
		for _, m := range links.FindAllStringSubmatch(body.String(), -1) {
			to := strings.ReplaceAll(m[1], "&amp;", "&")
			if strings.HasPrefix(to, "data:") {
				continue
			}
			if strings.HasPrefix(to, "/") || asset.MatchString(to) {
				t.Errorf("%s links to %s, which is not relative", at, to)
				continue
			}
			u, err := resp.Request.URL.Parse(to)
			if err != nil || !strings.HasPrefix(u.Path, "/stoker/") {
				t.Errorf("%s links to %s, which leads to %v, %v", at, to, u, err)
				continue
			}
			queue = append(queue, u.String())
		}
	}
	if len(seen) < 15 {
		t.Errorf("only %d addresses were found: %v", len(seen), seen)
	}
	after, err := json.Marshal(w.incidents)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(before, after) || len(w.got) > 0 {
		t.Error("reading has changed something")
	}
}

func TestATokenIsAPasswordForReadingAlone(t *testing.T) {
	for name, tc := range map[string]struct {
		method, path string
		auth         func(*http.Request)
		html         bool
		want         int
		challenge    string
	}{
		"a browser is asked for a password":   {"GET", "/", nil, true, 401, `Basic realm="stoker", charset="UTF-8"`},
		"a program is told of tokens":         {"GET", "/api/v1/status", nil, false, 401, `Bearer realm="stoker"`},
		"the password opens pages":            {"GET", "/", basic("s3cret"), true, 200, ""},
		"the password opens the API":          {"GET", "/api/v1/incidents", basic("s3cret"), false, 200, ""},
		"and what is asked by HEAD":           {"HEAD", "/", basic("s3cret"), true, 200, ""},
		"the token still does":                {"GET", "/incidents", func(r *http.Request) { r.Header.Set("Authorization", "Bearer s3cret") }, true, 200, ""},
		"a wrong password does not":           {"GET", "/", basic("s3cre"), true, 401, "Basic"},
		"an empty password does not":          {"GET", "/events", basic(""), false, 401, "Bearer"},
		"styles are not for everybody either": {"GET", "/assets/console.css", nil, false, 401, "Bearer"},
		"a password sends no alerts":          {"POST", "/webhook/alertmanager", basic("s3cret"), false, 401, "Bearer"},
	} {
		t.Run(name, func(t *testing.T) {
			h, _ := handler(t, lived(), Options{State: approving, TokenFile: tokenFile(t)})
			req := httptest.NewRequest(tc.method, tc.path, strings.NewReader(payload))
			if tc.auth != nil {
				tc.auth(req)
			}
			if tc.html {
				req.Header.Set("Accept", "text/html,application/xhtml+xml,*/*;q=0.8")
			}
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, req)
			if rec.Code != tc.want || !strings.HasPrefix(rec.Header().Get("WWW-Authenticate"), tc.challenge) {
				t.Errorf("answer %d, challenge %q; want %d, %q", rec.Code, rec.Header().Get("WWW-Authenticate"), tc.want, tc.challenge)
			}
		})
	}
}

func basic(password string) func(*http.Request) {
	return func(r *http.Request) { r.SetBasicAuth("anybody", password) }
}

func TestMomentsAreWrittenWhenTheyAreRead(t *testing.T) {
	for name, tc := range map[string]struct {
		class string
		t     time.Time
		want  string
	}{
		"seconds":               {"age", t0.Add(-12 * time.Second), "12 s"},
		"minutes":               {"age", t0.Add(-61 * time.Second), "1 min"},
		"hours":                 {"age", t0.Add(-3*time.Hour - 20*time.Minute), "3 h 20 min"},
		"full hours":            {"age", t0.Add(-3 * time.Hour), "3 h"},
		"days":                  {"age", t0.Add(-50 * time.Hour), "2 d 2 h"},
		"a clock that is ahead": {"age", t0.Add(time.Minute), "0 s"},
		"time that is left":     {"left", t0.Add(9 * time.Minute), "in 9 min"},
		"time that is over":     {"left", t0.Add(-9 * time.Minute), "9 min over"},
		"today":                 {"at", t0.Add(-time.Hour), "11:00:00"},
		"another day":           {"at", t0.Add(-13 * time.Hour), "02-28 23:00:00"},
	} {
		page := "<p>" + string(moment(tc.class, tc.t)) + "</p>"
		if got := plain(string(fill([]byte(page), t0))); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
	for _, odd := range []string{`<time class="`, `<time class="age" datetime="x"></time>`, `a<time class="age" datetime="2026`} {
		if got := string(fill([]byte(odd), t0)); !strings.HasPrefix(got, odd[:min(len(odd), 13)]) {
			t.Errorf("%q became %q", odd, got)
		}
	}
}
