package observe

import (
	"strings"
	"time"

	"stoker.dev/stoker/actuator/jobs/manifest"
	"stoker.dev/stoker/internal/fleet"
)

// disruption is the condition of a pod that somebody else than its program ended.
const disruption = "DisruptionTarget"

// containerLists are where a pod's status tells of containers.
var containerLists = []string{"initContainerStatuses", "containerStatuses"}

// Failure reads how a pod of a job has ended badly, and of which job it was; false when
// it has not, or nobody can say when. A container that was started again in its pod
// counts too: its gang has lost it. A pod that was asked to go, as when its job is
// stopped, and that ends by that, has not failed.
func (o Pods) Failure(obj map[string]any) (fleet.JobRef, fleet.Failure, bool) {
	job := o.job(obj)
	phase := manifest.String(obj, "status", "phase")
	if job == (fleet.JobRef{}) || phase == "Succeeded" {
		return job, fleet.Failure{}, false
	}
	f := fleet.Failure{
		Pod: fleet.PodRef{
			Namespace: manifest.String(obj, "metadata", "namespace"),
			Name:      manifest.String(obj, "metadata", "name"),
			UID:       manifest.String(obj, "metadata", "uid"),
			Node:      manifest.String(obj, "spec", "nodeName"),
		},
		GPUs: manifest.Demand(manifest.Map(obj, "spec")).GPUs,
	}
	disrupted := manifest.ConditionOf(obj, disruption)
	if disrupted.Status == fleet.True {
		f.Disruption, f.At = manifest.ReasonOf(obj, disruption), disrupted.Since
	} else if phase == "Failed" {
		f.Disruption = manifest.String(obj, "status", "reason")
	}
	asked := manifest.String(obj, "metadata", "deletionTimestamp") != ""
	if asked && f.Disruption == "" {
		return job, fleet.Failure{}, false
	}
	if c, at := firstBad(obj); c != nil {
		end := manifest.Map(c, "ended")
		if f.At.IsZero() || at.Before(f.At) {
			f.At = at
		}
		f.Container, f.Reason, f.Message = manifest.String(c, "name"), manifest.String(end, "reason"), manifest.String(end, "message")
		f.ExitCode, _ = manifest.Int(end, "exitCode")
	} else if phase != "Failed" && f.Disruption == "" {
		return job, fleet.Failure{}, false
	}
	return job, f, !f.At.IsZero()
}

// firstBad returns, of the containers that have ended other than well, the one that
// ended first: its name, and as "ended" how.
func firstBad(obj map[string]any) (map[string]any, time.Time) {
	var first map[string]any
	var when time.Time
	for _, list := range containerLists {
		for _, c := range manifest.List(obj, "status", list) {
			end := badEnd(c)
			if at := manifest.Time(end, "finishedAt"); end != nil && !at.IsZero() && (first == nil || at.Before(when)) {
				first, when = map[string]any{"name": c["name"], "ended": end}, at
			}
		}
	}
	return first, when
}

// badEnd is how a container has ended last, if that was badly; nil otherwise.
func badEnd(container map[string]any) map[string]any {
	end := manifest.Map(container, "state", "terminated")
	if end == nil {
		end = manifest.Map(container, "lastState", "terminated") // it has been started again
	}
	if code, there := manifest.Int(end, "exitCode"); !there || code == 0 {
		return nil
	}
	return end
}

// trimFailure keeps of a pod's status what Failure reads, its messages cut.
func trimFailure(status, into map[string]any) {
	if reason, ok := status["reason"].(string); ok {
		into["reason"] = reason
	}
	for _, c := range manifest.List(status, "conditions") {
		if manifest.String(c, "type") == disruption {
			into["conditions"] = []any{manifest.Pick(c, "type", "status", "reason", "lastTransitionTime")}
		}
	}
	for _, list := range containerLists {
		var kept []any
		for _, c := range manifest.List(status, list) {
			end := badEnd(c)
			if end == nil {
				continue
			}
			end = manifest.Pick(end, "exitCode", "reason", "finishedAt", "message")
			if m, ok := end["message"].(string); ok && len(m) > fleet.MaxFailureText {
				end["message"] = strings.ToValidUTF8(m[:fleet.MaxFailureText], "")
			}
			kept = append(kept, map[string]any{"name": c["name"], "state": map[string]any{"terminated": end}})
		}
		if len(kept) > 0 {
			into[list] = kept
		}
	}
}
