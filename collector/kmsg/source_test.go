package kmsg

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"stoker.dev/stoker/collector"
	"stoker.dev/stoker/internal/fleet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A kernel is a log that a test writes, over a pipe, and a bus.
type kernel struct {
	t       *testing.T
	log     *os.File
	options Options
	number  uint64
	ring    []string
}

func newKernel(t *testing.T, gpus ...string) *kernel {
	t.Helper()
	dir := t.TempDir()
	k := &kernel{t: t, number: 100, options: Options{Path: filepath.Join(dir, "kmsg"), Devices: filepath.Join(dir, "devices")}}
	if err := syscall.Mkfifo(k.options.Path, 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.OpenFile(k.options.Path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	k.log = log
	t.Cleanup(func() { _ = log.Close() })
	for _, at := range gpus {
		k.device(at, "0x10de", "0x030200")
	}
	return k
}

func (k *kernel) device(at, vendor, class string) {
	k.t.Helper()
	dir := filepath.Join(k.options.Devices, at)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		k.t.Fatal(err)
	}
	for name, text := range map[string]string{"vendor": vendor, "class": class} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o600); err != nil {
			k.t.Fatal(err)
		}
	}
}

// say writes a record of the kernel, or of a process where the priority says so.
func (k *kernel) say(priority int, age time.Duration, text string) {
	k.t.Helper()
	_, sinceBoot := clock()
	record := fmt.Sprintf("%d,%d,%d,-;%s\n SUBSYSTEM=pci\n", priority, k.number, (sinceBoot - age).Microseconds(), text)
	k.number++
	k.ring = append(k.ring, record)
	if _, err := k.log.WriteString(record); err != nil {
		k.t.Fatal(err)
	}
}

// again writes what a reader gets that opens the log anew.
func (k *kernel) again() {
	k.t.Helper()
	if _, err := k.log.WriteString(strings.Join(k.ring, "")); err != nil {
		k.t.Fatal(err)
	}
}

func quiet(t *testing.T) *slog.Logger {
	t.Helper()
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError}))
}

func (k *kernel) open() *Source {
	k.t.Helper()
	s := New(quiet(k.t), k.options)
	k.t.Cleanup(func() { k.close(s) })
	return s
}

func (k *kernel) close(s *Source) {
	k.t.Helper()
	if err := s.Close(context.Background()); err != nil {
		k.t.Errorf("close: %v", err)
	}
}

// collect collects until the source has read all that was written.
func (k *kernel) collect(s *Source) *fleet.Samples {
	k.t.Helper()
	all := &fleet.Samples{At: time.Now()}
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		into := &fleet.Samples{At: all.At}
		if err := s.Collect(k.t.Context(), into); err != nil {
			k.t.Fatalf("collect: %v", err)
		}
		all.GPUs, all.Dropped = into.GPUs, all.Dropped+into.Dropped
		all.Events = append(all.Events, into.Events...)
		all.Switches = append(all.Switches, into.Switches...)
		s.mu.Lock()
		read := s.cursor.Next >= k.number
		s.mu.Unlock()
		if read {
			s.mu.Lock()
			more := len(s.pending) + len(s.sxids)
			s.mu.Unlock()
			if more == 0 {
				return all
			}
		}
		if time.Now().After(end) {
			k.t.Fatal("the log is not read to its end")
		}
	}
}

func told(s *fleet.Samples) []string {
	var out []string
	for _, e := range s.Events {
		out = append(out, fmt.Sprintf("%s %d", s.GPUs[e.GPU].PCI, e.XID))
	}
	return out
}

