package truth

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestNothingThatDecidesKnowsTheTruth reads the sources of the module: the truth is
// imported by the simulation alone, and the simulation by nothing but what wires it.
func TestNothingThatDecidesKnowsTheTruth(t *testing.T) {
	const module = "stoker.dev/stoker/"
	may := map[string][]string{
		"internal/sim/truth": {"internal/sim"},
		"internal/sim":       {"internal/app", "internal/replay", "internal/sim"},
	}
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "go.mod")); err != nil {
		t.Fatal(err)
	}
	found := 0
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") {
			return nil
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		from := filepath.ToSlash(filepath.Dir(rel))
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), rel, src, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, imp := range f.Imports {
			name, err := strconv.Unquote(imp.Path.Value)
			if err != nil {
				return err
			}
			to := strings.TrimPrefix(name, module)
			who, ruled := may[to]
			if !ruled {
				continue
			}
			found++
			if from != to && !slices.ContainsFunc(who, func(w string) bool { return from == w || to == "internal/sim" && strings.HasPrefix(from, w+"/") }) {
				t.Errorf("%s imports %s; only %v may", rel, to, who)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found == 0 {
		t.Error("no import of the truth was found, not even the simulation's")
	}
}

// TestTheLedgerLosesNoTime adds and takes GPUs at any times and counts along.
func TestTheLedgerLosesNoTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const gpus = 50
		var l Ledger
		l.Add(Free, gpus)
		count := map[Use]int{Free: gpus}
		want := map[Use]GPUTime{}
		wanted, now := 0, int64(0)
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			d := rapid.Int64Range(0, 1e9).Draw(t, "ms")
			for u, n := range count {
				want[u] += GPUTime(int64(n) * d)
			}
			beside := GPUTime(int64(min(count[Free], wanted)) * d)
			want[Free] -= beside
			want[Queued] += beside
			now += d
			l.To(now)
			from, to := Use(rapid.IntRange(0, int(Free)).Draw(t, "from")), Use(rapid.IntRange(0, int(Free)).Draw(t, "to"))
			n := rapid.IntRange(0, count[from]).Draw(t, "gpus")
			l.Add(from, -n)
			l.Add(to, n)
			count[from] -= n
			count[to] += n
			more := rapid.IntRange(-wanted, 100).Draw(t, "wanted")
			l.Want(more)
			wanted += more
		}
		for _, u := range Uses() {
			if got := l.Sum(u); got != want[u] {
				t.Fatalf("%s: %d GPU-ms, want %d", u, got, want[u])
			}
		}
		if got, want := l.Total(), GPUTime(gpus*now); got != want {
			t.Fatalf("in all %d GPU-ms, want %d", got, want)
		}
		if l.Wanted() != wanted {
			t.Fatalf("%d GPUs are wanted, want %d", l.Wanted(), wanted)
		}
	})
}

func TestARecordJudges(t *testing.T) {
	const node = "gpu-a-01"
	patience := 10 * time.Minute
	for name, tc := range map[string]struct {
		kind            Kind
		begun, cordoned time.Duration // negative: never
		ended           time.Duration
		ill, seen       bool // at 30m: is the node ill, was it noticed
		missed          bool
	}{
		"a lost GPU that nobody notices":                   {GPULost, 0, -1, -1, true, false, true},
		"a lost GPU that is young":                         {GPULost, 25 * time.Minute, -1, -1, true, false, false},
		"a lost GPU that is noticed in time":               {GPULost, 0, time.Minute, -1, true, true, false},
		"a lost GPU that is noticed too late":              {GPULost, 0, 20 * time.Minute, -1, true, true, true},
		"a lost GPU that somebody booted away soon enough": {GPULost, 0, -1, 5 * time.Minute, false, false, false},
		"a lost GPU that was gone after its patience":      {GPULost, 0, -1, 15 * time.Minute, false, false, true},
		"lost telemetry":                                   {TelemetryLost, 0, 20 * time.Minute, -1, false, false, false},
		"a fault that is still to come":                    {GPULost, -1, -1, -1, false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := NewRecord([]Fault{{Kind: tc.kind, Node: node}})
			if tc.begun >= 0 {
				r.Begin(0, tc.begun, node, 3, false)
			}
			if tc.ended >= 0 {
				r.End(0, tc.ended)
			}
			if tc.cordoned >= 0 {
				r.Notice(tc.cordoned, node)
			}
			if got := r.Ill(node); got != tc.ill || r.Ill("another") {
				t.Errorf("ill: %t, want %t", got, tc.ill)
			}
			if got := r.Cases()[0].Seen; got != tc.seen {
				t.Errorf("noticed: %t, want %t", got, tc.seen)
			}
			if got := len(r.Missed(30*time.Minute, patience)) == 1; got != tc.missed {
				t.Errorf("missed: %t, want %t", got, tc.missed)
			}
		})
	}
}

// TestOnlyWhatIsAboutAFaultTellsOfIt holds that an incident about something else, on another
// node or another GPU does not make a fault one that people know of; a cordon does.
func TestOnlyWhatIsAboutAFaultTellsOfIt(t *testing.T) {
	for name, tc := range map[string]struct {
		tell func(*Record)
		seen bool
	}{
		"of the GPU":                   {func(r *Record) { r.Told(time.Minute, "gpu-lost", "n", 3) }, true},
		"of the node":                  {func(r *Record) { r.Told(time.Minute, "gpu-lost", "n", -1) }, true},
		"of another GPU":               {func(r *Record) { r.Told(time.Minute, "gpu-lost", "n", 4) }, false},
		"of another node":              {func(r *Record) { r.Told(time.Minute, "gpu-lost", "o", 3) }, false},
		"of another class":             {func(r *Record) { r.Told(time.Minute, "telemetry-lost", "n", -1) }, false},
		"nothing, but it was cordoned": {func(r *Record) { r.Notice(time.Minute, "n") }, true},
	} {
		r := NewRecord([]Fault{{Kind: GPULost, Node: "n"}})
		r.Begin(0, 0, "n", 3, false)
		tc.tell(r)
		if got := r.Cases()[0].Seen; got != tc.seen {
			t.Errorf("people were told %s: noticed %t, want %t", name, got, tc.seen)
		}
	}
}

func TestActsAreCountedBeyondTheirLimit(t *testing.T) {
	r := NewRecord(nil)
	for i := range maxActs + 5 {
		r.Did(time.Duration(i), Cordon, "n", []string{"", "why"}[i%2])
	}
	if got := len(r.Acts()); got != maxActs {
		t.Errorf("%d acts are kept, want %d", got, maxActs)
	}
	if r.Done(Cordon) != maxActs+5 || r.Wrong(Cordon) != maxActs/2+2 {
		t.Errorf("%d cordons, %d wrong", r.Done(Cordon), r.Wrong(Cordon))
	}
}

func TestEveryKindAndUseIsDescribed(t *testing.T) {
	for k, info := range Kinds {
		if info.Doc == "" || !info.Node && !info.Job || info.GPU && !info.Node {
			t.Errorf("%s: %+v", k, info)
		}
	}
	seen := map[string]bool{}
	for _, u := range Uses() {
		if u.String() == "" || seen[u.String()] {
			t.Errorf("use %d is called %q", u, u)
		}
		seen[u.String()] = true
	}
}
