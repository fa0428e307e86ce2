//go:build cgo && linux

package dcgm_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"stoker.dev/stoker/collector"
	"stoker.dev/stoker/collector/dcgm"
	"stoker.dev/stoker/collector/kmsg"
	"stoker.dev/stoker/internal/fleet"
)

// machine has two switches, links of a switch and of a GPU, and a CPU with three cores.
func machine(n *node) {
	n.do("switch 0 58") // 3a
	n.do("switch 1 59")
	n.do("link 3 1 4 3")
	n.do("link 3 1 5 2") // is down
	n.do("link 1 6 0 2") // is down
	n.do("link 1 6 2 3")
	n.do("link 1 6 17 3")
	n.do("cpu 0 0 2")
}

func list(t *testing.T, text string) []dcgm.Field {
	t.Helper()
	fields, err := dcgm.ParseFields(text)
	if err != nil {
		t.Fatal(err)
	}
	return fields
}

const machineFields = `DCGM_FI_DEV_GPU_TEMP, gauge, a
DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT, gauge, b
DCGM_FI_DEV_NVSWITCH_LINK_THROUGHPUT_TX, gauge, c
DCGM_FI_DEV_NVLINK_COUNT_RX_ERRORS, counter, d
DCGM_FI_DEV_CPU_POWER_UTIL_CURRENT, gauge, e
DCGM_FI_DEV_CPU_UTIL_TOTAL, gauge, f
DCGM_FI_DRIVER_VERSION, label, g
`

// others returns the series of a page that belong to no GPU of the field.
func others(page, field string) []string {
	var out []string
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, field+"{") {
			out = append(out, strings.TrimSpace(strings.TrimPrefix(line, field)))
		}
	}
	slices.Sort(out)
	return out
}

