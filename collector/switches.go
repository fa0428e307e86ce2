package collector

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"stoker.dev/stoker/internal/fleet"
)

// maxSwitches bounds the NVSwitches of a node, each once for every severity.
const maxSwitches = 256

// A nvswitch counts the errors of one severity of one NVSwitch. It is known by its
// address, by which the kernel's log and the engine mean the same one; else by its number.
type nvswitch struct {
	pci      string
	number   string
	severity string
	labels   string
	sxids    tally
}

// countSwitch counts an error of an NVSwitch that a source told of; ok is false where it
// names no switch or error, or there is no room.
func (b *book) countSwitch(source string, s *fleet.Samples, e fleet.SXIDEvent) (ok bool) {
	pci, number := busID(e.PCI), ""
	if pci == "" && e.Switch >= 0 {
		number = strconv.Itoa(e.Switch)
	}
	if e.SXID <= 0 || pci == "" && number == "" {
		return false
	}
	w := b.nvswitch(pci, number, e.Severity)
	if w == nil {
		return false
	}
	if w.sxids.count(source, e.SXID, e.At, time.Time{}, s.At, b.late) != known {
		b.version++
	}
	return true
}

func (b *book) nvswitch(pci, number, severity string) *nvswitch {
	severity = cmp.Or(severity, "unknown")
	for _, w := range b.switches {
		if w.pci == pci && w.number == number && w.severity == severity {
			return w
		}
	}
	if len(b.switches) >= maxSwitches {
		return nil
	}
	dst := appendLabel(nil, "node", b.node)
	if pci != "" {
		dst = appendLabel(append(dst, ','), "pci_bus_id", pci)
	}
	if number != "" {
		dst = appendLabel(append(dst, ','), "nvswitch", "nvswitch"+number)
	}
	dst = appendLabel(append(dst, ','), "severity", severity)
	w := &nvswitch{pci: pci, number: number, severity: severity, labels: string(dst)}
	b.switches = append(b.switches, w)
	slices.SortFunc(b.switches, func(x, y *nvswitch) int { return cmp.Compare(x.labels, y.labels) })
	return w
}
