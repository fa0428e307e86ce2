package spine

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/internal/e2e/scene"
)

// mistaken is a configuration with three mistakes, each in a line of its own.
func mistaken(tokenFile string) string {
	text := scene.Settings{}.YAML(tokenFile)
	text = strings.Replace(text, "every: 500ms", "evry: 500ms", 1)                           // line 2
	text = strings.Replace(text, "- drain: {within: 3m}", "- drain: {within: 3 minutes}", 1) // line 11
	return strings.Replace(text, "- reboot: {within: 3m}", "- rebot: {within: 3m}", 1)       // line 12
}

// TestAMistakenConfiguration: the service does not start with one, and says every mistake
// with its place.
func TestAMistakenConfiguration(t *testing.T) {
	f := scene.SetUp(t, "mistaken", scene.Needs{Nodes: 1})
	file := filepath.Join(f.Folder, "mistaken.yaml")
	if err := os.WriteFile(file, []byte(mistaken(f.TokenFile)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"controller", "--config", file, "--kubeconfig", f.Kubeconfig, "--namespace", f.System, "--listen", "127.0.0.1:0"},
		{"rules", "check", file},
	} {
		_, complaint, code := f.Stoker(t, args...)
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
	if did := f.Audit(t).By(f.User); len(did) > 0 {
		t.Errorf("it reached for the cluster all the same:\n%s", did)
	}
}

// TestTheRunningConfigurationIsKept gives a running service a configuration with mistakes,
// which it must not take, and then a good one, which it must.
func TestTheRunningConfigurationIsKept(t *testing.T) {
	f := scene.SetUp(t, "kept", scene.Needs{Nodes: 2})
	s := f.Serve(t, scene.Settings{})
	s.AwaitLeader(t)
	s.Configure(t, mistaken(f.TokenFile))
	s.AwaitLog(t, s.Proc, "evry", scene.Soon)

	// The playbook of before is still there.
	s.Tell(t, scene.WebhookBody(t, f.GPULost(t, f.Nodes[0], time.Now())))
	in := f.AwaitIncident(t, f.Nodes[0], "to be at its ladder", scene.Soon, func(in scene.Incident) bool { return len(in.Steps) > 0 })
	if in.Playbook != "gpu-lost" {
		t.Errorf("the incident has playbook %q, want gpu-lost", in.Playbook)
	}
	f.AwaitIncident(t, f.Nodes[0], "to be over", scene.Long, scene.Incident.Over)

	s.Configure(t, strings.ReplaceAll(scene.Settings{}.YAML(f.TokenFile), "name: gpu-lost", "name: another"))
	s.AwaitLog(t, s.Proc, "configuration taken", scene.Soon)
	s.Tell(t, scene.WebhookBody(t, f.GPULost(t, f.Nodes[1], time.Now())))
	in = f.AwaitIncident(t, f.Nodes[1], "to be there", scene.Soon, func(scene.Incident) bool { return true })
	if in.Playbook != "another" {
		t.Errorf("the incident has playbook %q, want another", in.Playbook)
	}
	f.AwaitIncident(t, f.Nodes[1], "to be over", scene.Long, scene.Incident.Over)
}
