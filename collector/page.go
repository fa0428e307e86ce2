package collector

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"stoker.dev/stoker/internal/fleet"
)

// contentType is that of the page.
const contentType = "text/plain; version=0.0.4; charset=utf-8"

// A view is one finished state of a collector. It is never changed.
type view struct {
	staleAfter time.Duration
	labels     string // node="…"
	bootID     string
	sources    []sourceView
	gpus       []gpuView
	// Of each GPU or NVSwitch, what was counted.
	xids, links, sxids [][]codeView
	known              []fleet.SampledGPU
	mig                []fleet.MIGDevice
	nvlinks            []byte // how GPUs are linked
	order              []parts
	untold             uint64 // events that were only counted
	keeps, kept        bool   // there is to be a state file, and it is as new as this
}

// A sourceView is what is known of one source and what it told last.
type sourceView struct {
	name    string
	tried   bool  // a collection has ended, or was given up
	err     error // of the last collection
	success time.Time
	dropped uint64
	asked   uint64        // how often it was asked, and an answer came
	trips   uint64        // how often the watchdog did not wait any longer
	took    time.Duration // the last collection
	shown   shown
	mig     []fleet.MIGDevice
	links   []fleet.NVLinks
}

// A gpuView is one whole GPU.
type gpuView struct {
	labels string
	states []state // by source
}

// A codeView is one counter.
type codeView struct {
	labels string
	total  uint64
	last   time.Time
	seen   []seenView
}

// A seenView is how many of a counter's events one source has told of.
type seenView struct {
	labels string
	total  uint64
}

// parts are the places of one family in each source that has it, in order of source.
type parts []part

type part struct{ source, family int }

// devices returns the MIG devices of all sources, each once, by UUID.
func devices(sources []sourceView) []fleet.MIGDevice {
	var out []fleet.MIGDevice
	for i := range sources {
		out = append(out, sources[i].mig...)
	}
	slices.SortStableFunc(out, func(x, y fleet.MIGDevice) int { return cmp.Compare(x.UUID, y.UUID) })
	return slices.CompactFunc(out, func(x, y fleet.MIGDevice) bool { return x.UUID == y.UUID })
}

// merge orders the families of all sources: as the first source has them, then what
// the next one adds.
func merge(sources []sourceView) []parts {
	var out []parts
	at := map[string]int{}
	for s := range sources {
		for f := range sources[s].shown.families {
			name := sources[s].shown.families[f].name
			i, ok := at[name]
			if !ok {
				i = len(out)
				at[name] = i
				out = append(out, nil)
			}
			out[i] = append(out[i], part{s, f})
		}
	}
	return out
}

// fresh reports whether what was told at t still holds at now.
func (v *view) fresh(t, now time.Time) bool {
	return !t.IsZero() && now.Sub(t) <= v.staleAfter
}

// up combines what the sources say of a GPU: the first one that knows and is fresh.
func (v *view) up(g *gpuView, now time.Time) fleet.Truth {
	for _, s := range g.states {
		if s.up != fleet.Unknown && v.fresh(s.at, now) {
			return s.up
		}
	}
	return fleet.Unknown
}

