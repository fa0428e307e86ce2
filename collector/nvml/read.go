//go:build cgo && linux

package nvml

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/xid"
)

// A reading is one field as the driver's library has it. The names are DCGM's, so that
// dashboards need not know which of the two it is.
type reading struct {
	field fleet.Field
	get   func(nvml.Device) (float64, nvml.Return)
}

const mib = 1 << 20

var readings = []reading{
	{fleet.Field{Name: "DCGM_FI_DEV_SM_CLOCK", Type: "gauge", Help: "SM clock frequency (in MHz)."}, func(d nvml.Device) (float64, nvml.Return) {
		v, r := d.GetClockInfo(nvml.CLOCK_SM)
		return float64(v), r
	}},
	{fleet.Field{Name: "DCGM_FI_DEV_MEM_CLOCK", Type: "gauge", Help: "Memory clock frequency (in MHz)."}, func(d nvml.Device) (float64, nvml.Return) {
		v, r := d.GetClockInfo(nvml.CLOCK_MEM)
		return float64(v), r
	}},
	{fleet.Field{Name: "DCGM_FI_DEV_GPU_TEMP", Type: "gauge", Help: "GPU temperature (in C)."}, func(d nvml.Device) (float64, nvml.Return) {
		v, r := d.GetTemperature(nvml.TEMPERATURE_GPU)
		return float64(v), r
	}},
	{fleet.Field{Name: "DCGM_FI_DEV_POWER_USAGE", Type: "gauge", Help: "Power draw (in W)."}, func(d nvml.Device) (float64, nvml.Return) {
		v, r := d.GetPowerUsage()
		return float64(v) / 1000, r
	}},
	{fleet.Field{Name: "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", Type: "counter", Help: "Total energy consumption since boot (in mJ)."}, func(d nvml.Device) (float64, nvml.Return) {
		v, r := d.GetTotalEnergyConsumption()
		return float64(v), r
	}},
	{fleet.Field{Name: "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", Type: "counter", Help: "Total number of PCIe retries."}, func(d nvml.Device) (float64, nvml.Return) {
		v, r := d.GetPcieReplayCounter()
		return float64(v), r
	}},
	{fleet.Field{Name: "DCGM_FI_DEV_GPU_UTIL", Type: "gauge", Help: "GPU utilization (in %)."}, func(d nvml.Device) (float64, nvml.Return) {
		v, r := d.GetUtilizationRates()
		return float64(v.Gpu), r
	}},
	{fleet.Field{Name: "DCGM_FI_DEV_MEM_COPY_UTIL", Type: "gauge", Help: "Memory utilization (in %)."}, func(d nvml.Device) (float64, nvml.Return) {
		v, r := d.GetUtilizationRates()
		return float64(v.Memory), r
	}},
	{fleet.Field{Name: "DCGM_FI_DEV_FB_FREE", Type: "gauge", Help: "Framebuffer memory free (in MiB)."}, func(d nvml.Device) (float64, nvml.Return) {
		v, r := d.GetMemoryInfo()
		return float64(v.Free / mib), r
	}},
	{fleet.Field{Name: "DCGM_FI_DEV_FB_USED", Type: "gauge", Help: "Framebuffer memory used (in MiB)."}, func(d nvml.Device) (float64, nvml.Return) {
		v, r := d.GetMemoryInfo()
		return float64(v.Used / mib), r
	}},
	{fleet.Field{Name: "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", Type: "counter", Help: "Number of remapped rows for uncorrectable errors"}, func(d nvml.Device) (float64, nvml.Return) {
		_, v, _, _, r := d.GetRemappedRows()
		return float64(v), r
	}},
	{fleet.Field{Name: "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", Type: "counter", Help: "Number of remapped rows for correctable errors"}, func(d nvml.Device) (float64, nvml.Return) {
		v, _, _, _, r := d.GetRemappedRows()
		return float64(v), r
	}},
	{fleet.Field{Name: "DCGM_FI_DEV_ROW_REMAP_FAILURE", Type: "gauge", Help: "Whether remapping of rows has failed"}, func(d nvml.Device) (float64, nvml.Return) {
		_, _, _, failed, r := d.GetRemappedRows()
		return truth(failed), r
	}},
}

