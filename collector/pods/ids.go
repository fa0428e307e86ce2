package pods

import (
	"cmp"
	"regexp"
	"strconv"
	"strings"
)

// The forms of ids that name a GPU by its number, and perhaps a part of it.
var (
	// byNumber is that of GKE's plugin, of a whole GPU or an instance, and perhaps shared.
	byNumber = regexp.MustCompile(`^nvidia([0-9]{1,4})(?:/gi([0-9]{1,4}))?(?:/vgpu([0-9]{1,9}))?$`)
	// byDRA is that of NVIDIA's DRA driver. An instance is named by its profile and place,
	// not by the number that the driver gives it.
	byDRA = regexp.MustCompile(`^gpu-([0-9]{1,4})(-mig-[0-9a-z-]+)?$`)
	// oldMIG is that of a MIG device before drivers of branch 470.
	oldMIG = regexp.MustCompile(`^MIG-(GPU-[0-9a-fA-F-]+)/([0-9]+)/[0-9]+$`)
	// inCDI finds what a CDI name says of a device after a claim's uid.
	inCDI = regexp.MustCompile(`^(?:[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}-)?(.+)$`)
)

// A device is what an id names.
type device struct {
	uuid     string // of the whole GPU; empty where it is named by number
	number   int    // the minor number of its file, /dev/nvidia0
	instance string
	mig      string // a MIG device's own UUID, which says nothing of its GPU
	placed   bool   // a MIG device that is named by its place on the GPU alone
	replica  string // number of a share, where the id is of one
}

// unique reports whether an id can be of nothing but a GPU, whatever its resource is called.
func (d device) unique() bool { return d.uuid != "" || d.mig != "" }

// read reads an id in any of its forms. A replica, as with time slicing, is the device
// that it shares.
func read(id string) (device, bool) {
	id, replica, _ := strings.Cut(id, "::")
	d := device{replica: replica}
	var m []string
	switch {
	case len(id) > maxID:
	case strings.HasPrefix(id, "GPU-") && !strings.Contains(id, "/"):
		d.uuid = id
		return d, true
	case strings.HasPrefix(id, "MIG-") && !strings.Contains(id, "/"):
		d.mig = id
		return d, true
	case strings.HasPrefix(id, "MIG-"):
		if m = oldMIG.FindStringSubmatch(id); m != nil {
			d.uuid, d.instance = m[1], m[2]
		}
	case strings.HasPrefix(id, "gpu-"):
		if m = byDRA.FindStringSubmatch(id); m != nil {
			d.number, _ = strconv.Atoi(m[1]) // up to four digits
			d.placed = m[2] != ""
		}
	case strings.HasPrefix(id, "nvidia"):
		if m = byNumber.FindStringSubmatch(id); m != nil {
			d.number, _ = strconv.Atoi(m[1]) // up to four digits
			d.instance, d.replica = m[2], cmp.Or(m[3], d.replica)
		}
	}
	if m == nil {
		return device{}, false
	}
	return d, true
}

// maxID bounds an id, in bytes; UUIDs are shorter.
const maxID = 128

// readCDI reads the name of a CDI device, such as nvidia.com/gpu=GPU-… or
// k8s.gpu.nvidia.com/claim=<uid of the claim>-gpu-0.
func readCDI(name string) (device, bool) {
	_, id, ok := strings.Cut(name, "=")
	if !ok {
		return device{}, false
	}
	if d, ok := read(id); ok {
		return d, true
	}
	if m := inCDI.FindStringSubmatch(id); m != nil {
		return read(m[1])
	}
	return device{}, false
}
