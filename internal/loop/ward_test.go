package loop

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/internal/store"
	"stoker.dev/stoker/rules"
)

// A ward is a loop over a site and a store, on virtual time.
type ward struct {
	t     rapid.TB
	ctx   context.Context
	now   time.Time
	every time.Duration // between ticks
	site  *site
	kept  Store // what outlives a loop
	opts  Options
	cfg   Config

	life *mortal // of the loop
	loop *Loop
	reg  *prometheus.Registry
	told []Entry // of all loops
	// person is whoever else acts on the site, once before each tick.
	person func()
	// witnesses of the next loop.
	witnesses []Witness
}

// newWard has a loop that never dies.
func newWard(t rapid.TB, nodes int) *ward {
	w := &ward{
		t: t, ctx: context.Background(), now: t0.Add(2 * time.Second), every: 10 * time.Second, site: newSite(nodes), kept: &store.Memory{},
		cfg: Config{Playbooks: rules.Playbooks{
			List:   []rules.Playbook{{Name: "gpu-lost", Class: remedy.ClassGPULost, Steps: ladder()}},
			MaxAge: time.Hour, Quiet: time.Hour,
		}},
	}
	if tt, ok := t.(*testing.T); ok {
		w.ctx = tt.Context()
	}
	w.begin(0, false)
	return w
}

// begin throws the loop away and makes another one, which dies at a call.
func (w *ward) begin(dies int, after bool) {
	w.life = &mortal{Store: w.kept, site: w.site, dies: dies, after: after}
	w.opts.Tell = func(e Entry) { w.told = append(w.told, e) }
	w.reg = prometheus.NewRegistry()
	w.loop = New(slog.New(slog.DiscardHandler), w.reg, w.life, w.site, w.witnesses, w.life, w.cfg, w.opts)
}

// tick lets time pass and ticks. It returns the tick's error.
func (w *ward) tick() error {
	w.now = w.now.Add(w.every)
	if w.person != nil {
		w.person()
	}
	return w.loop.Tick(w.ctx, w.now)
}

// ticks ticks n times, each without an error.
func (w *ward) ticks(n int) {
	w.t.Helper()
	for range n {
		if err := w.tick(); err != nil {
			w.t.Fatalf("tick at %s: %v", w.now.Sub(t0), err)
		}
	}
}

// ingest brings evidence, which has to be taken in.
func (w *ward) ingest(ev ...remedy.Evidence) {
	w.t.Helper()
	if err := w.loop.Ingest(w.ctx, w.now, ev); err != nil {
		w.t.Fatalf("ingest at %s: %v", w.now.Sub(t0), err)
	}
}

// settle ticks until no incident has anything more to do of itself.
func (w *ward) settle() {
	w.t.Helper()
	for range 400 {
		w.ticks(1)
		if w.over() {
			return
		}
	}
	w.t.Fatalf("it never ended:\n%s", strings.Join(w.histories(), "\n"))
}

// over reports whether no incident has anything more to do of itself.
func (w *ward) over() bool {
	all := w.loop.Incidents()
	return len(all) > 0 && !slices.ContainsFunc(all, func(in remedy.Incident) bool {
		return !in.Phase.Closed() && (in.Phase != remedy.PhaseHeld || in.Current() != nil)
	})
}

// stored is what the store has, in order of name.
func (w *ward) stored() []remedy.Incident {
	w.t.Helper()
	all, err := w.kept.List(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	slices.SortFunc(all, func(a, b remedy.Incident) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// histories is what the store has, in words and without times.
func (w *ward) histories() []string {
	var out []string
	for _, in := range w.stored() {
		out = append(out, fmt.Sprintf("%s #%d", in.Subject, in.Occurrence))
		for _, s := range in.Steps {
			line := "  " + s.Action
			for _, o := range s.Orders {
				line += " " + o.Order.Target.String()
			}
			switch {
			case s.Skipped:
				line += ": skipped, " + s.Note
			case s.Running():
				line += ": runs"
			default:
				line += ": " + string(s.Ending)
			}
			out = append(out, line)
		}
		out = append(out, "  "+string(in.Phase)+": "+in.Reason)
		for _, l := range in.Losses {
			out = append(out, "  lost of "+l.Job.String())
		}
	}
	return out
}

// lines are the entries of the journal, in words, without those of the kinds.
func (w *ward) lines(without ...EntryKind) []string {
	var out []string
	for _, e := range w.told {
		if slices.Contains(without, e.Kind) {
			continue
		}
		out = append(out, strings.TrimRight(fmt.Sprintf("%6s %-8s %s %s %s: %s", e.At.Sub(t0), e.Kind, e.Subject, e.Step, e.Target, e.Text), " "))
	}
	return out
}
