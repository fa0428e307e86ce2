package dcgm

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// maxFields bounds a list of fields, and maxList the file that it is in, in bytes.
const (
	maxFields = 1024
	maxList   = 1 << 20
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
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return fields, nil
}

// ParseFields reads a list of fields in dcgm-exporter's form: name, type and help in each
// line, with # before comments. The error names all lines that can't be used.
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
	if len(out) > maxFields {
		errs = append(errs, fmt.Errorf("%d fields, the limit is %d", len(out), maxFields))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return out, nil
}

// fieldNumber returns the number of a field by any of its names, 0 for what is made here.
func fieldNumber(name string) (Short, bool) {
	if name == xidCount || name == healthStatus || slices.Contains(notMade, name) {
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

// notMade are families of dcgm-exporter that this collector does not have. A list may
// name them; the page says that they are absent.
var notMade = []string{"DCGM_EXP_CLOCK_EVENTS_COUNT", "DCGM_EXP_P2P_STATUS"}

// Right returns the fields with the types that they should have: lists that are passed
// around call some rates counters.
func Right(fields []Field) []Field {
	out := slices.Clone(fields)
	for i := range out {
		rate := out[i].ID == 449 || 1009 <= out[i].ID && out[i].ID <= 1012
		if out[i].Type == "counter" && (rate || out[i].Name == xidCount) {
			out[i].Type = "gauge"
		}
	}
	return out
}
