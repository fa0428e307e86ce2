// Package series keeps time series in the process and answers PromQL over them: a
// Prometheus TSDB that is filled from the text exposition of targets, as a scrape
// loop would fill it, at times that are given.
//
// It reads no clock. What is in it depends only on what was appended and when, so that
// the same run with virtual time gives the same answers. It fetches nothing: whoever
// has an exposition hands it in. Its limits hold for what is handed in, too: a target
// that grows beyond them is refused whole, as Prometheus does.
package series

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
)

// Options bound a [DB]. The zero value of each field means its default.
type Options struct {
	// Retention is how long samples are kept at least; blocks are dropped whole, so it
	// may be up to half as long again, and never under two hours. Default 6h.
	Retention time.Duration
	// MaxSeries bounds the series that are in memory at once. Default 500,000.
	MaxSeries int
	// MaxTargetSeries bounds the series of one exposition. Default 20,000.
	MaxTargetSeries int
	// MaxSamples bounds the samples that one query may hold in memory. Default 20,000,000.
	MaxSamples int
	// Timeout bounds one query, in real time: it guards the process and decides nothing. Default 30s.
	Timeout time.Duration
	// Lookback is how old a sample may be that an instant query still finds. Default 5m.
	Lookback time.Duration
	Log      *slog.Logger
}

func (o Options) withDefaults() (Options, error) {
	var errs []error
	for _, d := range []struct {
		name string
		v    *time.Duration
		def  time.Duration
	}{
		{"retention", &o.Retention, 6 * time.Hour},
		{"timeout", &o.Timeout, 30 * time.Second},
		{"lookback", &o.Lookback, 5 * time.Minute},
	} {
		if *d.v == 0 {
			*d.v = d.def
		}
		if *d.v < 0 {
			errs = append(errs, fmt.Errorf("series: %s: %v is negative", d.name, *d.v))
		}
	}
	for _, d := range []struct {
		name string
		v    *int
		def  int
	}{
		{"max series", &o.MaxSeries, 500_000},
		{"max series of a target", &o.MaxTargetSeries, 20_000},
		{"max samples of a query", &o.MaxSamples, 20_000_000},
	} {
		if *d.v == 0 {
			*d.v = d.def
		}
		if *d.v < 0 {
			errs = append(errs, fmt.Errorf("series: %s: %d is negative", d.name, *d.v))
		}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o, errors.Join(errs...)
}

// blockRange is the span of one block on disk: what lies beyond one and a half of it
// leaves memory.
const blockRange = 2 * time.Hour

// DB is a store of series. It may be used by several goroutines, except that one
// [Target] is appended to by one at a time. Close it.
type DB struct {
	tsdb   *tsdb.DB
	engine *promql.Engine
	opts   Options
	temp   string // removed by Close; empty when the folder is the caller's

	// compacting holds off a second compaction while one runs.
	compacting sync.Mutex
}

// DB serves rule evaluation as it is.
var (
	_ storage.Queryable    = (*DB)(nil)
	_ storage.AppendableV2 = (*DB)(nil)
)

// Open opens the series in dir, which is created. An empty dir means a temporary
// folder that Close removes, and no log of writes: what was appended is gone with the
// process.
func Open(dir string, o Options) (*DB, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	db := &DB{opts: o}
	t := tsdb.DefaultOptions()
	t.RetentionDuration = max(o.Retention, blockRange).Milliseconds()
	t.MinBlockDuration = blockRange.Milliseconds()
	t.MaxBlockDuration = blockRange.Milliseconds()
	t.StripeSize = 1 << 10 // of series locks: some thousand series, not some million
	if dir == "" {
		if dir, err = os.MkdirTemp("", "stoker-series-"); err != nil {
			return nil, fmt.Errorf("open series: %w", err)
		}
		db.temp = dir
		t.WALSegmentSize = -1
		t.NoLockfile = true
	}
	if db.tsdb, err = tsdb.Open(dir, o.Log, nil, t, nil); err != nil {
		return nil, errors.Join(fmt.Errorf("open series in %s: %w", dir, err), db.removeTemp())
	}
	// Compaction goes by the times of samples, in Append, not by the clock.
	db.tsdb.DisableCompactions()
	db.engine = promql.NewEngine(promql.EngineOpts{
		Logger:               o.Log,
		MaxSamples:           o.MaxSamples,
		Timeout:              o.Timeout,
		LookbackDelta:        o.Lookback,
		EnableAtModifier:     true,
		EnableNegativeOffset: true,
		Parser:               parser.NewParser(parser.Options{}),
		NoStepSubqueryIntervalFn: func(int64) int64 {
			return time.Minute.Milliseconds()
		},
	})
	return db, nil
}

// Close ends the background work and, of a temporary store, removes the folder.
func (db *DB) Close() error {
	return errors.Join(db.engine.Close(), db.tsdb.Close(), db.removeTemp())
}

func (db *DB) removeTemp() error {
	if db.temp == "" {
		return nil
	}
	return os.RemoveAll(db.temp)
}

// Querier gives access to the samples between two times in milliseconds since 1970.
func (db *DB) Querier(mint, maxt int64) (storage.Querier, error) { return db.tsdb.Querier(mint, maxt) }

// AppenderV2 appends the results of rules. Targets have [DB.Target].
func (db *DB) AppenderV2(ctx context.Context) storage.AppenderV2 { return db.tsdb.AppenderV2(ctx) }

// Series is the number of series in memory.
func (db *DB) Series() int { return int(db.tsdb.Head().NumSeries()) }

// QueryFunc answers queries of alert and recording rules. It fits Prometheus'
// rules.QueryFunc.
func (db *DB) QueryFunc() func(ctx context.Context, expr string, t time.Time) (promql.Vector, error) {
	return db.Query
}

// Query evaluates a PromQL expression at t. The samples are in order of their labels,
// whatever the expression sorts by; a scalar is one sample without labels. Range
// vectors and strings are errors.
func (db *DB) Query(ctx context.Context, expr string, t time.Time) (promql.Vector, error) {
	q, err := db.engine.NewInstantQuery(ctx, db, nil, expr, t)
	if err != nil {
		return nil, fmt.Errorf("query %q: %w", expr, err)
	}
	defer q.Close()
	res := q.Exec(ctx)
	if res.Err != nil {
		return nil, fmt.Errorf("query %q: %w", expr, res.Err)
	}
	switch v := res.Value.(type) {
	case promql.Vector:
		// The engine takes its memory back at Close.
		out := slices.Clone(v)
		slices.SortStableFunc(out, func(a, b promql.Sample) int { return labels.Compare(a.Metric, b.Metric) })
		return out, nil
	case promql.Scalar:
		return promql.Vector{{T: v.T, F: v.V, Metric: labels.EmptyLabels()}}, nil
	}
	return nil, fmt.Errorf("query %q: the result is a %s, not a vector or scalar", expr, res.Value.Type())
}

// compact moves what is old out of memory, when there is enough of it.
func (db *DB) compact(ctx context.Context) error {
	h := db.tsdb.Head()
	if h.NumSeries() == 0 || h.MaxTime()-h.MinTime() <= blockRange.Milliseconds()/2*3 {
		return nil
	}
	if !db.compacting.TryLock() {
		return nil
	}
	defer db.compacting.Unlock()
	if err := db.tsdb.Compact(ctx); err != nil {
		return fmt.Errorf("compact series: %w", err)
	}
	return nil
}
