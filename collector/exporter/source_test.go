package exporter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"stoker.dev/stoker/internal/fleet"
)

// feed is a source that reads page, or fails with err.
type feed struct {
	*Source
	page string
	err  error
	now  time.Time
}

func newFeed(t *testing.T) *feed {
	t.Helper()
	f := &feed{now: t0}
	f.Source = newSource(slog.New(slog.NewTextHandler(t.Output(), nil)), "file", func(context.Context, time.Time) ([]byte, error) {
		return []byte(f.page), f.err
	})
	return f
}

// read collects from a page, one second after the page before.
func (f *feed) read(t *testing.T, page string) (fleet.Samples, error) {
	t.Helper()
	f.now = f.now.Add(time.Second)
	f.page = page
	into := fleet.Samples{At: f.now}
	err := f.Collect(t.Context(), &into)
	return into, err
}

func states(s fleet.Samples) string {
	var out []string
	for _, g := range s.GPUs {
		out = append(out, fmt.Sprintf("%s %q", strings.TrimPrefix(g.UUID, "GPU-"), g.Up))
	}
	return strings.Join(out, ", ")
}

func TestSampleTellsItsEvents(t *testing.T) {
	f := newFeed(t)
	s, err := f.read(t, sample(t))
	if err != nil {
		t.Fatal(err)
	}
	at := f.now
	want := []fleet.XIDEvent{
		{GPU: 0, XID: 31, At: at.Add(-time.Millisecond), Source: "file"},
		{GPU: 0, XID: 31, At: at, Source: "file"},
		{GPU: 0, XID: 43, At: at, Source: "file"},
		{GPU: 3, XID: 79, At: at, Source: "file"},
	}
	if diff := cmp.Diff(want, s.Events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	for range 3 {
		if s, err = f.read(t, sample(t)); err != nil || len(s.Events) != 0 {
			t.Errorf("the same page again: %d events, err %v; want none", len(s.Events), err)
		}
	}
}

func TestLostGPUKeepsItsIdentity(t *testing.T) {
	f := newFeed(t)
	if _, err := f.read(t, xidPage("0 0", "1 79 79:1", "2 0")); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		s, err := f.read(t, xidPage("0 0", "2 0"))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := states(s), `0 "true", 2 "true", 1 "false"`; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		if g := s.GPUs[2]; g.Index != 1 || g.PCI != "0:1" {
			t.Errorf("identity of the lost GPU: %+v", g)
		}
	}
	s, err := f.read(t, xidPage("0 0", "1 79 79:1", "2 0"))
	if err != nil || states(s) != `0 "true", 1 "true", 2 "true"` || len(s.Events) != 0 {
		t.Errorf("after its return: %s, events %v, err %v", states(s), s.Events, err)
	}
}

func TestAnotherGPUInItsPlaceIsAnExchange(t *testing.T) {
	f := newFeed(t)
	page := xidPage("0 0", "1 0")
	if _, err := f.read(t, page); err != nil {
		t.Fatal(err)
	}
	s, err := f.read(t, strings.ReplaceAll(page, "GPU-1", "GPU-new"))
	if err != nil || states(s) != `0 "true", new "true"` {
		t.Errorf("got %s, err %v; want the new GPU and no lost one", states(s), err)
	}
}

func TestWhereNothingIsKnownNoGPUIsLost(t *testing.T) {
	f := newFeed(t)
	if _, err := f.read(t, xidPage("0 0", "1 0")); err != nil {
		t.Fatal(err)
	}
	onlyCounts := `DCGM_EXP_XID_ERRORS_COUNT{gpu="0",UUID="GPU-0",xid="119"} 1` + "\n"
	// Families are gone as well, so the page is doubted once.
	if _, err := f.read(t, onlyCounts); err == nil {
		t.Errorf("a page without the families that it had was believed at once")
	}
	s, err := f.read(t, onlyCounts)
	if err != nil || states(s) != `0 "", 1 ""` {
		t.Errorf("got %s, err %v; want both unknown", states(s), err)
	}
	if len(s.Events) != 1 || s.Events[0].XID != 119 {
		t.Errorf("events %v, want one of 119", s.Events)
	}
}

func TestUnfinishedPageLosesNoGPU(t *testing.T) {
	whole := sample(t)
	lines := strings.SplitAfter(whole, "\n")
	for name, tc := range map[string]struct {
		pages []string // after one whole page
		want  []string // error of each, "" for none
	}{
		"cut in the first family": {[]string{strings.Join(lines[:5], ""), whole}, []string{"may not be finished", ""}},
		"cut in a line":           {[]string{whole[:3000], whole}, []string{"cut off", ""}},
		"emptied":                 {[]string{"", whole}, []string{"page is empty", ""}},
		"a new list of families on fewer GPUs is believed the second time": {
			[]string{strings.Join(lines[:5], ""), strings.Join(lines[:5], ""), strings.Join(lines[:5], "")},
			[]string{"may not be finished", "", ""},
		},
		"two different unfinished pages are both not believed": {
			[]string{strings.Join(lines[:4], ""), strings.Join(lines[:6], ""), whole},
			[]string{"may not be finished", "may not be finished", ""},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFeed(t)
			if _, err := f.read(t, whole); err != nil {
				t.Fatal(err)
			}
			for i, page := range tc.pages {
				s, err := f.read(t, page)
				if want := tc.want[i]; want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
					t.Errorf("page %d: err = %v, want %q", i, err, want)
				}
				if err != nil && (len(s.GPUs) > 0 || len(s.Values) > 0 || len(s.Events) > 0) {
					t.Errorf("page %d: told of %d GPUs beside the error", i, len(s.GPUs))
				}
				if len(s.Events) > 0 {
					t.Errorf("page %d: events %v, want none", i, s.Events)
				}
			}
		})
	}
}

