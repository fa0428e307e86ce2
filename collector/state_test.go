package collector

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"stoker.dev/stoker/collector/exporter"
	"stoker.dev/stoker/internal/fleet"
)

// TestARestartCountsNothingAnew: the page still shows the 79 in its window, and after
// the restart it is neither an event nor forgotten.
func TestARestartCountsNothingAnew(t *testing.T) {
	dir := t.TempDir()
	state, file := filepath.Join(dir, "state.json"), filepath.Join(dir, "gpu.prom")
	text, err := os.ReadFile(sampleFile)
	if err != nil {
		t.Fatal(err)
	}
	start := func(o Options) *Collector {
		o.State = state
		return newCollector(t, o, exporter.NewFile(quiet(t), file, exporter.FileOptions{}))
	}
	ours := func(c *Collector, now time.Time) string {
		out := ""
		for line := range strings.Lines(string(c.AppendPage(nil, now))) {
			if strings.HasPrefix(line, "stoker_gpu_xid") || strings.HasPrefix(line, "stoker_gpu_up") {
				out += line
			}
		}
		return out
	}
	write(t, file, string(text))
	before := start(Options{BootID: "one"})
	if err := before.Gather(t.Context(), t0); err != nil {
		t.Fatal(err)
	}
	want := ours(before, t0)

	now := t0.Add(time.Minute)
	after := start(Options{BootID: "one"})
	if strings.Contains(ours(after, now), "stoker_gpu_up") {
		t.Error("before the first reading the state of a GPU is known")
	}
	for range 2 {
		if err := after.Gather(t.Context(), now); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, ours(after, now)); diff != "" {
			t.Errorf("after the restart (-before +after):\n%s", diff)
		}
	}

	// GPU 3 goes, and it is known as lost also by a collector that has never seen it.
	lost := ""
	for line := range strings.Lines(string(text)) {
		if !strings.Contains(line, `gpu="3"`) {
			lost += line
		}
	}
	write(t, file, lost)
	if err := after.Gather(t.Context(), now.Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	third := start(Options{BootID: "one"})
	if err := third.Gather(t.Context(), now.Add(2*time.Second)); err != nil {
		t.Fatal(err)
	}
	want = strings.Replace(want, `bus_id="00000000:4A:00.0"} 1`, `bus_id="00000000:4A:00.0"} 0`, 1)
	if diff := cmp.Diff(want, ours(third, now.Add(2*time.Second))); diff != "" {
		t.Errorf("a lost GPU after a restart (-want +got):\n%s", diff)
	}

	// Another boot has nothing to do with it.
	fourth := start(Options{BootID: "two"})
	if got := ours(fourth, now); got != "" {
		t.Errorf("after a boot the page has\n%s", got)
	}
}

// ring is a source that tells all it has ever told, as a kernel log does.
func ring(events ...fleet.XIDEvent) *script {
	return &script{"ring", tell(fleet.Samples{GPUs: []fleet.SampledGPU{gpuA}, Events: events})}
}

