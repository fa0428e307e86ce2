package rules

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	promrules "github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/storage"

	"stoker.dev/stoker/internal/remedy"
)

// Series is what the evaluation of alert rules needs of stored series.
type Series interface {
	storage.Queryable
	storage.AppendableV2
}

// An Evaluator evaluates Prometheus rule files in the process, at times that it is
// given, and turns their alerts into evidence. It is Prometheus' own evaluation, with
// `for` and `keep_firing_for`; no file is evaluated differently there. It must not be
// used by two goroutines at once.
type Evaluator struct {
	groups []*promrules.Group
	every  time.Duration
	last   time.Time
	held   []remedy.Evidence // of the last evaluation
}

// NewEvaluator reads every rule file of files. query answers PromQL over series.
// Groups that name no interval are evaluated every so often. Every mistake of every
// file is in the error, each with its file and line.
func NewEvaluator(log *slog.Logger, reg prometheus.Registerer, files fs.FS, series Series, query promrules.QueryFunc, every time.Duration) (*Evaluator, error) {
	names, err := fs.Glob(files, "*.rules.yaml")
	if err != nil {
		return nil, err
	}
	load := loader{files: files, parser: parser.NewParser(parser.Options{}), log: log}
	var bad []error
	for _, name := range names {
		_, errs := load.Load(name, false, model.UTF8Validation)
		for _, err := range errs {
			bad = append(bad, fmt.Errorf("alert rules: %s:%w", name, err))
		}
	}
	if err := errors.Join(bad...); err != nil {
		return nil, err
	}
	m := promrules.NewManager(&promrules.ManagerOptions{
		Context:      context.Background(), // of the manager's own runs, which we have none of
		Queryable:    series,
		AppendableV2: series,
		QueryFunc:    query,
		NotifyFunc:   func(context.Context, string, ...*promrules.Alert) {},
		Logger:       log,
		Registerer:   reg,
		GroupLoader:  load,
	})
	groups, errs := m.LoadGroups(every, labels.EmptyLabels(), "", nil, false, names...)
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("alert rules: %w", err)
	}
	e := &Evaluator{every: every}
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		e.groups = append(e.groups, groups[key])
	}
	return e, nil
}

// Evidence evaluates the rules at now, if their interval has passed since the last
// time, and returns what their alerts speak for: those that fire and those that have
// just ended. A rule that cannot be evaluated is in the error, beside the evidence of
// the others.
func (e *Evaluator) Evidence(ctx context.Context, now time.Time) ([]remedy.Evidence, error) {
	if since := now.Sub(e.last); !e.last.IsZero() && since >= 0 && since < e.every {
		return e.held, nil
	}
	e.last, e.held = now, nil
	var errs []error
	for _, g := range e.groups {
		g.Eval(ctx, now)
		for _, r := range g.Rules() {
			if err := r.LastError(); err != nil {
				errs = append(errs, fmt.Errorf("rule %s: %w", r.Name(), err))
			}
			ar, ok := r.(*promrules.AlertingRule)
			if !ok {
				continue
			}
			ar.ForEachActiveAlert(func(a *promrules.Alert) {
				if a.State == promrules.StatePending || a.State == promrules.StateUnknown || a.Labels.Get("alertname") == Watchdog {
					return
				}
				ev, err := alert{
					Labels:      a.Labels.Map(),
					Annotations: a.Annotations.Map(),
					StartsAt:    a.ActiveAt,
					Resolved:    a.State == promrules.StateInactive,
				}.evidence(FromRules, now)
				if err != nil {
					errs = append(errs, err)
					return
				}
				e.held = append(e.held, ev)
			})
		}
	}
	slices.SortFunc(e.held, func(a, b remedy.Evidence) int {
		// Alerts come out of a map. All labels together tell any two apart, and fmt writes
		// them in order.
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Subject.String(), b.Subject.String()), cmp.Compare(fmt.Sprint(a.Labels), fmt.Sprint(b.Labels)))
	})
	return e.held, errors.Join(errs...)
}

// A loader reads rule files from where they are embedded.
type loader struct {
	log    *slog.Logger
	files  fs.FS
	parser parser.Parser
}

func (l loader) Load(name string, lax bool, scheme model.ValidationScheme) (*rulefmt.RuleGroups, []error) {
	b, err := fs.ReadFile(l.files, name)
	if err != nil {
		return nil, []error{err}
	}
	return rulefmt.Parse(b, lax, scheme, l.parser, l.log)
}

func (l loader) Parse(query string) (parser.Expr, error) { return l.parser.ParseExpr(query) }
