package xid

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// Limits of what is kept of a line; a kernel record itself is about 1 KiB long.
const (
	maxLine    = 4096 // bytes of a line that are looked at
	maxMessage = 512  // bytes of Event.Message
	maxName    = 64   // bytes of Event.Name
	maxDebug   = 5    // words after intrInfo and errorStatus
	maxCode    = 99999
)

// ErrNotXID says that a line is not an XID line at all, as nearly all lines are.
// Any other error of [ParseKernelLine] is about a line that claims to be one.
var ErrNotXID = errors.New("not an XID line")

// An Event is one kernel line of the driver, decoded. It has no time: that is in
// the record around the line.
type Event struct {
	PCI  PCI
	Code int
	MIG  *MIG // the instance that the driver names, or nil
	// PID is the process whose channel failed, 0 where the driver knows none. It is
	// a number in the host's own namespace.
	PID  int
	Name string // of that process; chosen by the user, so only to be shown
	// CausedBy is the earlier code that an XID 45 names as its cause, or 0.
	CausedBy int
	NVLink   *NVLink // for codes 74 and 144 to 150, where the line has the details
	Recovery *Recovery
	Message  string // what follows the code and the process, at most 512 bytes
}

// MIG is the GPU instance and compute instance of an event.
type MIG struct {
	GPU     int
	Compute int // -1 where the driver names only the GPU instance
}

// A Severity is the word of an NVLink line. Unknown is neither of the two.
type Severity string

// The severities.
const (
	SeverityUnknown Severity = ""
	Fatal           Severity = "fatal"
	Nonfatal        Severity = "nonfatal" // the link goes on; nothing is to be done to a node
)

// NVLink is the detail of an NVLink event.
type NVLink struct {
	Unit     string // sub-component as printed, e.g. RLW_RXPIPE; empty for code 74
	Severity Severity
	Link     int // -1: all links, or none named
	// IntrInfo, ErrorStatus and Debug are the words of codes 144 to 150. HasStatus is
	// false where the line has only the first (drivers before R575).
	IntrInfo    uint32
	ErrorStatus uint32
	HasStatus   bool
	Debug       []uint32
	Registers   []uint32 // the seven registers of code 74
}

// SubCode is the number of the sub-component, which moved with driver branch 575.
func (n NVLink) SubCode(branch int) uint32 {
	if branch >= 575 {
		return n.IntrInfo & 0x7f
	}
	return n.IntrInfo >> 5 & 0x1f
}

// DownReason is why a link of a code 149 went down.
func (n NVLink) DownReason() uint32 { return n.IntrInfo >> 20 & 0x3f }

// promoted reports whether a receive pipe error was raised to fatal by the driver;
// unknown when the branch is.
func (n NVLink) promoted(branch int) (yes, known bool) {
	switch {
	case branch <= 0:
		return false, false
	case branch >= 575:
		return n.IntrInfo>>7&1 == 1, true
	default:
		return n.IntrInfo>>10&1 == 1, true
	}
}

// ParseKernelLine decodes a line that the NVIDIA driver wrote to the kernel log,
// with or without what dmesg, journald or /dev/kmsg put before it. The error is
// [ErrNotXID] for other lines, also for those that merely quote an XID line.
// Codes outside the catalogue are decoded like any other.
//
// It can't tell whether the kernel wrote the line: the caller must drop records
// that came from a user's process, whose facility in /dev/kmsg isn't 0.
func ParseKernelLine(line string) (Event, error) {
	if len(line) > maxLine {
		line = line[:maxLine]
	}
	const mark = "NVRM: Xid ("
	before, rest, ok := strings.Cut(line, mark)
	if !ok || !isPrefix(before) {
		return Event{}, ErrNotXID
	}
	where, rest, ok := strings.Cut(rest, "): ")
	if !ok {
		return Event{}, errors.New("XID line: no closing parenthesis after the address")
	}
	var e Event
	var err error
	if e.PCI, e.MIG, err = parseWhere(where); err != nil {
		return Event{}, fmt.Errorf("XID line: %w", err)
	}
	digits, rest := rest, ""
	if i := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); i >= 0 {
		digits, rest = digits[:i], digits[i:]
	}
	if e.Code, err = strconv.Atoi(digits); err != nil || e.Code < 1 || e.Code > maxCode {
		return Event{}, fmt.Errorf("XID line: code %s is no number from 1 to %d", quoted(digits), maxCode)
	}
	if rest = strings.TrimSpace(rest); rest != "" {
		if rest, ok = strings.CutPrefix(rest, ","); !ok {
			return Event{}, fmt.Errorf("XID line: %s after the code", quoted(rest))
		}
	}
	e.PID, e.Name, rest = cutProcess(strings.TrimSpace(rest))
	if e.Code == 45 {
		e.CausedBy = causedBy(rest)
	}
	switch {
	case e.Code == 74:
		e.NVLink = parseRegisters(rest)
	case 144 <= e.Code && e.Code <= 150:
		e.NVLink = parseNVLink5(rest)
	case e.Code == 154:
		e.Recovery = parseRecovery(rest)
	}
	e.Message = clean(rest, maxMessage)
	return e, nil
}

