package rules

import (
	"strings"
	"testing"

	"stoker.dev/stoker/internal/remedy"
)

// TestCase_M2_AStateThatIsNotOverAfterAllIsNotVerified: its end was taken from an Alertmanager that
// had lost its alerts, or came before a word that was older. What fires again is the same
// alert, of the same time.
func TestCase_M2_AStateThatIsNotOverAfterAllIsNotVerified(t *testing.T) {
	for name, when := range map[string]string{"while it is verified": "runs", "when that has ended": "ended"} {
		t.Run(name, func(t *testing.T) {
			p := newPatient(t, unready())
			p.do("reboot")
			p.end(remedy.Done, "")
			over := changed(unready(), func(e *remedy.Evidence) { e.Resolved = true })
			p.told(over)
			p.advance()
			p.reserve() // verify
			if cur := p.in.Current(); cur == nil || cur.Action != "verify" {
				t.Fatalf("the ladder is at %s", p.in.StepName())
			}
			if when == "runs" {
				p.told(unready())
				p.advance()
			}
			if p.in.Current() != nil {
				p.end(remedy.Done, "")
			}
			if when == "ended" {
				p.told(unready())
			}
			p.advance()
			for _, o := range p.orders {
				if o.Role == remedy.RoleRelease {
					t.Errorf("the node is given back while the state lasts\n%s", strings.Join(history(p.in), "\n"))
				}
			}
		})
	}
}
