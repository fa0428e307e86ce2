//go:build !cgo

package main

import (
	"os"
	"strings"
	"testing"
)

// TestWithoutCgo: a program that was built without it runs, and says what it can't do.
func TestWithoutCgo(t *testing.T) {
	p := start(t, "--source", "dcgm", "--node", "n", "--interval", "100ms")
	p.await(t, `stoker_dcgm_state{state="no-library"} 1`)
	p.await(t, `stoker_collector_source_up{node="n",source="dcgm"} 0`)
	if health := get(t, "http://"+p.address+"/healthz"); !strings.Contains(health, "dcgm: down: this program was built without cgo: the source dcgm can't open libdcgm") {
		t.Errorf("/healthz says %q", health)
	}
	if err := p.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := p.end(t); code != 0 {
		t.Errorf("status %d, want 0:\n%s", code, p.log)
	}
}
