package spine

import (
	"bytes"
	"fmt"
	"net/http"
	"testing"
	"time"
)

// TestBadWebhooks: who bears no token is turned away, what cannot be understood is refused
// with a reason, and nothing is refused for its size, which Alertmanager would not repeat.
func TestBadWebhooks(t *testing.T) {
	f := setUp(t, "bad", needs{nodes: 1})
	s := f.serve(t, settings{})
	s.awaitLeader(t)

	good := webhookBody(t)
	for name, tc := range map[string]struct {
		token string
		body  []byte
		code  int
		says  string
	}{
		"without a token":               {"", good, http.StatusUnauthorized, "token"},
		"with another token":            {s.token + "x", good, http.StatusUnauthorized, "token"},
		"what is not JSON":              {s.token, []byte("<alerts/>"), http.StatusBadRequest, "at byte"},
		"nothing at all":                {s.token, nil, http.StatusBadRequest, "EOF"},
		"half a request":                {s.token, good[:len(good)/2], http.StatusBadRequest, "EOF"},
		"a version not understood":      {s.token, bytes.Replace(good, []byte(`"version":"4"`), []byte(`"version":"5"`), 1), http.StatusBadRequest, "version"},
		"a status that there is not":    {s.token, bytes.ReplaceAll(webhookBody(t, f.gpuLost(t, f.nodes[0], time.Now())), []byte("firing"), []byte("burning")), http.StatusBadRequest, "burning"},
		"an alert about nothing":        {s.token, webhookBody(t, alert{labels: map[string]string{"class": "gpu-lost", "alertname": "A"}}), http.StatusOK, ""},
		"an alert of no class":          {s.token, webhookBody(t, alert{labels: map[string]string{"alertname": "Watchdog"}}), http.StatusOK, ""},
		"eight megabytes of one alert":  {s.token, manyAlerts(t, 20_000), http.StatusOK, "20000 alerts"},
		"a good one, without any alert": {s.token, good, http.StatusOK, ""},
	} {
		t.Run(name, func(t *testing.T) {
			code, text, err := s.ask(t.Context(), http.MethodPost, "/webhook/alertmanager", tc.token, tc.body)
			if err != nil || code != tc.code || !contains(text, tc.says) {
				t.Errorf("answered %d %s, %v; want %d and %q", code, text, err, tc.code, tc.says)
			}
		})
	}
	for _, path := range []string{"/api/v1/incidents", "/api/v1/journal", "/api/v1/explain/node/" + f.nodes[0]} {
		if code, text, err := s.ask(t.Context(), http.MethodGet, path, "", nil); err != nil || code != http.StatusUnauthorized {
			t.Errorf("GET %s without a token answers %d %s, %v; want 401", path, code, text, err)
		}
	}
	if all := s.incidents(t); len(all) > 0 {
		t.Errorf("bad webhooks opened %v", all)
	}
	f.checkEffects(t, map[effect]int{})
}

// manyAlerts is one alert, told n times with labels that make up some 400 bytes.
func manyAlerts(t *testing.T, n int) []byte {
	t.Helper()
	alerts := make([]alert, n)
	for i := range alerts {
		alerts[i] = alert{labels: map[string]string{
			"alertname": "Loud", "instance": fmt.Sprintf("10.0.%d.%d:9400", i/250, i%250),
			"padding": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
		}}
	}
	body := webhookBody(t, alerts...)
	if len(body) < 6<<20 {
		t.Fatalf("the request has only %d bytes", len(body))
	}
	return body
}
