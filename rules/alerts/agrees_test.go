//go:build !race

// Hours of series take seconds, and minutes under the race detector.

package alerts

import (
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

// TestTheProcessAgreesWithPromtool takes promtool's own tests through the evaluation
// that the program does without a Prometheus: same series, same alerts at the same
// times. What promtool says of them is in TestPromtool.
func TestTheProcessAgreesWithPromtool(t *testing.T) {
	alerts, queries := 0, 0
	for _, name := range glob(t, "*.test.yaml") {
		tests := readTests(t, name)
		files := fstest.MapFS{}
		for _, f := range tests.RuleFiles {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			files[f] = &fstest.MapFile{Data: b}
		}
		// The evaluation in the process takes the groups by file and place there. Where a
		// test has several, promtool must be told the same, or it takes them as they come.
		var evaluated []string
		for _, g := range Groups() {
			if slices.Contains(tests.RuleFiles, g.File) {
				evaluated = append(evaluated, g.Name)
			}
		}
		if len(evaluated) > 1 && !slices.Equal(evaluated, tests.GroupEvalOrder) {
			t.Errorf("%s: group_eval_order is %v, want %v", name, tests.GroupEvalOrder, evaluated)
		}
		for _, tc := range tests.Tests {
			alerts += len(tc.Alerts)
			queries += len(tc.Queries)
			t.Run(strings.TrimSuffix(name, ".rules.test.yaml")+"/"+tc.Name, func(t *testing.T) {
				if len(tc.Alerts)+len(tc.Queries) == 0 {
					t.Error("the test expects nothing")
				}
				newProcess(t, files, tc, time.Duration(tests.EvaluationInterval)).run(t, tc)
			})
		}
	}
	if alerts < 80 || queries < 40 {
		t.Errorf("%d expectations of alerts and %d of series were read: the test looks in the wrong place", alerts, queries)
	}
}
