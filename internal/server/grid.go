package server

import (
	"cmp"
	"fmt"
	"html/template"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// A use is what is known of one GPU now.
type use int

// The uses, in the order in which they are told.
const (
	useFaulty use = iota
	useOut
	useIdle
	useUnknown
	useHeld
	useBusy
	useFree
	uses
)

// What is used under idleUnder over idleFor is idle, as the planner has it; a usage that is
// older than usageFresh is not known.
const (
	idleUnder  = 0.05
	idleFor    = 10 * time.Minute
	usageFresh = 3 * time.Minute
)

// A sign is how a use is shown. Its mark and its word say the same as its colour.
type sign struct {
	Class, Mark, Word, Doc string
}

var signs = [uses]sign{
	useFaulty:  {"f", "✗", "faulty", "the driver has lost it, or an open incident is about it"},
	useOut:     {"o", "–", "out of service", "held by nobody, and its node takes no work: cordoned, under repair, or not ready"},
	useIdle:    {"i", "z", "idle but held", "used under 5 % for 10 minutes by the job that has it"},
	useUnknown: {"u", "?", "unknown", "nothing is heard of it"},
	useHeld:    {"h", "h", "held", "a job has it; how much it uses it is not known"},
	useBusy:    {"b", "●", "busy", "a job has it and uses it"},
	useFree:    {"e", "○", "free", "takes work"},
}

// A cell is one GPU.
type cell struct {
	use     use
	holders []fleet.Pod
	// guessed says that which of the node's GPUs its holder has is not known.
	guessed  bool
	incident string // about the GPU itself; empty: none
	class    remedy.Class
}

// A run is GPUs of one node, one after the other, of which the same is known.
type run struct {
	sign

	From, To int // numbers of the first and the last
	Guessed  bool
	Jobs     []gridJob
	Others   int // holders that are no job's
	Incident string
	Symptom  remedy.Class
}

// Cells is one mark for each GPU.
func (r run) Cells() template.HTML {
	return template.HTML(strings.Repeat(`<i class=`+r.Class+`>`+r.Mark+`</i>`, r.To-r.From+1)) // of the table of signs alone
}

// GPUs is which GPUs it is about.
func (r run) GPUs() string {
	switch n := r.To - r.From + 1; {
	case r.Guessed:
		return plural(n, "GPU")
	case n == 1:
		return fmt.Sprintf("GPU %d", r.From)
	}
	return fmt.Sprintf("GPUs %d–%d", r.From, r.To)
}

// A gridJob is a job that has GPUs, and whose it is.
type gridJob struct{ Name, Whose string }

// A gridNode is one node of the grid.
type gridNode struct {
	Name  string
	Notes []string // what holds for the whole node
	Runs  []run
	Open  []remedy.Incident // about the node
	Shown string            // the classes of its cells, for the style
}

// A gridGroup is nodes of one pool and zone, or a part of them.
type gridGroup struct {
	ID    string
	Head  string // where its nodes are
	All   int    // nodes that are there
	From  int    // the number of its first among them, from 1
	Nodes []gridNode
}

// First reports whether it is the first part of its pool and zone.
func (g gridGroup) First() bool { return g.From == 1 }

// A grid is the whole fleet.
type grid struct {
	Groups []gridGroup
	Counts []gridCount
	Nodes  int
	GPUs   int
}

// A gridCount is how many GPUs are in one use.
type gridCount struct {
	sign

	N int
}

// partNodes is how many nodes are sent again when something about one of them changes.
const partNodes = 32

// gridOf puts together what is known of every GPU at now. It is pure.
func gridOf(now time.Time, f fleet.Snapshot, incidents []remedy.Incident) grid {
	open, byName := map[string][]remedy.Incident{}, map[string]remedy.Incident{}
	for _, in := range incidents {
		if in.Phase.Closed() {
			continue
		}
		byName[in.Name] = in
		if in.Subject.Node != "" {
			open[in.Subject.Node] = append(open[in.Subject.Node], in)
		}
	}
	pods := map[string][]fleet.Pod{}
	for _, p := range f.Pods {
		if p.Node != "" && (p.GPUs > 0 || p.Job != (fleet.JobRef{})) {
			pods[p.Node] = append(pods[p.Node], p)
		}
	}
	groups := map[string][]fleet.Node{}
	for _, n := range f.Nodes {
		head := home(n)
		groups[head] = append(groups[head], n)
	}
	g := grid{Nodes: len(f.Nodes)}
	var count [uses]int
	for _, head := range slices.Sorted(maps.Keys(groups)) {
		nodes := groups[head]
		slices.SortFunc(nodes, func(a, b fleet.Node) int { return cmp.Compare(a.Name, b.Name) })
		for from := 0; from < len(nodes); from += partNodes {
			part := gridGroup{ID: fmt.Sprint("g", len(g.Groups)), Head: head, All: len(nodes), From: from + 1}
			for _, n := range nodes[from:min(from+partNodes, len(nodes))] {
				about := open[n.Name]
				for name := range n.Hold.Incidents {
					if in, ok := byName[name]; ok && in.Subject.Node != n.Name {
						about = append(about, in)
					}
				}
				slices.SortFunc(about, remedy.CompareIncidents)
				held := pods[n.Name]
				slices.SortFunc(held, func(a, b fleet.Pod) int {
					return cmp.Or(a.Job.Compare(b.Job), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
				})
				cells := cellsOf(now, n, held, about)
				for _, c := range cells {
					count[c.use]++
				}
				g.GPUs += len(cells)
				part.Nodes = append(part.Nodes, gridNode{Name: n.Name, Notes: notes(n), Runs: runs(f, cells), Open: about, Shown: classes(cells)})
			}
			g.Groups = append(g.Groups, part)
		}
	}
	for u, s := range signs {
		g.Counts = append(g.Counts, gridCount{s, count[u]})
	}
	return g
}

// zoneLabel names a node's zone.
const zoneLabel = "topology.kubernetes.io/zone"

// home is where a node belongs, as people say it.
func home(n fleet.Node) string {
	pool := "pool not known"
	if n.Pool != "" {
		pool = "pool " + n.Pool
	}
	if zone := n.Labels[zoneLabel]; zone != "" {
		return pool + ", zone " + zone
	}
	return pool
}

// notes are what holds for a whole node, in a few words each.
func notes(n fleet.Node) []string {
	var out []string
	switch n.Ready.Status {
	case fleet.False:
		out = append(out, "not ready")
	case fleet.Unknown:
		out = append(out, "the cluster does not hear of it")
	case fleet.True:
	}
	switch {
	case n.Hold.Any():
		out = append(out, "held by Stoker")
	case n.Unschedulable:
		out = append(out, "cordoned, not by Stoker")
	}
	if n.Telemetry.Status == fleet.False {
		out = append(out, "no telemetry")
	}
	if n.OptOut != "" {
		out = append(out, "Stoker is kept away")
	}
	return out
}

// replicasLabel says into how many shares the device plugin cuts a GPU; such a node offers
// that many for each.
const replicasLabel = "nvidia.com/gpu.replicas"

// cellsOf says what is known of each GPU of a node. Pods on it are in order.
func cellsOf(now time.Time, n fleet.Node, pods []fleet.Pod, open []remedy.Incident) []cell {
	shares, err := strconv.Atoi(n.Labels[replicasLabel])
	if err != nil || shares < 1 {
		shares = 1
	}
	told := len(n.GPUs)
	cells := make([]cell, max(told, (n.Capacity.MilliGPUs()/shares+500)/1000))
	placed := map[string]bool{}
	for i := range cells[:told] {
		for _, h := range n.GPUs[i].Pods {
			if at := slices.IndexFunc(pods, func(p fleet.Pod) bool { return p.Namespace == h.Namespace && p.Name == h.Name }); at >= 0 {
				cells[i].holders = append(cells[i].holders, pods[at])
				placed[pods[at].UID] = true
			}
		}
	}
	guess(cells, pods, placed, shares)
	for i := range cells {
		c := &cells[i]
		c.incident, c.class = about(n, i, open)
		switch {
		case c.class != "" || i < told && n.GPUs[i].Up == fleet.False:
			c.use = useFaulty
		case n.Ready.Status == fleet.Unknown || n.Telemetry.Status == fleet.False && n.Ready.Status == fleet.True,
			told > 0 && (i >= told || n.GPUs[i].Up == fleet.Unknown) && n.Ready.Status == fleet.True:
			c.use = useUnknown
		case len(c.holders) > 0:
			c.use = useHeld
			if i < told {
				c.use = used(now, n.GPUs[i].Usage)
			}
		case !n.Available() || n.Hold.Any() || n.Allocatable.GPUs == 0:
			c.use = useOut
		default:
			c.use = useFree
		}
	}
	return cells
}

// guess gives pods whose GPUs are not known those of the node that are left over. All of
// a node's GPUs are no guess.
func guess(cells []cell, pods []fleet.Pod, placed map[string]bool, shares int) {
	var of [][]fleet.Pod // of each GPU
	last, rest := 0, 0   // the GPU that is held in parts, and what is left of it in thousandths
	for _, p := range pods {
		switch {
		case placed[p.UID]:
		case p.Share > 0 && rest >= p.Share:
			of[last], rest = append(of[last], p), rest-p.Share
		case p.Share > 0:
			last, rest = len(of), 1000-p.Share
			of = append(of, []fleet.Pod{p})
		default:
			for range (p.GPUs + shares - 1) / shares {
				of = append(of, []fleet.Pod{p})
			}
		}
	}
	var left []int
	for i := range cells {
		if len(cells[i].holders) == 0 {
			left = append(left, i)
		}
	}
	sure := len(of) >= len(left) && len(of) > 0 && of[0][0].UID == of[len(of)-1][0].UID
	for k, i := range left[:min(len(left), len(of))] {
		cells[i].holders = of[k]
		cells[i].guessed = !sure
	}
	if len(of) > 0 && !sure {
		for _, i := range left {
			cells[i].guessed = true // nor is it known which are free
		}
	}
}

// used says what the usage of a GPU that is held makes of it.
func used(now time.Time, u fleet.Usage) use {
	switch {
	case u.At.IsZero() || now.Sub(u.At) > usageFresh:
		return useHeld
	case u.Mean < idleUnder && u.Over >= idleFor:
		return useIdle
	}
	return useBusy
}

// about is the open incident that says that GPU i of the node is ill.
func about(n fleet.Node, i int, open []remedy.Incident) (string, remedy.Class) {
	for _, in := range open {
		s := in.Subject
		if s.Kind != remedy.SubjectGPU || s.Node != n.Name || in.Class == remedy.ClassGPUApp {
			continue
		}
		at := slices.IndexFunc(n.GPUs, func(g fleet.GPU) bool { return g.UUID == s.UUID && s.UUID != "" })
		if at < 0 {
			if k, err := strconv.Atoi(s.Index); err == nil {
				at = k
			}
		}
		if at == i {
			return in.Name, in.Class
		}
	}
	return "", ""
}

// runs puts together cells of which the same is known.
func runs(f fleet.Snapshot, cells []cell) []run {
	var out []run
	for i := 0; i < len(cells); {
		to := i
		for to+1 < len(cells) && cells[to+1].like(cells[i]) {
			to++
		}
		c := cells[i]
		r := run{sign: signs[c.use], From: i, To: to, Guessed: c.guessed, Incident: c.incident, Symptom: c.class}
		for _, p := range c.holders {
			if p.Job == (fleet.JobRef{}) {
				r.Others++
				continue
			}
			j := gridJob{Name: p.Job.String()}
			switch of := f.Jobs[p.Job]; {
			case of.Team != "":
				j.Whose = "team " + of.Team
			case of.Queue != "":
				j.Whose = "queue " + of.Queue
			}
			if p.Share > 0 {
				j.Whose = strings.TrimPrefix(fmt.Sprintf("%s, %.4g of it", j.Whose, float64(p.Share)/1000), ", ")
			}
			if !slices.Contains(r.Jobs, j) {
				r.Jobs = append(r.Jobs, j)
			}
		}
		out = append(out, r)
		i = to + 1
	}
	return out
}

// like reports whether the same is known of both.
func (c cell) like(o cell) bool {
	return c.use == o.use && c.guessed == o.guessed && c.incident == o.incident &&
		slices.EqualFunc(c.holders, o.holders, func(a, b fleet.Pod) bool { return a.Job == b.Job && (a.Job != fleet.JobRef{} || a.UID == b.UID) })
}

func classes(cells []cell) string {
	var has [uses]bool
	for _, c := range cells {
		has[c.use] = true
	}
	var out []string
	for u, s := range signs {
		if has[u] {
			out = append(out, s.Class)
		}
	}
	return strings.Join(out, " ")
}
