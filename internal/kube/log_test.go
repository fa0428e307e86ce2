package kube

import (
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

func TestLogTail(t *testing.T) {
	const route = "GET /api/v1/namespaces/train/pods/llm-0/log"
	s := newServer(t)
	var query string
	s.on(route, func(w http.ResponseWriter, r *http.Request) {
		query = r.URL.RawQuery
		for range 3 * fleet.MaxFailureLog / 10 {
			_, _ = w.Write([]byte("012345678\n"))
		}
		_, _ = w.Write([]byte("the last line\n"))
	})
	c := cluster(t, s)
	pod := fleet.PodRef{Namespace: "train", Name: "llm-0", UID: "u"}
	text, err := c.LogTail(t.Context(), pod, "train", true)
	if err != nil || len(text) > fleet.MaxFailureLog || !strings.HasSuffix(text, "\nthe last line\n") || !strings.HasPrefix(text, "012345678\n") {
		t.Errorf("%v, %d bytes, %.20q; want the last lines, whole ones, of at most %d bytes", err, len(text), text, fleet.MaxFailureLog)
	}
	if query != "container=train&previous=true&tailLines=200" {
		t.Errorf("asked for %s", query)
	}

	s.on(route, status(400, metav1.StatusReasonBadRequest, "container train has no previous run", nil))
	_, err = c.LogTail(t.Context(), pod, "train", true)
	wantEnding(t, err, remedy.Rejected)

	_, err = c.LogTail(t.Context(), fleet.PodRef{Namespace: "train", Name: "../nodes"}, "train", false)
	wantEnding(t, err, remedy.Rejected)
}
