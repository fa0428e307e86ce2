package kube

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const kubeconfig = `
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:6443"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`

func TestConfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join(t.TempDir(), "broken")
	if err := os.WriteFile(broken, []byte("clusters: 7"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for name, tc := range map[string]struct {
		path, env string
		err       string // part of it; empty: none
	}{
		"a file by name":                {path, "", ""},
		"a file by environment":         {"", path, ""},
		"a file by name beats the rest": {path, broken, ""},
		"a file that is not there":      {filepath.Join(t.TempDir(), "none"), "", "none"},
		"a file that is none":           {broken, "", "how to reach the cluster"},
		"nothing at all":                {"", filepath.Join(t.TempDir(), "none"), "how to reach the cluster"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KUBECONFIG", tc.env)
			cfg, err := Config(tc.path, "stoker/test")
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("err = %v, want one with %q", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if cfg.Host != "https://127.0.0.1:6443" || cfg.UserAgent != "stoker/test" || cfg.QPS != clientQPS {
				t.Errorf("config = %s as %s with %v requests a second", cfg.Host, cfg.UserAgent, cfg.QPS)
			}
		})
	}
}
