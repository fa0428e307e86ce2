// Package neighbours heals faults among the programs that Stoker lives with: a real
// Prometheus that scrapes the collector and evaluates the rule files, a real Alertmanager
// that groups, repeats and silences, two replicas of the service, and collectors that tell
// at once. [scene] is what it has in common with the other groups.
package neighbours

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/internal/e2e/cluster"
	"stoker.dev/stoker/internal/e2e/scene"
)

func TestMain(m *testing.M) { os.Exit(scene.Run(m, scene.Options{Alertmanager: alertmanager})) }

// alertmanager groups by alert and node, tells both replicas, and repeats soon.
func alertmanager(port, other int, tokenFile string) string {
	return fmt.Sprintf(`
route:
  receiver: nobody
  group_by: [alertname, node]
  group_wait: 0s
  group_interval: 1s
  repeat_interval: 2s
  routes:
    - {receiver: stoker, matchers: ['alertname="Watchdog"']}
    - {receiver: first-hundred, matchers: ['flood="cut"'], group_by: [flood]}
    - {receiver: stoker, matchers: ['flood="whole"'], group_by: [flood]}
    - {receiver: stoker, matchers: ['maintenance="yes"'], mute_time_intervals: [always]}
    - {receiver: stoker, matchers: ['class=~".+"', 'class!="none"']}
time_intervals:
  - {name: always, time_intervals: [{times: [{start_time: "00:00", end_time: "24:00"}]}]}
receivers:
  - name: nobody
  - name: stoker
    webhook_configs:
      - &one
        url: http://127.0.0.1:%[1]d/webhook/alertmanager
        send_resolved: true
        http_config: {authorization: {credentials_file: %[3]s}}
      - url: http://127.0.0.1:%[2]d/webhook/alertmanager
        send_resolved: true
        http_config: {authorization: {credentials_file: %[3]s}}
  - name: first-hundred
    webhook_configs:
      - url: http://127.0.0.1:%[1]d/webhook/alertmanager
        max_alerts: 100
        http_config: {authorization: {credentials_file: %[3]s}}
`, port, other, tokenFile)
}

// asking is the section alertmanager of the service's configuration.
func asking(f *scene.Fixture, more string) string {
	return fmt.Sprintf("{urls: [%s], receiver: stoker, every: 1s, alertsEvery: 2s, %s}", f.AlertmanagerURL, more)
}

// noWatchdog is for tests in which nothing proves the path.
const noWatchdog = "watchdog: {off: true}"

// post tells Alertmanager of an alert, as Prometheus would, until the test ends.
func post(t *testing.T, f *scene.Fixture, a scene.Alert) {
	t.Helper()
	f.PostAlerts(t, cluster.Alert{Labels: a.Labels, Annotations: a.Annotations, StartsAt: a.StartsAt, EndsAt: time.Now().Add(time.Hour)})
	t.Cleanup(func() { f.ResolveAlert(t, a) })
}

// host is host:port of a URL.
func host(url string) string { return strings.TrimPrefix(url, "http://") }
