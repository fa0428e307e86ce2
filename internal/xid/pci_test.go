package xid

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestPCIAddressesOfOneDeviceCompareEqual writes one address in every way that a
// source does.
func TestPCIAddressesOfOneDeviceCompareEqual(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := PCI{
			Domain: rapid.Uint32().Draw(t, "domain"), Bus: rapid.Uint8().Draw(t, "bus"),
			Device: rapid.Uint8Range(0, 31).Draw(t, "device"), Function: rapid.Uint8Range(0, 7).Draw(t, "function"),
		}
		short := fmt.Sprintf("%02x:%02x", want.Bus, want.Device)
		writings := []string{want.String(), want.BusID(), "PCI:" + want.String(), strings.ToUpper(want.String())}
		if want.Function == 0 {
			writings = append(writings, fmt.Sprintf("%04x:%s", want.Domain, short), fmt.Sprintf("PCI:%08X:%s", want.Domain, short))
		}
		if want.Domain == 0 {
			writings = append(writings, fmt.Sprintf("%s.%x", short, want.Function))
		}
		for _, s := range writings {
			got, err := ParsePCI(s)
			if err != nil || got != want {
				t.Fatalf("ParsePCI(%q) = %v, %v, want %v", s, got, err, want)
			}
		}
	})
}

func TestParsePCIRefuses(t *testing.T) {
	for _, s := range []string{
		"", ":", "::", "1a", "1a:0", "1a:00:", "000:1a:00", "000000000:1a:00", "0000:1a:00:00", "0000:1a:00.", "0000:1a:00.8",
		"0000:1a:00.00", "0000:1g:00", "0000:1a:20", "+000:1a:00", "0x00:1a:00", " 0000:1a:00", "0000:1a:00 ", "PCI:PCI:0000:1a:00",
	} {
		if got, err := ParsePCI(s); err == nil {
			t.Errorf("ParsePCI(%q) = %v, want an error", s, got)
		}
	}
}
