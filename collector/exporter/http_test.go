package exporter

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/internal/fleet"
)

// TestScrape: an exporter that answers, and all the ways in which one does not.
func TestScrape(t *testing.T) {
	const good = "# TYPE DCGM_FI_DEV_GPU_TEMP gauge\nDCGM_FI_DEV_GPU_TEMP{gpu=\"0\",UUID=\"GPU-a\"} 40\n"
	answer := func(status int, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = w.Write([]byte(text))
		}
	}
	for name, tc := range map[string]struct {
		handler http.HandlerFunc
		want    string
	}{
		"a page":              {answer(200, good), ""},
		"one that has failed": {answer(500, "internal server error"), "answered 500 Internal Server Error"},
		"an empty one, as with a GPU that was lost at its start": {answer(200, ""), "page is empty"},
		"one without a GPU":    {answer(200, "up 1\n"), "page shows no GPU"},
		"one that is cut off":  {answer(200, good[:len(good)-5]), "cut off"},
		"one that is too long": {answer(200, strings.Repeat("#\n", maxPage/2+1)), "page is over"},
		"one that never ends":  {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "time is up"},
		"one that ends halfway": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write([]byte(good))
		}, "unexpected EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(tc.handler)
			defer server.Close()
			defer server.CloseClientConnections()
			limit := 20 * time.Second
			if tc.want == "time is up" {
				limit = 200 * time.Millisecond
			}
			ctx, cancel := context.WithTimeoutCause(t.Context(), limit, errors.New("time is up"))
			defer cancel()
			into := &fleet.Samples{At: time.Now()}
			err := NewHTTP(slog.New(slog.NewTextHandler(t.Output(), nil)), server.Client(), server.URL+"/metrics").Collect(ctx, into)
			if tc.want == "" {
				if err != nil || len(into.Values) != 1 || into.Values[0].Value != 40 {
					t.Errorf("%+v, %v; want a temperature of 40", into.Values, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("err = %v, want %q", err, tc.want)
			}
			if len(into.GPUs) != 0 {
				t.Errorf("of a page that can't be used %d GPUs are told", len(into.GPUs))
			}
		})
	}
	for address, ok := range map[string]bool{
		"http://localhost:9400/metrics": true, "https://n:1": true, "localhost:9400": false, "/metrics": false, "http://": false, "http://%": false,
	} {
		if err := ValidAddress(address); (err == nil) != ok {
			t.Errorf("%s: %v", address, err)
		}
	}
}
