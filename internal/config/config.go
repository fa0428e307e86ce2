// Package config reads strict YAML into typed structs and reports every mistake at
// once, each with its file, line, column and path.
//
// Unknown and repeated keys, wrong types, missing units, further documents and what
// types say in Validate are all mistakes. It knows nothing of what is configured: a
// part whose type is known only later is kept as a yaml.Node and read with [Node].
// It reads no files, expands no environment and keeps no state.
package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Limits of one configuration. What is beyond them is an error.
const (
	MaxSize   = 1 << 20 // bytes of a file
	maxDepth  = 64      // of nesting, through aliases
	maxVisits = 100_000 // of values, each alias counted with all that it stands for
	maxFound  = 1000    // mistakes, after which no more are looked for
	maxErrors = 50      // mistakes that are listed; the rest is counted
)

// A Validator can say what is wrong with itself, and may fill in defaults. Validate is
// called after all of the value has been read, on the innermost values first, also on
// parts that the file leaves out. Errors made by [Errorf] name the place they speak
// of; any other error speaks of the value itself. Several are joined by errors.Join.
type Validator interface {
	Validate(path string) error
}

// An Error is one mistake and its place.
type Error struct {
	File      string
	Line, Col int    // from 1; 0 where the place is not known
	Path      string // such as playbooks[0].steps[2].drain.within
	Text      string
}

// Error is file:line:col: path: text, without what is not known.
func (e Error) Error() string {
	var b strings.Builder
	if e.File != "" {
		b.WriteString(e.File + ":")
	}
	if e.Line > 0 {
		fmt.Fprintf(&b, "%d:%d:", e.Line, e.Col)
	}
	if b.Len() > 0 {
		b.WriteByte(' ')
	}
	if e.Path != "" {
		b.WriteString(e.Path + ": ")
	}
	b.WriteString(e.Text)
	return b.String()
}

// Errors are all mistakes of one file, in order of their place.
type Errors []Error

// Error is one line for each mistake.
func (es Errors) Error() string {
	lines := make([]string, len(es))
	for i, e := range es {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// Errorf is a mistake at a path, for Validate. The line is found by the path.
func Errorf(path, format string, args ...any) error {
	return Error{Path: path, Text: fmt.Sprintf(format, args...)}
}

// Key is the path of a key below path.
func Key(path, key string) string {
	if !plainKey.MatchString(key) {
		return path + "[" + strconv.Quote(key) + "]"
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

// Item is the path of the i-th item below path, from 0.
func Item(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

var plainKey = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// Decode reads one YAML document into the struct that into points to. What the file
// leaves out keeps the value that it has. The error, if any, is of type [Errors] and
// holds all mistakes; into is then half filled.
func Decode(file string, data []byte, into any) error {
	n, err := parse(file, data)
	if err != nil {
		return err
	}
	return read(file, "", n, into)
}

// Node reads one part of a document as [Decode] reads the whole. The path is the
// part's own, for messages. A part that is not there is empty.
func Node(file, path string, n *yaml.Node, into any) error {
	return read(file, path, n, into)
}

func read(file, path string, n *yaml.Node, into any) error {
	v := reflect.ValueOf(into)
	if v.Kind() != reflect.Pointer || v.IsNil() {
		return Errors{{File: file, Path: path, Text: fmt.Sprintf("cannot be read into a %T: a bug", into)}}
	}
	d := &decoder{places: map[string]place{}, bad: map[string]bool{}, within: map[*yaml.Node]bool{}}
	if n == nil || n.Kind == 0 {
		n = &yaml.Node{Kind: yaml.MappingNode, Line: 1, Column: 1}
	}
	d.value(path, at(n), n, v.Elem(), 0)
	if d.limit == nil {
		d.validate(path, v, 0)
	}
	return d.result(file)
}

// result sorts the mistakes, drops those told twice and bounds their number. A limit
// that was passed comes first.
func (d *decoder) result(file string) error {
	if len(d.errs) == 0 && d.limit == nil {
		return nil // not a nil Errors: that would be an error that is not nil
	}
	for i := range d.errs {
		d.errs[i].File = cmp.Or(d.errs[i].File, file)
	}
	slices.SortStableFunc(d.errs, func(a, b Error) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col), cmp.Compare(a.Path, b.Path))
	})
	es := slices.Compact(d.errs)
	if more := len(es) - maxErrors; more > 0 {
		last := es[maxErrors]
		es = append(es[:maxErrors:maxErrors], Error{File: last.File, Line: last.Line, Col: last.Col, Text: fmt.Sprintf("and %d more mistakes from here on", more)})
	}
	if d.limit != nil {
		d.limit.File = file
		es = slices.Insert(es, 0, *d.limit)
	}
	return es
}

var yamlError = regexp.MustCompile(`^(?:yaml: )?(?:line (\d+): )?(.*)$`)

// parse reads exactly one document; nil when the file holds none.
func parse(file string, data []byte) (*yaml.Node, error) {
	if len(data) > MaxSize {
		return nil, Errors{{File: file, Text: fmt.Sprintf("the file has %d bytes, more than the %d that are read", len(data), MaxSize)}}
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, next yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, Errors{syntax(file, err)}
	}
	switch err := dec.Decode(&next); {
	case err == nil:
		return nil, Errors{{File: file, Line: next.Line, Col: next.Column, Text: "a second document begins here; one file holds one document"}}
	case !errors.Is(err, io.EOF):
		return nil, Errors{syntax(file, err)}
	}
	return doc.Content[0], nil
}

// syntax puts an error of the YAML parser, which tells at most of a line, in our form.
func syntax(file string, err error) Error {
	e := Error{File: file, Text: "not YAML: " + err.Error()}
	first, _, _ := strings.Cut(err.Error(), "\n")
	if m := yamlError.FindStringSubmatch(first); m != nil {
		e.Text = "not YAML: " + m[2]
		if line, err := strconv.Atoi(m[1]); err == nil {
			e.Line, e.Col = line, 1
		}
	}
	return e
}
