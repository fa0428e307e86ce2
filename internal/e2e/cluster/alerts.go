package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"
)

// An Alert is what Prometheus sends to Alertmanager.
type Alert struct {
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations,omitempty"`
	// StartsAt is when it began; zero means now, by Alertmanager's clock.
	StartsAt time.Time `json:"startsAt,omitzero"`
	// EndsAt in the past resolves the alert; zero lets it fire until Alertmanager's
	// resolve_timeout has passed without it being sent again.
	EndsAt       time.Time `json:"endsAt,omitzero"`
	GeneratorURL string    `json:"generatorURL,omitempty"`
}

// A Matcher is one condition of a silence, as Alertmanager's API has it.
type Matcher struct {
	Name    string `json:"name"`
	Value   string `json:"value"`
	IsRegex bool   `json:"isRegex"`
	IsEqual bool   `json:"isEqual"`
}

// PostAlerts sends alerts to Alertmanager.
func (c *Cluster) PostAlerts(t testing.TB, alerts ...Alert) {
	t.Helper()
	c.alertmanagerPost(t, "/api/v2/alerts", alerts)
}

// SilenceAlerts silences the alerts that fulfil all matchers from now on for d, and
// returns the silence's id.
func (c *Cluster) SilenceAlerts(t testing.TB, d time.Duration, matchers ...Matcher) string {
	t.Helper()
	now := time.Now()
	answer := c.alertmanagerPost(t, "/api/v2/silences", map[string]any{
		"matchers": matchers, "startsAt": now, "endsAt": now.Add(d),
		"createdBy": UserAdmin, "comment": "by the test " + t.Name(),
	})
	var silence struct{ SilenceID string }
	if err := json.Unmarshal(answer, &silence); err != nil {
		t.Fatalf("decode %q: %v", answer, err)
	}
	return silence.SilenceID
}

// A Silence is what Alertmanager says of one.
type Silence struct {
	ID        string    `json:"id"`
	CreatedBy string    `json:"createdBy"`
	Comment   string    `json:"comment"`
	EndsAt    time.Time `json:"endsAt"`
	Matchers  []Matcher `json:"matchers"`
	Status    struct {
		State string `json:"state"`
	} `json:"status"`
}

// Silences returns those of Alertmanager that are in force.
func (c *Cluster) Silences(t testing.TB) []Silence {
	t.Helper()
	var all, active []Silence
	if err := json.Unmarshal(c.alertmanagerDo(t, http.MethodGet, "/api/v2/silences", nil), &all); err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if s.Status.State == "active" {
			active = append(active, s)
		}
	}
	return active
}

// LiftSilence ends a silence.
func (c *Cluster) LiftSilence(t testing.TB, id string) {
	t.Helper()
	c.alertmanagerDo(t, http.MethodDelete, "/api/v2/silence/"+id, nil)
}

func (c *Cluster) alertmanagerPost(t testing.TB, path string, body any) []byte {
	t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	return c.alertmanagerDo(t, http.MethodPost, path, data)
}

func (c *Cluster) alertmanagerDo(t testing.TB, method, path string, data []byte) []byte {
	t.Helper()
	if c.Alertmanager == nil {
		t.Fatal("this cluster has no Alertmanager, see Options")
	}
	req, err := http.NewRequestWithContext(t.Context(), method, c.AlertmanagerURL+path, bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Close = true // no connection outlives the test
	client := &http.Client{Timeout: time.Minute}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s %s answers %s: %s", method, path, resp.Status, fmt.Sprintf("%.500s", answer))
	}
	return answer
}
