package spine

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/internal/e2e/scene"

	"stoker.dev/stoker/internal/e2e/cluster"
)

// TestHealsALostGPU is the promise in one piece: a GPU of a node falls off the bus, the
// collector and Alertmanager both tell of it, and the job goes on elsewhere from its
// checkpoint while the node is booted, verified and given back.
func TestHealsALostGPU(t *testing.T) {
	f := scene.SetUp(t, "heal", scene.Needs{Nodes: 8, Rebooter: cluster.RebooterOptions{Down: 2 * time.Second}})
	ill := f.StartJob(t, time.Second)
	f.StartLodger(t, ill, time.Second)
	boot := f.BootID(t, ill)

	sample := scene.ExporterSample(t)
	tel := f.Collect(t, ill, boot, scene.WithoutXIDs(sample))
	s := f.Replica(t, scene.Settings{Scrape: tel.Address}, f.WebhookPort, f.Kubeconfig)
	s.Start(t)
	s.AwaitLeader(t)
	s.Await(t, "the service to be ready", scene.Soon, func(ctx context.Context) (bool, string, error) {
		code, text, err := s.Ask(ctx, http.MethodGet, "/readyz", "", nil)
		return code == http.StatusOK, fmt.Sprintf("%d %s", code, text), err
	})

	// The fault: the next page shows a 79 on GPU 3. Prometheus would now tell
	// Alertmanager of it, by the same rule and with the same time of the event.
	tel.Show(t, sample)
	fault := f.GPULost(t, ill, tel.EventTime(t))
	f.PostAlerts(t, cluster.Alert{Labels: fault.Labels, Annotations: fault.Annotations, StartsAt: fault.StartsAt})
	t.Cleanup(func() { f.ResolveAlert(t, fault) })

	f.AwaitStep(t, ill, "reboot")
	if text := s.Explain(t, "node/"+ill); !strings.Contains(text, "cordoned by Stoker") || !strings.Contains(text, "XID 79 on GPU 3") {
		t.Errorf("explain does not say that Stoker has cordoned the node for an XID 79:\n%s", text)
	}
	tel.FollowReboot(t, boot, scene.WithoutXIDs(sample))
	in := f.AwaitHealed(t, ill, scene.Long)

	f.CheckJob(t, ill)
	if at := f.Lodger(t); at == ill {
		t.Error("the lodger was not moved by the drain")
	}
	f.CheckRebooted(t, ill, boot)
	f.CheckUnmarked(t, ill)
	f.CheckEffects(t, scene.OnceEach)
	f.CheckOne(t, ill)

	// Both have told of one event, and the incident says so.
	told := ""
	for _, e := range in.Evidence {
		told += e.Source + " "
	}
	if in.EvidenceCount != 1 || !strings.Contains(told, "rules") || !strings.Contains(told, "alertmanager") {
		t.Errorf("%d events told by %q; want one, told by rules and by alertmanager", in.EvidenceCount, told)
	}
	if len(in.Losses) != 1 || in.Losses[0].Step != 18200 || in.Losses[0].GPUHours <= 0 {
		t.Errorf("losses %+v; want one, of the work since step 18200", in.Losses)
	}
	checkTold(t, s, in)
}

// checkTold checks that API, command line and metrics tell of the healed incident.
func checkTold(t *testing.T, s *scene.Service, in scene.Incident) {
	t.Helper()
	healed := slices.DeleteFunc(s.Incidents(t), func(o scene.Incident) bool { return o.Class != "gpu-lost" })
	if len(healed) != 1 || healed[0].Name != in.Name || healed[0].Phase != "resolved" {
		t.Errorf("the API lists %v, want %s as resolved", healed, in.Name)
	}
	if open := s.Get(t, "/api/v1/incidents?state=open"); strings.Contains(open, in.Name) {
		t.Errorf("the API lists %s as open", in.Name)
	}
	if one := s.Get(t, "/api/v1/incidents/"+in.Name); !strings.Contains(one, in.Name) {
		t.Errorf("the API does not know %s: %s", in.Name, one)
	}
	journal := s.Get(t, "/api/v1/journal")
	for _, action := range scene.Ladder {
		if !strings.Contains(journal, strconv.Quote(action)) {
			t.Errorf("the journal does not tell of %s:\n%s", action, journal)
		}
	}
	if text := s.Explain(t, "incident/"+in.Name); !strings.Contains(text, "resolved") {
		t.Errorf("explain does not say that the incident is resolved:\n%s", text)
	}
	list, complaint, code := s.Stoker(t, "incidents", "--all", "--server", s.Address(), "--token-file", s.TokenFile)
	if code != 0 || !strings.Contains(list, in.Name) {
		t.Errorf("stoker incidents ends with %d and lists %q %q, want %s in it", code, list, complaint, in.Name)
	}
	code, metrics, err := s.Ask(t.Context(), http.MethodGet, "/metrics", "", nil)
	if want := `stoker_incidents_closed_total{class="gpu-lost",phase="resolved"} 1`; err != nil || code != http.StatusOK || !strings.Contains(metrics, want) {
		t.Errorf("/metrics answers %d (%v) without %s", code, err, want)
	}
}
