// Package exporter reads what a dcgm-exporter shows and makes samples and XID events
// of it. It owns the reading of the page and the memory of what the page has shown
// before, which is what events are told by: the page itself has no event times.
//
// It reads no clock; the collector says when a collection began. A page that can't be
// trusted is an error and changes nothing of what is remembered.
package exporter

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"stoker.dev/stoker/internal/fleet"
)

// Limits of one page.
const (
	maxPage     = 8 << 20 // bytes
	maxProblems = 20      // lines that can't be read; with more it is no page of an exporter
	maxEntries  = 2048    // GPUs and MIG instances
)

// The two families that tell of XIDs.
const (
	lastXID  = "DCGM_FI_DEV_XID_ERRORS"    // code of the newest one, for ever
	windowed = "DCGM_EXP_XID_ERRORS_COUNT" // how many of each code in the last minutes
)

// defaultWindow is dcgm-exporter's, for a series that does not say its own.
const defaultWindow = 5 * time.Minute

var (
	errEmpty = errors.New("page is empty")
	errCut   = errors.New("page does not end with a line break: it is cut off")
	errNoGPU = errors.New("page shows no GPU")
)

// A Page is what one exposition shows of GPUs. Families whose names don't begin with
// DCGM_ or dcgm_ are none of ours and left out.
type Page struct {
	Fields []fleet.Field      // in the order of the page
	GPUs   []fleet.SampledGPU // in the order of the page; Up is set as far as the page tells
	Values []fleet.Sample     // without a time where the page has none
	// Problems name what could not be used, lines with their number; at most 20.
	Problems []error
	Dropped  int // how many lines and series could not be used

	entries map[fleet.SampledGPU]int // place of each in GPUs
}

// Parse reads a page in Prometheus' text format. Lines that can't be read are left out
// and named in Problems, up to a limit; a page that is cut off, too long or tells of no
// GPU is an error.
//
// A series belongs to a GPU if it has the labels gpu and UUID (or uuid, as older
// exporters have it). All others, such as those of switches and processors, are kept
// with their labels as they are.
func Parse(text []byte) (Page, error) {
	var p Page
	switch {
	case len(text) == 0:
		return p, errEmpty
	case len(text) > maxPage:
		return p, fmt.Errorf("page is over %d bytes", maxPage)
	case text[len(text)-1] != '\n':
		return p, errCut
	}
	text = slices.Clone(text) // lines are blanked out below
	p.entries = map[fleet.SampledGPU]int{}
	order, types := p.declared(text)
	families, err := p.families(text)
	if err != nil {
		return Page{}, err
	}
	for _, name := range order {
		f := families[name]
		if f == nil {
			continue
		}
		field := fleet.Field{Name: name, Help: f.GetHelp()}
		if types[name] {
			field.Type = strings.ToLower(f.GetType().String())
		}
		p.Fields = append(p.Fields, field)
		for _, m := range f.GetMetric() {
			p.add(name, m)
		}
	}
	if len(p.GPUs) == 0 {
		return Page{}, errors.Join(append([]error{errNoGPU}, p.Problems[:min(1, len(p.Problems))]...)...)
	}
	p.judge()
	return p, nil
}

// declared returns the families that are ours in the order in which they appear, and
// which of them have a type. Types that a single value can't have are blanked out.
func (p *Page) declared(text []byte) (order []string, typed map[string]bool) {
	typed = map[string]bool{}
	seen := map[string]bool{}
	line := 0
	for row := range bytes.Lines(text) {
		line++
		name := row
		rest, comment := bytes.CutPrefix(row, []byte("# TYPE "))
		if comment {
			name = rest
		} else if rest, help := bytes.CutPrefix(row, []byte("# HELP ")); help {
			name = rest
		}
		if i := bytes.IndexAny(name, "{ \t\n"); i >= 0 {
			name = name[:i]
		}
		if !isField(name) {
			continue
		}
		if !seen[string(name)] {
			seen[string(name)] = true
			order = append(order, string(name))
		}
		if !comment {
			continue
		}
		switch typ := strings.ToLower(string(bytes.TrimSpace(rest[len(name):]))); typ {
		case "counter", "gauge", "untyped":
			typed[string(name)] = true
		default:
			p.problem(line, fmt.Errorf("%s: no type of a single value: %q", name, typ))
			blank(row)
		}
	}
	return order, typed
}

func isField(name []byte) bool {
	return bytes.HasPrefix(name, []byte("DCGM_")) || bytes.HasPrefix(name, []byte("dcgm_"))
}

