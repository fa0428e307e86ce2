package xid

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// A SwitchEvent is one kernel line about an NVSwitch, an SXID.
type SwitchEvent struct {
	PCI      PCI // of the switch
	Code     int
	Severity Severity
	Link     int    // -1 where none is named
	Message  string // what follows the severity, at most 512 bytes
}

// ErrNotSXID says that a line is not an SXID line at all.
var ErrNotSXID = errors.New("not an SXID line")

// ParseSwitchLine decodes a line that the NVSwitch driver wrote to the kernel log. What
// [ParseKernelLine] says of its lines holds here, too.
func ParseSwitchLine(line string) (SwitchEvent, error) {
	if len(line) > maxLine {
		line = line[:maxLine]
	}
	const mark = ": SXid ("
	before, rest, ok := strings.Cut(line, mark)
	i := strings.LastIndex(before, "nvidia-nvswitch")
	if !ok || i < 0 || !isPrefix(before[:i]) {
		return SwitchEvent{}, ErrNotSXID
	}
	where, rest, ok := strings.Cut(rest, "): ")
	if !ok {
		return SwitchEvent{}, errors.New("SXID line: no closing parenthesis after the address")
	}
	e := SwitchEvent{Link: -1}
	var err error
	if e.PCI, err = ParsePCI(where); err != nil {
		return SwitchEvent{}, fmt.Errorf("SXID line: %w", err)
	}
	digits, rest, _ := strings.Cut(rest, ",")
	if e.Code, err = strconv.Atoi(strings.TrimSpace(digits)); err != nil || e.Code < 1 || e.Code > maxCode {
		return SwitchEvent{}, fmt.Errorf("SXID line: code %s is no number from 1 to %d", quoted(digits), maxCode)
	}
	word, after, _ := strings.Cut(strings.TrimSpace(rest), ",")
	switch strings.ToLower(strings.TrimSpace(word)) {
	case "fatal":
		e.Severity, rest = Fatal, after
	case "non-fatal", "nonfatal":
		e.Severity, rest = Nonfatal, after
	}
	rest = strings.TrimSpace(rest)
	if named, ok := strings.CutPrefix(rest, "Link "); ok {
		number, _, _ := strings.Cut(named, " ")
		if n, err := strconv.ParseUint(strings.TrimRight(number, ","), 10, 8); err == nil {
			e.Link = int(n)
		}
	}
	e.Message = clean(rest, maxMessage)
	return e, nil
}
