//go:build cgo && linux

package nvml

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxb200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"go.uber.org/goleak"

	"stoker.dev/stoker/internal/fleet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A box is a server of the library's own mock, with what that leaves out.
type box struct {
	*server.Server
	devices []*server.Device
	events  chan nvml.EventData
	lost    atomic.Int32 // number of the GPU that is lost; -1: none
	hang    chan struct{}
	asked   atomic.Int32 // GPUs whose XIDs are waited for
	fades   atomic.Bool  // a GPU with MIG is lost while it is asked for its instances
}

func newBox(t *testing.T, s *server.Server) *box {
	t.Helper()
	b := &box{Server: s, events: make(chan nvml.EventData, 16), hang: make(chan struct{})}
	b.lost.Store(-1)
	close(b.hang)
	set := &mock.EventSet{
		WaitFunc: func(ms uint32) (nvml.EventData, nvml.Return) {
			select {
			case e := <-b.events:
				return e, nvml.SUCCESS
			case <-time.After(time.Duration(ms) * time.Millisecond):
				return nvml.EventData{}, nvml.ERROR_TIMEOUT
			}
		},
		FreeFunc: func() nvml.Return { return nvml.SUCCESS },
	}
	s.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) { return set, nvml.SUCCESS }
	for i := range 8 {
		d, r := s.DeviceGetHandleByIndex(i)
		dev, ok := d.(*server.Device)
		if r != nvml.SUCCESS || !ok {
			t.Fatalf("GPU %d: %v, %T", i, r, d)
		}
		b.devices = append(b.devices, dev)
		state := func() nvml.Return {
			<-b.hang
			if int(b.lost.Load()) == i {
				return nvml.ERROR_GPU_IS_LOST
			}
			return nvml.SUCCESS
		}
		dev.GetPciInfoFunc = func() (nvml.PciInfo, nvml.Return) {
			p := nvml.PciInfo{}
			for k, c := range fmt.Sprintf("00000000:%dA:00.0", i+1) {
				p.BusId[k] = int8(c)
			}
			return p, nvml.SUCCESS
		}
		dev.GetClockInfoFunc = func(k nvml.ClockType) (uint32, nvml.Return) { return 1000 + uint32(k), state() }
		dev.GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) { return uint32(40 + i), state() }
		dev.GetPowerUsageFunc = func() (uint32, nvml.Return) { return 300_500, state() }
		dev.GetTotalEnergyConsumptionFunc = func() (uint64, nvml.Return) { return 7, state() }
		dev.GetPcieReplayCounterFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
		dev.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{Gpu: 90, Memory: 10}, state() }
		dev.GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) { return 3, 1, false, true, state() }
		dev.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) {
			return nvml.Memory{Total: 80 << 30, Free: 79 << 30, Used: 1 << 30}, state()
		}
		dev.GetGpuFabricInfoFunc = func() (nvml.GpuFabricInfo, nvml.Return) { return nvml.GpuFabricInfo{}, nvml.ERROR_NOT_SUPPORTED }
		dev.GetNvLinkStateFunc = func(int) (nvml.EnableState, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
		dev.RegisterEventsFunc = func(uint64, nvml.EventSet) nvml.Return {
			b.asked.Add(1)
			return nvml.SUCCESS
		}
	}
	return b
}

