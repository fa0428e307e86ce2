// Package push tells of what a collector has just seen at once, as alerts in
// Alertmanager's API, beside the metrics that Prometheus will find later. Both name the
// same event, so whoever hears both hears of one.
//
// It owns the queues of what is not yet told and repeats until it was taken, until it
// is too old, or until there is too much; what is dropped is counted. It never holds
// the collector up.
package push

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"stoker.dev/stoker/collector"
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/xid"
)

// Bounds of a queue, and of one try.
const (
	maxQueue  = 1000
	maxBatch  = 100
	maxAge    = 10 * time.Minute // in the queue; then Prometheus has told of it, or nobody will
	tryWithin = 5 * time.Second
	firstWait = 200 * time.Millisecond
	maxWait   = 10 * time.Second
)

// A Target is somebody who takes alerts.
type Target struct {
	Name      string // label of the metrics: service or alertmanager
	URL       string // without /api/v2/alerts
	TokenFile string // bearer token, read for each try; empty: none
}

// A Pusher has one queue for each target.
type Pusher struct{ queues []*queue }

// New returns a pusher that tells nobody until it runs.
func New(log *slog.Logger, client *http.Client, targets []Target) *Pusher {
	p := &Pusher{}
	for _, t := range targets {
		t.URL = strings.TrimSuffix(t.URL, "/")
		p.queues = append(p.queues, &queue{log: log, client: client, to: t, wake: make(chan struct{}, 1)})
	}
	return p
}

// See takes in what is to be told. It never blocks.
func (p *Pusher) See(seen []collector.Sighting) {
	// An event may have happened long before it was seen, as when the engine was hung.
	now := time.Now()
	var alerts []waiting
	for _, s := range seen {
		if a, ok := alertOf(s); ok {
			alerts = append(alerts, waiting{a, now})
		}
	}
	for _, q := range p.queues {
		q.add(alerts)
	}
}

// Run tells until ctx ends.
func (p *Pusher) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, q := range p.queues {
		wg.Go(func() { q.run(ctx) })
	}
	wg.Wait()
}

// AppendPage appends the pusher's own families in Prometheus' text format.
func (p *Pusher) AppendPage(dst []byte) []byte {
	if len(p.queues) == 0 {
		return dst
	}
	dst = append(dst, "# HELP stoker_collector_pushed_alerts_total Alerts told at once, by target and result: sent or dropped.\n# TYPE stoker_collector_pushed_alerts_total counter\n"...)
	for _, q := range p.queues {
		q.mu.Lock()
		sent, dropped := q.sent, q.dropped
		q.mu.Unlock()
		for _, row := range []struct {
			result string
			n      uint64
		}{{"dropped", dropped}, {"sent", sent}} {
			dst = append(dst, `stoker_collector_pushed_alerts_total{target="`...)
			dst = append(append(append(dst, q.to.Name...), `",result="`...), row.result...)
			dst = append(strconv.AppendUint(append(dst, `"} `...), row.n, 10), '\n')
		}
	}
	return dst
}

// An alert is one of Alertmanager's API v2, as it is posted.
type alert struct {
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	StartsAt    time.Time         `json:"startsAt"`
}

// healthClass is of what class a check that fails speaks; the others only tell.
var healthClass = map[string]xid.Class{"MEM": xid.GPUECC, "NVLINK": xid.GPUNVLink, "DRIVER": xid.GPUDriver}

// alertOf is the alert about a sighting. It has the labels that the rules over the
// metrics would give it. What means nothing by itself is not told.
func alertOf(s collector.Sighting) (alert, bool) {
	labels := map[string]string{"node": s.Node, "gpu": strconv.Itoa(s.GPU)}
	for name, v := range map[string]string{"UUID": s.UUID, "pci_bus_id": s.PCI, "boot_id": s.BootID} {
		if v != "" {
			labels[name] = v
		}
	}
	where := fmt.Sprintf("on GPU %d of %s", s.GPU, s.Node)
	var summary string
	var name, ladder, severity string
	class := xid.None
	switch {
	case s.XID != 0:
		row, known := xid.Lookup(s.XID)
		labels["xid"] = strconv.Itoa(s.XID)
		if s.Instance != "" {
			// In the text alone: the rules over the metrics do not know it, and it would be another alert.
			where = "on MIG instance " + s.Instance + " of" + strings.TrimPrefix(where, "on")
		}
		summary = fmt.Sprintf("XID %d %s", s.XID, where)
		ladder, severity = row.Ladder.String(), row.Ladder.Severity()
		switch {
		case !known:
			name = "GPUXidUnknown"
		case row.NeedsRecovery():
			return alert{}, false // it depends on what the driver asks for next: the rules wait for that
		case row.Speaks():
			name, class = xid.AlertName(row.Class), row.Class
		case row.Ladder.Fallback() == xid.Note:
			return alert{}, false
		default:
			name = "GPUXidSeen"
		}
	case s.NVLink != "":
		name, severity = "GPUNVLinkError", "warning" // a link that recovers needs nobody
		if s.NVLink == fleet.NVLinkFatal {
			class, severity = xid.GPUNVLink, "critical"
		}
		labels["error"] = string(s.NVLink)
		summary = fmt.Sprintf("NVLink error (%s) %s", s.NVLink, where)
	case s.Lost:
		name, class, severity = "GPULost", xid.GPULost, "critical"
		summary = fmt.Sprintf("GPU %d of %s is lost", s.GPU, s.Node)
	default:
		name, severity = "GPUHealthFailed", "critical"
		if c, ok := healthClass[s.Watch]; ok {
			class = c
		}
		labels["health_watch"] = s.Watch
		summary = fmt.Sprintf("Health check %s fails %s: %s", s.Watch, where, s.ErrorCode)
	}
	labels["alertname"], labels["class"], labels["severity"] = name, string(class), severity
	if ladder != "" {
		labels["ladder"] = ladder
	}
	return alert{
		Labels: labels, StartsAt: s.At.UTC(),
		Annotations: map[string]string{
			"summary":    summary,
			"event_time": strconv.FormatFloat(float64(s.At.UnixMilli())/1000, 'f', 3, 64),
		},
	}, true
}

