package xid

import (
	"errors"
	"strings"
	"testing"
)

func TestParseSwitchLine(t *testing.T) {
	at := PCI{Bus: 0xc1}
	for name, tc := range map[string]struct {
		line string
		want SwitchEvent
	}{
		"one that is not fatal": {
			"nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
			SwitchEvent{at, 12028, Nonfatal, 32, "Link 32 egress non-posted PRIV error (First)"},
		},
		"a fatal one in a record of /dev/kmsg": {
			"3,881,1234567,-;nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
			SwitchEvent{at, 20034, Fatal, 30, "Link 30 LTSSM Fault Up"},
		},
		"without a severity": {
			"[  12.5] nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 24007, sourcetrack timeout error",
			SwitchEvent{at, 24007, SeverityUnknown, -1, "sourcetrack timeout error"},
		},
		"a code alone": {"nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 10003", SwitchEvent{at, 10003, SeverityUnknown, -1, ""}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseSwitchLine(tc.line)
			if err != nil || got != tc.want {
				t.Errorf("got %+v, %v\nwant %+v", got, err, tc.want)
			}
		})
	}
	for line, want := range map[string]string{
		"": "not an SXID line",
		"NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus.":                         "not an SXID line",
		"my program: nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 10003, Fatal":                 "not an SXID line",
		"nvidia-nvswitch0: SXid (PCI:0000:c1:00.0":                                            "no closing parenthesis",
		"nvidia-nvswitch0: SXid (PCI:c1): 10003, Fatal":                                       "want domain:bus:device",
		"nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): many, Fatal":                              "is no number",
		"nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 0, Fatal":                                 "is no number",
		"nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 99999999999999999999999, Fatal, Link 32 ": "is no number",
	} {
		if e, err := ParseSwitchLine(line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %+v, %v; want %q", line, e, err, want)
		} else if want == "not an SXID line" && !errors.Is(err, ErrNotSXID) {
			t.Errorf("%q: %v is not ErrNotSXID", line, err)
		}
	}
}