func TestXIDsOfTheKernel(t *testing.T) {
	k := newKernel(t, "0000:2a:00.0", "0000:1a:00.0")
	k.device("0000:3a:00.0", "0x10de", "0x068000") // an NVSwitch
	k.device("0000:4a:00.0", "0x8086", "0x030000")
	s := k.open()
	k.say(6, 0, "nothing of ours")
	first := k.collect(s)
	want := []fleet.SampledGPU{{Index: 0, PCI: "00000000:1A:00.0"}, {Index: 1, PCI: "00000000:2A:00.0"}}
	if d := cmp.Diff(want, first.GPUs); d != "" {
		t.Errorf("GPUs (-want +got):\n%s", d)
	}
	k.say(3, 0, "NVRM: Xid (PCI:0000:2a:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
	k.say(3, 0, "NVRM: Xid (PCI:0000:1a:00 GPU-I:02 GPU-CI:00): 31, pid=7, name=a, Ch 1")
	k.say(11, 0, "NVRM: Xid (PCI:0000:1a:00): 48, a user says so") // facility 1
	k.say(3, 0, "NVRM: Xid (PCI:0000:1a:00): lots")
	k.say(3, 0, "NVRM: Xid (PCI:0000:5a:00): 95, of a GPU that has left the bus")
	k.say(3, 0, "nvidia-nvswitch3: SXid (PCI:0000:3a:00.0): 12028, Non-fatal, Link 32 egress")
	k.say(3, 0, "nvidia-nvswitch3: SXid (PCI:0000:3a:00.0): 12028, Non-fatal, Link 33 egress")
	got := k.collect(s)
	if d := cmp.Diff([]string{"00000000:2A:00.0 79", "00000000:1A:00.0 31", "00000000:5A:00.0 95"}, told(got)); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
	if got.Dropped != 1 {
		t.Errorf("%d dropped, want the line that can't be read", got.Dropped)
	}
	for _, e := range got.Events {
		if age := time.Since(e.At); age < -time.Second || age > 5*time.Second {
			t.Errorf("XID %d is %v old", e.XID, age)
		}
	}
	var sxids []string
	for _, e := range got.Switches {
		sxids = append(sxids, fmt.Sprintf("%s %d %s", e.PCI, e.SXID, e.Severity))
	}
	if d := cmp.Diff([]string{"00000000:3A:00.0 12028 nonfatal", "00000000:3A:00.0 12028 nonfatal"}, sxids); d != "" {
		t.Errorf("SXIDs (-want +got):\n%s", d)
	}
	if len(got.Switches) == 2 && !got.Switches[1].At.After(got.Switches[0].At) {
		t.Errorf("two links' errors are both of %v: they would count as one", got.Switches[0].At)
	}
	k.number += 5 // the kernel's ring was full
	k.say(3, 0, "NVRM: Xid (PCI:0000:1a:00): 13, Graphics Exception")
	if got := k.collect(s); got.Dropped != 5 || len(got.Events) != 1 {
		t.Errorf("%d dropped and %d events after a gap of 5 records", got.Dropped, len(got.Events))
	}
}

// TestTheRingIsReadAgain: two runs over one kernel ring count nothing twice and lose
// nothing of what came between them.
func TestTheRingIsReadAgain(t *testing.T) {
	k := newKernel(t, "0000:1a:00.0")
	state := t.TempDir() + "/state"
	run := func(s *Source) *collector.Collector {
		c, err := collector.New(quiet(t), "n", []collector.Source{s}, collector.Options{State: state, BootID: "b"})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	counted := func(c *collector.Collector, xid, want int) {
		t.Helper()
		line := fmt.Sprintf("stoker_gpu_xid_errors_total{node=\"n\",gpu=\"0\",UUID=\"\",pci_bus_id=\"00000000:1A:00.0\",xid=\"%d\"} %d\n", xid, want)
		page := ""
		for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if err := c.Gather(t.Context(), time.Now()); err != nil {
				t.Fatal(err)
			}
			if page = string(c.AppendPage(nil, time.Now())); strings.Contains(page, line) {
				return
			}
		}
		t.Errorf("no %q in\n%s", line, page)
	}
	const at = "NVRM: Xid (PCI:0000:1a:00): "
	k.say(3, time.Hour, at+"79, of before")
	s := k.open()
	c := run(s)
	if err := c.Gather(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	k.say(3, 0, at+"48, DBE")
	k.say(3, 0, at+"31, Ch 1")
	counted(c, 48, 1)
	counted(c, 31, 1)
	counted(c, 79, 0)
	k.close(s)

	// While nobody reads: whoever opens the log finds it in the ring.
	_, sinceBoot := clock()
	k.ring = append(k.ring, fmt.Sprintf("3,%d,%d,-;%s95, uncontained\n", k.number, sinceBoot.Microseconds(), at))
	k.number++
	k.again()
	s = k.open()
	c = run(s)
	counted(c, 95, 1)
	counted(c, 48, 1)
	counted(c, 31, 1)
	counted(c, 79, 0)
}

func TestALogThatCanNotBeRead(t *testing.T) {
	s := New(quiet(t), Options{Path: filepath.Join(t.TempDir(), "none"), Devices: t.TempDir()})
	err := s.Collect(t.Context(), &fleet.Samples{At: time.Now()})
	if err == nil || !strings.Contains(err.Error(), "none: no such file or directory") {
		t.Errorf("err = %v, want what is missing", err)
	}
	if err := s.Resume([]byte("{")); err == nil {
		t.Error("half a cursor was taken")
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}

	// One that ends is opened again.
	k := newKernel(t, "0000:1a:00.0")
	s = k.open()
	k.say(6, 0, "x")
	k.collect(s)
	s.mu.Lock()
	_ = s.file.Close()
	s.mu.Unlock()
	failed := false
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end) && !failed; time.Sleep(5 * time.Millisecond) {
		failed = s.Collect(t.Context(), &fleet.Samples{At: time.Now()}) != nil
	}
	if !failed {
		t.Error("the end of the log is not told")
	}
	k.say(3, 0, "NVRM: Xid (PCI:0000:1a:00): 13, Graphics Exception")
	if got := k.collect(s); len(got.Events) != 1 {
		t.Errorf("%d events after the log was opened again, want one", len(got.Events))
	}
}

func TestRecords(t *testing.T) {
	for line, want := range map[string]record{
		"3,1204,98123456,-;NVRM: x":      {0, 1204, 98123456 * time.Microsecond, "NVRM: x"},
		"14,7,1,c,caller=T1;a;b":         {1, 7, time.Microsecond, "a;b"},
		"":                               {},
		"3,1204,98123456;too short":      {},
		"x,1,1,-;no number":              {},
		"3,-1,1,-;negative":              {},
		"3,1,99999999999999999999,-;big": {},
	} {
		got, err := parseRecord(line)
		if got != want || (err == nil) != (want.text != "") {
			t.Errorf("%q: %+v, %v; want %+v", line, got, err, want)
		}
	}
}
