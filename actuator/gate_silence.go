package actuator

import (
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// silencesMaxAge is how old an answer about silences may be. What was silenced since
// nobody knows.
const silencesMaxAge = time.Minute

// silenceGate respects what people have silenced in Alertmanager: whoever does not want
// to hear of a fault is working on it, or has planned it.
type silenceGate struct{}

func (silenceGate) Name() string { return "silence" }

func (silenceGate) Ask(q Question) remedy.GateResult {
	alerts := q.Fleet.Alerts
	if !alerts.Wanted {
		return pass("no Alertmanager is asked for silences")
	}
	if q.Orders[0].Role == remedy.RoleVerify {
		return pass("verify only looks")
	}
	switch age := q.Now.Sub(alerts.Told); {
	case alerts.Told.IsZero():
		return wait("which silences there are is not known: Alertmanager has not answered yet")
	case age > silencesMaxAge:
		return wait("which silences there are is not known: Alertmanager has not answered for %s", span(age))
	}
	if s, is := q.Incident.Silenced(q.Now, alerts.Silences); is {
		until := ""
		if !s.Until.IsZero() {
			until = " until " + s.Until.UTC().Format(time.RFC3339)
		}
		return wait("silenced%s by %s", until, s.By)
	}
	if why := q.Incident.Muted(alerts); why != "" {
		return wait("muted: %s", why)
	}
	return pass("none of %d silences covers it", len(alerts.Silences))
}

// pathGate stops harm while it is not known whether alerts arrive at all: then much
// more may be wrong than is known, and that a fault is over would not be heard.
type pathGate struct{}

func (pathGate) Name() string { return "watchdog" }

func (pathGate) Ask(q Question) remedy.GateResult {
	path := q.Fleet.Alerts.Path
	switch {
	case path.Status != fleet.False:
		return pass("alerts arrive, or no proof of it is awaited")
	case !harmful(q.Orders[0]):
		return pass("%s takes nothing away", q.Orders[0].Action)
	case q.Fleet.Alerts.Watchdog.IsZero():
		return wait("telemetry is unknown: the Watchdog alert has never arrived")
	}
	return wait("telemetry is unknown: the Watchdog alert has not arrived since %s, %s ago",
		q.Fleet.Alerts.Watchdog.UTC().Format(time.RFC3339), span(q.Now.Sub(q.Fleet.Alerts.Watchdog)))
}
