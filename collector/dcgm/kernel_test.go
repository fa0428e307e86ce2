//go:build cgo && linux

package dcgm_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stoker.dev/stoker/collector"
	"stoker.dev/stoker/collector/dcgm"
	"stoker.dev/stoker/collector/kmsg"
)

// A ring is a kernel's log that a test writes.
type ring struct {
	t    testing.TB
	path string
	file *os.File
}

func newRing(t testing.TB) *ring {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kmsg")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return &ring{t, path, file}
}

// say has the driver write of an XID of a GPU of the fake library.
func (r *ring) say(number, gpu, xid int) {
	r.t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		r.t.Fatal(err)
	}
	if _, err := fmt.Fprintf(r.file, "3,%d,%d,-;NVRM: Xid (PCI:0000:%xa:00): %d, pid=1, name=a, x\n", number, now.Nano()/1000, gpu+1, xid); err != nil {
		r.t.Fatal(err)
	}
}

// TestComplaint_03_TheEngineAndTheKernel: an XID that both have is one that names both,
// one that only the kernel has is counted too, and both are of the same GPU.
func TestComplaint_03_TheEngineAndTheKernel(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	ring := newRing(t)
	kernel := kmsg.New(quiet(t), kmsg.Options{Path: ring.path, Devices: t.TempDir()})
	defer func() {
		if err := kernel.Close(t.Context()); err != nil {
			t.Errorf("close: %v", err)
		}
	}()
	c, err := collector.New(quiet(t), "n", []collector.Source{n.source, kernel}, collector.Options{})
	if err != nil {
		t.Fatal(err)
	}
	page(t, c)
	n.do("xid 2 48 0 0")
	ring.say(1, 2, 48)
	ring.say(2, 2, 62) // the driver tells nobody of this one
	want := []string{
		count(2, 48, 1), count(2, 62, 1),
		"stoker_gpu_xid_seen_total" + strings.TrimSuffix(series(2, 48), "}") + `,source="dcgm"} 1`,
		"stoker_gpu_xid_seen_total" + strings.TrimSuffix(series(2, 48), "}") + `,source="kmsg"} 1`,
		"stoker_gpu_xid_seen_total" + strings.TrimSuffix(series(2, 62), "}") + `,source="kmsg"} 1`,
	}
	got := ""
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if got = page(t, c); strings.Contains(got, count(2, 62, 1)) {
			break
		}
	}
	wantIn(t, got, want...)
}
