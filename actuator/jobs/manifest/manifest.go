// Package manifest reads objects of the cluster as they come: decoded JSON. It knows
// where Kubernetes keeps what several kinds have in common, and Stoker's marks.
//
// It copies no more than it must and changes nothing: who gets a map or a list from it
// may not change that either. What is missing or of another type reads as the zero value.
package manifest

import (
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// Map returns the object at path, or nil.
func Map(obj map[string]any, path ...string) map[string]any {
	for _, p := range path {
		obj, _ = obj[p].(map[string]any)
	}
	return obj
}

// String returns the string at path.
func String(obj map[string]any, path ...string) string {
	s, _ := Map(obj, path[:len(path)-1]...)[path[len(path)-1]].(string)
	return s
}

// Bool returns the boolean at path.
func Bool(obj map[string]any, path ...string) bool {
	b, _ := Map(obj, path[:len(path)-1]...)[path[len(path)-1]].(bool)
	return b
}

// Int returns the integer at path, and whether there is one.
func Int(obj map[string]any, path ...string) (int, bool) {
	switch n := Map(obj, path[:len(path)-1]...)[path[len(path)-1]].(type) {
	case int64:
		return int(n), true
	case float64:
		return int(n), true
	}
	return 0, false
}

// List returns the objects of the list at path.
func List(obj map[string]any, path ...string) []map[string]any {
	list, _ := Map(obj, path[:len(path)-1]...)[path[len(path)-1]].([]any)
	out := make([]map[string]any, 0, len(list))
	for _, e := range list {
		if m, ok := e.(map[string]any); ok {
			out = append(out, m)
		}
	}
	return out
}

// Time returns the time at path, zero where there is none that can be read.
func Time(obj map[string]any, path ...string) time.Time {
	t, err := time.Parse(time.RFC3339, String(obj, path...))
	if err != nil {
		return time.Time{}
	}
	return t.UTC()
}

// Strings returns the strings of the object at path, such as labels; nil where there are none.
func Strings(obj map[string]any, path ...string) map[string]string {
	m := Map(obj, path...)
	if len(m) == 0 {
		return nil
	}
	out := make(map[string]string, len(m))
	for k, v := range m {
		if s, ok := v.(string); ok {
			out[k] = s
		}
	}
	return out
}

// Annotation returns one annotation.
func Annotation(obj map[string]any, name string) string {
	return String(obj, "metadata", "annotations", name)
}

// Prefixed returns the annotations whose name begins with the prefix, by what follows it;
// nil where there are none.
func Prefixed(obj map[string]any, prefix string) map[string]string {
	var out map[string]string
	for name, v := range Map(obj, "metadata", "annotations") {
		rest, ok := strings.CutPrefix(name, prefix)
		s, text := v.(string)
		if !ok || !text || rest == "" {
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		out[rest] = s
	}
	return out
}

// Version returns the object's resource version, zero where it is no number.
func Version(obj map[string]any) fleet.Version {
	v, err := strconv.ParseUint(String(obj, "metadata", "resourceVersion"), 10, 64)
	if err != nil {
		return 0
	}
	return fleet.Version(v)
}

// ConditionOf returns the object's condition of that type from its status. One that
// says neither True nor False is not known, since when it has said so.
func ConditionOf(obj map[string]any, kind string) fleet.Condition {
	for _, c := range List(obj, "status", "conditions") {
		if String(c, "type") != kind {
			continue
		}
		out := fleet.Condition{Since: Time(c, "lastTransitionTime")}
		switch String(c, "status") {
		case "True":
			out.Status = fleet.True
		case "False":
			out.Status = fleet.False
		}
		return out
	}
	return fleet.Condition{}
}

// ReasonOf returns the reason of the object's condition of that type, in one word.
func ReasonOf(obj map[string]any, kind string) string {
	for _, c := range List(obj, "status", "conditions") {
		if String(c, "type") == kind {
			return String(c, "reason")
		}
	}
	return ""
}

// OptOut returns why a person keeps Stoker away from the object: the value of its mark,
// which may be an annotation or a label. The value "false" is no opt-out.
func OptOut(obj map[string]any) string {
	for _, where := range []string{"annotations", "labels"} {
		v, there := Map(obj, "metadata", where)[remedy.MarkOptOut]
		if !there {
			continue
		}
		switch s, _ := v.(string); strings.ToLower(s) {
		case "false":
		case "", "true":
			return remedy.MarkOptOut + " is set"
		default:
			return s
		}
	}
	return ""
}

// Controller returns the owner reference of the object's controller, or nil.
func Controller(obj map[string]any) map[string]any {
	for _, o := range List(obj, "metadata", "ownerReferences") {
		if Bool(o, "controller") {
			return o
		}
	}
	return nil
}

// What NVIDIA's device plugin calls its devices: a whole GPU, a share of one that it cuts
// into several by time, and a part by MIG, such as nvidia.com/mig-3g.40gb.
const (
	gpuResource    = "nvidia.com/gpu"
	sharedResource = "nvidia.com/gpu.shared"
	migResource    = "nvidia.com/mig-"

	migSlices = 7 // of a GPU, but for the A30, which has four
)

// Amounts reads a map of resource quantities. Devices of any kind count as GPUs, and Share
// is what they are on average: how much a share by time is, nobody tells.
func Amounts(m map[string]any) fleet.Resources {
	out := fleet.Resources{MilliCPU: quantity(m, "cpu").MilliValue(), MemoryBytes: quantity(m, "memory").Value()}
	milli := 0
	for name := range m {
		if n := int(quantity(m, name).Value()); isGPU(name) && n > 0 {
			out.GPUs += n
			milli += n * milliOf(name)
		}
	}
	out.Share = share(out.GPUs, milli)
	return out
}

func isGPU(resource string) bool {
	return resource == gpuResource || resource == sharedResource || strings.HasPrefix(resource, migResource)
}

// milliOf is how much of a GPU one device of the resource is, in thousandths.
func milliOf(resource string) int {
	profile, isPart := strings.CutPrefix(resource, migResource)
	if !isPart {
		return 1000
	}
	profile, _, _ = strings.Cut(profile, "g.")
	n, err := strconv.Atoi(profile[strings.LastIndex(profile, ".")+1:]) // 1c.3g.40gb is of three slices
	if err != nil || n < 1 || n > migSlices {
		return 1000
	}
	return 1000 * n / migSlices
}

// share is how much each of the devices is; zero: a whole GPU.
func share(devices, milli int) int {
	if milli == 1000*devices {
		return 0
	}
	return milli / devices
}

func quantity(m map[string]any, name string) *resource.Quantity {
	switch v := m[name].(type) {
	case string:
		if q, err := resource.ParseQuantity(v); err == nil {
			return &q
		}
	case int64:
		return resource.NewQuantity(v, resource.DecimalSI)
	case float64:
		return resource.NewMilliQuantity(int64(v*1000), resource.DecimalSI)
	}
	return &resource.Quantity{}
}

// Demand returns what a pod with this spec takes: of its containers together, or of
// one init container that needs more alone. Requests count, and limits where there
// are no requests.
func Demand(spec map[string]any) fleet.Resources {
	var sum, peak fleet.Resources
	for _, c := range List(spec, "containers") {
		sum = add(sum, containerDemand(c))
	}
	var sidecars fleet.Resources
	for _, c := range List(spec, "initContainers") {
		d := containerDemand(c)
		if String(c, "restartPolicy") == "Always" { // it goes on beside the containers
			sidecars = add(sidecars, d)
			d = sidecars
		} else {
			d = add(d, sidecars)
		}
		peak = most(peak, d)
	}
	return most(add(sum, sidecars), peak)
}

func containerDemand(c map[string]any) fleet.Resources {
	requests, limits := Map(c, "resources", "requests"), Map(c, "resources", "limits")
	if len(requests) == 0 {
		return Amounts(limits)
	}
	d := Amounts(requests)
	l := Amounts(limits)
	for name, have := range map[string]*int64{"cpu": &d.MilliCPU, "memory": &d.MemoryBytes} {
		if _, there := requests[name]; !there {
			*have = map[string]int64{"cpu": l.MilliCPU, "memory": l.MemoryBytes}[name]
		}
	}
	if l.GPUs > d.GPUs { // the API keeps them equal; a template may name one of them
		d.GPUs, d.Share = l.GPUs, l.Share
	}
	return d
}

func add(a, b fleet.Resources) fleet.Resources {
	gpus := a.GPUs + b.GPUs
	return fleet.Resources{
		GPUs: gpus, Share: share(gpus, a.MilliGPUs()+b.MilliGPUs()),
		MilliCPU: a.MilliCPU + b.MilliCPU, MemoryBytes: a.MemoryBytes + b.MemoryBytes,
	}
}

func most(a, b fleet.Resources) fleet.Resources {
	out := fleet.Resources{GPUs: a.GPUs, Share: a.Share, MilliCPU: max(a.MilliCPU, b.MilliCPU), MemoryBytes: max(a.MemoryBytes, b.MemoryBytes)}
	if b.GPUs > a.GPUs {
		out.GPUs, out.Share = b.GPUs, b.Share
	}
	return out
}

// Pick returns a new map with those of the keys that m has.
func Pick(m map[string]any, keys ...string) map[string]any {
	out := map[string]any{}
	for _, k := range keys {
		if v, there := m[k]; there {
			out[k] = v
		}
	}
	return out
}

// PickMeta keeps what identifies an object and, of its annotations and labels, those
// that begin with one of the prefixes.
func PickMeta(obj map[string]any, prefixes ...string) map[string]any {
	meta := Pick(Map(obj, "metadata"), "name", "namespace", "uid", "resourceVersion", "deletionTimestamp")
	for _, where := range []string{"annotations", "labels"} {
		kept := map[string]any{}
		for k, v := range Map(obj, "metadata", where) {
			for _, p := range prefixes {
				if strings.HasPrefix(k, p) {
					kept[k] = v
				}
			}
		}
		if len(kept) > 0 {
			meta[where] = kept
		}
	}
	if owner := Controller(obj); owner != nil {
		meta["ownerReferences"] = []any{Pick(owner, "apiVersion", "kind", "name", "uid", "controller")}
	}
	return meta
}

// PickAmounts keeps the quantities that [Amounts] reads.
func PickAmounts(m map[string]any) map[string]any {
	out := Pick(m, "cpu", "memory")
	for name, v := range m {
		if isGPU(name) {
			out[name] = v
		}
	}
	return out
}

// PickDemand keeps of a pod's spec what [Demand] reads.
func PickDemand(spec map[string]any) map[string]any {
	out := map[string]any{}
	for _, list := range []string{"containers", "initContainers"} {
		var kept []any
		for _, c := range List(spec, list) {
			res := map[string]any{}
			for _, kind := range []string{"requests", "limits"} {
				if q := PickAmounts(Map(c, "resources", kind)); len(q) > 0 {
					res[kind] = q
				}
			}
			if len(res) > 0 {
				one := Pick(c, "restartPolicy")
				one["resources"] = res
				kept = append(kept, one)
			}
		}
		if len(kept) > 0 {
			out[list] = kept
		}
	}
	return out
}
