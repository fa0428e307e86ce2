package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/internal/sim"
)

// Scenario runs one scenario from a file, writes one line per event and what became of
// each expectation, and fails when one does not hold.
func Scenario(ctx context.Context, out io.Writer, name string) error {
	data, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("scenario: %w", err)
	}
	sc, err := sim.ParseScenario(filepath.Base(name), data)
	if err != nil {
		return fmt.Errorf("scenario: %w", err)
	}
	lines := &printer{out: out}
	failed, err := runScenario(ctx, sc, lameness{}, lines)
	if err != nil {
		return err
	}
	bad := map[int]string{}
	for _, f := range failed {
		bad[f.Line] = f.Got
	}
	fmt.Fprintln(out)
	for _, e := range sc.Expect {
		verdict := "ok  "
		got, failed := bad[e.Line]
		if failed {
			verdict = "FAIL"
			got = ": " + got
		}
		if _, err := fmt.Fprintf(out, "%s  %s%s\n", verdict, e, got); err != nil {
			return fmt.Errorf("print: %w", err)
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("scenario %s: %d of %d expectations do not hold", sc.Name, len(failed), len(sc.Expect))
	}
	return nil
}

// A failure is an expectation that does not hold.
type failure struct {
	sim.Expectation
	Got string
}

// runScenario runs a scenario, with something taken from Stoker or not, and returns what
// does not hold. lines may be nil.
func runScenario(ctx context.Context, sc sim.Scenario, lame lameness, lines *printer) ([]failure, error) {
	r, err := trial{fleet: sc.Fleet, policy: policyStoker, horizon: sc.For, lame: lame, lines: lines}.run(ctx)
	if err != nil {
		return nil, fmt.Errorf("scenario %s: %w", sc.Name, err)
	}
	if lines != nil && lines.err != nil {
		return nil, fmt.Errorf("print: %w", lines.err)
	}
	numbers, err := numbersOf(r.report)
	if err != nil {
		return nil, err
	}
	numbers["incidents"] = float64(len(r.incidents))
	var out []failure
	for _, e := range sc.Expect {
		switch {
		case e.Never || e.Incident:
			if got, ok := incidentHolds(e, r.incidents); !ok {
				out = append(out, failure{e, got})
			}
		default:
			got, known := numbers[e.Number]
			if !known {
				return nil, fmt.Errorf("scenario %s:%d: the report has no number %q", sc.Name, e.Line, e.Number)
			}
			if !e.Holds(got) {
				out = append(out, failure{e, fmt.Sprintf("it is %g", got)})
			}
		}
	}
	return out, nil
}

// numbersOf are the numbers of a report by their names in JSON.
func numbersOf(r sim.Report) (map[string]float64, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	var all map[string]any
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, errors.Join(errors.New("report"), err)
	}
	out := map[string]float64{}
	for k, v := range all {
		switch v := v.(type) {
		case float64:
			out[k] = v
		case []any:
			out[k] = float64(len(v))
		case map[string]any:
			for inner, n := range v {
				if n, ok := n.(float64); ok {
					out[k+"."+strings.ReplaceAll(inner, " ", "-")] = n
				}
			}
		}
	}
	return out, nil
}

// incidentHolds looks for an incident as it is expected, and says what there is instead.
func incidentHolds(e sim.Expectation, list []remedy.Incident) (string, bool) {
	var have []string
	for _, in := range list {
		var steps []string
		for _, s := range in.Steps {
			if !s.Skipped {
				steps = append(steps, s.Action)
			}
		}
		have = append(have, strings.Join(append([]string{string(in.Class), in.Subject.String(), string(in.Phase)}, steps...), " "))
		if string(in.Class) != e.Class || e.Subject != "*" && in.Subject.String() != e.Subject {
			continue
		}
		if e.Never {
			return "there is " + have[len(have)-1], false
		}
		if (e.Phase == "*" || string(in.Phase) == e.Phase) && (len(e.Steps) == 0 || slices.Equal(steps, e.Steps)) {
			return "", true
		}
	}
	if e.Never {
		return "", true
	}
	return fmt.Sprintf("there are %q", have), false
}
