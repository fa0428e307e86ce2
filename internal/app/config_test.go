package app

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"stoker.dev/stoker/actuator"
)

func TestTheShippedConfigurationIsRightAndSafe(t *testing.T) {
	c, l, err := ReadConfig("")
	if err != nil {
		t.Fatal(err)
	}
	if c.Mode != actuator.ModeDryRun {
		t.Errorf("mode %q, want dry-run: nobody has agreed to more yet", c.Mode)
	}
	books := map[string]string{}
	for _, b := range l.Playbooks.List {
		var steps []string
		for _, s := range b.Steps {
			steps = append(steps, s.Action)
		}
		books[b.Name] = strings.Join(steps, " ")
		if _, err := os.Stat("../../docs/playbooks/" + b.Name + ".md"); err != nil {
			t.Errorf("playbook %s has no page: %v", b.Name, err)
		}
	}
	const reset = "cordon checkpoint stop start drain reset checkpoint stop start drain reboot verify release"
	want := map[string]string{
		"gpu-lost":        "cordon checkpoint stop start drain reboot verify release",
		"gpu-hot":         "cordon checkpoint stop start verify release",
		"gpu-ecc-boot":    "cordon checkpoint stop start drain reboot verify release",
		"gpu-driver-boot": "cordon checkpoint stop start drain reboot verify release",
		"gpu-nvlink-boot": "cordon checkpoint stop start drain reboot verify release",
		"node-notice":     "cordon checkpoint stop start verify release",
		"job-stalled":     "stop start watch",

		"gpu-ecc":    reset,
		"gpu-driver": reset,
		"gpu-nvlink": reset,

		"job-out-of-memory": "stop recipe start watch",
		"job-network":       "inspect stop start watch",
		"job-storage":       "stop claims start watch",
	}
	if d := cmp.Diff(books, want); d != "" {
		t.Errorf("playbooks and their steps (-got +want):\n%s", d)
	}
	if got := time.Duration(c.Every); got != time.Second {
		t.Errorf("every %s, want 1s", got)
	}
}

// TestEveryMistakeIsToldAtOnce holds that no mistake hides another, whichever part of
// the service reads it.
func TestEveryMistakeIsToldAtOnce(t *testing.T) {
	const bad = `mode: automatic
playbooks:
  - name: gpu-lost
    class: gpu-lots
    match: ['pool=~"dev']
    steps:
      - cordon: {}
      - checkpoint: {within: 2}
      - dren: {within: 10m}
      - reboot: {within: 20m, harder: true}
  - name: gpu-lost
    class: gpu-ecc
    match: ['']
    steps:
      - stop: {}
gates:
  budgets:
    - {name: fleet, maxUnavailable: 110%}
  breaker: {}
server: {listen: "8080"}
telemetry:
  every: 10
  scrape: [{url: "gpu-a-01:9400"}]
leaderElection: {lease: 5s, renew: 10s}
`
	_, _, err := parseConfig("stoker.yaml", []byte(bad))
	if err == nil {
		t.Fatal("no mistake was found")
	}
	for _, want := range []string{
		"stoker.yaml:1:", `"automatic"`,
		"stoker.yaml:4:", `"gpu-lots"`,
		"stoker.yaml:5:", "matcher",
		"stoker.yaml:8:", "unit",
		"stoker.yaml:9:", `"dren"`,
		"stoker.yaml:10:", "harder",
		"another playbook named",
		"stoker.yaml:13:", "empty matcher",
		"stop has no start after it",
		"stoker.yaml:18:", "110",
		"stoker.yaml:19:", "breaker",
		"stoker.yaml:20:", "host:port",
		"stoker.yaml:22:",
		"stoker.yaml:23:", "not an address",
		"stoker.yaml:24:", "must be longer",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the errors do not say %q", want)
		}
	}
	if t.Failed() {
		t.Log("\n" + err.Error())
	}
}
