package series

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/storage"
)

// A Target is one source of expositions. It remembers which series the last one had,
// so that the next is quick and the end of a series is written down: a series that is
// not in an exposition any more is stale at once, and does not linger for the lookback
// time. It must not be used by two goroutines at once.
type Target struct {
	db    *DB
	extra labels.Labels
	up    row

	rows  map[string]*row // by the series as it is written in the exposition
	refs  map[storage.SeriesRef]*row
	last  []*row // of the last exposition, in its order; empty when there was none
	next  []*row // kept for its memory
	round uint64
	lb    labels.Builder
}

// noRound is a round that no exposition has.
const noRound = 0

// A row is one series of a target.
type row struct {
	text   string
	labels labels.Labels
	ref    storage.SeriesRef
	round  uint64  // of the newest exposition that had it
	value  float64 // in that one
}

// Target returns a target whose series get the extra labels. A label that an
// exposition has itself wins over an extra one. It also has a series `up` with the
// extra labels alone: 1 after an exposition was taken in, 0 when there was none.
func (db *DB) Target(extra ...labels.Label) (*Target, error) {
	ls := labels.New(extra...)
	if name, dup := ls.HasDuplicateLabelNames(); dup {
		return nil, fmt.Errorf("target %s: label %q is there twice", ls, name)
	}
	b := labels.NewBuilder(ls)
	b.Set(model.MetricNameLabel, "up")
	return &Target{db: db, extra: ls, up: row{labels: b.Labels()}, rows: map[string]*row{}, refs: map[storage.SeriesRef]*row{}}, nil
}

// Append takes in an exposition in the text format as of t, and returns how many of its
// series were new. Times within the exposition are not used. What cannot be read, has
// too many series or is not newer than what is there is an error and changes nothing but
// that the target is down. t must not go back.
func (t *Target) Append(ctx context.Context, at time.Time, exposition []byte) (added int, err error) {
	added, err = t.append(ctx, at, exposition)
	if err != nil {
		return 0, errors.Join(fmt.Errorf("exposition of %s: %w", t.extra, err), t.Down(ctx, at))
	}
	return added, t.db.compact(ctx)
}

// Down writes down that the target gave nothing at t: its series have ended, and up is 0.
func (t *Target) Down(ctx context.Context, at time.Time) error {
	app := t.db.AppenderV2(ctx)
	ms := at.UnixMilli()
	err := errors.Join(t.end(app, ms, noRound), t.put(app, &t.up, ms, 0))
	if err != nil {
		return errors.Join(fmt.Errorf("end the series of %s: %w", t.extra, err), app.Rollback())
	}
	if err := app.Commit(); err != nil {
		return fmt.Errorf("end the series of %s: %w", t.extra, err)
	}
	t.last = t.last[:0]
	return t.db.compact(ctx)
}

func (t *Target) append(ctx context.Context, at time.Time, exposition []byte) (added int, err error) {
	t.round++
	fresh, err := t.read(exposition)
	// The exposition is taken in whole or not at all. It is read to its end before
	// anything is appended: a series that was begun takes room, even when it is rolled back.
	defer func() {
		if err != nil {
			for _, r := range fresh {
				delete(t.rows, r.text)
			}
		}
	}()
	if err != nil {
		return 0, err
	}
	app := t.db.AppenderV2(ctx)
	if err := t.write(app, at.UnixMilli()); err != nil {
		return 0, errors.Join(err, app.Rollback())
	}
	if err := app.Commit(); err != nil {
		return 0, err
	}
	if len(t.rows) != len(t.next) || len(t.refs) != len(t.next) {
		maps.DeleteFunc(t.rows, func(_ string, r *row) bool { return r.round != t.round })
		maps.DeleteFunc(t.refs, func(_ storage.SeriesRef, r *row) bool { return r.round != t.round })
	}
	t.last, t.next = t.next, t.last
	return len(fresh), nil
}