// families reads the text, without the lines that the reader stumbles over.
func (p *Page) families(text []byte) (map[string]*dto.MetricFamily, error) {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	for {
		families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
		if err == nil {
			return families, nil
		}
		bad, ok := errors.AsType[expfmt.ParseError](err)
		if !ok {
			return nil, err
		}
		if len(p.Problems) >= maxProblems {
			return nil, fmt.Errorf("over %d lines can't be read, the first: %w", maxProblems, p.Problems[0])
		}
		p.problem(bad.Line, errors.New(bad.Msg))
		if !blankLine(text, bad.Line) {
			return nil, err
		}
	}
}

func (p *Page) problem(line int, err error) {
	p.Dropped++
	if len(p.Problems) < maxProblems {
		p.Problems = append(p.Problems, fmt.Errorf("line %d: %w", line, err))
	}
}

// blankLine turns a line, counted from 1, into spaces. It returns false when there is
// nothing left to turn.
func blankLine(text []byte, number int) bool {
	for row := range bytes.Lines(text) {
		if number--; number == 0 {
			return blank(row)
		}
	}
	return false
}

func blank(row []byte) bool {
	changed := false
	for i, c := range row {
		if c != '\n' && c != ' ' {
			row[i], changed = ' ', true
		}
	}
	return changed
}

// add takes in one series.
func (p *Page) add(name string, m *dto.Metric) {
	var g fleet.SampledGPU
	labels := make([]fleet.Label, 0, len(m.GetLabel()))
	hasIndex := false
	for _, l := range m.GetLabel() {
		v := l.GetValue()
		switch l.GetName() {
		case "gpu":
			n, err := strconv.Atoi(v)
			g.Index, hasIndex = n, err == nil && n >= 0
		case "UUID", "uuid":
			g.UUID = v
		case "pci_bus_id":
			g.PCI = v
		case "device":
			g.Device = v
		case "modelName":
			g.Model = v
		case "GPU_I_PROFILE":
			g.Profile = v
		case "GPU_I_ID":
			g.Instance = v
		default:
			labels = append(labels, fleet.Label{Name: l.GetName(), Value: v})
		}
	}
	sample := fleet.Sample{Field: name, GPU: fleet.NoGPU, Value: valueOf(m), Labels: labels}
	if ms := m.GetTimestampMs(); ms != 0 {
		sample.At = time.UnixMilli(ms)
	}
	switch {
	case isBlank(g.UUID) || isBlank(g.PCI):
		// The exporter was started while the driver did not answer.
		p.addProblem(fmt.Errorf("%s: the GPU's identity is blank", name))
		return
	case !hasIndex || g.UUID == "":
		sample.Labels = sample.Labels[:0]
		for _, l := range m.GetLabel() {
			sample.Labels = append(sample.Labels, fleet.Label{Name: l.GetName(), Value: l.GetValue()})
		}
	default:
		place, known := p.entries[g]
		if !known {
			if len(p.GPUs) >= maxEntries {
				p.addProblem(fmt.Errorf("over %d GPUs and instances", maxEntries))
				return
			}
			place = len(p.GPUs)
			p.entries[g] = place
			p.GPUs = append(p.GPUs, g)
		}
		sample.GPU = place
	}
	p.Values = append(p.Values, sample)
}

// addProblem names the problem of a series, whose line is not known any more, once.
func (p *Page) addProblem(err error) {
	p.Dropped++
	for _, have := range p.Problems {
		if have.Error() == err.Error() {
			return
		}
	}
	if len(p.Problems) < maxProblems {
		p.Problems = append(p.Problems, err)
	}
}

// isBlank reports whether DCGM had no text to give.
func isBlank(s string) bool { return strings.HasPrefix(s, "<<<") }

func valueOf(m *dto.Metric) float64 {
	switch {
	case m.Gauge != nil:
		return m.Gauge.GetValue()
	case m.Counter != nil:
		return m.Counter.GetValue()
	case m.Untyped != nil:
		return m.Untyped.GetValue()
	}
	return math.NaN()
}

// judge says which GPUs the driver reaches. When a GPU is lost the exporter leaves out
// its fields and goes on to show what it has counted itself, under DCGM_EXP_. Where
// that is so for all GPUs at once the driver answers nothing and nothing is known.
func (p *Page) judge() {
	read := map[string]bool{} // by UUID: instances are parts of one GPU
	for i := range p.Values {
		if v := &p.Values[i]; v.GPU >= 0 && !strings.HasPrefix(v.Field, "DCGM_EXP_") {
			read[p.GPUs[v.GPU].UUID] = true
		}
	}
	if len(read) == 0 {
		return
	}
	for i := range p.GPUs {
		p.GPUs[i].Up = fleet.TruthOf(read[p.GPUs[i].UUID])
	}
}
