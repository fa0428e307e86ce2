package server

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// TestEachGPUIsShownAsWhatIsKnownOfIt holds what one node's marks are, by what cluster,
// telemetry and incidents tell: what they do not tell is not made up.
func TestEachGPUIsShownAsWhatIsKnownOfIt(t *testing.T) {
	pod := func(name string, gpus int) fleet.Pod {
		return fleet.Pod{PodRef: fleet.PodRef{Namespace: "ns", Name: name, UID: name, Node: "n"}, Job: fleet.JobRef{Namespace: "ns", Name: name}, GPUs: gpus}
	}
	half := func(name string) fleet.Pod {
		p := pod(name, 1)
		p.Share = 500
		return p
	}
	told := func(n *fleet.Node, use fleet.Usage, holders ...string) {
		for i := range 4 {
			g := fleet.GPU{Index: i, UUID: fmt.Sprint("GPU-", i), Up: fleet.True}
			if i < len(holders) && holders[i] != "" {
				for h := range strings.FieldsSeq(holders[i]) {
					g.Pods = append(g.Pods, fleet.PodName{Namespace: "ns", Name: h})
				}
				g.Usage = use
			}
			n.GPUs = append(n.GPUs, g)
		}
	}
	busy := fleet.Usage{Mean: 0.8, Over: 3 * time.Minute, At: t0}
	idle := fleet.Usage{Mean: 0.01, Over: 10 * time.Minute, At: t0}
	gpuLost := remedy.Incident{Name: "i", Class: remedy.ClassGPULost, Subject: remedy.Subject{Kind: remedy.SubjectGPU, Node: "n", UUID: "GPU-2", Index: "2"}}
	for name, tc := range map[string]struct {
		node func(*fleet.Node)
		pods []fleet.Pod
		open []remedy.Incident
		want string // a mark for each GPU
		text string // of the runs
	}{
		"without telemetry the cluster's word counts": {pods: []fleet.Pod{pod("a", 3)}, want: "hhh○", text: "3 GPUs held, which of them is not known: ns/a; 1 GPU free, which of them is not known"},
		"all of a node's GPUs are no guess":           {pods: []fleet.Pod{pod("a", 4)}, want: "hhhh", text: "GPUs 0–3 held: ns/a"},
		"nothing on it":                               {want: "○○○○", text: "GPUs 0–3 free"},
		"telemetry says which, and how much":          {node: func(n *fleet.Node) { told(n, busy, "", "a", "a") }, pods: []fleet.Pod{pod("a", 2)}, want: "○●●○"},
		"two share one":                               {node: func(n *fleet.Node) { told(n, busy, "a b") }, pods: []fleet.Pod{pod("a", 0), pod("b", 0)}, want: "●○○○", text: "GPU 0 busy: ns/a, ns/b; GPUs 1–3 free"},
		"shares of GPUs are not whole ones": {node: func(n *fleet.Node) {
			n.Labels, n.Capacity.GPUs, n.Allocatable.GPUs = map[string]string{replicasLabel: "4"}, 16, 16
			told(n, busy, "a")
		}, pods: []fleet.Pod{pod("a", 1), pod("b", 2)}, want: "●h○○"},
		"parts of a GPU are guessed together": {pods: []fleet.Pod{half("a"), half("b"), half("c")}, want: "hh○○", text: "1 GPU held, which of them is not known: ns/a, ns/b; 1 GPU held, which of them is not known: ns/c; 2 GPUs free, which of them is not known"},
		"idle takes ten minutes":              {node: func(n *fleet.Node) { told(n, idle, "a") }, pods: []fleet.Pod{pod("a", 1)}, want: "z○○○"},
		"a young one is not idle":             {node: func(n *fleet.Node) { told(n, fleet.Usage{Mean: 0, Over: 9 * time.Minute, At: t0}, "a") }, pods: []fleet.Pod{pod("a", 1)}, want: "●○○○"},
		"an old usage is not known":           {node: func(n *fleet.Node) { told(n, fleet.Usage{Mean: 0, Over: time.Hour, At: t0.Add(-4 * time.Minute)}, "a") }, pods: []fleet.Pod{pod("a", 1)}, want: "h○○○"},
		"a holder that has ended holds none":  {node: func(n *fleet.Node) { told(n, busy, "gone") }, want: "○○○○"},
		"the driver has lost one":             {node: func(n *fleet.Node) { told(n, busy); n.GPUs[1].Up = fleet.False }, want: "○✗○○"},
		"one of which nothing is heard":       {node: func(n *fleet.Node) { told(n, busy); n.GPUs[1].Up = fleet.Unknown }, want: "○?○○"},
		"telemetry tells of fewer":            {node: func(n *fleet.Node) { told(n, busy); n.GPUs = n.GPUs[:3] }, want: "○○○?"},
		"an incident names one":               {node: func(n *fleet.Node) { told(n, busy) }, open: []remedy.Incident{gpuLost}, want: "○○✗○"},
		"an incident without telemetry":       {open: []remedy.Incident{gpuLost}, want: "○○✗○"},
		"a program's fault is not the GPU's":  {node: func(n *fleet.Node) { told(n, busy) }, open: []remedy.Incident{{Class: remedy.ClassGPUApp, Subject: gpuLost.Subject}}, want: "○○○○"},
		"telemetry has stopped":               {node: func(n *fleet.Node) { told(n, busy, "a"); n.Telemetry.Status = fleet.False }, pods: []fleet.Pod{pod("a", 1)}, want: "????"},
		"the cluster does not hear of it":     {node: func(n *fleet.Node) { n.Ready.Status = fleet.Unknown }, want: "????"},
		"cordoned, and one still works there": {node: func(n *fleet.Node) { told(n, busy, "a"); n.Unschedulable = true }, pods: []fleet.Pod{pod("a", 1)}, want: "●–––"},
		"it boots":                            {node: func(n *fleet.Node) { n.Ready.Status = fleet.False }, want: "––––"},
		"its plugin has yet to offer them":    {node: func(n *fleet.Node) { n.Allocatable.GPUs = 0 }, want: "––––"},
	} {
		t.Run(name, func(t *testing.T) {
			n := fleet.Node{
				Name: "n", Capacity: fleet.Resources{GPUs: 4}, Allocatable: fleet.Resources{GPUs: 4},
				Ready: fleet.Condition{Status: fleet.True},
			}
			if tc.node != nil {
				tc.node(&n)
			}
			var got, text string
			for i, r := range runs(fleet.Snapshot{}, cellsOf(t0, n, tc.pods, tc.open)) {
				got += strings.Repeat(r.Mark, r.To-r.From+1)
				if i > 0 {
					text += "; "
				}
				text += r.GPUs() + " " + r.Word
				if r.Guessed {
					text += ", which of them is not known"
				}
				for k, j := range r.Jobs {
					text += []string{": ", ", "}[min(k, 1)] + j.Name
				}
			}
			if got != tc.want {
				t.Errorf("marks %s, want %s (%s)", got, tc.want, text)
			}
			if tc.text != "" && text != tc.text {
				t.Errorf("text %q, want %q", text, tc.text)
			}
		})
	}
}

