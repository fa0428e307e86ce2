package collector

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"stoker.dev/stoker/internal/fleet"
)

// TestTheDiskIsAskedToKeepIt: the new content before it takes the old one's place, and the
// folder afterwards. One that says no leaves the old content, and nothing beside it.
func TestTheDiskIsAskedToKeepIt(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state")
	write(t, path, "old")
	var seen []string
	d := newDisk(path)
	d.sync = func(f *os.File) error {
		content, err := os.ReadFile(path)
		seen = append(seen, strings.TrimPrefix(f.Name(), dir)+" while there is "+string(content))
		return err
	}
	if err := d.write([]byte("new")); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"/state.new while there is old", " while there is new"}, seen); diff != "" {
		t.Errorf("synced (-want +got):\n%s", diff)
	}
	full := errors.New("no space left")
	d.sync = func(*os.File) error { return full }
	if err := d.write([]byte("newer")); !errors.Is(err, full) {
		t.Errorf("err = %v, want the disk's", err)
	}
	if content, err := os.ReadFile(path); err != nil || string(content) != "new" {
		t.Errorf("the file has %q, %v; want what it had", content, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("the folder has %v, %v; want the file alone", left, err)
	}
}

// TestADiskThatHangs costs a second, once: everything is shown and told, and it is shown that
// a restart would forget it. When the disk answers, the newest state is written.
func TestADiskThatHangs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	synctest.Test(t, func(t *testing.T) {
		var told []Sighting
		s := &script{"s", nil}
		c := newCollector(t, Options{State: path, See: func(x []Sighting) { told = append(told, x...) }}, s)
		hangs := make(chan struct{})
		var once sync.Once
		release := func() { once.Do(func() { close(hangs) }) }
		defer release()
		c.disk.sync = func(*os.File) error { <-hangs; return nil }
		start := time.Now()
		for i := range 5 {
			s.tell = ring(fleet.XIDEvent{XID: 79 + 100*i, At: time.Now()}).tell
			if err := c.Gather(t.Context(), time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start); took != diskWithin {
			t.Errorf("it took %v, want %v once", took, diskWithin)
		}
		if len(told) != 5 {
			t.Errorf("%d were told at once, want 5", len(told))
		}
		up := func() bool {
			return strings.Contains(string(c.AppendPage(nil, time.Now())), "stoker_collector_state_up{node=\"n\"} 1\n")
		}
		if up() {
			t.Error("the state is called saved")
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := c.Run(ctx); !errors.Is(err, errDisk) || !strings.Contains(err.Error(), path) {
			t.Errorf("run: %v, want that the disk still hangs, with the file's name", err)
		}
		release()
		synctest.Wait()
		if err := c.Gather(t.Context(), time.Now()); err != nil {
			t.Fatal(err)
		}
		f, err := readState(path)
		if err != nil {
			t.Fatal(err)
		}
		total := uint64(0)
		for _, code := range f.GPUs[0].Codes {
			total += code.Total
		}
		if total != 5 || !up() {
			t.Errorf("%d are saved, want 5, and the page says so: %v", total, up())
		}
	})
}
