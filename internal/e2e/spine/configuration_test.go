package spine

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// mistaken is a configuration with three mistakes, each in a line of its own.
func mistaken(tokenFile string) string {
	text := settings{}.yaml(tokenFile)
	text = strings.Replace(text, "every: 500ms", "evry: 500ms", 1)                           // line 2
	text = strings.Replace(text, "- drain: {within: 3m}", "- drain: {within: 3 minutes}", 1) // line 11
	return strings.Replace(text, "- reboot: {within: 3m}", "- rebot: {within: 3m}", 1)       // line 12
}

// TestAMistakenConfiguration: the service does not start with one, and says every mistake
// with its place.
func TestAMistakenConfiguration(t *testing.T) {
	f := setUp(t, "mistaken", needs{nodes: 1})
	file := filepath.Join(f.dir, "mistaken.yaml")
	if err := os.WriteFile(file, []byte(mistaken(f.tokenFile)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"controller", "--config", file, "--kubeconfig", f.kubeconfig, "--namespace", f.system, "--listen", "127.0.0.1:0"},
		{"rules", "check", file},
	} {
		_, complaint, code := f.stoker(t, args...)
		if code != 2 {
			t.Errorf("stoker %s ends with %d, want 2", args[0], code)
		}
		for _, want := range []string{
			fmt.Sprintf("%s:2:", file), "evry",
			fmt.Sprintf("%s:11:", file), "3 minutes",
			fmt.Sprintf("%s:12:", file), "rebot",
		} {
			if !strings.Contains(complaint, want) {
				t.Errorf("stoker %s does not say %q:\n%s", args[0], want, complaint)
			}
		}
	}
	if did := f.Audit(t).By(f.user); len(did) > 0 {
		t.Errorf("it reached for the cluster all the same:\n%s", did)
	}
}

// TestTheRunningConfigurationIsKept gives a running service a configuration with mistakes,
// which it must not take, and then a good one, which it must.
func TestTheRunningConfigurationIsKept(t *testing.T) {
	f := setUp(t, "kept", needs{nodes: 2})
	s := f.serve(t, settings{})
	s.awaitLeader(t)
	s.configure(t, mistaken(f.tokenFile))
	s.AwaitLog(t, s.proc, "evry", soon)

	// The playbook of before is still there.
	s.tell(t, webhookBody(t, f.gpuLost(t, f.nodes[0], time.Now())))
	in := f.await(t, f.nodes[0], "to be at its ladder", soon, func(in incident) bool { return len(in.Steps) > 0 })
	if in.Playbook != "gpu-lost" {
		t.Errorf("the incident has playbook %q, want gpu-lost", in.Playbook)
	}
	f.await(t, f.nodes[0], "to be over", long, incident.closed)

	s.configure(t, strings.ReplaceAll(settings{}.yaml(f.tokenFile), "name: gpu-lost", "name: another"))
	s.AwaitLog(t, s.proc, "configuration taken", soon)
	s.tell(t, webhookBody(t, f.gpuLost(t, f.nodes[1], time.Now())))
	in = f.await(t, f.nodes[1], "to be there", soon, func(incident) bool { return true })
	if in.Playbook != "another" {
		t.Errorf("the incident has playbook %q, want another", in.Playbook)
	}
	f.await(t, f.nodes[1], "to be over", long, incident.closed)
}
