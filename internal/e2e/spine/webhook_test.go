package spine

import (
	"bytes"
	"fmt"
	"net/http"
	"testing"
	"time"

	"stoker.dev/stoker/internal/e2e/scene"
)

// TestBadWebhooks: who bears no token is turned away, what cannot be understood is refused
// with a reason, and nothing is refused for its size, which Alertmanager would not repeat.
func TestBadWebhooks(t *testing.T) {
	f := scene.SetUp(t, "bad", scene.Needs{Nodes: 1})
	s := f.Serve(t, scene.Settings{})
	s.AwaitLeader(t)

	good := scene.WebhookBody(t)
	for name, tc := range map[string]struct {
		token string
		body  []byte
		code  int
		says  string
	}{
		"without a token":               {"", good, http.StatusUnauthorized, "token"},
		"with another token":            {s.Token + "x", good, http.StatusUnauthorized, "token"},
		"what is not JSON":              {s.Token, []byte("<alerts/>"), http.StatusBadRequest, "at byte"},
		"nothing at all":                {s.Token, nil, http.StatusBadRequest, "EOF"},
		"half a request":                {s.Token, good[:len(good)/2], http.StatusBadRequest, "EOF"},
		"a version not understood":      {s.Token, bytes.Replace(good, []byte(`"version":"4"`), []byte(`"version":"5"`), 1), http.StatusBadRequest, "version"},
		"a status that there is not":    {s.Token, bytes.ReplaceAll(scene.WebhookBody(t, f.GPULost(t, f.Nodes[0], time.Now())), []byte("firing"), []byte("burning")), http.StatusBadRequest, "burning"},
		"an alert about nothing":        {s.Token, scene.WebhookBody(t, scene.Alert{Labels: map[string]string{"class": "gpu-lost", "alertname": "A"}}), http.StatusOK, ""},
		"an alert of no class":          {s.Token, scene.WebhookBody(t, scene.Alert{Labels: map[string]string{"alertname": "Watchdog"}}), http.StatusOK, ""},
		"eight megabytes of one alert":  {s.Token, manyAlerts(t, 20_000), http.StatusOK, "20000 alerts"},
		"a good one, without any alert": {s.Token, good, http.StatusOK, ""},
	} {
		t.Run(name, func(t *testing.T) {
			code, text, err := s.Ask(t.Context(), http.MethodPost, "/webhook/alertmanager", tc.token, tc.body)
			if err != nil || code != tc.code || !scene.Contains(text, tc.says) {
				t.Errorf("answered %d %s, %v; want %d and %q", code, text, err, tc.code, tc.says)
			}
		})
	}
	for _, path := range []string{"/api/v1/incidents", "/api/v1/journal", "/api/v1/explain/node/" + f.Nodes[0]} {
		if code, text, err := s.Ask(t.Context(), http.MethodGet, path, "", nil); err != nil || code != http.StatusUnauthorized {
			t.Errorf("GET %s without a token answers %d %s, %v; want 401", path, code, text, err)
		}
	}
	if all := s.Incidents(t); len(all) > 0 {
		t.Errorf("bad webhooks opened %v", all)
	}
	f.CheckEffects(t, map[scene.Effect]int{})
}

// manyAlerts is one alert, told n times with labels that make up some 400 bytes.
func manyAlerts(t *testing.T, n int) []byte {
	t.Helper()
	alerts := make([]scene.Alert, n)
	for i := range alerts {
		alerts[i] = scene.Alert{Labels: map[string]string{
			"alertname": "Loud", "instance": fmt.Sprintf("10.0.%d.%d:9400", i/250, i%250),
			"padding": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
		}}
	}
	body := scene.WebhookBody(t, alerts...)
	if len(body) < 6<<20 {
		t.Fatalf("the request has only %d bytes", len(body))
	}
	return body
}
