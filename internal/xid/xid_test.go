package xid

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The closed lists of the catalogue. A word that is added to the package without a
// row that uses it, or the reverse, fails TestEveryKeyIsUsedAndKnown.
var (
	allSteps   = []Step{Note, App, Alert, Eval154, PendingReset, Diag, Reset, Reboot, Hold}
	allClasses = []Class{GPULost, GPUECC, GPUNVLink, GPUDriver, GPUApp, None}
	allSources = []Source{FromCatalogue, FromUnused, FromDriver}
)

func TestEveryKeyIsUsedAndKnown(t *testing.T) {
	steps, classes, sources := map[Step]int{}, map[Class]int{}, map[Source]int{}
	for r := range All() {
		classes[r.Class]++
		sources[r.Source]++
		for _, s := range r.Ladder {
			steps[s]++
		}
	}
	checkKeys(t, "step", allSteps, steps)
	checkKeys(t, "class", allClasses, classes)
	checkKeys(t, "source", allSources, sources)
}

func checkKeys[K ~string](t *testing.T, what string, want []K, used map[K]int) {
	t.Helper()
	for _, k := range want {
		if used[k] == 0 {
			t.Errorf("%s %q is used by no row", what, k)
		}
		delete(used, k)
	}
	for k, n := range used {
		t.Errorf("%s %q of %d rows is unknown", what, k, n)
	}
}

func TestEveryRowHoldsTogether(t *testing.T) {
	last := 0
	for r := range All() {
		if r.Code <= last {
			t.Errorf("code %d stands after %d: not ascending, or twice", r.Code, last)
		}
		last = r.Code
		if r.Meaning == "" || len(r.Meaning) > 90 {
			t.Errorf("code %d: meaning %q is empty or long", r.Code, r.Meaning)
		}
		if _, err := time.Parse(time.DateOnly, r.Date); err != nil {
			t.Errorf("code %d: date: %v", r.Code, err)
		}
		if len(r.Ladder) == 0 {
			t.Errorf("code %d has no ladder", r.Code)
			continue
		}
		if r.Ladder[len(r.Ladder)-1] == Eval154 {
			t.Errorf("code %d: ladder %v has nothing to fall back to on a driver without XID 154", r.Code, r.Ladder)
		}
		if slices.Index(r.Ladder, Eval154) > 0 {
			t.Errorf("code %d: ladder %v waits for the recovery action after it has done something", r.Code, r.Ladder)
		}
		if c := slices.Compact(slices.Sorted(slices.Values(r.Ladder))); len(c) != len(r.Ladder) {
			t.Errorf("code %d: ladder %v has a step twice", r.Code, r.Ladder)
		}
		// XID 154 is the one code that changes a state and has no class: it comes
		// beside the code that has.
		acting := r.Changes || r.Ladder[0] == App
		if r.Code != 154 && acting != (r.Class != None) {
			t.Errorf("code %d: class %q does not fit ladder %v, changes %t", r.Code, r.Class, r.Ladder, r.Changes)
		}
		if r.Changes && !slices.ContainsFunc(r.Ladder, Step.Acts) {
			t.Errorf("code %d changes a state, but its ladder %v does nothing", r.Code, r.Ladder)
		}
		if r.Source == FromUnused && r.Changes {
			t.Errorf("code %d is unused in the catalogue and must not act by itself", r.Code)
		}
		if r.Class == GPUApp && r.Ladder[0] != App {
			t.Errorf("code %d is the job's doing, but its ladder begins with %s", r.Code, r.Ladder[0])
		}
	}
}

