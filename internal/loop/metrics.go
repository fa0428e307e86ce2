package loop

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/scheduler"
)

type registerer = prometheus.Registerer

type metrics struct {
	opened, closed, noted *prometheus.CounterVec
	steps                 *prometheus.CounterVec
	refused               prometheus.Counter
	open                  *prometheus.GaugeVec
	last                  prometheus.Gauge
	lost                  prometheus.Gauge
	orphans               prometheus.Gauge

	planned                           *prometheus.CounterVec
	waitingJobs, waitingGPUs, resting prometheus.Gauge
}

func newMetrics(reg registerer) *metrics {
	m := &metrics{
		opened: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stoker_incidents_opened_total", Help: "Incidents that were opened, by class.",
		}, []string{"class"}),
		closed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stoker_incidents_closed_total", Help: "Incidents that were closed, by class and phase.",
		}, []string{"class", "phase"}),
		noted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stoker_evidence_noted_total", Help: "Evidence that changed no incident, by class.",
		}, []string{"class"}),
		steps: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stoker_incident_steps_total", Help: "Steps of ladders, by action and how they ended; started counts each once.",
		}, []string{"action", "ending"}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "stoker_evidence_refused_total", Help: "Times that evidence was not taken in since too many incidents are open.",
		}),
		open: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "stoker_incidents_open", Help: "Open incidents, by class and phase.",
		}, []string{"class", "phase"}),
		last: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "stoker_loop_last_tick_timestamp_seconds", Help: "When the loop last went round, in unix seconds of the loop's clock.",
		}),
		lost: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "stoker_incidents_lost_gpu_seconds", Help: "Work lost on behalf of the incidents that are kept, in GPU-seconds.",
		}),
	}
	m.orphans = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "stoker_actuator_orphaned_holds", Help: "Nodes that bear a mark of ours for no open incident, so that nobody gives them back.",
	})
	reg.MustRegister(m.orphans)
	m.planned = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "stoker_scheduler_orders_total", Help: "Orders that the planner has asked for, carried out or not, by action.",
	}, []string{"action"})
	m.waitingJobs = prometheus.NewGauge(prometheus.GaugeOpts{Name: "stoker_scheduler_waiting_jobs", Help: "Jobs that wait for GPUs."})
	m.waitingGPUs = prometheus.NewGauge(prometheus.GaugeOpts{Name: "stoker_scheduler_waiting_gpus", Help: "GPUs that jobs wait for."})
	m.resting = prometheus.NewGauge(prometheus.GaugeOpts{Name: "stoker_scheduler_idle_gpus", Help: "GPUs that jobs hold which were told that they are idle."})
	reg.MustRegister(m.planned, m.waitingJobs, m.waitingGPUs, m.resting)
	reg.MustRegister(m.opened, m.closed, m.noted, m.steps, m.refused, m.open, m.last, m.lost)
	return m
}

func (m *metrics) observe(now time.Time, incidents map[string]remedy.Incident) {
	m.open.Reset()
	lost := 0.0
	for _, in := range incidents {
		lost += in.Lost()
		if !in.Phase.Closed() {
			m.open.WithLabelValues(string(in.Class), string(in.Phase)).Inc()
		}
	}
	m.lost.Set(lost * time.Hour.Seconds())
	m.last.Set(float64(now.UnixMilli()) / 1000)
}

// plan shows what the planner sees.
func (m *metrics) plan(f fleet.Snapshot, memory scheduler.Memory) {
	jobs, waiting, resting := 0, 0, 0
	for ref, a := range memory.Accounts {
		switch j := f.Jobs[ref]; {
		case !a.Waits.IsZero():
			jobs, waiting = jobs+1, waiting+j.MilliGPUs()
		case a.Stage != scheduler.StageBusy && j.Phase == fleet.JobRunning:
			resting += j.MilliGPUs()
		}
	}
	m.waitingJobs.Set(float64(jobs))
	m.waitingGPUs.Set(float64(waiting) / 1000)
	m.resting.Set(float64(resting) / 1000)
}
