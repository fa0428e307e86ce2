package xid

import (
	"fmt"
	"strconv"
	"strings"
)

// A RecoveryAction is what the driver says a GPU needs, in the numbers of NVML and
// of XID 154. Numbers of newer drivers are kept as they are and act on nothing.
type RecoveryAction int

// The recovery actions. 6 and 7 came with NVML 615.
const (
	RecoveryNone          RecoveryAction = 0
	RecoveryGPUReset      RecoveryAction = 1
	RecoveryNodeReboot    RecoveryAction = 2
	RecoveryDrainP2P      RecoveryAction = 3 // end the jobs that use links to this GPU, then look again
	RecoveryDrainAndReset RecoveryAction = 4
	RecoveryIMEXDomain    RecoveryAction = 5 // a whole NVLink domain, not this node
	RecoveryBusReset      RecoveryAction = 6
	RecoverySystemReboot  RecoveryAction = 7
	RecoveryUnknown       RecoveryAction = 0xff
)

// String is the name, or the number where there is no name.
func (a RecoveryAction) String() string {
	switch a {
	case RecoveryNone:
		return "none"
	case RecoveryGPUReset:
		return "gpu-reset"
	case RecoveryNodeReboot:
		return "node-reboot"
	case RecoveryDrainP2P:
		return "drain-p2p"
	case RecoveryDrainAndReset:
		return "drain-and-reset"
	case RecoveryIMEXDomain:
		return "recover-imex-domain"
	case RecoveryBusReset:
		return "bus-reset"
	case RecoverySystemReboot:
		return "system-reboot"
	case RecoveryUnknown:
		return "unknown"
	}
	return fmt.Sprintf("unknown (%d)", int(a))
}

// Ladder returns the steps that the action asks for.
func (a RecoveryAction) Ladder() Ladder {
	_, l := a.assess()
	return l
}

func (a RecoveryAction) assess() (Class, Ladder) {
	switch a {
	case RecoveryNone:
		return None, Ladder{Note}
	case RecoveryGPUReset, RecoveryDrainAndReset:
		return GPUDriver, Ladder{Reset, Reboot, Hold}
	case RecoveryNodeReboot, RecoverySystemReboot:
		return GPUDriver, Ladder{Reboot, Hold}
	case RecoveryDrainP2P:
		return GPUNVLink, Ladder{Eval154, Alert}
	case RecoveryIMEXDomain, RecoveryBusReset, RecoveryUnknown:
		return None, Ladder{Alert}
	}
	return None, Ladder{Alert}
}

// recoveryTexts are the words of XID 154, in lower case. The driver renamed some
// with branch 610; the numbers stayed.
var recoveryTexts = map[string]RecoveryAction{
	"none":                 RecoveryNone,
	"gpu reset required":   RecoveryGPUReset,
	"pf flr":               RecoveryGPUReset,
	"node reboot required": RecoveryNodeReboot,
	"os reboot":            RecoveryNodeReboot,
	"drain p2p":            RecoveryDrainP2P,
	"drain and reset":      RecoveryDrainAndReset,
}

// Recovery is the text of an XID 154.
type Recovery struct {
	From, To RecoveryAction // the numbers
	Text     string         // the words for To
	Known    bool           // whether the words are known
	Differs  bool           // whether they are known and mean something else than To
}

// Action is the action to be obeyed: the number, whatever a newer driver may call
// it, but unknown where number and words contradict each other.
func (r Recovery) Action() RecoveryAction {
	if r.Differs {
		return RecoveryUnknown
	}
	return r.To
}

// parseRecovery reads
//
//	GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)
//
// and returns nil where that can't be read.
func parseRecovery(s string) *Recovery {
	i := strings.LastIndex(s, "changed from ")
	if i < 0 {
		return nil
	}
	from, to, ok := strings.Cut(s[i+len("changed from "):], " to ")
	if !ok {
		return nil
	}
	var r Recovery
	if r.From, _, ok = parseAction(from); !ok {
		return nil
	}
	if r.To, r.Text, ok = parseAction(to); !ok {
		return nil
	}
	named, known := recoveryTexts[strings.ToLower(r.Text)]
	r.Known, r.Differs = known, known && named != r.To
	return &r
}

// parseAction reads one number and its words: 0x2 (Node Reboot Required).
func parseAction(s string) (RecoveryAction, string, bool) {
	number, text, ok := strings.Cut(strings.TrimSpace(s), " (")
	if !ok {
		return 0, "", false
	}
	text, _, ok = strings.Cut(text, ")")
	digits, hex := strings.CutPrefix(number, "0x")
	n, err := strconv.ParseUint(digits, 16, 16)
	if !ok || !hex || err != nil {
		return 0, "", false
	}
	return RecoveryAction(n), clean(text, maxName), true
}