// appendPage appends the page as of now: what the sources show, in their order, then
// our own families by name.
func (v *view) appendPage(dst []byte, now time.Time) []byte {
	for _, p := range v.order {
		dst = v.appendFamily(dst, p, now)
	}

	dst = appendHead(dst, "stoker_collector_samples_dropped_total", "counter",
		"Samples and events that a source had and that could not be shown or counted.")
	for i := range v.sources {
		dst = v.appendOurs(dst, "stoker_collector_samples_dropped_total", "source", v.sources[i].name)
		dst = append(strconv.AppendUint(dst, v.sources[i].dropped, 10), '\n')
	}

	dst = appendHead(dst, "stoker_collector_source_calls_total", "counter",
		"How often the source has answered, for values or for events alone.")
	for i := range v.sources {
		dst = v.appendOurs(dst, "stoker_collector_source_calls_total", "source", v.sources[i].name)
		dst = append(strconv.AppendUint(dst, v.sources[i].asked, 10), '\n')
	}

	head := len(dst)
	dst = appendHead(dst, "stoker_collector_source_duration_seconds", "gauge",
		"How long the last collection from the source took.")
	rows := len(dst)
	for i := range v.sources {
		if v.sources[i].took > 0 {
			dst = v.appendOurs(dst, "stoker_collector_source_duration_seconds", "source", v.sources[i].name)
			dst = append(appendValue(dst, v.sources[i].took.Seconds()), '\n')
		}
	}
	dst = unlessEmpty(dst, head, rows)

	head = len(dst)
	dst = appendHead(dst, "stoker_collector_source_last_success_timestamp_seconds", "gauge",
		"When the source was last read without an error, in seconds since 1970.")
	rows = len(dst)
	for i := range v.sources {
		if !v.sources[i].success.IsZero() {
			dst = v.appendOurs(dst, "stoker_collector_source_last_success_timestamp_seconds", "source", v.sources[i].name)
			dst = append(appendSeconds(dst, v.sources[i].success), '\n')
		}
	}
	dst = unlessEmpty(dst, head, rows)

	head = len(dst)
	dst = appendHead(dst, "stoker_collector_source_up", "gauge",
		"Whether the last reading of the source has succeeded.")
	rows = len(dst)
	for i := range v.sources {
		if s := &v.sources[i]; s.tried {
			dst = v.appendOurs(dst, "stoker_collector_source_up", "source", s.name)
			dst = append(dst, bit(s.err == nil), '\n')
		}
	}
	dst = unlessEmpty(dst, head, rows)

	if v.keeps {
		dst = appendHead(dst, "stoker_collector_state_up", "gauge",
			"Whether the state file has what is shown here. While it has not, a restart may lose counts, or count events anew.")
		dst = append(appendName(dst, "stoker_collector_state_up", v.labels), bit(v.kept), '\n')
	}

	dst = appendHead(dst, "stoker_collector_untold_events_total", "counter",
		"Events that were counted and not told at once, since there were too many.")
	dst = appendName(dst, "stoker_collector_untold_events_total", v.labels)
	dst = append(strconv.AppendUint(dst, v.untold, 10), '\n')

	dst = appendHead(dst, "stoker_collector_watchdog_trips_total", "counter",
		"How often the source did not answer before the watchdog's deadline.")
	for i := range v.sources {
		dst = v.appendOurs(dst, "stoker_collector_watchdog_trips_total", "source", v.sources[i].name)
		dst = append(strconv.AppendUint(dst, v.sources[i].trips, 10), '\n')
	}

	dst = linkCounts.append(dst, v.links)
	dst = append(dst, v.nvlinks...)

	head = len(dst)
	dst = appendHead(dst, "stoker_gpu_up", "gauge",
		"Whether the driver reaches the GPU. Missing where that is not known at present.")
	rows = len(dst)
	for i := range v.gpus {
		switch v.up(&v.gpus[i], now) {
		case fleet.True:
			dst = append(appendName(dst, "stoker_gpu_up", v.gpus[i].labels), "1\n"...)
		case fleet.False:
			dst = append(appendName(dst, "stoker_gpu_up", v.gpus[i].labels), "0\n"...)
		case fleet.Unknown:
		}
	}
	dst = unlessEmpty(dst, head, rows)

	dst = xidCounts.append(dst, v.xids)
	if v.bootID != "" {
		dst = appendHead(dst, "stoker_node_boot_info", "gauge", "Always 1; boot_id changes with every boot of the node.")
		dst = v.appendOurs(dst, "stoker_node_boot_info", "boot_id", v.bootID)
		dst = append(dst, "1\n"...)
	}
	return sxidCounts.append(dst, v.sxids)
}

