package topology

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"stoker.dev/stoker/internal/xid"
)

// A Link is a PCIe link. Zero is not known.
type Link struct {
	Generation int
	Width      int // lanes
}

// A place is where one GPU sits. Its zero value is nowhere that is known.
type place struct {
	numa   int    // -1: not known
	list   string // the CPUs near it, as the kernel writes them; empty where numa is -1
	cpus   []int
	device string // its file, such as nvidia0; empty where not known
	now    Link
	most   Link // that the GPU and what it is plugged into can do
}

// Bounds of what is read.
const (
	maxFile = 64 << 10 // bytes
	maxCPUs = 16 << 10
)

// read reads where a GPU sits, by its address. What one file does not tell the others do.
// The error is that the kernel does not know the address, or that something in a file is odd.
func read(root, pci string) (place, error) {
	p := place{numa: -1}
	addr, err := xid.ParsePCI(pci)
	if err != nil {
		return p, err
	}
	var errs []error
	get := func(path ...string) string {
		text, err := file(filepath.Join(path...))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		return text
	}
	// What it is plugged into is the folder above the one that the link leads to.
	dir, err := filepath.EvalSymlinks(filepath.Join(root, "sys/bus/pci/devices", addr.String()))
	if err != nil {
		return p, err
	}
	if text := get(dir, "numa_node"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", filepath.Join(dir, "numa_node"), err))
		} else if n >= 0 {
			p.numa = n
		}
	}
	// Of a GPU that is near no node the kernel lists all CPUs, which says nothing.
	if list := get(dir, "local_cpulist"); p.numa >= 0 && list != "" {
		p.cpus, err = cpus(list)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", filepath.Join(dir, "local_cpulist"), err))
		} else {
			p.list = list
		}
	}
	p.now = Link{generation(get(dir, "current_link_speed")), width(get(dir, "current_link_width"))}
	p.most = Link{generation(get(dir, "max_link_speed")), width(get(dir, "max_link_width"))}
	above := filepath.Dir(dir)
	p.most.Generation = least(p.most.Generation, generation(get(above, "max_link_speed")))
	p.most.Width = least(p.most.Width, width(get(above, "max_link_width")))
	for line := range strings.SplitSeq(get(root, "proc/driver/nvidia/gpus", addr.String(), "information"), "\n") {
		if minor, ok := strings.CutPrefix(line, "Device Minor:"); ok {
			if n, err := strconv.Atoi(strings.TrimSpace(minor)); err == nil && n >= 0 {
				p.device = "nvidia" + strconv.Itoa(n)
			}
		}
	}
	return p, errors.Join(errs...)
}

func file(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // it was only read
	text, err := io.ReadAll(io.LimitReader(f, maxFile))
	return strings.TrimSpace(string(text)), err
}

// cpus reads a list such as 0-31,64-95.
func cpus(list string) ([]int, error) {
	var out []int
	for part := range strings.SplitSeq(list, ",") {
		low, high, isRange := strings.Cut(strings.TrimSpace(part), "-")
		from, err := strconv.Atoi(low)
		to := from
		if isRange && err == nil {
			to, err = strconv.Atoi(high)
		}
		if err != nil || from < 0 || to < from || to >= maxCPUs {
			return nil, fmt.Errorf("%.40q is no list of CPUs", list)
		}
		for c := from; c <= to; c++ {
			out = append(out, c)
		}
		if len(out) > maxCPUs {
			return nil, fmt.Errorf("over %d CPUs", maxCPUs)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// generation reads a speed such as "16.0 GT/s PCIe"; 0 where it is none that there is.
func generation(speed string) int {
	rate, _, _ := strings.Cut(speed, " ")
	switch rate {
	case "2.5":
		return 1
	case "5", "5.0":
		return 2
	case "8", "8.0":
		return 3
	case "16", "16.0":
		return 4
	case "32", "32.0":
		return 5
	case "64", "64.0":
		return 6
	case "128", "128.0":
		return 7
	}
	return 0
}

// width reads a number of lanes; 0 where it is none that there is. A link that is down, and a
// device that does not answer, show 0, 63 or 255.
func width(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > 32 {
		return 0
	}
	return n
}

// least returns the lesser of two, of those that are known.
func least(a, b int) int {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}