func open(t *testing.T, lib nvml.Interface) *Source {
	t.Helper()
	s := newSource(slog.New(slog.NewTextHandler(t.Output(), nil)), lib)
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func collect(t *testing.T, s *Source) *fleet.Samples {
	t.Helper()
	into := &fleet.Samples{At: time.Now()}
	if err := s.Collect(t.Context(), into); err != nil {
		t.Fatal(err)
	}
	return into
}

func value(s *fleet.Samples, gpu int, field string) (float64, bool) {
	for _, v := range s.Values {
		if v.Field == field && s.GPUs[v.GPU].Index == gpu {
			return v.Value, true
		}
	}
	return 0, false
}

// TestEveryDGX reads all servers that the library's mock has.
func TestEveryDGX(t *testing.T) {
	for name, s := range map[string]*server.Server{"a100": dgxa100.New(), "h100": dgxh100.New(), "h200": dgxh200.New(), "b200": dgxb200.New()} {
		t.Run(name, func(t *testing.T) {
			got := collect(t, open(t, newBox(t, s)))
			if len(got.GPUs) != 8 {
				t.Fatalf("%d GPUs, want 8", len(got.GPUs))
			}
			for i, g := range got.GPUs {
				if g.Index != i || g.UUID == "" || g.PCI == "" || !strings.Contains(strings.ToLower(g.Model), name[:1]) || g.Up != fleet.True {
					t.Errorf("GPU %d is %+v", i, g)
				}
			}
			for field, want := range map[string]float64{
				"DCGM_FI_DEV_GPU_TEMP": 45, "DCGM_FI_DEV_POWER_USAGE": 300.5, "DCGM_FI_DEV_FB_USED": 1024, "DCGM_FI_DEV_GPU_UTIL": 90,
				"DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": 1, "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": 3, "DCGM_FI_DEV_ROW_REMAP_FAILURE": 1,
			} {
				if v, ok := value(got, 5, field); !ok || v != want {
					t.Errorf("%s is %v, %v; want %v", field, v, ok, want)
				}
			}
			if _, ok := value(got, 5, "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"); ok {
				t.Error("a field that is not supported is there")
			}
		})
	}
}

func TestAnXIDAndALostGPU(t *testing.T) {
	b := newBox(t, dgxh100.New())
	s := open(t, b)
	first := collect(t, s)
	awoken := func() {
		t.Helper()
		select {
		case <-s.Wake():
		case <-time.After(10 * time.Second):
			t.Fatal("nobody was woken up")
		}
	}
	asked := func(times int32) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); b.asked.Load() < times; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("XIDs were asked for %d times, want %d", b.asked.Load(), times)
			}
		}
	}
	asked(8)
	b.lost.Store(3)
	who := b.devices[3].GetUUIDFunc
	b.devices[3].GetUUIDFunc = func() (string, nvml.Return) { return "", nvml.ERROR_GPU_IS_LOST }
	b.events <- nvml.EventData{Device: b.devices[3], EventType: nvml.EventTypeXidCriticalError, EventData: 79, GpuInstanceId: 0xFFFFFFFF}
	awoken()
	b.devices[3].GetUUIDFunc = who
	into := &fleet.Samples{At: time.Now()}
	if err := s.CollectEvents(t.Context(), into); err != nil {
		t.Fatal(err)
	}
	if len(into.Events) != 1 || into.Events[0].XID != 79 || into.GPUs[into.Events[0].GPU].UUID != first.GPUs[3].UUID {
		t.Errorf("told %+v of %+v, want the 79 of GPU 3", into.Events, into.GPUs)
	}
	got := collect(t, s)
	if g := got.GPUs[3]; g.Up != fleet.False || g.UUID != first.GPUs[3].UUID {
		t.Errorf("GPU 3 is %+v, want lost", g)
	}
	if _, ok := value(got, 3, "DCGM_FI_DEV_SM_CLOCK"); ok {
		t.Error("a lost GPU has values")
	}
	if _, ok := value(got, 4, "DCGM_FI_DEV_SM_CLOCK"); !ok {
		t.Error("the others have none")
	}
	if len(got.Events) != 0 {
		t.Errorf("told again: %+v", got.Events)
	}
	if got.Dropped+into.Dropped != 0 {
		t.Errorf("%d dropped", got.Dropped+into.Dropped)
	}
	stranger := &mock.Device{GetUUIDFunc: func() (string, nvml.Return) { return "", nvml.ERROR_GPU_IS_LOST }}
	for _, e := range []nvml.EventData{{Device: stranger, EventData: 79}, {Device: b.devices[1]}} {
		e.EventType = nvml.EventTypeXidCriticalError
		b.events <- e
		awoken()
	}
	for _, want := range []int{2, 0} { // of a GPU that nobody knows, and without a code
		into := &fleet.Samples{}
		if err := s.CollectEvents(t.Context(), into); err != nil || into.Dropped != want || len(into.Events) > 0 {
			t.Errorf("%d dropped and %d events (err %v), want %d and none", into.Dropped, len(into.Events), err, want)
		}
	}

	// When it is back its XIDs are asked for anew.
	b.lost.Store(-1)
	collect(t, s)
	asked(9)

	// One that the driver does not even hand out any more.
	handle := b.DeviceGetHandleByIndexFunc
	b.DeviceGetHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if i == 6 {
			return nil, nvml.ERROR_GPU_IS_LOST
		}
		return handle(i)
	}
	got = collect(t, s)
	last := got.GPUs[len(got.GPUs)-1]
	if len(got.GPUs) != 8 || last.UUID != first.GPUs[6].UUID || last.Up != fleet.False {
		t.Errorf("%d GPUs, the last %+v; want GPU 6 lost with its identity", len(got.GPUs), last)
	}
}

func TestADriverThatIsNotThereOrHangs(t *testing.T) {
	missing := &mock.Interface{InitFunc: func() nvml.Return { return nvml.ERROR_LIBRARY_NOT_FOUND }}
	s := open(t, missing)
	err := s.Collect(t.Context(), &fleet.Samples{At: time.Now()})
	if err == nil || err.Error() != "nvmlInit: libnvidia-ml.so.1 is not there" {
		t.Errorf("err = %v", err)
	}

	b := newBox(t, dgxh100.New())
	s = open(t, b)
	collect(t, s)
	b.hang = make(chan struct{})
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("no time left")) // enough to come to where it hangs
	defer cancel()
	err = s.Collect(ctx, &fleet.Samples{At: time.Now()})
	if err == nil || !strings.HasPrefix(err.Error(), "the driver is asked about GPU 0 since ") || !strings.HasSuffix(err.Error(), ": no time left") {
		t.Errorf("err = %v, want what it hangs in", err)
	}
	close(b.hang)
	collect(t, s)
}