// appendFamily appends one family of the sources that are fresh. Where two have it,
// a GPU's series come from the first: the other's differ in labels and would count twice.
func (v *view) appendFamily(dst []byte, p parts, now time.Time) []byte {
	var taken [maxGPUs]bool
	written := false
	for _, at := range p {
		s := &v.sources[at.source]
		if !v.fresh(s.success, now) {
			continue
		}
		fam := &s.shown.families[at.family]
		if !written {
			dst = append(dst, s.shown.text[fam.head:fam.end]...)
			written = true
		} else {
			from := fam.rows
			for _, run := range fam.partitions {
				if run.slot >= 0 && !taken[run.slot] {
					dst = append(dst, s.shown.text[from:run.end]...)
				}
				from = run.end
			}
		}
		if len(p) > 1 {
			for _, run := range fam.partitions {
				if run.slot >= 0 {
					taken[run.slot] = true
				}
			}
		}
	}
	return dst
}

// appendOurs appends the start of a series with the node and one label more.
func (v *view) appendOurs(dst []byte, name, label, value string) []byte {
	dst = append(append(append(append(dst, name...), '{'), v.labels...), ',')
	return append(appendLabel(dst, label, value), "} "...)
}

func appendName(dst []byte, name, labels string) []byte {
	return append(append(append(append(dst, name...), '{'), labels...), "} "...)
}

// unlessEmpty takes the head of a family back when no series has followed.
func unlessEmpty(dst []byte, head, rows int) []byte {
	if len(dst) == rows {
		return dst[:head]
	}
	return dst
}

func appendHead(dst []byte, name, typ, help string) []byte {
	if help != "" {
		dst = append(append(append(dst, "# HELP "...), name...), ' ')
		dst = append(appendEscaped(dst, help, false), '\n')
	}
	switch typ {
	case "counter", "gauge", "untyped":
		dst = append(append(append(append(append(dst, "# TYPE "...), name...), ' '), typ...), '\n')
	}
	return dst
}

func nodeLabel(node string) string { return string(appendLabel(nil, "node", node)) }

func appendLabel(dst []byte, name, value string) []byte {
	dst = append(append(dst, name...), '=', '"')
	return append(appendEscaped(dst, value, true), '"')
}

// appendEscaped writes a help text or the value of a label so that it is read back
// as it was. What is not UTF-8 becomes the replacement character.
func appendEscaped(dst []byte, s string, quoted bool) []byte {
	s = strings.ToValidUTF8(s, "\uFFFD")
	for i := range len(s) {
		switch c := s[i]; {
		case c == '\\':
			dst = append(dst, '\\', '\\')
		case c == '\n':
			dst = append(dst, '\\', 'n')
		case c == '"' && quoted:
			dst = append(dst, '\\', '"')
		default:
			dst = append(dst, c)
		}
	}
	return dst
}

// appendValue writes the shortest digits that are read back as x, without an
// exponent where people don't expect one.
func appendValue(dst []byte, x float64) []byte {
	switch {
	case math.IsInf(x, 1):
		return append(dst, "+Inf"...)
	case math.IsInf(x, -1):
		return append(dst, "-Inf"...)
	case math.IsNaN(x):
		return append(dst, "NaN"...)
	}
	if abs := math.Abs(x); abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		return strconv.AppendFloat(dst, x, 'g', -1, 64)
	}
	return strconv.AppendFloat(dst, x, 'f', -1, 64)
}

// appendSeconds writes t in seconds since 1970, to the millisecond.
func appendSeconds(dst []byte, t time.Time) []byte {
	ms := t.UnixMilli()
	if ms < 0 {
		ms = 0
	}
	dst = append(strconv.AppendInt(dst, ms/1000, 10), '.')
	rest := ms % 1000
	return append(dst, byte('0'+rest/100), byte('0'+rest/10%10), byte('0'+rest%10))
}

func bit(b bool) byte {
	if b {
		return '1'
	}
	return '0'
}
