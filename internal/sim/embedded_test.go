package sim

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"stoker.dev/stoker/collector"
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/series"
)

// A site is a simulation with everything between its host engines and the facts.
type site struct {
	*run
	db         *series.DB
	telemetry  *series.Telemetry
	collectors []*collector.Collector
	targets    []*series.Target
	page       []byte
	prev       fleet.Snapshot
}

func newSite(t testing.TB, cfg Config) *site {
	t.Helper()
	s := &site{run: start(t, cfg)}
	var err error
	if s.db, err = series.Open("", series.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.db.Close(); err != nil {
			t.Error(err)
		}
	})
	s.telemetry = series.NewTelemetry(s.db)
	for _, name := range s.NodeNames() {
		source, err := s.Telemetry(name)
		if err != nil {
			t.Fatal(err)
		}
		c, err := collector.New(slog.New(slog.DiscardHandler), name, []collector.Source{source}, collector.Options{Interval: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		tg, err := s.db.Target(labels.Label{Name: "job", Value: "stoker-collector"}, labels.Label{Name: "instance", Value: name})
		if err != nil {
			t.Fatal(err)
		}
		s.collectors, s.targets = append(s.collectors, c), append(s.targets, tg)
	}
	return s
}

// scrape collects on every node that answers, and takes its page into the series.
func (s *site) scrape() {
	s.t.Helper()
	now, ctx := s.Now(), s.t.Context()
	for i, name := range s.NodeNames() {
		if s.Reach(name) != nil {
			if err := s.targets[i].Down(ctx, now); err != nil {
				s.t.Fatal(err)
			}
			continue
		}
		if err := s.collectors[i].Gather(ctx, now); err != nil && !errors.Is(err, errDeaf) {
			s.t.Fatal(err)
		}
		s.page = s.collectors[i].AppendPage(s.page[:0], now)
		if _, err := s.targets[i].Append(ctx, now, s.page); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *site) facts() fleet.Snapshot {
	s.t.Helper()
	f := fleet.NewFacts()
	if err := s.cluster.Fill(s.t.Context(), s.Now(), f); err != nil {
		s.t.Fatal(err)
	}
	if err := s.telemetry.Fill(s.t.Context(), s.Now(), f); err != nil {
		s.t.Fatal(err)
	}
	s.prev = f.Snapshot(s.Now(), s.prev)
	return s.prev
}

// TestFromTheHostEngineToTheFacts drives the whole of the embedded path, with a GPU that
// is lost, a node that is booted, and telemetry that is silent for ten minutes.
func TestFromTheHostEngineToTheFacts(t *testing.T) {
	cfg := one(2, 8,
		Fault{At: 600 * time.Second, Kind: GPULost, Node: "gpu-a-01", GPU: 3},
		Fault{At: 610 * time.Second, Kind: TelemetryLost, Node: "gpu-a-02", For: 10 * time.Minute},
	)
	cfg.Nodes = 2
	s := newSite(t, cfg)
	boot := ""
	for at := time.Duration(0); at <= 21*time.Minute; at += 10 * time.Second {
		s.to(at)
		if at == 15*time.Minute {
			s.hold("gpu-a-01")
			s.repair("gpu-a-01", "reboot")
		}
		s.scrape()
		f := s.facts()
		ill, deaf := f.Nodes["gpu-a-01"], f.Nodes["gpu-a-02"]
		switch at {
		case 590 * time.Second:
			boot = ill.BootID
			if ill.Telemetry.Status != fleet.True || len(ill.GPUs) != 8 || ill.GPUs[3].Up != fleet.True || ill.GPUs[3].XID != 0 {
				t.Errorf("before: %+v", ill)
			}
		case 600 * time.Second:
			g := ill.GPUs[3]
			if g.Up != fleet.False || g.XID != 79 || !g.XIDTime.Equal(s.cfg.Start.Add(600*time.Second)) || g.UUID == "" || g.PCI != "00000000:3A:00.0" {
				t.Errorf("the lost GPU: %+v", g)
			}
			if v, err := s.db.Query(t.Context(), `increase(stoker_gpu_xid_errors_total{xid="79",node="gpu-a-01"}[5m]) > 0`, s.Now()); err != nil || len(v) != 1 {
				t.Errorf("a rule over the counter finds %v, %v", v, err)
			}
		case 620 * time.Second, 19 * time.Minute:
			if deaf.Telemetry.Status != fleet.False || len(deaf.GPUs) != 8 || deaf.GPUs[0].Up != fleet.Unknown {
				t.Errorf("%v: telemetry of the silent node is %+v, GPU 0 up %q", at, deaf.Telemetry, deaf.GPUs[0].Up)
			}
			if deaf.Ready.Status != fleet.True {
				t.Errorf("%v: the silent node is ready: %s", at, deaf.Ready.Status)
			}
		case 17 * time.Minute:
			if ill.Ready.Status != fleet.False || ill.Telemetry.Status != fleet.False || ill.GPUs[3].Up != fleet.Unknown {
				t.Errorf("in its boot: %+v", ill)
			}
		case 21 * time.Minute:
			if deaf.Telemetry.Status != fleet.True || deaf.GPUs[0].Up != fleet.True {
				t.Errorf("back: %+v", deaf.Telemetry)
			}
			if ill.BootID == boot || ill.Telemetry.Status != fleet.True || ill.GPUs[3].Up != fleet.True || ill.Allocatable.GPUs != 8 {
				t.Errorf("after its boot: new: %t, %+v", ill.BootID != boot, ill)
			}
			if v, err := s.db.Query(t.Context(), `increase(stoker_gpu_xid_errors_total{xid="79",node="gpu-a-01"}[3m]) > 0`, s.Now()); err != nil || len(v) != 0 {
				t.Errorf("after its boot a rule over the counter finds %v, %v", v, err)
			}
		}
	}
}

// BenchmarkDemo is two hours of the demonstration with collectors, series and facts
// every 10 s of virtual time, and nobody who acts.
func BenchmarkDemo(b *testing.B) {
	for b.Loop() {
		s := newSite(b, Demo(1))
		for at := time.Duration(0); at <= 2*time.Hour; at += 10 * time.Second {
			s.to(at)
			s.scrape()
			s.facts()
		}
	}
	b.ReportMetric(2*float64(b.N)/b.Elapsed().Seconds(), "virtual-h/s")
}