// read finds the rows of an exposition and their values, and returns the rows that are
// new, which are in t.rows already.
func (t *Target) read(exposition []byte) (fresh []*row, err error) {
	t.next = t.next[:0]
	p := textparse.NewPromParser(exposition, labels.NewSymbolTable(), false)
	for {
		entry, err := p.Next()
		if errors.Is(err, io.EOF) {
			return fresh, nil
		}
		if err != nil {
			return fresh, err
		}
		if entry != textparse.EntrySeries {
			continue
		}
		text, _, v := p.Series()
		r := t.row(text)
		if r == nil {
			r = &row{text: string(text), labels: t.labels(p)}
			if err := t.admit(r, len(fresh)); err != nil {
				return fresh, err
			}
			t.rows[r.text] = r
			fresh = append(fresh, r)
		}
		if r.round == t.round {
			return fresh, fmt.Errorf("series %s is there twice", r.text)
		}
		r.round, r.value = t.round, v
		t.next = append(t.next, r)
	}
}

// write appends the rows that were read, and the end of those that were not.
func (t *Target) write(app storage.AppenderV2, ms int64) error {
	for _, r := range t.next {
		known := r.ref
		if err := t.put(app, r, ms, r.value); err != nil {
			return fmt.Errorf("series %s: %w", r.text, err)
		}
		if r.ref == known {
			continue
		}
		if other := t.refs[r.ref]; other != nil && other.round == t.round {
			return fmt.Errorf("series %s is there twice: also as %s", r.text, other.text)
		}
		t.refs[r.ref] = r
	}
	return errors.Join(t.put(app, &t.up, ms, 1), t.end(app, ms, t.round))
}

// row finds a series by its text. Expositions come in the same order each time, so the
// one in the same place is tried before the map.
func (t *Target) row(text []byte) *row {
	if i := len(t.next); i < len(t.last) && t.last[i].text == string(text) {
		return t.last[i]
	}
	return t.rows[string(text)]
}

// labels are those of the exposition and, where it has none of that name, the extra ones.
func (t *Target) labels(p textparse.Parser) labels.Labels {
	var own labels.Labels
	p.Labels(&own)
	t.lb.Reset(own)
	t.extra.Range(func(l labels.Label) {
		if !own.Has(l.Name) {
			t.lb.Set(l.Name, l.Value)
		}
	})
	// The parser's labels lie in memory that it uses again.
	return t.lb.Labels().Copy()
}

// admit says whether a series that is new may be there.
func (t *Target) admit(r *row, fresh int) error {
	if name, dup := r.labels.HasDuplicateLabelNames(); dup {
		return fmt.Errorf("series %s: label %q is there twice", r.text, name)
	}
	if !r.labels.IsValid(model.UTF8Validation) {
		return fmt.Errorf("series %s: not a valid name or label", r.text)
	}
	if n := len(t.next); n >= t.db.opts.MaxTargetSeries {
		return fmt.Errorf("over %d series, which is the limit of one target", t.db.opts.MaxTargetSeries)
	}
	if n := t.db.Series() + fresh; n >= t.db.opts.MaxSeries {
		return fmt.Errorf("over %d series in all, which is the limit", t.db.opts.MaxSeries)
	}
	return nil
}

// end marks the series of the last exposition as ended, but for those of the round
// keep, also where they are written in another way by now.
func (t *Target) end(app storage.AppenderV2, ms int64, keep uint64) error {
	for _, r := range t.last {
		if now := t.refs[r.ref]; r.round == keep || now != nil && now.round == keep {
			continue
		}
		if err := t.put(app, r, ms, math.Float64frombits(value.StaleNaN)); err != nil {
			return fmt.Errorf("series %s: %w", r.text, err)
		}
	}
	return nil
}

func (t *Target) put(app storage.AppenderV2, r *row, ms int64, v float64) error {
	ref, err := app.Append(r.ref, r.labels, 0, ms, v, nil, nil, storage.AOptions{RejectOutOfOrder: true})
	if err != nil {
		return err
	}
	r.ref = ref
	return nil
}
