package sim

import (
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/internal/sim/truth"
)

// TestFaultsComeAtTheirRates draws many fleets and counts.
func TestFaultsComeAtTheirRates(t *testing.T) {
	const fleets, times, hours = 60, 1000, 24
	got := map[Kind]int{}
	gpuHours := 0.0
	for seed := range uint64(fleets) {
		cfg, err := Teams(seed, 8, 0, time.Hour, hours*time.Hour, times, 1)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range cfg.Faults {
			got[f.Kind]++
		}
		gpuHours += 64 * hours
	}
	for _, r := range Rates {
		if r.Per != "GPU" || truth.Kinds[r.Kind].Noise {
			continue
		}
		want := r.Each * times * gpuHours
		if diff := math.Abs(float64(got[r.Kind]) - want); diff > 4*math.Sqrt(want) {
			t.Errorf("%s: %d in %.0f GPU-hours, want about %.0f", r.Kind, got[r.Kind], gpuHours, want)
		}
	}
}

func TestTeamsAreTheSameEveryTimeAndOtherwiseForOtherSeeds(t *testing.T) {
	text := func(seed uint64) string {
		cfg, err := Teams(seed, 8, 30, 8*time.Hour, 12*time.Hour, 100, 1)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%+v", cfg)
	}
	first, again, other := text(1), text(1), text(2)
	if first != again || first == other {
		t.Error("the fleet is not its seed's alone")
	}
}

// TestTheDocsShowTheRates compares the table of docs/simulation.md with Rates.
func TestTheDocsShowTheRates(t *testing.T) {
	doc, err := os.ReadFile("../../docs/simulation.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(strings.TrimSpace(ratesTable()), "\n") {
		if !strings.Contains(string(doc), line+"\n") {
			t.Errorf("docs/simulation.md does not have this line:\n%s", line)
		}
	}
}

// ratesTable is the table as the docs have it.
func ratesTable() string {
	var b strings.Builder
	b.WriteString("| kind | rate | lasts (mean) | what happens | source |\n|---|---|---|---|---|\n")
	for _, r := range Rates {
		lasts := "–"
		if r.Lasts > 0 {
			lasts = remedy.Duration(r.Lasts).String()
		}
		fmt.Fprintf(&b, "| %s | %.2g per hour and %s | %s | %s | %s |\n", r.Kind, r.Each, r.Per, lasts, truth.Kinds[r.Kind].Doc, r.Source)
	}
	return b.String()
}
