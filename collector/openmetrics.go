package collector

import (
	"bytes"
	"strings"
)

// openMetricsType is the content type of a page as OpenMetrics.
const openMetricsType = "application/openmetrics-text; version=1.0.0; charset=utf-8"

// appendOpenMetrics appends a page in the text format as OpenMetrics: the same series with
// the same names and values. There the series of a counter end in _total, which the name of
// its family lacks. DCGM's counters have no such end, and who reads them by their names must
// find them, so that their type is not known there.
func appendOpenMetrics(dst, page []byte) []byte {
	var name, help []byte // of a family of which the type has not come yet
	write := func(typ string) {
		if name == nil {
			return
		}
		if typ == "counter" {
			var ok bool
			if name, ok = bytes.CutSuffix(name, []byte("_total")); !ok {
				typ = "unknown"
			}
		}
		if help != nil {
			dst = append(append(append(dst, "# HELP "...), name...), ' ')
			for _, c := range help {
				if c == '"' { // the rest is escaped already
					dst = append(dst, '\\')
				}
				dst = append(dst, c)
			}
			dst = append(dst, '\n')
		}
		if typ != "" {
			dst = append(append(append(dst, "# TYPE "...), name...), ' ')
			dst = append(append(dst, typ...), '\n')
		}
		name, help = nil, nil
	}
	for len(page) > 0 {
		end := bytes.IndexByte(page, '\n') + 1
		if end == 0 {
			end = len(page)
		}
		line := page[:end]
		page = page[end:]
		rest, isHelp := bytes.CutPrefix(line, []byte("# HELP "))
		of, text, _ := bytes.Cut(bytes.TrimSuffix(rest, []byte("\n")), []byte(" "))
		if isHelp {
			write("")
			name, help = of, text
			continue
		}
		if rest, isType := bytes.CutPrefix(line, []byte("# TYPE ")); isType {
			of, text, _ = bytes.Cut(bytes.TrimSuffix(rest, []byte("\n")), []byte(" "))
			if !bytes.Equal(of, name) {
				write("")
				name = of
			}
			switch string(text) {
			case "counter":
				write("counter")
			case "gauge":
				write("gauge")
			default:
				write("unknown")
			}
			continue
		}
		write("")
		dst = append(dst, line...)
	}
	write("")
	return append(dst, "# EOF\n"...)
}

// takesOpenMetrics reports whether a client's Accept prefers OpenMetrics 1.0 to the text
// format, or has them alike.
func takesOpenMetrics(accept []string) bool {
	open, text := "0", "0"
	for _, line := range accept {
		for part := range strings.SplitSeq(line, ",") {
			kind, rest, _ := strings.Cut(part, ";")
			version, weight := "", "1"
			for p := range strings.SplitSeq(rest, ";") {
				key, value, _ := strings.Cut(strings.TrimSpace(p), "=")
				switch strings.ToLower(key) {
				case "version":
					version = strings.Trim(value, `"`)
				case "q":
					weight = value
				}
			}
			// Weights are 0 or 1 with up to three digits, and so in order as texts.
			switch kind = strings.TrimSpace(kind); {
			case strings.EqualFold(kind, "application/openmetrics-text") && (version == "" || version == "1.0.0"):
				open = max(open, weight)
			case strings.EqualFold(kind, "text/plain"):
				text = max(text, weight)
			}
		}
	}
	return strings.Trim(open, "0.") != "" && open >= text
}
