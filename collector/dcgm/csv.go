package dcgm

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
)

// maxFields bounds a list of fields, maxList the file that it is in, in bytes, and maxNamed
// how many of its lines an error names.
const (
	maxFields = 1024
	maxList   = 1 << 20
	maxNamed  = 50
)

// ReadFields reads a list of fields from a file, see [ParseFields].
func ReadFields(path string) ([]Field, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	text, err := io.ReadAll(io.LimitReader(f, maxList+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxList {
		return nil, fmt.Errorf("%s: over %d bytes", path, maxList)
	}
	fields, err := ParseFields(string(text))
	if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return fields, err
}

// ParseFields reads a list of fields in dcgm-exporter's form: name, type and help in each
// line, with # before comments. The error names all lines that can't be used, and what can
// is returned beside it.
//
// A name may be that of any release; the family is called by the one that is given.
func ParseFields(text string) ([]Field, error) {
	var out []Field
	var errs []error
	bad := func(line int, format string, args ...any) {
		errs = append(errs, fmt.Errorf("line %d: %s", line, fmt.Sprintf(format, args...)))
	}
	ids := map[Short]int{}
	names := map[string]int{}
	number := 0
	for row := range strings.Lines(text) {
		number++
		row = strings.TrimSpace(row)
		if row == "" || strings.HasPrefix(row, "#") {
			continue
		}
		r := csv.NewReader(strings.NewReader(row))
		r.TrimLeadingSpace = true
		cells, err := r.Read()
		if err != nil {
			if p, ok := errors.AsType[*csv.ParseError](err); ok {
				err = p.Err
			}
			bad(number, "%v", err)
			continue
		}
		if len(cells) != 3 {
			bad(number, "%d columns, want name, type and help", len(cells))
			continue
		}
		name, typ, help := strings.TrimSpace(cells[0]), strings.TrimSpace(cells[1]), strings.TrimSpace(cells[2])
		id, ok := fieldNumber(name)
		if !ok {
			bad(number, "no field is called %q", name)
			continue
		}
		if first, twice := names[name]; twice {
			bad(number, "%s was in line %d", name, first)
			continue
		}
		names[name] = number
		if first, twice := ids[id]; twice && id != 0 {
			bad(number, "%s is the field of line %d under another name", name, first)
			continue
		}
		ids[id] = number
		switch typ {
		case "gauge", "counter", label:
		case "histogram", "summary":
			typ = "" // no single value has such a type
		default:
			bad(number, "type %q is none of gauge, counter and label", typ)
			continue
		}
		out = append(out, Field{id, name, typ, help})
	}
	if len(out) == 0 && len(errs) == 0 {
		errs = append(errs, errors.New("no field is named"))
	}
	if more := len(errs) - maxNamed; more > 0 {
		errs = append(errs[:maxNamed:maxNamed], fmt.Errorf("and %d lines more", more))
	}
	if len(out) > maxFields {
		errs = append(errs, fmt.Errorf("%d fields, the limit is %d", len(out), maxFields))
		out = out[:maxFields]
	}
	return out, errors.Join(errs...)
}

// fieldNumber returns the number of a field by any of its names, 0 for what is made here.
func fieldNumber(name string) (Short, bool) {
	if slices.Contains(made, name) || slices.Contains(notMade, name) {
		return 0, true
	}
	for _, f := range fieldNames {
		if slices.Contains(f.names, name) {
			return f.id, true
		}
	}
	id, ok := oldNames[name]
	return id, ok
}

// made are the families that are not a field of the engine's, but made of some here.
var made = []string{xidCount, clockCount, healthStatus, peerStatus}

// notMade are families of dcgm-exporter that this collector does not have. A list may
// name them; the page says that they are absent. stoker_gpu_xid_errors_total counts the XIDs.
var notMade = []string{"DCGM_EXP_CLOCK_EVENTS_TOTAL", "DCGM_EXP_XID_ERRORS_TOTAL"}

// arranged returns the fields in the order in which dcgm-exporter shows them, by number and
// then what is made of them, and with the types that they should have unless it is to be as there.
func arranged(fields []Field, compatible bool) []Field {
	if compatible {
		fields = slices.Clone(fields)
	} else {
		fields = Right(fields)
	}
	place := func(f Field) int {
		if i := slices.Index(made, f.Name); i >= 0 {
			return math.MaxUint16 + i
		}
		return int(f.ID)
	}
	slices.SortStableFunc(fields, func(x, y Field) int { return cmp.Compare(place(x), place(y)) })
	return fields
}

// Right returns the fields with the types that they should have: lists that are passed
// around call some rates counters, and counts of a window, which fall.
func Right(fields []Field) []Field {
	out := slices.Clone(fields)
	for i := range out {
		f := &out[i]
		rate := f.ID == 449 || 1009 <= f.ID && f.ID <= 1012
		if f.Type == "counter" && (rate || f.Name == xidCount || f.Name == clockCount) {
			f.Type = "gauge"
		}
		if f.ID == 449 && f.Help == bandwidthHelp {
			f.Help = "Rate of data over all NVLinks, sent and received (in MB/s)."
		}
	}
	return out
}
