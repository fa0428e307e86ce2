package pods

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"stoker.dev/stoker/collector/series"
	"stoker.dev/stoker/internal/fleet"
)

// About says what to ask of the cluster about pods that have GPUs: the kubelet's socket
// tells neither their uids nor their labels.
type About struct {
	UID    bool
	Labels bool
	// Allow are the labels that are shown, by key, as one of them finds it; all when empty.
	Allow []*regexp.Regexp
}

func (a About) wanted() bool { return a.UID || a.Labels }

const (
	maxPodLabels = 32
	listEvery    = 2 * time.Minute // while all pods are known
)

// Why a label is not shown.
const (
	sameName  = "same-name"
	overLimit = "over-limit"
)

// partialObjects asks for metadata alone.
const partialObjects = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

// known is what the cluster says of a pod.
type known struct {
	uid    string
	labels []fleet.Label // sorted, fit for a page
	absent bool          // it does not know the pod
	at     time.Time
	// left are labels that are not shown, by reason.
	left map[string]int
}

// about asks the cluster and remembers what it said of the pods that matter. It belongs to
// one goroutine.
type about struct {
	log     *slog.Logger
	o       About
	cluster *cluster
	pods    map[pod]known
	last    outcome
	next    time.Time // not to be asked before
}

func newAbout(log *slog.Logger, o About, c *cluster) *about {
	return &about{log: log.With("asked_for", "uids and labels of pods"), o: o, cluster: c, pods: map[pod]known{}}
}

// of returns what is known of pods. What nobody has confirmed for an hour is not.
func (a *about) of(now time.Time) map[pod]known {
	if a == nil || now.Sub(a.last.success) > aboutFor {
		return nil
	}
	return a.pods
}

// refresh asks the cluster if there is a reason to. A pod that has gone is forgotten: one
// of the same name is another one.
func (a *about) refresh(ctx context.Context, pods []pod, now time.Time) {
	if a == nil {
		return
	}
	wanted := map[pod]bool{}
	for _, p := range pods {
		wanted[p] = true
	}
	maps.DeleteFunc(a.pods, func(p pod, _ known) bool { return !wanted[p] })
	if !a.due(wanted, now) {
		return
	}
	got, err := a.list(ctx, wanted)
	if a.next = a.last.end(a.log, err, now); err != nil {
		return
	}
	for p := range wanted {
		k, ok := got[p]
		k.absent, k.at = !ok, now
		a.pods[p] = k
	}
}

func (a *about) due(wanted map[pod]bool, now time.Time) bool {
	if len(wanted) == 0 || now.Before(a.next) {
		return false
	}
	if now.Sub(a.last.success) >= listEvery {
		return true
	}
	for p := range wanted {
		if k, ok := a.pods[p]; !ok || k.absent && now.Sub(k.at) >= absentFor {
			return true
		}
	}
	return false
}

// list reads the metadata of the node's pods, and keeps what is wanted.
func (a *about) list(ctx context.Context, wanted map[pod]bool) (map[pod]known, error) {
	got := map[pod]known{}
	query := url.Values{"fieldSelector": {"spec.nodeName=" + a.cluster.node}}
	err := a.cluster.list(ctx, "/api/v1/pods", query, partialObjects, func(body []byte) (string, error) {
		var part struct {
			Metadata struct {
				Continue string `json:"continue"`
			} `json:"metadata"`
			Items []struct {
				Metadata struct {
					Namespace string            `json:"namespace"`
					Name      string            `json:"name"`
					UID       string            `json:"uid"`
					Labels    map[string]string `json:"labels"`
				} `json:"metadata"`
			} `json:"items"`
		}
		if err := json.Unmarshal(body, &part); err != nil {
			return "", err
		}
		for _, item := range part.Items {
			m := item.Metadata
			p := pod{m.Namespace, m.Name}
			if !wanted[p] {
				continue
			}
			k := known{}
			if a.o.UID {
				k.uid = m.UID
			}
			if a.o.Labels {
				k.labels, k.left = podLabels(m.Labels, a.o.Allow)
			}
			got[p] = k
		}
		return part.Metadata.Continue, nil
	})
	return got, err
}

// podLabels makes labels of a page of a pod's own: those that are allowed, under names that
// are fit for one, of which each is there once.
func podLabels(of map[string]string, allow []*regexp.Regexp) (out []fleet.Label, left map[string]int) {
	taken := map[string]bool{}
	left = map[string]int{}
	for _, key := range slices.Sorted(maps.Keys(of)) {
		if len(allow) > 0 && !slices.ContainsFunc(allow, func(r *regexp.Regexp) bool { return r.MatchString(key) }) {
			continue
		}
		name := labelName(key)
		switch {
		case taken[name]:
			left[sameName]++
		case len(out) >= maxPodLabels:
			left[overLimit]++
		default:
			taken[name] = true
			out = append(out, fleet.Label{Name: name, Value: of[key]})
		}
	}
	slices.SortFunc(out, func(x, y fleet.Label) int { return cmp.Compare(x.Name, y.Name) })
	return out, left
}

var notInNames = regexp.MustCompile(`[^a-zA-Z0-9_]`)

// labelName makes a label's name of a key, as dcgm-exporter does. One that a series has
// already gets a prefix.
func labelName(key string) string {
	name := notInNames.ReplaceAllString(key, "_")
	if name == "" || '0' <= name[0] && name[0] <= '9' {
		name = "_" + name
	}
	if reserved[name] || strings.HasPrefix(name, "__") || strings.HasPrefix(name, "dra_") {
		name = "label_" + name
	}
	return name
}

// reserved are the labels that series of GPUs and of pods have.
var reserved = func() map[string]bool {
	out := map[string]bool{}
	for _, name := range strings.Fields(`node gpu UUID uuid pci_bus_id device modelName GPU_I_ID GPU_I_PROFILE hostname Hostname
		namespace pod container pod_name pod_namespace container_name pod_uid resource shared vgpu hpc_job err_code err_msg xid
		window_size_in_ms clock_event health_watch health_error_code peer_gpu link_status nvlink nvswitch cpu cpucore`) {
		out[name] = true
	}
	return out
}()

// write says how asking goes, and what is not shown.
func (a *about) write(w *series.Writer, rows []row, now time.Time) {
	if a == nil {
		return
	}
	of := a.of(now)
	without := 0
	left := map[string]int{}
	seen := map[pod]bool{}
	for _, r := range rows {
		if seen[r.pod] {
			continue
		}
		seen[r.pod] = true
		k, ok := of[r.pod]
		if !ok || k.absent {
			without++
		}
		for why, n := range k.left {
			left[why] += n
		}
	}
	writeOutcome(w, "stoker_pods_metadata", "the cluster", a.last, clusterReasons)
	w.Family("stoker_pods_metadata_missing", "Pods with GPUs of which the cluster has told neither uid nor labels.")
	w.Begin()
	w.Value(strconv.Itoa(without))
	w.Family("stoker_pods_labels_left_out", "Labels of pods with GPUs that are allowed and not shown, by reason.")
	for _, why := range []string{overLimit, sameName} {
		w.Begin()
		w.Label("reason", why)
		w.Value(strconv.Itoa(left[why]))
	}
}