// isPrefix reports whether s is what a log puts before a kernel message, and not
// words of another program that quotes one.
func isPrefix(s string) bool {
	s = strings.TrimRight(s, " \t")
	if s == "" {
		return true
	}
	for _, end := range []string{";", "]", "]:", ">", "kernel:"} {
		if strings.HasSuffix(s, end) {
			return true
		}
	}
	return false
}

// parseWhere reads what stands in the parentheses: PCI:0000:1a:00 GPU-I:01 GPU-CI:02.
func parseWhere(s string) (PCI, *MIG, error) {
	addr, rest, more := strings.Cut(s, " ")
	pci, err := ParsePCI(addr)
	if err != nil || !more {
		return pci, nil, err
	}
	inst, compute, both := strings.Cut(rest, " ")
	m := &MIG{Compute: -1}
	if m.GPU, err = instance(inst, "GPU-I:"); err != nil {
		return PCI{}, nil, err
	}
	if both {
		if m.Compute, err = instance(compute, "GPU-CI:"); err != nil {
			return PCI{}, nil, err
		}
	}
	return pci, m, nil
}

func instance(s, prefix string) (int, error) {
	digits, ok := strings.CutPrefix(s, prefix)
	n, err := strconv.ParseUint(digits, 10, 16)
	if !ok || err != nil {
		return 0, fmt.Errorf("%s is not %s and a number", quoted(s), prefix)
	}
	return int(n), nil
}

// cutProcess takes "pid=…, name=…, " off the front. A pid that isn't a number
// stands for none: drivers print '<unknown>' there.
func cutProcess(s string) (pid int, name, rest string) {
	rest, ok := strings.CutPrefix(s, "pid=")
	if !ok {
		return 0, "", s
	}
	number, rest, _ := strings.Cut(rest, ",")
	if n, err := strconv.ParseInt(strings.TrimSpace(number), 10, 32); err == nil && n > 0 {
		pid = int(n)
	}
	rest = strings.TrimSpace(rest)
	named, ok := strings.CutPrefix(rest, "name=")
	if !ok {
		return pid, "", rest
	}
	named, rest, _ = strings.Cut(named, ", ")
	if !strings.HasPrefix(strings.TrimPrefix(named, "'"), "<") {
		name = clean(named, maxName)
	}
	return pid, name, strings.TrimSpace(rest)
}

// causedBy reads the code at the end of "… caused by previous Xid 149".
func causedBy(s string) int {
	i := strings.LastIndex(s, " caused by previous Xid ")
	if i < 0 {
		return 0
	}
	n, err := strconv.Atoi(strings.TrimSpace(s[i+len(" caused by previous Xid "):]))
	if err != nil || n < 1 || n > maxCode {
		return 0
	}
	return n
}

// clean makes text that a line carried fit to be shown: valid UTF-8, no control
// characters, at most limit bytes.
func clean(s string, limit int) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, strings.ToValidUTF8(s, "?"))
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "")
	}
	return strings.TrimSpace(s)
}
