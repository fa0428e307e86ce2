package thread

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errPatience = errors.New("no patience left")

func patience(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), d, errPatience)
	t.Cleanup(cancel)
	return ctx
}

// TestOneAfterTheOther: a call that hangs makes nobody wait for longer than they want to,
// is named, and the next one comes when it has ended.
func TestOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order []string
		th := New("the engine", func() { order = append(order, "end") })
		want := errors.New("refused")
		if err := th.Do(t.Context(), func() error { order = append(order, "first"); return want }); !errors.Is(err, want) {
			t.Errorf("err = %v, want what the call returned", err)
		}
		hang := make(chan struct{})
		begin := time.Now()
		hung := func() error {
			th.During("asking who GPU 3 is")
			<-hang
			order = append(order, "hung")
			return nil
		}
		err := th.Do(patience(t, 5*time.Second), hung)
		if d := time.Since(begin); d != 5*time.Second {
			t.Errorf("waited for %v, want 5s", d)
		}
		if !errors.Is(err, errPatience) || !strings.Contains(err.Error(), "the engine is asking who GPU 3 is since 2000-01-01T00:00:00Z") {
			t.Errorf("err = %v, want what it hangs in and since when", err)
		}
		// The one that waits behind it gives up before it was begun, and never is.
		if err := th.Do(patience(t, time.Second), func() error { order = append(order, "skipped"); return nil }); !errors.Is(err, errPatience) {
			t.Errorf("err = %v, want %v", err, errPatience)
		}
		if err := th.Close(patience(t, time.Second)); !errors.Is(err, errPatience) {
			t.Errorf("close while a call hangs: %v, want %v", err, errPatience)
		}
		close(hang)
		if err := th.Close(t.Context()); err != nil {
			t.Errorf("close: %v", err)
		}
		if want := []string{"first", "hung", "end"}; !slices.Equal(order, want) {
			t.Errorf("done were %v, want %v", order, want)
		}
		if err := th.Do(t.Context(), func() error { return nil }); err == nil {
			t.Error("a thread that has ended does something")
		}
	})
}

func TestCloseBeforeAnything(t *testing.T) {
	th := New("x", func() { t.Error("what never began has ended") })
	if err := th.Close(t.Context()); err != nil {
		t.Errorf("close: %v", err)
	}
	if err := th.Do(t.Context(), func() error { t.Error("done"); return nil }); err == nil {
		t.Error("want an error")
	}
}
