package pods

import (
	"strconv"
	"strings"

	"stoker.dev/stoker/collector/series"
)

// maxMissed bounds the devices that are named on the page because nobody knows their GPU.
const maxMissed = 64

// AppendPage appends what is known in Prometheus' text format. It waits for nobody.
func (l *Lister) AppendPage(dst []byte) []byte { return append(dst, l.finished.Load().page...) }

// build makes what scrapes read of what is known now.
func (l *Lister) build() {
	s, now := l.seen(), l.now()
	l.mu.Lock()
	holds, over, last := l.holds, l.over, l.last
	l.mu.Unlock()
	if now.Sub(last.success) > maxAge {
		holds, over = nil, 0 // pods come and go; nobody knows which have these devices now
	}
	s.published = l.published.of(now)
	rows, missed := match(holds, s, l.isGPU, l.o.Replicas)
	l.say(missed)
	about := l.about.of(now)
	w := series.Writer{}
	l.writeRows(&w, s, rows, about)
	l.writeNear(&w, s, nearness(holds, rows, s))
	l.writeMissed(&w, s, missed, over)
	writeOutcome(&w, "stoker_pods", "the kubelet", last, []string{tooLong, noAnswer, refused, forbidden, noSocket})
	l.about.write(&w, rows, now)
	if l.published != nil {
		writeOutcome(&w, "stoker_pods_published", "the cluster", l.published.last, clusterReasons)
	}
	l.finished.Store(&finished{page: w.Page(), labels: labelsOf(rows, s, about, l.o.Replicas)})
}

func (l *Lister) writeRows(w *series.Writer, s Seen, rows []row, about map[pod]known) {
	shared := holders(rows)
	w.Family("stoker_gpu_pod_info", "Always 1; the pod has the GPU or the MIG instance. Where it is shared, the values of the GPU are those of all who share it.")
	for _, r := range rows {
		w.Begin()
		writeGPU(w, s, r.gpu)
		w.Some("GPU_I_ID", r.instance)
		writeOwner(w, r.owner)
		w.Label("shared", strconv.FormatBool(shared[part{r.gpu, r.instance}] > 1))
		w.Some("vgpu", r.replica)
		w.Some("dra_claim_namespace", r.claim.namespace)
		w.Some("dra_claim_name", r.claim.name)
		w.Some("dra_driver_name", r.claim.driver)
		w.Some("dra_pool_name", r.claim.pool)
		w.Some("dra_device_name", r.claim.device)
		w.Some("dra_mig_profile", r.claim.profile)
		w.Some("dra_mig_device_uuid", r.claim.mig)
		k := about[r.pod]
		w.Some("pod_uid", k.uid)
		for _, x := range k.labels {
			w.Label(x.Name, x.Value)
		}
		w.Value("1")
	}
}

func (l *Lister) writeNear(w *series.Writer, s Seen, all []near) {
	w.Family("stoker_gpu_pod_near_cpus_ratio",
		"Which part of the CPUs that the container has for itself is near its GPU. Under 1, some are on another NUMA node.")
	for _, n := range all {
		w.Begin()
		writeGPU(w, s, n.gpu)
		writeOwner(w, owner{pod: n.pod, container: n.container})
		w.Value(strconv.FormatFloat(n.part, 'f', -1, 64))
	}
}

func (l *Lister) writeMissed(w *series.Writer, s Seen, missed []miss, over int) {
	w.Family("stoker_gpu_pod_missing_info", "Always 1; the pod has a device of which it is not known which GPU it is, and why. The first 64.")
	for _, m := range missed[:min(len(missed), maxMissed)] {
		w.Begin()
		if m.gpu < 0 {
			w.Label("node", s.Node)
		} else {
			writeGPU(w, s, m.gpu)
		}
		writeOwner(w, m.owner)
		w.Label("id", m.id[:min(len(m.id), maxID)])
		w.Label("reason", m.why)
		w.Value("1")
	}
	count := map[string]int{whyMany: over}
	for _, m := range missed {
		count[m.why]++
	}
	w.Family("stoker_pods_unmatched_devices", "Devices that a pod has and of which it is not known which GPU they are, by reason.")
	for _, why := range whys {
		w.Begin()
		w.Label("reason", why)
		w.Value(strconv.Itoa(count[why]))
	}
}

// say logs which devices are not matched, when that has changed.
func (l *Lister) say(missed []miss) {
	text := ""
	for _, m := range missed[:min(len(missed), 8)] {
		text += m.pod.namespace + "/" + m.pod.name + " " + m.resource + " " + strconv.Quote(m.id) + " " + m.why + "; "
	}
	if text != l.missed && text != "" {
		l.log.Warn("pods have devices of which it is not known which GPU they are", "devices", strings.TrimSuffix(text, "; "), "count", len(missed))
	}
	l.missed = text
}

// writeOutcome says when somebody was last asked with success, and whether that goes on.
func writeOutcome(w *series.Writer, prefix, who string, o outcome, reasons []string) {
	if !o.success.IsZero() {
		w.Family(prefix+"_last_success_timestamp_seconds", "When "+who+" last answered, in seconds since 1970.")
		w.Begin()
		w.Value(strconv.FormatFloat(float64(o.success.UnixMilli())/1000, 'f', 3, 64))
	}
	if !o.tried {
		return
	}
	w.Family(prefix+"_up", "Whether "+who+" has answered; why not, if not.")
	for _, why := range reasons {
		if o.failure != nil && o.reason == why {
			w.Begin()
			w.Label("reason", why)
			w.Value("0")
		}
	}
	if o.failure == nil {
		w.Begin()
		w.Label("reason", "")
		w.Value("1")
	}
}

// writeGPU adds the labels of a GPU.
func writeGPU(w *series.Writer, s Seen, at int) {
	w.Label("node", s.Node)
	w.Label("gpu", strconv.Itoa(s.GPUs[at].Index))
	w.Label("UUID", s.GPUs[at].UUID)
}

// writeOwner adds the labels of a container, and by what it has its device.
func writeOwner(w *series.Writer, o owner) {
	w.Label("namespace", o.pod.namespace)
	w.Label("pod", o.pod.name)
	w.Label("container", o.container)
	w.Some("resource", o.resource)
}
