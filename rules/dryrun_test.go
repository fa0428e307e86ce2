package rules

import (
	"testing"
	"time"
)

func TestADryRunEndsWhatNobodyTellsOfAnyMore(t *testing.T) {
	for name, tc := range map[string]struct {
		dry  bool
		mode string
		age  time.Duration
		want string
	}{
		"of the service":                   {dry: true, age: time.Hour + time.Second, want: "resolved: a dry run: nothing was done, and nothing was told of it for 1h0m0s"},
		"of the playbook":                  {mode: "dry-run", age: time.Hour + time.Second, want: "resolved: a dry run: nothing was done, and nothing was told of it for 1h0m0s"},
		"and not before":                   {dry: true, age: 50 * time.Minute},
		"what waits to be done goes on so": {age: 5 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPatient(t, xid79())
			p.cfg.DryRun, p.in.Mode = tc.dry, tc.mode
			p.now = xid79().At.Add(tc.age)
			p.f.At = p.now
			p.advance()
			if tc.want == "" {
				if len(p.orders) != 1 || p.orders[0].Action != "cordon" {
					t.Errorf("orders %v of %v, want the cordon", p.orders, history(p.in))
				}
				return
			}
			wantHistory(t, p.in, tc.want)
		})
	}
}