// TestTheGridCountsEveryGPUOnce holds on a made-up fleet that what the legend counts is
// what is shown, and that each node links to what is open about it.
func TestTheGridCountsEveryGPUOnce(t *testing.T) {
	w := lived()
	for name, n := range w.fleet.Nodes {
		n.Allocatable = n.Capacity
		if name == "n8" {
			n.Pool, n.Labels = "h100", map[string]string{zoneLabel: "eu-a"}
		}
		w.fleet.Nodes[name] = n
	}
	j := w.fleet.Pods["p1"].Job
	of := w.fleet.Jobs[j]
	of.Team = "<i>nlp</i>"
	w.fleet.Jobs[j] = of
	g := gridOf(t0, w.fleet, w.incidents)
	sum := 0
	for _, c := range g.Counts {
		sum += c.N
	}
	if g.GPUs != 64 || sum != 64 || g.Nodes != 8 {
		t.Errorf("%d GPUs on %d nodes, and the uses add up to %d; want 64, 8, 64", g.GPUs, g.Nodes, sum)
	}
	h, _ := handler(t, w, Options{State: approving})
	body := get(t, h, "/nodes").Body.String()
	inOrder(
		t, plain(body), "Fleet – Stoker", "Mode approve", "All of 64 GPUs on 8 nodes", "✗ 4 faulty", "– 7 out of service", "h 14 held", "○ 39 free",
		"pool h100, zone eu-a 1 node", "n8", "pool not known 7 nodes", "n1", "hhh✗hhhh", "GPU 3 faulty (gpu-lost): train/llm-2, team <i>nlp</i>", "⚠ gpu-lost, acting", "n3cordoned, not by Stoker",
	)
	if !strings.Contains(body, `<a href="incidents/acting">gpu-lost, acting</a>`) || strings.Contains(body, "<i>nlp") {
		t.Error("a node does not link to its incident, or what others write reaches the page as markup")
	}
}

