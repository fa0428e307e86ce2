package remedy

import (
	"maps"
	"time"

	"stoker.dev/stoker/internal/fleet"
)

// Silenced returns a silence that covers the incident at now, if there is one. It is
// compared with what each evidence says of itself and, where that says nothing, with
// how alerts name such a subject: a silence of a node is for everything on it.
func (in Incident) Silenced(now time.Time, silences []fleet.Silence) (fleet.Silence, bool) {
	if len(silences) == 0 {
		return fleet.Silence{}, false
	}
	told := in.told()
	for _, s := range silences {
		for _, labels := range told {
			if s.Covers(now, labels) {
				return s, true
			}
		}
	}
	return fleet.Silence{}, false
}

// Muted says why Alertmanager tells us nothing of the incident just now; empty when it
// would tell us.
func (in Incident) Muted(alerts fleet.Alerting) string {
	why := ""
	if alerts.Receiver == "" {
		return why
	}
	for _, labels := range in.told() {
		if why = alerts.Routes.MutedFor(alerts.Receiver, labels); why == "" {
			return why
		}
	}
	return why
}

// told is what alerts say of the incident, by evidence that is not over.
func (in Incident) told() []map[string]string {
	told := make([]map[string]string, 0, len(in.Evidence)+1)
	for _, e := range in.Evidence {
		if !e.Resolved {
			told = append(told, in.labels(e.Labels))
		}
	}
	if len(told) == 0 {
		told = append(told, in.labels(nil))
	}
	return told
}

func (in Incident) labels(told map[string]string) map[string]string {
	out := map[string]string{"class": string(in.Class)}
	for name, v := range map[string]string{
		"node": in.Subject.Node, "gpu": in.Subject.Index, "UUID": in.Subject.UUID,
		"namespace": in.Subject.Namespace, "job_name": in.Subject.Name,
	} {
		if v != "" {
			out[name] = v
		}
	}
	maps.Copy(out, told)
	return out
}
