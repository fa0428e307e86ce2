//go:build cgo && linux

package dcgm_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"stoker.dev/stoker/collector/dcgm"
	"stoker.dev/stoker/internal/fleet"
)

// TestNVLinkDomains: of GPUs that have joined one, and of no other.
func TestNVLinkDomains(t *testing.T) {
	const domain = "5f3c0001-aaaa-bbbb-cccc-000000000001"
	n := newNode(t, dcgm.Options{})
	n.Do(t, "set 1 0 172 s %s", domain)
	n.Do(t, "set 1 0 173 i 32766")
	n.Do(t, "set 1 1 172 s %s", domain)
	n.Do(t, "set 1 1 173 b") // its clique is not known
	got := n.collect()
	want := []fleet.NVLinks{{GPU: got.GPUs[0].UUID, Domain: domain, Clique: 32766}}
	if diff := cmp.Diff(want, got.NVLinks); diff != "" {
		t.Errorf("domains (-want +got):\n%s", diff)
	}
	if again := n.collect(); len(again.NVLinks) != 1 {
		t.Errorf("between two questions it is %v", again.NVLinks)
	}
	for _, v := range got.Values {
		if v.Field == "DCGM_FI_DEV_FABRIC_CLIQUE_ID" {
			t.Error("a field that nobody asked for is shown")
		}
	}
}

// TestAnEngineWithoutNVLinkDomains misses nothing that anybody asked for.
func TestAnEngineWithoutNVLinkDomains(t *testing.T) {
	n := newNode(t, dcgm.Options{})
	n.Do(t, "refuse 172 -13")
	got := n.collect()
	if len(got.NVLinks) != 0 || len(got.Values) == 0 {
		t.Errorf("domains %v, %d values", got.NVLinks, len(got.Values))
	}
	if page := string(n.source.AppendPage(nil)); strings.Contains(page, "172") || strings.Contains(page, "FABRIC") {
		t.Errorf("the page says that something is missing:\n%s", page)
	}
}