func TestRowsThatTheRestReliesOn(t *testing.T) {
	type row struct {
		Class   Class
		Changes bool
		Ladder  string
	}
	for code, want := range map[int]row{
		79:  {GPULost, true, "REBOOT,HOLD"},
		45:  {None, false, "NOTE,ALERT"},
		43:  {None, false, "NOTE"},
		13:  {GPUApp, false, "APP,DIAG"},
		31:  {GPUApp, false, "APP,DIAG"},
		48:  {GPUECC, true, "RESET"},
		63:  {GPUECC, true, "PENDING-RESET"},
		64:  {GPUECC, true, "RESET,HOLD"},
		74:  {GPUNVLink, true, "EVAL154,RESET,HOLD"},
		94:  {GPUECC, true, "APP,PENDING-RESET"},
		95:  {GPUECC, true, "RESET"},
		110: {GPUDriver, true, "RESET,HOLD"},
		119: {GPUDriver, true, "RESET,REBOOT,HOLD"},
		145: {GPUNVLink, true, "EVAL154,ALERT"},
		154: {None, true, "EVAL154,ALERT"},
		163: {None, false, "ALERT"},
		168: {None, false, "ALERT"},
	} {
		r, ok := Lookup(code)
		if got := (row{r.Class, r.Changes, r.Ladder.String()}); !ok || got != want {
			t.Errorf("Lookup(%d) = %+v, %t, want %+v", code, got, ok, want)
		}
	}
}

func TestCodeWithoutRowAlertsAndNeverActs(t *testing.T) {
	for _, code := range []int{-1, 0, 1, 51, 138, 177, 1 << 30} {
		r, ok := Lookup(code)
		if ok {
			t.Errorf("Lookup(%d) has a row: %+v", code, r)
		}
		if r.Code != code || r.Class != None || r.Changes || !slices.Equal(r.Ladder, Ladder{Alert}) {
			t.Errorf("Lookup(%d) = %+v, want class none and ladder ALERT", code, r)
		}
	}
}

func TestStateChangingAreTheCodesThatAct(t *testing.T) {
	want := []int{
		46, 48, 54, 62, 63, 64, 74, 79, 94, 95, 109, 110, 119, 120, 136, 140, 143,
		144, 145, 146, 147, 148, 149, 150, 151, 154, 155, 156, 158, 159, 167, 169, 173, 175,
	}
	if diff := cmp.Diff(want, StateChanging()); diff != "" {
		t.Errorf("StateChanging (-want +got):\n%s", diff)
	}
}

func TestNobodyCanChangeTheCatalogue(t *testing.T) {
	r, _ := Lookup(79)
	r.Ladder[0] = Note
	for r := range All() {
		r.Ladder[0] = Note
	}
	if r, _ := Lookup(79); r.Ladder[0] != Reboot {
		t.Errorf("ladder of 79 is %v after a caller wrote to a copy", r.Ladder)
	}
}

func TestAllEndsWhenAsked(t *testing.T) {
	n := 0
	for range All() {
		n++
		if n == 3 {
			break
		}
	}
	if n != 3 {
		t.Errorf("saw %d rows, want 3", n)
	}
}

func TestUnitRulesAndCatalogueKnowEachOther(t *testing.T) {
	codes := map[int]bool{}
	for i, r := range unitRules {
		codes[r.code] = true
		row, ok := Lookup(r.code)
		if !ok || row.Class != GPUNVLink || !row.NeedsRecovery() {
			t.Errorf("rule %s is for code %d, whose row is %+v", r.unit, r.code, row)
		}
		first := slices.IndexFunc(unitRules, func(o unitRule) bool {
			return o.code == r.code && len(o.unit) <= len(r.unit) && r.unit[:len(o.unit)] == o.unit
		})
		if first != i {
			t.Errorf("rule %d %s can't be reached, %s before it takes its lines", r.code, r.unit, unitRules[first].unit)
		}
		for _, s := range r.reset {
			if slices.Contains(r.ignore, s) {
				t.Errorf("rule %d %s: status %#x is in both lists", r.code, r.unit, s)
			}
		}
	}
	for code := 144; code <= 150; code++ {
		if !codes[code] {
			t.Errorf("code %d has no rule", code)
		}
	}
}
