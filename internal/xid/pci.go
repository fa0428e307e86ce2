package xid

import (
	"fmt"
	"strconv"
	"strings"
)

// PCI is the address of a device. Two addresses of one device compare equal with
// ==, however they were written.
type PCI struct {
	Domain   uint32
	Bus      uint8
	Device   uint8 // 0 to 31
	Function uint8 // 0 to 7
}

// String writes the address as sysfs and the driver do: 0000:1a:00.0.
func (p PCI) String() string {
	return fmt.Sprintf("%04x:%02x:%02x.%x", p.Domain, p.Bus, p.Device, p.Function)
}

// BusID writes the address as DCGM and NVML do, in the label pci_bus_id:
// 00000000:1A:00.0.
func (p PCI) BusID() string {
	return fmt.Sprintf("%08X:%02X:%02X.%X", p.Domain, p.Bus, p.Device, p.Function)
}

// ParsePCI reads an address as any of the sources writes it: with a domain of
// four or eight digits or none, in either case, with a function or without (then
// 0), and with or without "PCI:" before it.
func ParsePCI(s string) (PCI, error) {
	rest := strings.TrimPrefix(s, "PCI:")
	var p PCI
	if dev, fn, ok := strings.Cut(rest, "."); ok {
		f, err := hexField(fn, 1, 1, 7)
		if err != nil {
			return PCI{}, fmt.Errorf("PCI address %s: function: %w", quoted(s), err)
		}
		p.Function, rest = uint8(f), dev
	}
	parts := strings.SplitN(rest, ":", 4)
	if len(parts) == 2 {
		parts = append([]string{"0000"}, parts...)
	}
	if len(parts) != 3 {
		return PCI{}, fmt.Errorf("PCI address %s: want domain:bus:device.function", quoted(s))
	}
	domain, err := hexField(parts[0], 4, 8, 0xffffffff)
	if err != nil {
		return PCI{}, fmt.Errorf("PCI address %s: domain: %w", quoted(s), err)
	}
	bus, err := hexField(parts[1], 2, 2, 0xff)
	if err != nil {
		return PCI{}, fmt.Errorf("PCI address %s: bus: %w", quoted(s), err)
	}
	dev, err := hexField(parts[2], 2, 2, 31)
	if err != nil {
		return PCI{}, fmt.Errorf("PCI address %s: device: %w", quoted(s), err)
	}
	p.Domain, p.Bus, p.Device = uint32(domain), uint8(bus), uint8(dev)
	return p, nil
}

// hexField reads between least and most hex digits, nothing before or after them.
func hexField(s string, least, most int, limit uint64) (uint64, error) {
	if len(s) < least || len(s) > most {
		return 0, fmt.Errorf("%s has not %d to %d hex digits", quoted(s), least, most)
	}
	for _, c := range []byte(s) {
		if !isHex(c) {
			return 0, fmt.Errorf("%s is not hex", quoted(s))
		}
	}
	n, err := strconv.ParseUint(s, 16, 64)
	if err != nil {
		return 0, fmt.Errorf("%s is not hex", quoted(s))
	}
	if n > limit {
		return 0, fmt.Errorf("%s is above %x", quoted(s), limit)
	}
	return n, nil
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

// quoted is s for an error text, never longer than a few words.
func quoted(s string) string {
	const most = 48
	if len(s) > most {
		return strconv.Quote(s[:most]) + "…"
	}
	return strconv.Quote(s)
}
