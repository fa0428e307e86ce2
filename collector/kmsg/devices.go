package kmsg

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/xid"
)

// list returns the GPUs of NVIDIA on the bus, by address. Whether they work is not known.
// Without a bus there are none.
func list(devices string) ([]fleet.SampledGPU, error) {
	entries, err := os.ReadDir(devices)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var found []string
	for _, e := range entries {
		if isGPU(filepath.Join(devices, e.Name())) {
			if at, err := xid.ParsePCI(e.Name()); err == nil {
				found = append(found, at.BusID())
			}
		}
	}
	slices.Sort(found)
	out := make([]fleet.SampledGPU, 0, len(found))
	for i, at := range found {
		out = append(out, fleet.SampledGPU{Index: i, PCI: at, Up: fleet.Unknown})
	}
	return out, nil
}

// isGPU reads what the bus says of a device: NVIDIA's, and a display or 3D controller.
func isGPU(dir string) bool {
	vendor, err := os.ReadFile(filepath.Join(dir, "vendor"))
	if err != nil || strings.TrimSpace(string(vendor)) != "0x10de" {
		return false
	}
	class, err := os.ReadFile(filepath.Join(dir, "class"))
	return err == nil && (strings.HasPrefix(string(class), "0x0300") || strings.HasPrefix(string(class), "0x0302"))
}
