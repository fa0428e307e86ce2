package pods

import (
	"strconv"
	"strings"
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
	rows, missed := match(holds, s, l.isGPU, l.o.Replicas)
	l.say(missed)
	about := l.about.of(now)
	w := writer{}
	l.writeRows(&w, s, rows, about)
	l.writeNear(&w, s, nearness(holds, rows, s))
	l.writeMissed(&w, s, missed, over)
	writeOutcome(&w, "stoker_pods", "the kubelet", last, []string{tooLong, noAnswer, refused, forbidden, noSocket})
	l.about.write(&w, rows, now)
	l.finished.Store(&finished{page: w.dst, labels: labelsOf(rows, s, about, l.o.Replicas)})
}

func (l *Lister) writeRows(w *writer, s Seen, rows []row, about map[pod]known) {
	shared := holders(rows)
	w.family("stoker_gpu_pod_info", "Always 1; the pod has the GPU or the MIG instance. Where it is shared, the values of the GPU are those of all who share it.")
	for _, r := range rows {
		w.series("stoker_gpu_pod_info")
		w.gpu(s, r.gpu)
		w.some("GPU_I_ID", r.instance)
		w.of(r.owner)
		w.label("shared", strconv.FormatBool(shared[part{r.gpu, r.instance}] > 1))
		w.some("vgpu", r.replica)
		w.some("dra_claim_namespace", r.claim.namespace)
		w.some("dra_claim_name", r.claim.name)
		w.some("dra_driver_name", r.claim.driver)
		w.some("dra_pool_name", r.claim.pool)
		w.some("dra_device_name", r.claim.device)
		k := about[r.pod]
		w.some("pod_uid", k.uid)
		for _, x := range k.labels {
			w.label(x.Name, x.Value)
		}
		w.value("1")
	}
}

func (l *Lister) writeNear(w *writer, s Seen, all []near) {
	w.family("stoker_gpu_pod_near_cpus_ratio",
		"Which part of the CPUs that the container has for itself is near its GPU. Under 1, some are on another NUMA node.")
	for _, n := range all {
		w.series("stoker_gpu_pod_near_cpus_ratio")
		w.gpu(s, n.gpu)
		w.of(owner{pod: n.pod, container: n.container})
		w.value(strconv.FormatFloat(n.part, 'f', -1, 64))
	}
}

func (l *Lister) writeMissed(w *writer, s Seen, missed []miss, over int) {
	w.family("stoker_gpu_pod_missing_info", "Always 1; the pod has a device of which it is not known which GPU it is, and why. The first 64.")
	for _, m := range missed[:min(len(missed), maxMissed)] {
		w.series("stoker_gpu_pod_missing_info")
		w.label("node", s.Node)
		w.of(m.owner)
		w.label("id", m.id[:min(len(m.id), maxID)])
		w.label("reason", m.why)
		w.value("1")
	}
	count := map[string]int{whyMany: over}
	for _, m := range missed {
		count[m.why]++
	}
	w.family("stoker_pods_unmatched_devices", "Devices that a pod has and of which it is not known which GPU they are, by reason.")
	for _, why := range whys {
		w.series("stoker_pods_unmatched_devices")
		w.label("reason", why)
		w.value(strconv.Itoa(count[why]))
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
func writeOutcome(w *writer, prefix, who string, o outcome, reasons []string) {
	if !o.success.IsZero() {
		w.family(prefix+"_last_success_timestamp_seconds", "When "+who+" last answered, in seconds since 1970.")
		w.series(prefix + "_last_success_timestamp_seconds")
		w.value(strconv.FormatFloat(float64(o.success.UnixMilli())/1000, 'f', 3, 64))
	}
	if !o.tried {
		return
	}
	w.family(prefix+"_up", "Whether "+who+" has answered; why not, if not.")
	for _, why := range reasons {
		if o.failure != nil && o.reason == why {
			w.series(prefix + "_up")
			w.label("reason", why)
			w.value("0")
		}
	}
	if o.failure == nil {
		w.series(prefix + "_up")
		w.label("reason", "")
		w.value("1")
	}
}

// A writer writes a page. A family without a series leaves no trace.
type writer struct {
	dst    []byte
	head   string
	labels int
}

// family begins one; all are gauges.
func (w *writer) family(name, help string) {
	w.head = "# HELP " + name + " " + help + "\n# TYPE " + name + " gauge\n"
}

func (w *writer) series(name string) {
	w.dst = append(append(w.dst, w.head...), name...)
	w.head, w.labels = "", 0
}

func (w *writer) label(name, value string) {
	sep := byte(',')
	if w.labels == 0 {
		sep = '{'
	}
	w.labels++
	w.dst = append(append(append(w.dst, sep), name...), '=')
	w.dst = append(w.dst, quote(value)...)
}

// some writes a label that is not there when it is empty.
func (w *writer) some(name, value string) {
	if value != "" {
		w.label(name, value)
	}
}

func (w *writer) gpu(s Seen, at int) {
	w.label("node", s.Node)
	w.label("gpu", strconv.Itoa(s.GPUs[at].Index))
	w.label("UUID", s.GPUs[at].UUID)
}

func (w *writer) of(o owner) {
	w.label("namespace", o.pod.namespace)
	w.label("pod", o.pod.name)
	w.label("container", o.container)
	w.some("resource", o.resource)
}

func (w *writer) value(text string) {
	if w.labels > 0 {
		w.dst = append(w.dst, '}')
	}
	w.dst = append(append(append(w.dst, ' '), text...), '\n')
}

var escaper = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

// quote writes a label's value so that it is read back as it was.
func quote(s string) string {
	return `"` + escaper.Replace(strings.ToValidUTF8(s, "\uFFFD")) + `"`
}
