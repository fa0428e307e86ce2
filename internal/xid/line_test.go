package xid

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseKernelLine(t *testing.T) {
	gpu := PCI{Domain: 0, Bus: 0x1a}
	for name, tc := range map[string]struct {
		line string
		want Event
	}{
		"a lost GPU, no process": {
			"NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus.",
			Event{PCI: gpu, Code: 79, Message: "GPU has fallen off the bus."},
		},
		"a process that the driver does not know": {
			"[ 812.000001] NVRM: Xid (PCI:0000:1a:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
			Event{PCI: gpu, Code: 79, Message: "GPU has fallen off the bus."},
		},
		"a process without a name": {
			"NVRM: Xid (PCI:0000:1a:00): 79, pid=12345, GPU has fallen off the bus.",
			Event{PCI: gpu, Code: 79, PID: 12345, Message: "GPU has fallen off the bus."},
		},
		"a record of /dev/kmsg": {
			"3,1204,98123456,-;NVRM: Xid (PCI:0000:1a:00): 31, pid=4711, name=python3, Ch 00000016, intr 10000000",
			Event{PCI: gpu, Code: 31, PID: 4711, Name: "python3", Message: "Ch 00000016, intr 10000000"},
		},
		"a line of syslog": {
			"Nov 30 12:00:01 node-7 kernel: NVRM: Xid (PCI:0000:1a:00): 13, Graphics SM Warp Exception on (GPC 0, TPC 3, SM 0): Out Of Range Address",
			Event{PCI: gpu, Code: 13, Message: "Graphics SM Warp Exception on (GPC 0, TPC 3, SM 0): Out Of Range Address"},
		},
		"an address with function, eight digits of domain, upper case": {
			"NVRM: Xid (PCI:00000000:1A:00.0): 48",
			Event{PCI: gpu, Code: 48},
		},
		"an address in the form before the word PCI": {
			"NVRM: Xid (0000:1a:00): 14, Channel 00000001",
			Event{PCI: gpu, Code: 14, Message: "Channel 00000001"},
		},
		"a MIG instance": {
			"NVRM: Xid (PCI:0000:1a:00 GPU-I:02 GPU-CI:00): 31, pid=7, name=a, Ch 1",
			Event{PCI: gpu, Code: 31, MIG: &MIG{GPU: 2, Compute: 0}, PID: 7, Name: "a", Message: "Ch 1"},
		},
		"a GPU instance alone": {
			"NVRM: Xid (PCI:0000:1a:00 GPU-I:05): 94, Contained ECC error",
			Event{PCI: gpu, Code: 94, MIG: &MIG{GPU: 5, Compute: -1}, Message: "Contained ECC error"},
		},
		"the aftermath of another code": {
			"NVRM: Xid (PCI:0000:1a:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149",
			Event{PCI: gpu, Code: 45, PID: 1818990, Name: "python3", CausedBy: 149, Message: "Ch 00000001 caused by previous Xid 149"},
		},
		"a code that the catalogue has not": {
			"NVRM: Xid (PCI:0000:1a:00): 4242, something new",
			Event{PCI: gpu, Code: 4242, Message: "something new"},
		},
		"an NVLink5 event that is not fatal": {
			"NVRM: Xid (PCI:0018:01:00): 145, pid=876767, name=ray::Worker, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001 0x00000000 0x00100000 0x00000004)",
			Event{
				PCI: PCI{Domain: 0x18, Bus: 1}, Code: 145, PID: 876767, Name: "ray::Worker",
				NVLink: &NVLink{
					Unit: "RLW_RXPIPE", Severity: Nonfatal, Link: 13, IntrInfo: 0x0409a0c2, ErrorStatus: 8, HasStatus: true,
					Debug: []uint32{1, 0, 0x100000, 4},
				},
				Message: "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001 0x00000000 0x00100000 0x00000004)",
			},
		},
		"an NVLink5 event of all links": {
			"NVRM: Xid (PCI:0018:01:00): 149, NETIR_INT  Fatal   XC0 i0 Link -1",
			Event{
				PCI: PCI{Domain: 0x18, Bus: 1}, Code: 149, NVLink: &NVLink{Unit: "NETIR_INT", Severity: Fatal, Link: -1},
				Message: "NETIR_INT  Fatal   XC0 i0 Link -1",
			},
		},
		"an NVLink5 event of an older driver": {
			"NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT Fatal XC 1 i 2 Link 01 [0x0000000a]",
			Event{
				PCI: PCI{Domain: 0x18, Bus: 1}, Code: 149,
				NVLink:  &NVLink{Unit: "NETIR_LINK_EVT", Severity: Fatal, Link: 1, IntrInfo: 10},
				Message: "NETIR_LINK_EVT Fatal XC 1 i 2 Link 01 [0x0000000a]",
			},
		},
		"the seven registers of an NVLink event": {
			"NVRM: Xid (PCI:0003:00:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)",
			Event{
				PCI: PCI{Domain: 3}, Code: 74,
				NVLink:  &NVLink{Severity: Fatal, Link: 14, Registers: []uint32{0, 0, 0x10000, 0, 0, 0, 0}},
				Message: "NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)",
			},
		},
		"a recovery action": {
			"NVRM: Xid (PCI:0000:1a:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
			Event{
				PCI: gpu, Code: 154,
				Recovery: &Recovery{To: RecoveryNodeReboot, Text: "Node Reboot Required", Known: true},
				Message:  "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
			},
		},
		"a recovery action in the words of branch 610": {
			"NVRM: Xid (PCI:0000:1a:00): 154, GPU recovery action changed from 0x4 (Drain and Reset) to 0x1 (PF FLR)",
			Event{
				PCI: gpu, Code: 154,
				Recovery: &Recovery{From: RecoveryDrainAndReset, To: RecoveryGPUReset, Text: "PF FLR", Known: true},
				Message:  "GPU recovery action changed from 0x4 (Drain and Reset) to 0x1 (PF FLR)",
			},
		},
		"a recovery action whose words and number differ": {
			"NVRM: Xid (PCI:0000:1a:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (Drain P2P)",
			Event{
				PCI: gpu, Code: 154,
				Recovery: &Recovery{To: RecoveryGPUReset, Text: "Drain P2P", Known: true, Differs: true},
				Message:  "GPU recovery action changed from 0x0 (None) to 0x1 (Drain P2P)",
			},
		},
		"a recovery action in words not heard before": {
			"NVRM: Xid (PCI:0000:1a:00): 154, GPU recovery action changed from 0x0 (None) to 0x9 (Turn It Upside Down)",
			Event{
				PCI: gpu, Code: 154,
				Recovery: &Recovery{To: 9, Text: "Turn It Upside Down"},
				Message:  "GPU recovery action changed from 0x0 (None) to 0x9 (Turn It Upside Down)",
			},
		},
		"a recovery action that can't be read": {
			"NVRM: Xid (PCI:0000:1a:00): 154, GPU recovery action changed",
			Event{PCI: gpu, Code: 154, Message: "GPU recovery action changed"},
		},
		"control characters in the name": {
			"NVRM: Xid (PCI:0000:1a:00): 31, pid=1, name=a\x1b[31mb\xff, Ch 1",
			Event{PCI: gpu, Code: 31, PID: 1, Name: "a?[31mb?", Message: "Ch 1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseKernelLine(tc.line)
			if err != nil {
				t.Fatalf("ParseKernelLine: %v", err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("event (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseKernelLineRefuses(t *testing.T) {
	for name, tc := range map[string]struct{ line, want string }{
		"an empty line":                   {"", "not an XID line"},
		"another line of the driver":      {"NVRM: GPU at PCI:0000:1a:00: GPU-6e3b", "not an XID line"},
		"a line of the NVLink switch":     {"nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress", "not an XID line"},
		"a program that quotes the line":  {`gpud: msg="saw NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus."`, "not an XID line"},
		"a line without its address":      {"NVRM: Xid (79): GPU has fallen", `XID line: PCI address "79": want domain:bus:device.function`},
		"a line cut in the address":       {"NVRM: Xid (PCI:0000:1a", "XID line: no closing parenthesis after the address"},
		"an address with a long bus":      {"NVRM: Xid (PCI:0000:1aa:00): 79", `XID line: PCI address "PCI:0000:1aa:00": bus: "1aa" has not 2 to 2 hex digits`},
		"an address with device 32":       {"NVRM: Xid (PCI:0000:1a:20): 79", `XID line: PCI address "PCI:0000:1a:20": device: "20" is above 1f`},
		"an instance that is no number":   {"NVRM: Xid (PCI:0000:1a:00 GPU-I:x): 79", `XID line: "GPU-I:x" is not GPU-I: and a number`},
		"a code that is no number":        {"NVRM: Xid (PCI:0000:1a:00): abc, pid=1", `XID line: code "" is no number from 1 to 99999`},
		"code 0":                          {"NVRM: Xid (PCI:0000:1a:00): 0, x", `XID line: code "0" is no number from 1 to 99999`},
		"a code that no driver has":       {"NVRM: Xid (PCI:0000:1a:00): 100000, x", `XID line: code "100000" is no number from 1 to 99999`},
		"a code that overflows":           {"NVRM: Xid (PCI:0000:1a:00): 99999999999999999999, x", `XID line: code "99999999999999999999" is no number from 1 to 99999`},
		"words glued to the code":         {"NVRM: Xid (PCI:0000:1a:00): 79 GPU", `XID line: "GPU" after the code`},
		"an error text of bounded length": {"NVRM: Xid (PCI:" + strings.Repeat("x", 3000) + "): 79", `XID line: PCI address "PCI:xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"…: want domain:bus:device.function`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseKernelLine(tc.line)
			if err == nil || err.Error() != tc.want {
				t.Errorf("error %v, want %q", err, tc.want)
			}
			if is := errors.Is(err, ErrNotXID); is != (tc.want == ErrNotXID.Error()) {
				t.Errorf("errors.Is(%v, ErrNotXID) = %t", err, is)
			}
			if diff := cmp.Diff(Event{}, got); diff != "" {
				t.Errorf("an event beside an error:\n%s", diff)
			}
		})
	}
}

func TestAssess(t *testing.T) {
	line := func(s string) string { return "NVRM: Xid (PCI:0000:1a:00): " + s }
	for name, tc := range map[string]struct {
		line   string
		branch int
		class  Class
		ladder string
	}{
		"a plain code is as its row":                       {line("79, x"), 0, GPULost, "REBOOT,HOLD"},
		"45 alone does nothing":                            {line("45, pid=1, name=a, Ch 1"), 0, None, "NOTE,ALERT"},
		"an unknown code alerts":                           {line("999, x"), 0, None, "ALERT"},
		"a status that asks for a reset":                   {line("145, RLW_RSPCOL Fatal XC0 i0 Link 00 (0x5 0x2)"), 0, GPUNVLink, "RESET,HOLD"},
		"a number in another spelling is the same number":  {line("145, RLW_RSPCOL Fatal XC0 i0 Link 00 (0x5 0x00000002)"), 0, GPUNVLink, "RESET,HOLD"},
		"the same status in a nonfatal line":               {line("145, RLW_RSPCOL Nonfatal XC0 i0 Link 00 (0x5 0x2)"), 0, None, "NOTE"},
		"nonfatal with a hyphen":                           {line("145, RLW_RSPCOL Non-fatal XC0 i0 Link 00 (0x5 0x2)"), 0, None, "NOTE"},
		"a fatal line is not ignored":                      {line("145, RLW_RSPCOL Fatal XC0 i0 Link 00 (0x5 0x1)"), 0, GPUNVLink, "EVAL154,ALERT"},
		"a status in no list":                              {line("145, RLW_RSPCOL Fatal XC0 i0 Link 00 (0x5 0x7)"), 0, GPUNVLink, "EVAL154,ALERT"},
		"a sub-component in no list":                       {line("149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x0)"), 0, GPUNVLink, "EVAL154,ALERT"},
		"text that can't be read":                          {line("149, some words"), 0, GPUNVLink, "EVAL154,ALERT"},
		"no status":                                        {line("144, SAW_MVB Fatal XC0 i0 Link 00 (0x1)"), 0, GPUNVLink, "EVAL154,ALERT"},
		"any interrupt of the network unit":                {line("149, NETIR_INT Fatal XC0 i0 Link -1"), 0, GPUNVLink, "RESET,HOLD"},
		"a link that is down for a bad reason":             {line("149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x025001c6 0x0)"), 0, GPUNVLink, "RESET,HOLD"},
		"a link that is down on purpose":                   {line("149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6 0x0)"), 0, GPUNVLink, "EVAL154,ALERT"},
		"a receive pipe error, promoted, old driver":       {line("145, RLW_RXPIPE Fatal XC0 i0 Link 00 (0x400 0x1)"), 570, GPUNVLink, "RESET,HOLD"},
		"a receive pipe error, promoted, new driver":       {line("145, RLW_RXPIPE Fatal XC0 i0 Link 00 (0x80 0x1)"), 580, GPUNVLink, "RESET,HOLD"},
		"a receive pipe error, fatal but not promoted":     {line("145, RLW_RXPIPE Fatal XC0 i0 Link 00 (0x80 0x1)"), 570, GPUNVLink, "EVAL154,ALERT"},
		"a receive pipe error of an unknown driver":        {line("145, RLW_RXPIPE Fatal XC0 i0 Link 00 (0x480 0x1)"), 0, GPUNVLink, "EVAL154,ALERT"},
		"the driver asks for a reset":                      {line("154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"), 0, GPUDriver, "RESET,REBOOT,HOLD"},
		"the driver asks for a reboot":                     {line("154, GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)"), 0, GPUDriver, "REBOOT,HOLD"},
		"the driver asks for the end of peer jobs":         {line("154, GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)"), 0, GPUNVLink, "EVAL154,ALERT"},
		"the driver says that all is well again":           {line("154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"), 0, None, "NOTE"},
		"words and number that differ act on nothing":      {line("154, GPU recovery action changed from 0x0 (None) to 0x2 (Drain P2P)"), 0, None, "ALERT"},
		"a known number in new words is obeyed":            {line("154, GPU recovery action changed from 0x0 (None) to 0x2 (Kick It)"), 0, GPUDriver, "REBOOT,HOLD"},
		"a recovery action of a newer driver":              {line("154, GPU recovery action changed from 0x0 (None) to 0x63 (New)"), 0, None, "ALERT"},
		"a recovery action that can't be read":             {line("154, words"), 0, None, "ALERT"},
		"an NVLink event of an older GPU is as its row is": {line("74, NVLink: fatal error detected on link 2(0x0, 0x0)"), 0, GPUNVLink, "EVAL154,RESET,HOLD"},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := ParseKernelLine(tc.line)
			if err != nil {
				t.Fatal(err)
			}
			class, ladder := e.Assess(tc.branch)
			if class != tc.class || ladder.String() != tc.ladder {
				t.Errorf("Assess = %s %s, want %s %s", class, ladder, tc.class, tc.ladder)
			}
		})
	}
}

// TestNonfatalNeverActs goes through all sub-components and statuses of the table.
func TestNonfatalNeverActs(t *testing.T) {
	for _, r := range unitRules {
		for _, status := range append([]uint32{0, 1, 0xffffffff}, append(r.reset, r.ignore...)...) {
			e := Event{Code: r.code, NVLink: &NVLink{
				Unit: r.unit, Severity: Nonfatal, Link: 1, IntrInfo: status<<20 | 0x480, ErrorStatus: status, HasStatus: true,
			}}
			for _, branch := range []int{0, 570, 580} {
				if class, ladder := e.Assess(branch); class != None || ladder.Fallback().Acts() {
					t.Errorf("%d %s status %#x on R%d: %s %s", r.code, r.unit, status, branch, class, ladder)
				}
			}
		}
	}
}

func TestSubCodeMovedWithBranch575(t *testing.T) {
	n := NVLink{IntrInfo: 0x0409a0c2}
	if got := n.SubCode(570); got != 6 {
		t.Errorf("SubCode(570) = %d, want 6", got)
	}
	if got := n.SubCode(575); got != 0x42 {
		t.Errorf("SubCode(575) = %#x, want 0x42", got)
	}
	if got := (NVLink{IntrInfo: 0x026001c6}).DownReason(); got != 38 {
		t.Errorf("DownReason = %d, want 38", got)
	}
}

func TestRecoveryActionsHaveNamesAndLadders(t *testing.T) {
	for action, want := range map[RecoveryAction]string{
		RecoveryNone: "none NOTE", RecoveryGPUReset: "gpu-reset RESET,REBOOT,HOLD", RecoveryNodeReboot: "node-reboot REBOOT,HOLD",
		RecoveryDrainP2P: "drain-p2p EVAL154,ALERT", RecoveryDrainAndReset: "drain-and-reset RESET,REBOOT,HOLD",
		RecoveryIMEXDomain: "recover-imex-domain ALERT", RecoveryBusReset: "bus-reset ALERT",
		RecoverySystemReboot: "system-reboot REBOOT,HOLD", RecoveryUnknown: "unknown ALERT", 42: "unknown (42) ALERT",
	} {
		if got := action.String() + " " + action.Ladder().String(); got != want {
			t.Errorf("action %d: %q, want %q", int(action), got, want)
		}
	}
}
