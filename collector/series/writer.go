// Package series writes what parts of the collector tell of themselves and of the node, in
// Prometheus' text format.
package series

import "strings"

// A Writer writes gauges. Its zero value is an empty page. A family without a series leaves
// no trace.
type Writer struct {
	page   []byte
	head   string
	name   string
	labels int
}

// Family begins a family of gauges.
func (w *Writer) Family(name, help string) {
	w.name, w.head = name, "# HELP "+name+" "+help+"\n# TYPE "+name+" gauge\n"
}

// Begin begins a series of the family, to which [Writer.Label] adds and which [Writer.Value] ends.
func (w *Writer) Begin() {
	w.page = append(append(w.page, w.head...), w.name...)
	w.head, w.labels = "", 0
}

// Label adds a label.
func (w *Writer) Label(name, value string) {
	sep := byte(',')
	if w.labels == 0 {
		sep = '{'
	}
	w.labels++
	w.page = append(append(append(w.page, sep), name...), '=', '"')
	w.page = append(append(w.page, escaper.Replace(strings.ToValidUTF8(value, "\uFFFD"))...), '"')
}

// Some adds a label unless it is empty.
func (w *Writer) Some(name, value string) {
	if value != "" {
		w.Label(name, value)
	}
}

// Value ends a series.
func (w *Writer) Value(text string) {
	if w.labels > 0 {
		w.page = append(w.page, '}')
	}
	w.page = append(append(append(w.page, ' '), text...), '\n')
}

// Page returns what was written.
func (w *Writer) Page() []byte { return w.page }

var escaper = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
