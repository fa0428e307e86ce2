package xid

import (
	"slices"
	"strconv"
	"strings"
)

// parseNVLink5 reads the text of codes 144 to 150,
//
//	RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001 …)
//
// and returns nil where it doesn't begin like that.
func parseNVLink5(s string) *NVLink {
	fields := strings.Fields(s)
	if len(fields) < 2 || !isUnit(fields[0]) {
		return nil
	}
	n := &NVLink{Unit: fields[0], Link: -1}
	switch strings.ToLower(strings.ReplaceAll(fields[1], "-", "")) {
	case "fatal":
		n.Severity = Fatal
	case "nonfatal":
		n.Severity = Nonfatal
	default:
		return nil
	}
	if i := slices.Index(fields, "Link"); i >= 0 && i+1 < len(fields) {
		n.Link = linkNumber(fields[i+1])
	}
	words := hexWords(s, 2+maxDebug)
	if len(words) > 0 {
		n.IntrInfo = words[0]
	}
	if len(words) > 1 {
		n.ErrorStatus, n.HasStatus = words[1], true
		n.Debug = words[2:]
	}
	return n
}

// parseRegisters reads the text of code 74,
//
//	NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)
func parseRegisters(s string) *NVLink {
	_, after, ok := strings.Cut(s, " on link ")
	if !ok {
		return nil
	}
	n := &NVLink{Registers: hexWords(after, 7)}
	if strings.Contains(s, "fatal error") {
		n.Severity = Fatal
	}
	number, _, _ := strings.Cut(after, "(")
	n.Link = linkNumber(strings.TrimSpace(number))
	return n
}

// linkNumber is the number of a link, -1 for anything else.
func linkNumber(s string) int {
	if i, err := strconv.ParseUint(s, 10, 16); err == nil {
		return int(i)
	}
	return -1
}

// isUnit reports whether s may be the name of a sub-component.
func isUnit(s string) bool {
	for _, c := range []byte(s) {
		if (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' {
			return false
		}
	}
	return len(s) > 0 && len(s) <= 32
}

// hexWords reads at most limit numbers out of the first parentheses or brackets of
// s. It stops at the first that is no 32-bit hex number.
func hexWords(s string, limit int) []uint32 {
	i := strings.IndexAny(s, "([")
	if i < 0 {
		return nil
	}
	s = s[i+1:]
	if j := strings.IndexAny(s, ")]"); j >= 0 {
		s = s[:j]
	}
	var words []uint32
	for f := range strings.FieldsFuncSeq(s, func(r rune) bool { return r == ' ' || r == ',' }) {
		if len(words) == limit {
			break
		}
		digits, ok := strings.CutPrefix(f, "0x")
		w, err := strconv.ParseUint(digits, 16, 32)
		if !ok || err != nil {
			break
		}
		words = append(words, uint32(w))
	}
	return words
}

// A unitRule says what the error status of one NVLink5 sub-component asks for. A
// status in none of the lists is for a person, or for the driver's recovery action.
type unitRule struct {
	code   int
	unit   string // beginning of the sub-component's name
	by     statusOf
	always bool     // every status asks for a reset
	reset  []uint32 // statuses that ask for a reset of the GPU
	ignore []uint32 // statuses that ask for nothing
}

// statusOf says which number of a line a rule looks at.
type statusOf string

const (
	byStatus   statusOf = "status"   // the error status
	byReason   statusOf = "reason"   // the reason why the link is down
	ifPromoted statusOf = "promoted" // the error status; a reset only where the driver raised it to fatal
)