func TestAKernelLogIsNotCountedAgain(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	events := []fleet.XIDEvent{{XID: 79, At: t0}, {XID: 31, At: t0}, {XID: 31, At: t0.Add(1)}}
	for i := range 3 {
		c := newCollector(t, Options{BootID: "b", State: state}, ring(events...))
		if err := c.Gather(t.Context(), t0.Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		want := map[string]float64{key(gpuA, "79"): 1, key(gpuA, "31"): float64(2 + i)}
		if diff := cmp.Diff(want, totals(t, c, t0)); diff != "" {
			t.Errorf("run %d (-want +got):\n%s", i, diff)
		}
		events = append(events, fleet.XIDEvent{XID: 31, At: t0.Add(time.Duration(2+i) * time.Second)})
	}
}

func TestAStateThatCantBeUsedIsAWarning(t *testing.T) {
	good := func(t *testing.T) string {
		t.Helper()
		path := filepath.Join(t.TempDir(), "good")
		c := newCollector(t, Options{BootID: "b", State: path}, ring(fleet.XIDEvent{XID: 79, At: t0}))
		if err := c.Gather(t.Context(), t0); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}(t)
	for name, tc := range map[string]struct{ text, log string }{
		"no file":            {"", ""},
		"cut off":            {good[:len(good)/2], "unexpected end of JSON input"},
		"garbage":            {"\x00\x01", "invalid character"},
		"a newer version":    {strings.Replace(good, `"version":1`, `"version":2`, 1), "version 2"},
		"of another node":    {strings.Replace(good, `"node":"n"`, `"node":"m"`, 1), "of another node"},
		"of another boot":    {strings.Replace(good, `"bootID":"b"`, `"bootID":"a"`, 1), "of an earlier boot"},
		"marks out of order": {strings.Replace(good, `"marks":[`, `"marks":[{"xid":79,"at":9223372036854775807},`, 1), "damaged"},
		"too many GPUs":      {strings.Replace(good, `"gpus":[`, `"gpus":[`+strings.Repeat(`{},`, maxGPUs), 1), "257 GPUs"},
		"as it should be":    {good, ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "state")
			if tc.text != "" {
				write(t, path, tc.text)
			}
			var log bytes.Buffer
			c, err := New(slog.New(slog.NewTextHandler(&log, nil)), "n", []Source{ring()}, Options{BootID: "b", State: path})
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(log.String(), tc.log) || (tc.log == "") != (log.Len() == 0) {
				t.Errorf("log has\n%s, want %q", &log, tc.log)
			}
			if tc.log != "" && !strings.Contains(log.String(), path) {
				t.Errorf("the log does not name the file:\n%s", &log)
			}
			if err := c.Gather(t.Context(), t0); err != nil {
				t.Fatal(err)
			}
			want := 0.0
			if name == "as it should be" {
				want = 1
			}
			if got := totals(t, c, t0)[key(gpuA, "79")]; got != want {
				t.Errorf("79 was counted %v times, want %v", got, want)
			}
			if _, err := readState(path); err != nil {
				t.Errorf("after a collection the file can't be read: %v", err)
			}
		})
	}
}

func TestTheStateIsWrittenOnlyWhenItChanges(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state")
	c := newCollector(t, Options{BootID: "b", State: path}, ring(fleet.XIDEvent{XID: 79, At: t0}))
	for i := range 3 {
		if err := c.Gather(t.Context(), t0.Add(time.Duration(i)*time.Second)); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("the folder has %v, err %v; want nothing written again", left, err)
	}
	// One event more, and it is there before anybody sees it.
	c.sources[0].(*script).tell = ring(fleet.XIDEvent{XID: 79, At: t0.Add(time.Minute)}).tell
	if err := c.Gather(t.Context(), t0.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	f, err := readState(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := f.GPUs[0].Codes[0].Total; got != 2 {
		t.Errorf("the file has %d, want 2", got)
	}
}

func TestADiskThatIsGoneIsAWarningOnce(t *testing.T) {
	var log bytes.Buffer
	dir := filepath.Join(t.TempDir(), "later")
	path := filepath.Join(dir, "state")
	s := &script{"s", nil}
	c, err := New(slog.New(slog.NewTextHandler(&log, nil)), "n", []Source{s}, Options{State: path})
	if err != nil {
		t.Fatal(err)
	}
	gather := func(i int) {
		t.Helper()
		s.tell = ring(fleet.XIDEvent{XID: 31, At: t0.Add(time.Duration(i) * time.Second)}).tell
		if err := c.Gather(t.Context(), t0.Add(time.Duration(i)*time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 {
		gather(i)
	}
	if n := strings.Count(log.String(), "state can't be saved"); n != 1 {
		t.Errorf("warned %d times, want once:\n%s", n, &log)
	}
	if got := totals(t, c, t0)[key(gpuA, "31")]; got != 3 {
		t.Errorf("counted %v, want 3 also without the disk", got)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	gather(3)
	f, err := readState(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := f.GPUs[0].Codes[0].Total; got != 4 {
		t.Errorf("the file has %d, want 4 once the disk is back", got)
	}
}