func TestCursorGoesOnWhereItWas(t *testing.T) {
	f := newFeed(t)
	for _, page := range []string{xidPage("0 0", "1 79 79:1", "2 43 43:1 31:2"), xidPage("0 0", "2 43 43:1 31:2")} {
		if _, err := f.read(t, page); err != nil {
			t.Fatal(err)
		}
	}
	cursor, err := f.Cursor()
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := f.Cursor(); !bytes.Equal(cursor, again) {
		t.Errorf("two cursors of one state differ:\n%s\n%s", cursor, again)
	}

	g := newFeed(t)
	g.now = f.now
	if err := g.Resume(cursor); err != nil {
		t.Fatal(err)
	}
	s, err := g.read(t, xidPage("0 0", "2 43 43:2 31:2"))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := states(s), `0 "true", 2 "true", 1 "false"`; got != want {
		t.Errorf("after the restart: %s, want %s", got, want)
	}
	if len(s.Events) != 1 || s.Events[0].XID != 43 || s.GPUs[s.Events[0].GPU].UUID != "GPU-2" {
		t.Errorf("after the restart: events %v, want one more 43 on GPU 2", s.Events)
	}
	if s, err = g.read(t, xidPage("0 0", "1 79 79:1", "2 43 43:2 31:2")); err != nil || len(s.Events) != 0 {
		t.Errorf("the lost GPU came back: events %v, err %v; want none", s.Events, err)
	}
}

func TestFirstPageAfterARestartIsDoubtedWhenItLacksGPUs(t *testing.T) {
	f := newFeed(t)
	if _, err := f.read(t, xidPage("0 0", "1 0")); err != nil {
		t.Fatal(err)
	}
	cursor, err := f.Cursor()
	if err != nil {
		t.Fatal(err)
	}
	g := newFeed(t)
	if err := g.Resume(cursor); err != nil {
		t.Fatal(err)
	}
	if _, err := g.read(t, xidPage("0 0")); err == nil {
		t.Errorf("the first page was believed")
	}
	if s, err := g.read(t, xidPage("0 0")); err != nil || states(s) != `0 "true", 1 "false"` {
		t.Errorf("the second page: %s, err %v", states(s), err)
	}
}

func TestResumeRefusesDamage(t *testing.T) {
	for name, cursor := range map[string]string{
		"no JSON":       "{",
		"another shape": `{"gpus":7}`,
		"too much":      `{"shown":[` + strings.Repeat(`{},`, maxPlaces) + `{}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			f := newFeed(t)
			if err := f.Resume([]byte(cursor)); err == nil || !strings.Contains(err.Error(), "source file") {
				t.Errorf("err = %v, want one that names the source", err)
			}
			if _, err := f.read(t, xidPage("0 0")); err != nil {
				t.Errorf("then: %v", err)
			}
		})
	}
}

func TestProblemsAreLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	f := newFeed(t)
	f.log = slog.New(slog.NewTextHandler(&log, nil))
	bad := xidPage("0 0") + "DCGM_FI_DEV_GPU_TEMP{gpu= 36\n"
	for range 3 {
		s, err := f.read(t, bad)
		if err != nil || s.Dropped != 1 {
			t.Fatalf("dropped %d, err %v; want 1", s.Dropped, err)
		}
	}
	if n := strings.Count(log.String(), "line 4"); n != 1 {
		t.Errorf("logged %d times, want once:\n%s", n, &log)
	}
}

func TestFile(t *testing.T) {
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	dir := t.TempDir()
	path := filepath.Join(dir, "gpu.prom")
	read := func(s *Source) (fleet.Samples, error) {
		into := fleet.Samples{At: time.Now()}
		return into, s.Collect(t.Context(), &into)
	}
	src := NewFile(log, path, FileOptions{MaxAge: time.Hour})
	if src.Name() != "file" {
		t.Errorf("name %q, want file", src.Name())
	}

	if _, err := read(src); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("no file: err = %v", err)
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(sample(t))
	if _, err := read(src); err != nil {
		t.Errorf("the file is there: %v", err)
	}
	old := time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	if _, err := read(src); err == nil || !strings.Contains(err.Error(), "written 2h0m0s ago") {
		t.Errorf("its writer has stopped: err = %v", err)
	}
	if err := os.Truncate(path, maxPage+1); err != nil {
		t.Fatal(err)
	}
	if _, err := read(src); err == nil || !strings.Contains(err.Error(), "the limit is") {
		t.Errorf("a huge file: err = %v", err)
	}
	if _, err := read(NewFile(log, dir, FileOptions{})); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a folder: err = %v", err)
	}
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := read(NewFile(log, pipe, FileOptions{})); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a named pipe: err = %v", err)
	}
	stopped, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("stopped for a test"))
	into := fleet.Samples{At: time.Now()}
	if err := src.Collect(stopped, &into); err == nil || err.Error() != "stopped for a test" {
		t.Errorf("stopped: err = %v, want the cause", err)
	}
}
