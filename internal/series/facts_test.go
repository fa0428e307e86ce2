package series

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"stoker.dev/stoker/internal/fleet"
)

const (
	gpu0 = `node="n1",gpu="0",UUID="GPU-a",pci_bus_id="00000000:1A:00.0"`
	gpu1 = `node="n1",gpu="1",UUID="GPU-b",pci_bus_id="00000000:2A:00.0"`
)

// healthy is what the collector of n1 shows while all is well.
const healthy = "stoker_collector_source_up{node=\"n1\",source=\"dcgm\"} 1\n" +
	"stoker_node_boot_info{node=\"n1\",boot_id=\"boot-1\"} 1\n" +
	"stoker_gpu_up{" + gpu1 + "} 1\nstoker_gpu_up{" + gpu0 + "} 1\n"

func fill(t *testing.T, tm *Telemetry, now time.Time) fleet.Node {
	t.Helper()
	f := fleet.NewFacts()
	f.Nodes["n1"] = fleet.Node{Name: "n1"}
	if err := tm.Fill(t.Context(), now, f); err != nil {
		t.Fatal(err)
	}
	if len(f.Nodes) != 1 {
		t.Errorf("the facts have nodes %v; series must not invent any", f.Nodes)
	}
	if got := f.Sources[Source]; !got.Equal(now) {
		t.Errorf("the source answered at %v, want %v", got, now)
	}
	return f.Nodes["n1"]
}

func TestFillTellsOfGPUs(t *testing.T) {
	db := open(t, Options{})
	tg := target(t, db)
	mustAppend(t, tg, t0, healthy+
		"stoker_gpu_up{node=\"unknown-to-the-cluster\",gpu=\"0\",UUID=\"GPU-x\"} 1\n"+
		"stoker_collector_source_up{node=\"unknown-to-the-cluster\",source=\"dcgm\"} 1\n")
	tm := NewTelemetry(db)
	got := fill(t, tm, t0)
	want := fleet.Node{
		Name: "n1", BootID: "boot-1", Telemetry: fleet.Condition{Status: fleet.True, Since: t0},
		GPUs: []fleet.GPU{
			{Index: 0, UUID: "GPU-a", PCI: "00000000:1A:00.0", Up: fleet.True, Seen: t0},
			{Index: 1, UUID: "GPU-b", PCI: "00000000:2A:00.0", Up: fleet.True, Seen: t0},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("a healthy node (-want +got):\n%s", diff)
	}

	// GPU 1 falls off the bus, after an older error of another code.
	at := t0.Add(30 * time.Second)
	event := at.Add(-1500 * time.Millisecond)
	mustAppend(t, tg, at, "stoker_collector_source_up{node=\"n1\",source=\"dcgm\"} 1\n"+
		"stoker_gpu_up{"+gpu0+"} 1\nstoker_gpu_up{"+gpu1+"} 0\n"+
		fmt.Sprintf("stoker_gpu_xid_last_event_timestamp_seconds{%s,xid=\"79\"} %d.%03d\n", gpu1, event.Unix(), event.UnixMilli()%1000)+
		fmt.Sprintf("stoker_gpu_xid_last_event_timestamp_seconds{%s,xid=\"45\"} %d\n", gpu1, event.Unix()-60)+
		fmt.Sprintf("stoker_gpu_xid_last_event_timestamp_seconds{%s,xid=\"other\"} %d\n", gpu1, event.Unix()+60))
	got = fill(t, tm, at)
	want.BootID = "" // not told in this exposition, and the cluster's to say
	want.GPUs[0].Seen, want.GPUs[1].Seen = at, at
	want.GPUs[1].Up, want.GPUs[1].XID, want.GPUs[1].XIDTime = fleet.False, 79, event
	got.BootID = ""
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("a lost GPU (-want +got):\n%s", diff)
	}
}

