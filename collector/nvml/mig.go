//go:build cgo && linux

package nvml

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"stoker.dev/stoker/internal/fleet"
)

// maxParts bounds the MIG devices of one GPU; there are seven at most today.
const maxParts = 64

// ofInstance are the readings that a MIG instance has too.
var ofInstance = []string{"DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_USED"}

// isProfile finds an instance's profile in a MIG device's name, such as 3g.40gb in
// "NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb".
var isProfile = regexp.MustCompile(`MIG (?:[0-9]+c\.)?([0-9]+g\.[0-9]+gb[0-9a-z.+]*)`)

// has reports whether the library has a function. One that it lacks must not be called:
// that ends the process.
func (s *Source) has(functions ...string) bool {
	for _, f := range functions {
		have, asked := s.symbols[f]
		if !asked {
			have = s.lib.Extensions().LookupSymbol(f) == nil
			s.symbols[f] = have
		}
		if !have {
			return false
		}
	}
	return true
}

// parts fills in the MIG instances of a GPU, the last that is listed, and of which its MIG
// devices are. It asks for
// devices, not for instances: that needs no rights. It returns whether the GPU is lost.
func (s *Source) parts(d nvml.Device, g fleet.SampledGPU, label []fleet.Label, into *fleet.Samples) (lost bool) {
	if !s.has("nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetGpuInstanceId") {
		return false
	}
	mode, _, r := d.GetMigMode()
	if r != nvml.SUCCESS || mode != nvml.DEVICE_MIG_ENABLE {
		return r == nvml.ERROR_GPU_IS_LOST
	}
	count, r := d.GetMaxMigDeviceCount()
	if r != nvml.SUCCESS {
		return r == nvml.ERROR_GPU_IS_LOST
	}
	whole := len(into.GPUs) - 1
	listed, told := map[int]bool{}, map[string]bool{}
	for i := range min(count, maxParts) {
		m, r := d.GetMigDeviceHandleByIndex(i)
		if r == nvml.ERROR_GPU_IS_LOST {
			return true
		}
		if r != nvml.SUCCESS {
			continue // the place is free
		}
		id, r1 := m.GetGpuInstanceId()
		uuid, r2 := m.GetUUID()
		if r1 != nvml.SUCCESS || r2 != nvml.SUCCESS {
			s.log.Debug("MIG device does not say who it is", "gpu", g.Index, "place", i, "err", check("nvmlDeviceGetGpuInstanceId", r1), "and", check("nvmlDeviceGetUUID", r2))
			continue
		}
		into.MIG = append(into.MIG, fleet.MIGDevice{UUID: uuid, GPU: g.UUID, Instance: strconv.Itoa(id)})
		if listed[id] {
			continue // another compute instance of it
		}
		listed[id] = true
		part := g
		part.Instance, part.Profile = strconv.Itoa(id), profile(m)
		at := len(into.GPUs)
		into.GPUs = append(into.GPUs, part)
		for _, x := range readings {
			if !slices.Contains(ofInstance, x.field.Name) {
				continue
			}
			if v, r := x.get(m); r == nvml.SUCCESS {
				told[x.field.Name] = true
				into.Values = append(into.Values, fleet.Sample{Field: x.field.Name, GPU: at, Value: v, Labels: label})
			}
		}
	}
	// What the instances have the GPU has not: a sum would count it twice.
	into.Values = slices.DeleteFunc(into.Values, func(v fleet.Sample) bool { return v.GPU == whole && told[v.Field] })
	return false
}

// profile names the kind of an instance; empty where the driver does not.
func profile(m nvml.Device) string {
	if name, r := m.GetName(); r == nvml.SUCCESS {
		if found := isProfile.FindStringSubmatch(name); found != nil {
			return found[1]
		}
	}
	if a, r := m.GetAttributes(); r == nvml.SUCCESS {
		return fmt.Sprintf("%dg.%dgb", a.GpuInstanceSliceCount, (a.MemorySizeMB+512)/1024)
	}
	return ""
}

// linksEvery is how often it is asked how GPUs are linked. That takes a hundred calls and
// more, and changes with hardware and configuration only.
const linksEvery = time.Minute

// links fills in how a GPU is linked. What the driver can't tell is left out.
func (s *Source) links(d nvml.Device, g fleet.SampledGPU, into *fleet.Samples) {
	known, ok := s.linked[g.UUID]
	if !ok || into.At.Sub(known.at) >= linksEvery || into.At.Before(known.at) {
		known = linked{into.At, s.readLinks(d, g.UUID)}
		s.linked[g.UUID] = known
	}
	if known.links.Domain != "" || len(known.links.Peers) > 0 {
		into.NVLinks = append(into.NVLinks, known.links)
	}
}

type linked struct {
	at    time.Time
	links fleet.NVLinks // Peers have PCI addresses in place of UUIDs
}

func (s *Source) readLinks(d nvml.Device, uuid string) fleet.NVLinks {
	out := fleet.NVLinks{GPU: uuid}
	if s.has("nvmlDeviceGetGpuFabricInfo") {
		if f, r := d.GetGpuFabricInfo(); r == nvml.SUCCESS && f.State == nvml.GPU_FABRIC_STATE_COMPLETED && f.Status == 0 && f.ClusterUuid != [16]uint8{} {
			u := f.ClusterUuid
			out.Domain = fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
			out.Clique = int(f.CliqueId)
		}
	}
	if !s.has("nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetNvLinkRemotePciInfo_v2") {
		return out
	}
	for link := range nvml.NVLINK_MAX_LINKS {
		state, r := d.GetNvLinkState(link)
		if r == nvml.ERROR_INVALID_ARGUMENT || r == nvml.ERROR_NOT_SUPPORTED || r == nvml.ERROR_GPU_IS_LOST {
			break // there are no more
		}
		if r != nvml.SUCCESS || state != nvml.FEATURE_ENABLED {
			continue
		}
		peer := fleet.NVLinkPeer{Kind: "unknown"}
		if kind, r := d.GetNvLinkRemoteDeviceType(link); r == nvml.SUCCESS {
			switch kind {
			case nvml.NVLINK_DEVICE_TYPE_GPU:
				peer.Kind = "gpu"
				if pci, r := d.GetNvLinkRemotePciInfo(link); r == nvml.SUCCESS {
					peer.PCI = busID(pci)
				}
			case nvml.NVLINK_DEVICE_TYPE_SWITCH:
				peer.Kind = "switch"
			case nvml.NVLINK_DEVICE_TYPE_IBMNPU:
				peer.Kind = "cpu"
			case nvml.NVLINK_DEVICE_TYPE_UNKNOWN:
			}
		}
		out.Add(peer)
	}
	return out
}
