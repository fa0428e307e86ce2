//go:build linux

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestWithoutRoot: the sources file and exporter need no rights, which is shown by running the
// program as nobody where the test itself is root.
func TestWithoutRoot(t *testing.T) {
	dir := t.TempDir()
	binary, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	program, file := filepath.Join(dir, "stoker-collector"), filepath.Join(dir, "gpu.prom")
	writePage(t, program, string(binary))
	writePage(t, file, page)
	// The folder that t.TempDir makes, and the one where go builds, are their owner's alone.
	for path, mode := range map[string]os.FileMode{filepath.Dir(dir): 0o755, dir: 0o755, program: 0o755, file: 0o644} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	exporter := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, page) }))
	defer exporter.Close()
	for source, flags := range map[string][]string{"file": {"--file", file}, "exporter": {"--exporter", exporter.URL + "/metrics"}} {
		t.Run(source, func(t *testing.T) {
			cmd := exec.Command(program, append(flags, "--source", source, "--node", "n", "--interval", "100ms")...)
			cmd.Env, cmd.Dir = append(os.Environ(), "STOKER_COLLECTOR_MAIN=1"), dir
			uid := os.Getuid()
			if uid == 0 {
				uid = 65534
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
			}
			p := launch(t, cmd)
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Process.Pid))
			if ids := fmt.Sprintf("Uid:\t%d\t%d\t", uid, uid); err != nil || !strings.Contains(string(status), ids) {
				t.Errorf("it does not run as user %d (%v):\n%s", uid, err, status)
			}
			p.await(t, `stoker_gpu_up{node="n",gpu="0",UUID="GPU-a",pci_bus_id="00000000:1A:00.0"} 1`)
			p.await(t, `stoker_collector_source_up{node="n",source="`+source+`"} 1`)
			p.stop(t)
		})
	}
}