func TestLostTelemetryIsNotKnownAndNotAFault(t *testing.T) {
	// What is appended 10 s after t0, and what is known 10 s, 70 s and 130 s after that.
	for name, tc := range map[string]struct {
		text string // empty: the target is down
		want [3]fleet.Truth
	}{
		"the collector does not answer":                 {"", [3]fleet.Truth{fleet.False, fleet.False, fleet.False}},
		"the source is down":                            {"stoker_collector_source_up{node=\"n1\",source=\"dcgm\"} 0\nstoker_gpu_up{" + gpu0 + "} 1\n", [3]fleet.Truth{fleet.False, fleet.False, fleet.False}},
		"nothing comes any more, and nobody says so":    {healthy, [3]fleet.Truth{fleet.True, fleet.False, fleet.False}},
		"another source goes on, and GPUs are not told": {"stoker_collector_source_up{node=\"n1\",source=\"dcgm\"} 0\nstoker_collector_source_up{node=\"n1\",source=\"kmsg\"} 1\n", [3]fleet.Truth{fleet.True, fleet.False, fleet.False}},
	} {
		t.Run(name, func(t *testing.T) {
			db := open(t, Options{})
			tg := target(t, db)
			mustAppend(t, tg, t0, healthy)
			tm := NewTelemetry(db)
			fill(t, tm, t0)
			at := t0.Add(10 * time.Second)
			if tc.text == "" {
				if err := tg.Down(t.Context(), at); err != nil {
					t.Fatal(err)
				}
			} else {
				mustAppend(t, tg, at, tc.text)
			}
			var since time.Time
			for i, want := range tc.want {
				now := at.Add(10*time.Second + time.Duration(i)*time.Minute)
				n := fill(t, tm, now)
				if n.Telemetry.Status != want {
					t.Errorf("%v after: telemetry is %q, want %q", now.Sub(at), n.Telemetry.Status, want)
				}
				if want == fleet.False {
					if since.IsZero() {
						since = n.Telemetry.Since
					}
					if !n.Telemetry.Since.Equal(since) {
						t.Errorf("lost since %v, then since %v; it was lost once", since, n.Telemetry.Since)
					}
					for _, g := range n.GPUs {
						if g.Up != fleet.Unknown {
							t.Errorf("GPU %d is %q without telemetry, want unknown", g.Index, g.Up)
						}
					}
				}
				if len(n.GPUs) != 2 {
					t.Errorf("%d GPUs are known, want the 2 that there were", len(n.GPUs))
				}
			}
			back := at.Add(10 * time.Minute)
			mustAppend(t, tg, back, healthy)
			n := fill(t, tm, back)
			if want := (fleet.Condition{Status: fleet.True, Since: back}); n.Telemetry != want || n.GPUs[1].Up != fleet.True {
				t.Errorf("after it came back: %+v, GPU 1 up %q; want %+v and true", n.Telemetry, n.GPUs[1].Up, want)
			}
		})
	}
}

func TestANodeThatNeverToldIsUnknown(t *testing.T) {
	db := open(t, Options{})
	tm := NewTelemetry(db)
	if n := fill(t, tm, t0); n.Telemetry.Status != fleet.Unknown || len(n.GPUs) != 0 {
		t.Errorf("a node without series: %+v", n)
	}
	mustAppend(t, target(t, db), t0, "stoker_collector_source_up{node=\"n1\",source=\"dcgm\"} 0\n")
	if n := fill(t, tm, t0); n.Telemetry.Status != fleet.Unknown {
		t.Errorf("a node whose source has never been up: telemetry %q, want unknown", n.Telemetry.Status)
	}
}

func TestFillForgetsNodesThatAreGone(t *testing.T) {
	db := open(t, Options{})
	mustAppend(t, target(t, db), t0, healthy)
	tm := NewTelemetry(db)
	fill(t, tm, t0)
	if err := tm.Fill(t.Context(), t0, fleet.NewFacts()); err != nil {
		t.Fatal(err)
	}
	if len(tm.nodes) != 0 {
		t.Errorf("%d nodes are remembered of a fleet that has none", len(tm.nodes))
	}
}
