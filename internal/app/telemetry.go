package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/labels"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/internal/series"
	"stoker.dev/stoker/rules"
)

// Bounds of one scrape.
const (
	maxPage     = 16 << 20 // bytes of one exposition
	scrapeLimit = 16       // targets that are scraped at once

	fillWithin = 5 * time.Second // for the queries that a snapshot needs
)

// A page is what one target shows at one time; an error means that it is down.
type page func(ctx context.Context, now time.Time) ([]byte, error)

// Telemetry is what stands in for Prometheus in the process: pages are appended to
// series, the same alert rules are evaluated over them, and the fleet learns from them
// what its GPUs tell of themselves.
type telemetry struct {
	log     *slog.Logger
	db      *series.DB
	filler  *series.Telemetry
	rules   *rules.Evaluator
	targets []target

	mu sync.Mutex // Prometheus' rule groups are for one goroutine
}

type target struct {
	name string
	read page
	into *series.Target
}

func newTelemetry(log *slog.Logger, reg prometheus.Registerer, dir string, files fs.FS, every time.Duration) (*telemetry, error) {
	db, err := series.Open(dir, series.Options{})
	if err != nil {
		return nil, err
	}
	ev, err := rules.NewEvaluator(log, reg, files, db, db.QueryFunc(), every)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &telemetry{log: log, db: db, filler: series.NewTelemetry(db), rules: ev}, nil
}

// add lists a target. Its own labels must tell it from the others.
func (t *telemetry) add(name string, read page, own labels.Label) error {
	into, err := t.db.Target(own)
	if err != nil {
		return fmt.Errorf("target %s: %w", name, err)
	}
	t.targets = append(t.targets, target{name: name, read: read, into: into})
	return nil
}

// scrape reads every target once and appends what they show as of now.
func (t *telemetry) scrape(ctx context.Context, now time.Time, parallel int) {
	gate := make(chan struct{}, parallel)
	var wg sync.WaitGroup
	for _, tg := range t.targets {
		gate <- struct{}{}
		wg.Go(func() {
			defer func() { <-gate }()
			if err := tg.scrape(ctx, now); err != nil {
				t.log.Debug("target not scraped", "target", tg.name, "err", err)
			}
		})
	}
	wg.Wait()
}

func (t *target) scrape(ctx context.Context, now time.Time) error {
	body, err := t.read(ctx, now)
	if err != nil {
		return errors.Join(err, t.into.Down(ctx, now))
	}
	_, err = t.into.Append(ctx, now, body)
	return err
}

// Evidence makes a telemetry a witness of the loop.
func (t *telemetry) Evidence(ctx context.Context, now time.Time) ([]remedy.Evidence, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rules.Evidence(ctx, now)
}

// Fill tells the fleet what telemetry knows of its GPUs.
func (t *telemetry) Fill(ctx context.Context, now time.Time, into *fleet.Facts) error {
	ctx, cancel := context.WithTimeoutCause(ctx, fillWithin, errors.New("series did not answer"))
	defer cancel()
	return t.filler.Fill(ctx, now, into)
}

func (t *telemetry) close() error { return t.db.Close() }

// httpPage reads a page over HTTP.
func httpPage(client *http.Client, url string) page {
	return func(ctx context.Context, _ time.Time) ([]byte, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return nil, err
		}
		req.Header.Set("Accept", "text/plain;version=0.0.4")
		resp, err := client.Do(req)
		if err != nil {
			return nil, err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("%s answered %s", url, resp.Status)
		}
		body, err := io.ReadAll(io.LimitReader(resp.Body, maxPage+1))
		if err == nil && len(body) > maxPage {
			err = fmt.Errorf("%s shows more than %d bytes", url, maxPage)
		}
		return body, err
	}
}
