package xid

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var modelLine = regexp.MustCompile(`(?s)^(.*?)NVRM: Xid \((.*)$`)

var modelRest = regexp.MustCompile(`(?s)^(?:PCI:)?(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([01][0-9a-fA-F])(?:\.([0-7]))?` +
	`(?: GPU-I:([0-9]+)(?: GPU-CI:([0-9]+))?)?\): ([0-9]+)(.*)$`)

// model is a slower and plainer reading of a line by regular expressions: whether
// it is an XID line, whether that is well formed, and its address and code.
func model(line string) (is, ok bool, pci PCI, code int) {
	if len(line) > maxLine {
		line = line[:maxLine]
	}
	m := modelLine.FindStringSubmatch(line)
	if m == nil || !regexp.MustCompile(`(?s)^[ \t]*$|(;|\]|\]:|>|kernel:)[ \t]*$`).MatchString(m[1]) {
		return false, false, PCI{}, 0
	}
	f := modelRest.FindStringSubmatch(m[2])
	if f == nil {
		return true, false, PCI{}, 0
	}
	num := func(s string, base int, limit uint64) uint64 {
		if s == "" {
			return 0
		}
		n, err := strconv.ParseUint(s, base, 64)
		if err != nil || n > limit {
			f = nil
		}
		return n
	}
	p := PCI{uint32(num(f[1], 16, 1<<32-1)), uint8(num(f[2], 16, 255)), uint8(num(f[3], 16, 31)), uint8(num(f[4], 16, 7))}
	instances, tail := f[5:7], f[8]
	c := num(f[7], 10, maxCode)
	for _, s := range instances {
		num(s, 10, 1<<16-1)
	}
	if t := strings.TrimSpace(tail); f == nil || c == 0 || t != "" && t[0] != ',' {
		return true, false, PCI{}, 0
	}
	return true, true, p, int(c)
}

func FuzzParseKernelLine(f *testing.F) {
	for _, s := range []string{
		"",
		"NVRM: Xid (PCI:0000:1a:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
		"3,1204,98123456,-;NVRM: Xid (PCI:0000:1a:00 GPU-I:02 GPU-CI:00): 31, pid=7, name=a, Ch 1",
		"NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001)",
		"NVRM: Xid (PCI:0003:00:00): 74, NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)",
		"NVRM: Xid (PCI:0000:1a:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
		"NVRM: Xid (PCI:0000:1a:00): 45, pid=1, name=b, Ch 00000001 caused by previous Xid 149",
		"0;NVRM: Xid (PCI:0000:00:00 ): 1",
		"x NVRM: Xid (PCI:0000:1a:00): 79, NVRM: Xid (PCI:0000:1b:00): 48, x",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		got, err := ParseKernelLine(line)
		is, ok, pci, code := model(line)
		if is == errors.Is(err, ErrNotXID) || ok != (err == nil) || got.PCI != pci || got.Code != code {
			t.Fatalf("ParseKernelLine(%q) = %+v, %v; the model says line %t, well formed %t, %v, %d", line, got, err, is, ok, pci, code)
		}
		if err != nil && len(err.Error()) > 600 {
			t.Errorf("error of %d bytes", len(err.Error()))
		}
		for _, s := range []string{got.Message, got.Name} {
			if !utf8.ValidString(s) || strings.ContainsAny(s, "\n\r\x00\x1b") || len(s) > maxMessage {
				t.Errorf("text not fit to be shown: %q", s)
			}
		}
		if n := got.NVLink; n != nil && (len(n.Debug) > maxDebug || len(n.Registers) > 7 || len(n.Unit) > 32) {
			t.Errorf("unbounded detail: %+v", n)
		}
		class, ladder := got.Assess(575)
		if len(ladder) == 0 || class == "" {
			t.Errorf("Assess of %q = %q %v", line, class, ladder)
		}
		if got.NVLink != nil && got.NVLink.Severity == Nonfatal && class != None {
			t.Errorf("nonfatal event %q has class %s", line, class)
		}
	})
}

// TestParseKernelLineReadsBackWhatADriverPrints builds lines from their parts.
func TestParseKernelLineReadsBackWhatADriverPrints(t *testing.T) {
	prefixes := []string{"", "[  812.100000] ", "6,12,345,-;", "<4>[1.2] ", "Nov 30 12:00:01 n kernel: ", "kern: warning: [2026-11-30T12:00:01Z]: "}
	rapid.Check(t, func(t *rapid.T) {
		want := Event{
			PCI:  PCI{rapid.Uint32Range(0, 0xffff).Draw(t, "domain"), rapid.Byte().Draw(t, "bus"), rapid.Uint8Range(0, 31).Draw(t, "device"), 0},
			Code: rapid.IntRange(1, 200).Filter(func(n int) bool { return n != 154 && (n < 144 || n > 150) }).Draw(t, "code"),
		}
		var b strings.Builder
		fmt.Fprintf(&b, "%sNVRM: Xid (PCI:%04x:%02x:%02x", rapid.SampledFrom(prefixes).Draw(t, "prefix"), want.PCI.Domain, want.PCI.Bus, want.PCI.Device)
		if rapid.Bool().Draw(t, "mig") {
			want.MIG = &MIG{rapid.IntRange(0, 14).Draw(t, "gpu instance"), rapid.IntRange(-1, 7).Draw(t, "compute instance")}
			fmt.Fprintf(&b, " GPU-I:%02d", want.MIG.GPU)
			if want.MIG.Compute >= 0 {
				fmt.Fprintf(&b, " GPU-CI:%02d", want.MIG.Compute)
			}
		}
		fmt.Fprintf(&b, "): %d, ", want.Code)
		if rapid.Bool().Draw(t, "process") {
			want.PID = rapid.IntRange(1, 1<<22).Draw(t, "pid")
			want.Name = rapid.StringMatching(`[a-zA-Z0-9_.:/-]{1,15}`).Draw(t, "name")
			fmt.Fprintf(&b, "pid=%d, name=%s, ", want.PID, want.Name)
		}
		want.Message = rapid.StringMatching(`[A-Z][a-zA-Z0-9 ,.:()@-]{0,60}[a-z.]`).Draw(t, "message")
		b.WriteString(want.Message)
		if want.Code == 45 && rapid.Bool().Draw(t, "caused") {
			want.CausedBy = rapid.IntRange(1, 200).Draw(t, "cause")
			tail := fmt.Sprintf(" caused by previous Xid %d", want.CausedBy)
			b.WriteString(tail)
			want.Message += tail
		}
		got, err := ParseKernelLine(b.String())
		if err != nil {
			t.Fatalf("%q: %v", b.String(), err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%q (-want +got):\n%s", b.String(), diff)
		}
	})
}