// TestTheGridOfAThousandNodes holds its size, and that little is sent when little changes.
func TestTheGridOfAThousandNodes(t *testing.T) {
	w := &changing{walker: crowd(1000, 200)}
	for name, n := range w.fleet.Nodes {
		n.Allocatable = n.Capacity
		w.fleet.Nodes[name] = n
	}
	w.set(w.incidents)
	s := quick(t, w)
	start := time.Now()
	rec := get(t, s, "/nodes")
	t.Logf("%d bytes in %v", rec.Body.Len(), time.Since(start))
	if rec.Code != http.StatusOK || rec.Body.Len() > 500_000 {
		t.Errorf("answer %d of %d bytes, want 200 and under 500 kB", rec.Code, rec.Body.Len())
	}
	if n := strings.Count(rec.Body.String(), "<i class="); n != 8000+int(uses) {
		t.Errorf("%d marks, want one for each of 8,000 GPUs and one for each of the %d uses", n, uses)
	}
	srv := httptest.NewServer(s)
	defer srv.Close()
	defer s.Stop()
	_, events, _ := strings.Cut(rec.Body.String(), `data-events="`)
	events, _, _ = strings.Cut(events, `"`)
	f := follow(t, srv.URL+"/"+events, "")
	if got, _ := f.beat(); len(got) != 0 {
		t.Errorf("nothing has changed since the page was loaded, and %d sections came", len(got))
	}
	w.set(w.incidents[1:])
	got := map[string]string{}
	for range 100 {
		if got, _ = f.beat(); len(got) > 0 {
			break
		}
	}
	size := 0
	for _, data := range got {
		size += len(data)
	}
	if len(got) != 3 || size > 30_000 {
		t.Errorf("an incident has ended, and %d sections of %d bytes came; want banner, legend and one part", len(got), size)
	}
	_ = f.body()
}

// TestAFleetThatGrowsIsFollowed holds that a page learns of parts that it does not have.
func TestAFleetThatGrowsIsFollowed(t *testing.T) {
	small := get(t, quick(t, crowd(partNodes, 0)), "/nodes").Body.String()
	_, have, _ := strings.Cut(small, `data-events="events/nodes?have=`)
	have, _, _ = strings.Cut(have, `"`)
	s := quick(t, crowd(2*partNodes+1, 0))
	srv := httptest.NewServer(s)
	defer srv.Close()
	defer s.Stop()
	f := follow(t, srv.URL+"/events/nodes", have)
	if !f.lines.Scan() || f.lines.Text() != "event: parts" || !f.lines.Scan() || f.lines.Text() != "data: 3" {
		t.Errorf("first comes %q, want that there are three parts", f.lines.Text())
	}
	_ = f.body()
}

func BenchmarkGrid(b *testing.B) {
	c := console{pages: parsePages(), server: &server{loop: crowd(1000, 200), opts: Options{State: approving}}}
	for b.Loop() {
		if _, err := c.makeFleet(t0); err != nil {
			b.Fatal(err)
		}
	}
}