// lastXID is the last that came of a GPU or instance; there is none before.
var lastXID = fleet.Field{Name: "DCGM_FI_DEV_XID_ERRORS", Type: "gauge", Help: "Value of the last XID error encountered."}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// read fills in all GPUs. One that can't be asked costs nobody else anything.
func (s *Source) read(into *fleet.Samples) error {
	s.thread.During("counting GPUs")
	count, r := s.lib.DeviceGetCount()
	if err := check("nvmlDeviceGetCount", r); err != nil {
		return err
	}
	var label []fleet.Label
	if v, r := s.lib.SystemGetDriverVersion(); r == nvml.SUCCESS {
		label = []fleet.Label{{Name: "DCGM_FI_DRIVER_VERSION", Value: v}}
	}
	for _, x := range readings {
		into.Fields = append(into.Fields, x.field)
	}
	into.Fields = append(into.Fields, lastXID)
	listed := map[string]bool{}
	for i := range min(count, 256) {
		s.thread.During(fmt.Sprintf("asked about GPU %d", i))
		d, r := s.lib.DeviceGetHandleByIndex(i)
		if r != nvml.SUCCESS {
			s.log.Debug("GPU can't be asked", "gpu", i, "err", returnText(r))
			continue // it is told as lost below, if it was ever well
		}
		g, err := identify(d, i)
		if err != nil {
			s.log.Debug("GPU does not say who it is", "gpu", i, "err", err)
			continue
		}
		listed[g.UUID] = true
		g.Up = fleet.True
		at := len(into.GPUs)
		into.GPUs = append(into.GPUs, g)
		for _, x := range readings {
			v, r := x.get(d)
			if r == nvml.ERROR_GPU_IS_LOST {
				into.GPUs[at].Up = fleet.False
				break
			}
			if r != nvml.SUCCESS {
				continue // it does not have the field
			}
			into.Values = append(into.Values, fleet.Sample{Field: x.field.Name, GPU: at, Value: v, Labels: label})
		}
		if into.GPUs[at].Up == fleet.True && s.parts(d, g, label, into) {
			into.GPUs[at].Up = fleet.False
		}
		if into.GPUs[at].Up == fleet.True {
			s.links(d, g, into)
		} else {
			for part := at; part < len(into.GPUs); part++ {
				into.GPUs[part].Up = fleet.False
			}
			into.Values = slices.DeleteFunc(into.Values, func(v fleet.Sample) bool { return v.GPU >= at })
		}
		g.Up = into.GPUs[at].Up
		s.remember(g)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = slices.Clone(s.known) // the one before may be being read
	for i := range s.known {
		if g := &s.known[i]; !listed[g.UUID] {
			g.Up = fleet.False
			into.GPUs = append(into.GPUs, *g)
		}
	}
	// Of GPUs that were taken out nothing is kept.
	here := func(uuid string) bool {
		return slices.ContainsFunc(s.known, func(g fleet.SampledGPU) bool { return g.UUID == uuid })
	}
	maps.DeleteFunc(s.linked, func(uuid string, _ linked) bool { return !here(uuid) })
	maps.DeleteFunc(s.back, func(uuid string, _ bool) bool { return !here(uuid) })
	maps.DeleteFunc(s.last, func(p part, _ int) bool { return !here(p.uuid) })
	clear(s.instances)
	for at, g := range into.GPUs {
		is := part{g.UUID, g.Instance}
		s.instances[is] = g.Instance != ""
		if code := s.last[is]; code != 0 {
			message := "Unknown Error" // as dcgm-exporter has it
			if row, known := xid.Lookup(code); known {
				message = row.Meaning
			}
			into.Values = append(into.Values, fleet.Sample{Field: lastXID.Name, GPU: at, Value: float64(code), Labels: append(slices.Clone(label),
				fleet.Label{Name: "err_code", Value: strconv.Itoa(code)}, fleet.Label{Name: "err_msg", Value: message})})
		}
	}
	return nil
}

// remember keeps who a GPU is for when it can't say so any more.
func (s *Source) remember(g fleet.SampledGPU) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Another one at its place: it was taken out, not lost.
	known := slices.DeleteFunc(slices.Clone(s.known), func(x fleet.SampledGPU) bool {
		if x.UUID == g.UUID && x.Up == fleet.False && g.Up == fleet.True {
			s.back[g.UUID] = true
		}
		return x.UUID == g.UUID || x.PCI == g.PCI
	})
	s.known = append(known, g)
	slices.SortFunc(s.known, func(x, y fleet.SampledGPU) int { return x.Index - y.Index })
}

func identify(d nvml.Device, index int) (fleet.SampledGPU, error) {
	uuid, r1 := d.GetUUID()
	name, r2 := d.GetName()
	pci, r3 := d.GetPciInfo()
	minor, r4 := d.GetMinorNumber()
	if r4 != nvml.SUCCESS {
		minor = index
	}
	if err := errors.Join(check("nvmlDeviceGetUUID", r1), check("nvmlDeviceGetName", r2), check("nvmlDeviceGetPciInfo", r3)); err != nil {
		return fleet.SampledGPU{}, err
	}
	return fleet.SampledGPU{
		Index: index, UUID: uuid, PCI: busID(pci), Model: name, Device: "nvidia" + strconv.Itoa(minor),
	}, nil
}

func busID(pci nvml.PciInfo) string {
	var b strings.Builder
	for _, c := range pci.BusId {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	if b.Len() > 0 {
		return b.String()
	}
	return fmt.Sprintf("%08X:%02X:%02X.0", pci.Domain, pci.Bus, pci.Device)
}
