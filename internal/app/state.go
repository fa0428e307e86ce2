package app

import (
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/server"
)

// state says of this replica what its pages show. The mode is the one in force, which a
// change of the configuration may have brought.
func (s *service) state(now time.Time) server.State {
	st := server.State{Mode: string(s.cfg.Mode), Identity: s.opts.Identity, Leader: s.opts.Identity, Leading: true}
	if m := s.mode.Load(); m != nil {
		st.Mode = string(*m)
	}
	if s.election != nil {
		st.Leader = s.election.Leader()
		st.Leading = st.Leader == s.opts.Identity
	}
	if s.alerting != nil && s.cfg.Alertmanager.watchdog() > 0 {
		status, seen := s.alerting.Path(now)
		st.Watchdog = server.Watchdog{Wanted: true, Seen: seen, Late: status == fleet.False}
		if st.Watchdog.Late {
			st.Watchdog.Why = "it has not come within " + s.cfg.Alertmanager.Watchdog.Within.String()
		}
	}
	return st
}