// TestSwitchesLinksAndCPUs have the labels that dcgm-exporter gives them.
func TestSwitchesLinksAndCPUs(t *testing.T) {
	n := newNode(t, dcgm.Options{Fields: list(t, machineFields)})
	machine(n)
	n.do("set 3 0 858 i 51")
	n.do("set 3 1 858 i 52")
	got := page(t, newCollector(t, collector.Options{}, n.source))
	const driver = `,hostname="n",DCGM_FI_DRIVER_VERSION="570.124.06"} `
	for field, want := range map[string][]string{
		"DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT": {`{nvswitch="nvswitch0"` + driver + "51", `{nvswitch="nvswitch1"` + driver + "52"},
		// A field of links is one of the switch, too, as its engine sums them up.
		"DCGM_FI_DEV_NVSWITCH_LINK_THROUGHPUT_TX": {
			`{nvlink="1",gpu="6",gpu_uuid="GPU-00000006-1111-2222-3333-444444440006",pci_bus_id="00000000:7A:00.0",device="nvidia6",model_name="NVIDIA H100 80GB HBM3"` + driver,
			`{nvlink="2",gpu="6",gpu_uuid="GPU-00000006-1111-2222-3333-444444440006",pci_bus_id="00000000:7A:00.0",device="nvidia6",model_name="NVIDIA H100 80GB HBM3"` + driver,
			`{nvlink="4",nvswitch="nvswitch1"` + driver,
			`{nvswitch="nvswitch0"` + driver,
			`{nvswitch="nvswitch1"` + driver,
		},
		"DCGM_FI_DEV_CPU_POWER_UTIL_CURRENT": {`{cpu="0"` + driver},
		"DCGM_FI_DEV_CPU_UTIL_TOTAL": {
			`{cpu="0"` + driver, `{cpucore="0",cpu="0"` + driver, `{cpucore="1",cpu="0"` + driver, `{cpucore="2",cpu="0"` + driver,
		},
	} {
		rows := others(got, field)
		for i := range rows {
			if !strings.HasSuffix(want[min(i, len(want)-1)], "1") && !strings.HasSuffix(want[min(i, len(want)-1)], "2") {
				at := strings.LastIndex(rows[i], " ")
				rows[i] = rows[i][:at+1]
			}
		}
		if d := cmp.Diff(want, rows); d != "" {
			t.Errorf("%s (-want +got):\n%s", field, d)
		}
	}
	if rows := others(got, "DCGM_FI_DEV_GPU_TEMP"); len(rows) != 8 {
		t.Errorf("%d series of GPUs' temperatures, want 8", len(rows))
	}
	held := n.do("held")
	n.do("link 3 0 1 3")
	s := &fleet.Samples{At: time.Now().Add(2 * time.Minute)}
	if err := n.source.Collect(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if got := slices.IndexFunc(s.Values, func(v fleet.Sample) bool {
		return slices.Contains(v.Labels, fleet.Label{Name: "nvlink", Value: "1"}) && slices.Contains(v.Labels, fleet.Label{Name: "nvswitch", Value: "nvswitch0"})
	}); got < 0 {
		t.Error("a link that came up is not found after a minute")
	}
	if now := n.do("held"); now != held {
		t.Errorf("the engine holds %d things, %d before", now, held)
	}
}

// TestWhatIsNotThereCostsNothing: where no field of theirs is wanted, links and CPUs are
// not even asked for, and a reading makes as many calls as without them.
func TestWhatIsNotThereCostsNothing(t *testing.T) {
	calls := func(prepare func(*node)) int {
		n := newNode(t, dcgm.Options{})
		prepare(n)
		n.collect()
		before := n.do("calls")
		n.collect()
		return n.do("calls") - before
	}
	none := calls(func(*node) {})
	if n := calls(func(n *node) { n.do("cpu 0 0 71"); n.do("link 1 0 1 3") }); n != none {
		t.Errorf("%d calls a reading with CPUs and links that nobody asked for, %d without", n, none)
	}
	if n := calls(func(n *node) { n.do("switch 0 58") }); n != none+1 {
		t.Errorf("%d calls a reading with a switch, whose errors are read, %d without", n, none)
	}
}

func TestWhichDevicesAreShown(t *testing.T) {
	for text, want := range map[string]string{
		"f":               "gpu0 gpu1/3 gpu2 | nvswitch0 nvswitch1 4 | cpu0 0 1 2",
		"g":               "gpu0 gpu1 gpu2 | nvswitch0 nvswitch1 | cpu0",
		"i":               "gpu1/3 | 4 | 0 1 2",
		"g:0,2-5":         "gpu0 gpu2 | nvswitch0 | cpu0",
		"i:7,4":           "gpu1/3 | 4 |",
		"g:1+i:1":         "gpu1 | nvswitch1 | 1",
		"g:1-1+i:1,2,7,4": "gpu1 gpu1/3 | nvswitch1 4 | 1 2",
	} {
		t.Run(text, func(t *testing.T) {
			sel, err := dcgm.ParseSelection(text)
			if err != nil {
				t.Fatal(err)
			}
			n := newNode(t, dcgm.Options{
				Fields: list(t, machineFields+"DCGM_FI_DEV_FB_USED, gauge, x\n"), Devices: sel, SwitchDevices: sel, CPUDevices: sel,
			})
			n.do("reset 3")
			n.do("switch 0 58")
			n.do("switch 1 59")
			n.do("link 3 1 4 3")
			n.do("cpu 0 0 2")
			n.do("mig 1 7 3 2")
			got := n.collect()
			var gpus, switches, cpus []string
			for _, v := range got.Values {
				switch {
				case v.Field == "DCGM_FI_DEV_FB_USED":
					name := fmt.Sprintf("gpu%d/%s", got.GPUs[v.GPU].Index, got.GPUs[v.GPU].Instance)
					gpus = append(gpus, strings.TrimSuffix(name, "/"))
				case v.GPU != fleet.NoGPU || v.Field == "DCGM_FI_DEV_CPU_POWER_UTIL_CURRENT":
				case v.Field == "DCGM_FI_DEV_NVSWITCH_LINK_THROUGHPUT_TX":
					switches = append(switches, v.Labels[0].Value)
				case v.Field == "DCGM_FI_DEV_CPU_UTIL_TOTAL":
					cpus = append(cpus, strings.Replace(v.Labels[0].Name, "cpucore", "", 1)+v.Labels[0].Value)
				}
			}
			slices.Sort(gpus)
			slices.Sort(cpus)
			// Links after switches.
			slices.SortFunc(switches, func(a, b string) int { return strings.Compare(b[:1]+a, a[:1]+b) })
			sets := strings.Split(want, "|")
			for i, got := range [][]string{gpus, switches, cpus} {
				want := strings.Fields(sets[i])
				slices.Sort(want)
				slices.Sort(got)
				if !slices.Equal(want, got) {
					t.Errorf("shown %v, want %v", got, want)
				}
			}
			if len(got.GPUs) != 4 {
				t.Errorf("%d GPUs and instances are listed, want all 4: how they do is not a matter of taste", len(got.GPUs))
			}
		})
	}
	for _, text := range []string{"x", "g:", "g:a", "f:1", "g:2-1", "g+g", "i:1-", "g:0-99999", ":", "+"} {
		if _, err := dcgm.ParseSelection(text); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%q: err = %v, want it named", text, err)
		}
	}
}

