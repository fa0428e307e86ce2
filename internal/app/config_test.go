package app

import (
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/internal/remedy"
)

func TestTheShippedConfigurationIsRightAndSafe(t *testing.T) {
	c, l, err := ReadConfig("")
	if err != nil {
		t.Fatal(err)
	}
	if c.Mode != actuator.ModeDryRun {
		t.Errorf("mode %q, want dry-run: nobody has agreed to more yet", c.Mode)
	}
	if len(l.Playbooks.List) != 1 || l.Playbooks.List[0].Class != remedy.ClassGPULost {
		t.Fatalf("playbooks %v, want one for gpu-lost", l.Playbooks.List)
	}
	var steps []string
	for _, s := range l.Playbooks.List[0].Steps {
		steps = append(steps, s.Action)
	}
	if got, want := strings.Join(steps, " "), "cordon checkpoint stop start drain reboot verify release"; got != want {
		t.Errorf("steps %s, want %s", got, want)
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