type waiting struct {
	alert alert
	since time.Time
}

// A queue is what one target has not taken yet.
type queue struct {
	log    *slog.Logger
	client *http.Client
	to     Target
	wake   chan struct{}

	mu            sync.Mutex
	alerts        []waiting
	sent, dropped uint64
}

func (q *queue) add(alerts []waiting) {
	if len(alerts) == 0 {
		return
	}
	q.mu.Lock()
	q.alerts = append(q.alerts, alerts...)
	if over := len(q.alerts) - maxQueue; over > 0 {
		// The first of a storm say what it is about; the newest are left out.
		q.alerts = q.alerts[:maxQueue]
		q.dropped += uint64(over)
	}
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default: // it is awake already
	}
}

// run tells what waits as soon as it does; after a failure it waits longer each time.
func (q *queue) run(ctx context.Context) {
	var pause time.Duration
	for {
		batch := q.batch(time.Now())
		if len(batch) == 0 {
			pause = 0
			select {
			case <-ctx.Done():
				return
			case <-q.wake:
			}
			continue
		}
		again, err := q.tell(ctx, batch)
		if ctx.Err() != nil {
			return
		}
		if err == nil || !again {
			if err != nil {
				q.log.Error("alerts refused", "target", q.to.Name, "alerts", len(batch), "err", err)
			}
			q.done(len(batch), err == nil)
			pause = 0
			continue
		}
		if pause == 0 {
			q.log.Warn("alerts not taken, they are sent again", "target", q.to.Name, "err", err)
		}
		pause = min(max(2*pause, firstWait), maxWait)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// batch is what is to be told next. What is too old is dropped.
func (q *queue) batch(now time.Time) []alert {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.alerts) > 0 && now.Sub(q.alerts[0].since) > maxAge {
		q.alerts = q.alerts[1:]
		q.dropped++
	}
	var out []alert
	for _, w := range q.alerts[:min(len(q.alerts), maxBatch)] {
		out = append(out, w.alert)
	}
	return out
}

// done removes what was dealt with. Only run removes, so it is still in front.
func (q *queue) done(n int, sent bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.alerts = append([]waiting(nil), q.alerts[n:]...)
	if sent {
		q.sent += uint64(n)
	} else {
		q.dropped += uint64(n)
	}
}

// tell makes one try. again says that another may succeed.
func (q *queue) tell(ctx context.Context, batch []alert) (again bool, err error) {
	body, err := json.Marshal(batch)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, tryWithin, errors.New("no answer in time"))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, q.to.URL+"/api/v2/alerts", bytes.NewReader(body))
	if err != nil {
		return false, err
	}
	req.Header.Set("Content-Type", "application/json")
	if q.to.TokenFile != "" {
		token, err := os.ReadFile(q.to.TokenFile)
		if err != nil {
			return true, fmt.Errorf("token: %w", err) // it is being renewed, or will be mounted
		}
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	resp, err := q.client.Do(req)
	if err != nil {
		return true, err
	}
	defer func() { _ = resp.Body.Close() }()
	said, _ := io.ReadAll(io.LimitReader(resp.Body, 300))
	if resp.StatusCode == http.StatusOK {
		return false, nil
	}
	// A token that is refused may be renewed, an account may be given its right; what
	// cannot be understood stays so.
	return resp.StatusCode != http.StatusBadRequest, fmt.Errorf("answered %s: %s", resp.Status, bytes.TrimSpace(said))
}