// TestErrorsOfNVLinks: each sample of field 450 is an event, however late it is read.
func TestErrorsOfNVLinks(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	n.do("event 1 2 450 2") // of before the collector
	time.Sleep(2 * time.Millisecond)
	c := newCollector(t, collector.Options{}, n.source)
	row := func(kind string, count int) string {
		return "stoker_gpu_nvlink_errors_total" + strings.Replace(series(2, 0), `xid="0"`, `error="`+kind+`"`, 1) + fmt.Sprintf(" %d\n", count)
	}
	wantIn(t, page(t, c), row("fatal", 0), row("recovery", 0))
	for _, value := range []int{2, 1, 1, 2, 3, 0} {
		n.do("event 1 2 450 %d", value)
	}
	for range 2 { // the overlap tells of them again
		wantIn(t, page(t, c), row("fatal", 2), row("recovery", 2))
	}
	wantIn(t, page(t, c), `stoker_collector_samples_dropped_total{node="n",source="dcgm"} 1`)

	// An engine that does not have the field: nothing is known of such errors.
	other := newNode(t, dcgm.Options{})
	other.do("refuse 450 -6")
	if got := page(t, newCollector(t, collector.Options{}, other.source)); strings.Contains(got, "nvlink_errors_total") {
		t.Error("none is told where nobody can tell")
	}
}

// TestErrorsOfSwitches: what the engine tells of a switch and the kernel's log too is one
// error, which names both.
func TestErrorsOfSwitches(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	n.do("switch 0 58")
	path := filepath.Join(t.TempDir(), "kmsg")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	ring, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ring.Close() }()
	kernel := kmsg.New(quiet(t), kmsg.Options{Path: path, Devices: t.TempDir()})
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
	n.do("event 3 0 856 20009")
	n.do("event 3 0 857 12028")
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(ring, "3,1,%d,-;nvidia-nvswitch0: SXid (PCI:0000:3a:00.0): 20009, Fatal, Link 4 LTSSM Fault Up\n", now.Nano()/1000); err != nil {
		t.Fatal(err)
	}
	const of = `{node="n",pci_bus_id="00000000:3A:00.0",severity=`
	got := ""
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if got = page(t, c); strings.Contains(got, `sxid="20009",source="kmsg"} 1`) {
			break
		}
	}
	wantIn(t, got,
		"stoker_nvswitch_sxid_errors_total"+of+`"fatal",sxid="20009"} 1`,
		"stoker_nvswitch_sxid_errors_total"+of+`"nonfatal",sxid="12028"} 1`,
		"stoker_nvswitch_sxid_seen_total"+of+`"fatal",sxid="20009",source="dcgm"} 1`,
		"stoker_nvswitch_sxid_seen_total"+of+`"fatal",sxid="20009",source="kmsg"} 1`)
}