// unitRules are the decoding of codes 144 to 150 in NVIDIA's catalogue. The first
// rule whose code and unit fit is taken.
var unitRules = []unitRule{
	{144, "SAW_MVB", byStatus, false, []uint32{0x2, 0x10}, []uint32{0x1, 0x4, 0x8, 0x20}},
	{145, "RLW_CTRL", byStatus, false, nil, []uint32{0x80000000}},
	{145, "RLW_REMAP", byStatus, false, []uint32{0x40, 0x80}, []uint32{0x100, 0x200, 0x80000000}},
	{145, "RLW_RSPCOL", byStatus, false, []uint32{0x2}, []uint32{0x1, 0x80000000}},
	{145, "RLW_RXPIPE", ifPromoted, false, []uint32{0x1, 0x2, 0x4}, []uint32{0x8, 0x80000000}},
	{145, "RLW_SRC_TRACK", byStatus, false, []uint32{0x1, 0x10, 0x20}, []uint32{0x2, 0x80000000}},
	{145, "RLW_TAGSTATE", byStatus, false, []uint32{0x2, 0x20000, 0x100000}, []uint32{0x1, 0x10000, 0x80000000}},
	{146, "TLW_", byStatus, false, []uint32{0x4}, []uint32{0x1, 0x2, 0x80000000}},
	{147, "TREX", byStatus, false, nil, []uint32{0x1, 0x80000000}},
	{148, "NVLPW_CTRL", byStatus, false, nil, []uint32{0x80000000}},
	{149, "NETIR_INT", byStatus, true, nil, nil},
	{149, "NETIR_LINK_", byReason, false, []uint32{0, 1, 2, 4, 10, 15, 16, 17, 18, 21, 22, 32, 33, 34, 35, 36, 37}, []uint32{38, 40}},
	{149, "NETIR_BER", byStatus, false, nil, []uint32{0x0, 0x1, 0x2, 0x3}},
	{149, "NETIR_MFDE", byStatus, false, []uint32{0x1, 0x4, 0x5, 0x7}, []uint32{0x3}},
	{150, "MSE", byStatus, true, nil, nil},
}

// verdict is what the decoding of an NVLink5 line comes to.
type verdict string

const (
	verdictReset  verdict = "reset"
	verdictIgnore verdict = "ignore"
	verdictOpen   verdict = "open" // not decided by the line
)

// decode applies unitRules to a line of a driver of the given branch, 0 if the
// branch isn't known.
func (n NVLink) decode(code, branch int) verdict {
	i := slices.IndexFunc(unitRules, func(r unitRule) bool {
		return r.code == code && strings.HasPrefix(n.Unit, r.unit)
	})
	if i < 0 {
		return verdictOpen
	}
	r := unitRules[i]
	if r.always {
		return verdictReset
	}
	status := n.ErrorStatus
	switch r.by {
	case byReason:
		status = n.DownReason()
	case byStatus, ifPromoted:
		if !n.HasStatus {
			return verdictOpen
		}
	}
	switch {
	case slices.Contains(r.ignore, status):
		return verdictIgnore
	case !slices.Contains(r.reset, status):
		return verdictOpen
	case r.by != ifPromoted:
		return verdictReset
	}
	switch yes, known := n.promoted(branch); {
	case !known:
		return verdictOpen
	case yes:
		return verdictReset
	}
	return verdictIgnore
}

// Assess says what one decoded line is evidence of and what is to be done about
// it. It knows more than the row of the code: for NVLink codes 144 to 150 the
// sub-component, its status and its severity decide, for code 154 the recovery
// action. branch is the driver's branch (575 for R575), 0 if it isn't known; what
// depends on it then stays open and is left to the recovery action.
//
// A nonfatal NVLink event never acts on a node, whatever its status says. A fatal
// one that the table would ignore is not ignored but left to the driver.
func (e Event) Assess(branch int) (Class, Ladder) {
	row, _ := Lookup(e.Code)
	switch {
	case e.Code == 154:
		if e.Recovery == nil {
			return None, Ladder{Alert}
		}
		return e.Recovery.Action().assess()
	case e.Code < 144 || e.Code > 150 || e.NVLink == nil:
		return row.Class, row.Ladder
	case e.NVLink.Severity == Nonfatal:
		return None, Ladder{Note}
	}
	switch e.NVLink.decode(e.Code, branch) {
	case verdictReset:
		return row.Class, Ladder{Reset, Hold}
	case verdictIgnore:
		if e.NVLink.Severity != Fatal {
			return None, Ladder{Note}
		}
	case verdictOpen:
	}
	return row.Class, row.Ladder
}
