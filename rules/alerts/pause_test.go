//go:build !race

// Hours of series take seconds, and minutes under the race detector.

package alerts

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/labels"
)

// TestAPauseOfTheEvaluationIsNoLifeOfTheJob is what promtool can't say: nothing is scraped
// and nothing evaluated for minutes, as while a Prometheus reads its log, and a job that
// hangs hangs on.
func TestAPauseOfTheEvaluationIsNoLifeOfTheJob(t *testing.T) {
	const every = 30 * time.Second
	for name, tc := range map[string]struct {
		pause time.Duration // begins 22 minutes after the start, 2 after the last step
		late  time.Duration // of the first scrape after it
		gone  bool          // the job is not there any more
		fires time.Duration // 0: never
	}{
		"no pause":                        {0, 0, false, 31 * time.Minute},
		"three minutes":                   {3 * time.Minute, 0, false, 31 * time.Minute},
		"six minutes, and a late scrape":  {6 * time.Minute, time.Minute, false, 31 * time.Minute},
		"longer than what is looked back": {16 * time.Minute, 0, false, 0},
		"the job ends in the pause":       {6 * time.Minute, 0, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProcess(t, Files(), testCase{}, every)
			step := labels.FromStrings("__name__", "stoker_job_step", "namespace", "ml", "job_name", "llm")
			from, to := 22*time.Minute, 22*time.Minute+tc.pause
			var fires time.Duration
			for now := time.Duration(0); now <= time.Hour; now += every {
				if now > from && now < to {
					continue
				}
				if now <= from || !tc.gone && now >= to+tc.late {
					p.inputs = append(p.inputs, input{now, step, min(float64(now/every), 40)})
					p.feed(t, now)
				}
				ev, err := p.ev.Evidence(t.Context(), at(now))
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range ev {
					if e.Labels[labels.AlertName] == "TrainingStalled" && !e.Resolved && fires == 0 {
						fires = now
					}
				}
			}
			if diff := cmp.Diff(tc.fires, fires); diff != "" {
				t.Errorf("time of the alert (-want +got):\n%s", diff)
			}
		})
	}
}
