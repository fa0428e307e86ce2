package server

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/loop"
	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/scheduler"
)

type planningWalker struct{ walker }

func (planningWalker) Plan() loop.Plan {
	return loop.Plan{
		At: t0, Orders: []remedy.Order{{Key: "k", Action: "preempt"}},
		Held: map[fleet.JobRef]scheduler.Account{
			{Namespace: "b", Name: "j"}: {Held: time.Minute},
			{Namespace: "a", Name: "j"}: {Held: time.Hour, Waits: t0, Stage: scheduler.StageTold},
		},
	}
}

func TestThePlanIsShown(t *testing.T) {
	get := func(w Walker) *httptest.ResponseRecorder {
		h, _ := handler(t, w, Options{})
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/api/v1/plan", nil))
		return rec
	}
	if rec := get(&walker{}); rec.Code != http.StatusNotFound {
		t.Errorf("where nobody plans: %d, want 404", rec.Code)
	}
	rec := get(&planningWalker{})
	var p Plan
	if err := json.Unmarshal(rec.Body.Bytes(), &p); err != nil || rec.Code != http.StatusOK {
		t.Fatalf("%d %v %s", rec.Code, err, rec.Body)
	}
	if p.Acts || len(p.Orders) != 1 || len(p.Jobs) != 2 || p.Jobs[0].Job != "a/j" || p.Jobs[0].HeldGPUSeconds != 3600 || p.Jobs[0].Idle != "told" || !p.Jobs[0].WaitsSince.Equal(t0) {
		t.Errorf("shown %+v", p)
	}
}
