package collector

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"
)

// A tally counts the events of one subject, by code. What is counted only grows.
type tally struct {
	codes []*counter // by code, that of all others last
	shown []codeView // of codes; replaced, never changed
	stale bool       // shown is older than codes
}

// other is the code of all that came over maxCodes.
const other = 0

// A counter is one code.
type counter struct {
	code  int
	total uint64
	last  time.Time         // event time of the newest
	marks []mark            // by time, newest last; at most maxMarks
	seen  map[string]uint64 // by source; an event that two tell of is in both
}

// counter returns the counter of a code, which it adds while there is room.
func (t *tally) counter(code int) *counter {
	var rest *counter
	for _, c := range t.codes {
		if c.code == code {
			return c
		}
		if c.code == other {
			rest = c
		}
	}
	if len(t.codes) >= maxCodes {
		if rest != nil {
			return rest
		}
		code = other
	}
	c := &counter{code: code}
	t.codes = append(t.codes, c)
	t.stale = true
	// By code, with what has none last.
	slices.SortFunc(t.codes, func(x, y *counter) int {
		return cmp.Compare(uint(x.code-1), uint(y.code-1))
	})
	return c
}

// count counts an event, unless it was counted before, and says what it is. An event of
// the future is dated now: its age must not be negative. Kernel is zero where the source has
// no such date.
func (t *tally) count(source string, code int, at, kernel, now time.Time, late map[string]time.Duration) int {
	c := t.counter(code)
	if at.IsZero() {
		at = now
	}
	m := mark{XID: code, At: at.UnixNano()}
	if !kernel.IsZero() {
		m.Kernel = kernel.UnixNano()
	}
	news := c.mark(source, m, late)
	if news == known {
		return known
	}
	if c.seen == nil {
		c.seen = map[string]uint64{}
	}
	c.seen[source]++
	t.stale = true
	if news == another {
		return another
	}
	c.total++
	if at := earlier(at, now); at.After(c.last) || c.last.After(now) { // the clock was set back
		c.last = at
	}
	return fresh
}

// view returns what a page shows: series with the labels of the subject and one more, the
// code as it is called.
func (t *tally) view(labels, label string, name func(code int) string) []codeView {
	if !t.stale {
		return t.shown
	}
	t.stale = false
	t.shown = make([]codeView, len(t.codes))
	for i, c := range t.codes {
		called := "other"
		if c.code != other {
			called = name(c.code)
		}
		with := string(appendLabel([]byte(labels+","), label, called))
		t.shown[i] = codeView{labels: with, total: c.total, last: c.last}
		for _, source := range slices.Sorted(maps.Keys(c.seen)) {
			t.shown[i].seen = append(t.shown[i].seen, seenView{string(appendLabel([]byte(with+","), "source", source)), c.seen[source]})
		}
	}
	return t.shown
}

// save and resume are the tally in the state file.
func (t *tally) save() (out []stateCode) {
	for _, c := range t.codes {
		if c.total > 0 {
			out = append(out, stateCode{c.code, c.total, c.last, c.marks, c.seen})
		}
	}
	return out
}

func (t *tally) resume(codes []stateCode) (damaged int, ok bool) {
	for _, s := range codes {
		if s.Code < 0 || len(s.Marks) > maxMarks ||
			!slices.IsSortedFunc(s.Marks, func(x, y mark) int { return cmp.Compare(x.At, y.At) }) {
			return s.Code, false
		}
		c := t.counter(s.Code)
		c.total, c.last, c.marks, c.seen = s.Total, s.Last, s.Marks, s.Seen
	}
	return 0, true
}

// A counts names the families that show tallies of one kind.
type counts struct{ total, totalHelp, last, lastHelp, seen, seenHelp string }

// append appends the families of all tallies of the kind. Without any there are none.
func (n *counts) append(dst []byte, tallies [][]codeView) []byte {
	head := len(dst)
	dst = appendHead(dst, n.total, "counter", n.totalHelp)
	rows := len(dst)
	for _, codes := range tallies {
		for k := range codes {
			dst = appendName(dst, n.total, codes[k].labels)
			dst = append(strconv.AppendUint(dst, codes[k].total, 10), '\n')
		}
	}
	dst = unlessEmpty(dst, head, rows)

	head = len(dst)
	dst = appendHead(dst, n.last, "gauge", n.lastHelp)
	rows = len(dst)
	for _, codes := range tallies {
		for k := range codes {
			if !codes[k].last.IsZero() {
				dst = appendName(dst, n.last, codes[k].labels)
				dst = append(appendSeconds(dst, codes[k].last), '\n')
			}
		}
	}
	dst = unlessEmpty(dst, head, rows)

	head = len(dst)
	dst = appendHead(dst, n.seen, "counter", n.seenHelp)
	rows = len(dst)
	for _, codes := range tallies {
		for k := range codes {
			for _, seen := range codes[k].seen {
				dst = appendName(dst, n.seen, seen.labels)
				dst = append(strconv.AppendUint(dst, seen.total, 10), '\n')
			}
		}
	}
	return unlessEmpty(dst, head, rows)
}

var xidCounts = counts{
	"stoker_gpu_xid_errors_total", "XID errors of the GPU, by code. Those that change the state of a GPU or node are there from 0 on, and so is other: all that have no counter of their own.",
	"stoker_gpu_xid_last_event_timestamp_seconds", "When the newest XID error of the code happened, in seconds since 1970.",
	"stoker_gpu_xid_seen_total", "XID errors of the GPU by the source that told of them. One that two sources tell of is in both.",
}

var linkCounts = counts{
	"stoker_gpu_nvlink_errors_total", "Errors of the GPU's NVLinks that the driver tells of as events: fatal, or a link that needs to recover. There from 0 on where a source would tell.",
	"stoker_gpu_nvlink_last_event_timestamp_seconds", "When the newest NVLink error of the kind happened, in seconds since 1970.",
	"stoker_gpu_nvlink_seen_total", "NVLink errors of the GPU by the source that told of them.",
}

var sxidCounts = counts{
	"stoker_nvswitch_sxid_errors_total", "Errors of the NVSwitch, by code and severity.",
	"stoker_nvswitch_sxid_last_event_timestamp_seconds", "When the newest error of the code happened, in seconds since 1970.",
	"stoker_nvswitch_sxid_seen_total", "Errors of the NVSwitch by the source that told of them. One that two sources tell of is in both.",
}
