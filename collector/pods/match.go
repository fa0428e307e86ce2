package pods

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"stoker.dev/stoker/internal/fleet"
)

// forms are the ids that name a GPU by its number, and perhaps an instance of it: those
// of GKE's plugin, and of the DRA driver.
var forms = regexp.MustCompile(`^(?:nvidia|gpu-)([0-9]+)(?:/gi([0-9]+))?(?:/vgpu[0-9]+)?$`)

// oldMIG is the form of a MIG instance's id before drivers of branch 470.
var oldMIG = regexp.MustCompile(`^MIG-(GPU-[0-9a-fA-F-]+)/([0-9]+)/[0-9]+$`)

// A device is what an id names.
type device struct {
	uuid     string // of the whole GPU; empty where it is named by number
	number   int
	instance string
	mig      string // an instance's own UUID, which says nothing of its GPU
}

// read reads an id in any of its forms. A replica, as with time slicing, is the device
// that it shares.
func read(id string) (device, bool) {
	id, _, _ = strings.Cut(id, "::")
	if m := forms.FindStringSubmatch(id); m != nil {
		n, err := strconv.Atoi(m[1])
		return device{number: n, instance: m[2]}, err == nil
	}
	if m := oldMIG.FindStringSubmatch(id); m != nil {
		return device{uuid: m[1], instance: m[2]}, true
	}
	switch {
	case strings.HasPrefix(id, "GPU-"):
		return device{uuid: id}, true
	case strings.HasPrefix(id, "MIG-"):
		return device{mig: id}, true
	}
	return device{}, false
}

// A row is one GPU or instance and a pod that holds it.
type row struct {
	gpu      fleet.SampledGPU
	instance string
	hold     hold
	shared   bool
}

// match says which GPUs the pods hold, and of how many devices that is not known and why.
func match(holds []hold, gpus []fleet.SampledGPU) (rows []row, unmatched map[string]int) {
	unmatched = map[string]int{}
	for _, h := range holds {
		d, ok := read(h.id)
		switch {
		case !ok:
			unmatched["unknown-id"]++
			continue
		case d.mig != "":
			unmatched["mig-uuid"]++
			continue
		}
		at := slices.IndexFunc(gpus, func(g fleet.SampledGPU) bool {
			if d.uuid != "" {
				return g.UUID == d.uuid
			}
			return g.Index == d.number
		})
		if at < 0 {
			unmatched["no-such-gpu"]++
			continue
		}
		r := row{gpu: gpus[at], instance: d.instance, hold: h}
		r.hold.id = ""
		if !slices.Contains(rows, r) { // several replicas of one device are one row
			rows = append(rows, r)
		}
	}
	holders := map[string]map[string]bool{}
	key := func(r row) string { return r.gpu.UUID + " " + strconv.Itoa(r.gpu.Index) + " " + r.instance }
	for _, r := range rows {
		k := key(r)
		if holders[k] == nil {
			holders[k] = map[string]bool{}
		}
		holders[k][r.hold.namespace+"/"+r.hold.pod] = true
	}
	for i := range rows {
		rows[i].shared = len(holders[key(rows[i])]) > 1
	}
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(a.gpu.Index, b.gpu.Index), cmp.Compare(a.instance, b.instance),
			cmp.Compare(a.hold.namespace, b.hold.namespace), cmp.Compare(a.hold.pod, b.hold.pod),
			cmp.Compare(a.hold.container, b.hold.container), cmp.Compare(a.hold.resource, b.hold.resource))
	})
	return rows, unmatched
}

// AppendPage appends what is known in Prometheus' text format, for the GPUs that there
// are. It never waits for the kubelet.
func (l *Lister) AppendPage(dst []byte, node string, gpus []fleet.SampledGPU) []byte {
	l.mu.Lock()
	holds, others, success, reason := l.holds, l.others, l.success, l.reason
	tried, up := l.tried, l.failure == nil
	l.mu.Unlock()
	if time.Since(success) > maxAge {
		holds = nil // pods come and go; nobody knows which have these devices now
	}
	rows, unmatched := match(holds, gpus)
	label := func(name, value string) {
		if last := dst[len(dst)-1]; last != '{' {
			dst = append(dst, ',')
		}
		dst = append(append(dst, name...), '=')
		dst = append(dst, quote(value)...)
	}
	head := func(name, typ, help string) {
		dst = append(dst, "# HELP "+name+" "+help+"\n# TYPE "+name+" "+typ+"\n"...)
	}
	if len(rows) > 0 {
		head("stoker_gpu_pod_info", "gauge", "Always 1; the pod has the GPU or the MIG instance. Where it is shared, the values of the GPU are those of all who share it.")
	}
	for _, r := range rows {
		dst = append(dst, "stoker_gpu_pod_info{"...)
		label("node", node)
		label("gpu", strconv.Itoa(r.gpu.Index))
		label("UUID", r.gpu.UUID)
		if r.instance != "" {
			label("GPU_I_ID", r.instance)
		}
		label("namespace", r.hold.namespace)
		label("pod", r.hold.pod)
		label("container", r.hold.container)
		label("resource", r.hold.resource)
		label("shared", strconv.FormatBool(r.shared))
		dst = append(dst, "} 1\n"...)
	}
	if !success.IsZero() {
		head("stoker_pods_last_success_timestamp_seconds", "gauge", "When the kubelet last said which pods have devices, in seconds since 1970.")
		dst = append(dst, "stoker_pods_last_success_timestamp_seconds "...)
		dst = append(strconv.AppendFloat(dst, float64(success.UnixMilli())/1000, 'f', 3, 64), '\n')
	}
	head("stoker_pods_unmatched_devices", "gauge", "Devices that a pod has and of which it is not known which GPU they are, by reason.")
	unmatched["other-resource"] = others
	for _, why := range []string{"mig-uuid", "no-such-gpu", "other-resource", "unknown-id"} {
		dst = append(dst, "stoker_pods_unmatched_devices{reason=\""+why+"\"} "+strconv.Itoa(unmatched[why])+"\n"...)
	}
	if tried {
		head("stoker_pods_up", "gauge", "Whether the kubelet has answered; why not, if not.")
		for _, why := range []string{noAnswer, refused, noSocket} {
			if !up && reason == why {
				dst = append(dst, "stoker_pods_up{reason=\""+why+"\"} 0\n"...)
			}
		}
		if up {
			dst = append(dst, "stoker_pods_up{reason=\"\"} 1\n"...)
		}
	}
	return dst
}

// quote writes a label's value so that it is read back as it was.
func quote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`).Replace(strings.ToValidUTF8(s, "\uFFFD")) + `"`
}
