//go:build !race

// What is read here is so long that it takes seconds, and a minute under the race
// detector. One goroutine reads it, as it does the short requests of webhook_test.go.

package rules

import (
	"bytes"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"

	"stoker.dev/stoker/internal/remedy"
)

// endless is a payload that makes one alert after the other as it is read.
type endless struct {
	n, most int
	alert   func(i int) string
	buf     bytes.Buffer
	read    int
}

func (e *endless) Read(p []byte) (int, error) {
	for e.buf.Len() == 0 {
		switch {
		case e.n == 0:
			e.buf.WriteString(`{"version":"4","alerts":[` + e.alert(0))
		case e.n < e.most:
			e.buf.WriteString("," + e.alert(e.n))
		case e.n == e.most:
			e.buf.WriteString(`]}`)
		default:
			return 0, io.EOF
		}
		e.n++
	}
	n, err := e.buf.Read(p)
	e.read += n
	return n, err
}

// peak reads the payload and returns by how many MiB the heap was at most above what
// it was before, looked at a few hundred times.
func peak(t *testing.T, e *endless) (Delivery, uint64) {
	t.Helper()
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	before, most := m.HeapAlloc, m.HeapAlloc
	alert := e.alert
	e.alert = func(i int) string {
		if i%1000 == 999 {
			runtime.GC()
			runtime.ReadMemStats(&m)
			most = max(most, m.HeapAlloc)
		}
		return alert(i)
	}
	d, err := DecodeWebhook(e, t0)
	if err != nil {
		t.Fatal(err)
	}
	return d, (most - before) >> 20
}

func TestAHundredThousandAlertsAreReadInLittleMemory(t *testing.T) {
	e := &endless{most: 100_000, alert: func(i int) string {
		return xidAlert(fmt.Sprintf("gpu-%02d", i%50), fmt.Sprint(i/50%8), t0.Add(-time.Duration(i%3)*time.Second))
	}}
	began := time.Now()
	d, mib := peak(t, e)
	t.Logf("%d alerts in %d MiB: %d evidence, in %v, with %d MiB of memory at most", d.Alerts, e.read>>20, len(d.Evidence), time.Since(began).Round(time.Millisecond), mib)
	if d.Alerts != 100_000 || len(d.Evidence) != 50*8 || d.Folded != 100_000-50*8 || d.Cut != 0 {
		t.Errorf("%d alerts, %d evidence, %d folded, %d cut; want one evidence for each of 400 GPUs", d.Alerts, len(d.Evidence), d.Folded, d.Cut)
	}
	if mib > 8 {
		t.Errorf("%d MiB were in use, want them not to grow with the %d MiB that were read", mib, e.read>>20)
	}
}

func TestEvidenceOverTheBoundIsCutAndCounted(t *testing.T) {
	e := &endless{most: 30_000, alert: func(i int) string { return xidAlert("gpu-01", fmt.Sprint(i), t0) }}
	began := time.Now()
	d, mib := peak(t, e)
	t.Logf("%d faults of one node at one time in %v, with %d MiB", d.Alerts, time.Since(began).Round(time.Millisecond), mib)
	if len(d.Evidence) != MaxWebhookEvidence || d.Cut != 30_000-MaxWebhookEvidence || d.Folded != 0 {
		t.Errorf("%d kept, %d cut, %d folded; want %d kept and the others cut", len(d.Evidence), d.Cut, d.Folded, MaxWebhookEvidence)
	}
}

func TestWhatIsNoFaultDoesNotCrowdOutFaults(t *testing.T) {
	e := &endless{most: 12_000, alert: func(i int) string {
		if i == 11_999 {
			return xidAlert(ill, "3", t0)
		}
		return fmt.Sprintf(`{"status":"firing","labels":{"alertname":"Watchdog%d"},"startsAt":%q}`, i, t0.Add(-time.Duration(i)*time.Minute).Format(time.RFC3339))
	}}
	d, _ := peak(t, e)
	if last := d.Evidence[len(d.Evidence)-1]; len(d.Evidence) != maxNoClass+1 || last.Class != remedy.ClassGPULost || d.Cut != 12_000-1-maxNoClass {
		t.Errorf("%d kept with %s last, %d cut; want %d and the fault", len(d.Evidence), last.Class, d.Cut, maxNoClass)
	}
}

func TestARequestOverTheBoundKeepsWhatWasRead(t *testing.T) {
	long := strings.Repeat("x", 60_000)
	e := &endless{most: 1 << 20, alert: func(i int) string {
		a := xidAlert(fmt.Sprintf("gpu-%04d", i), "1", t0)
		return strings.Replace(a, `"annotations":{`, `"annotations":{"description":"`+long+`",`, 1)
	}}
	d, mib := peak(t, e)
	if d.Cut != -1 || e.read < MaxWebhookBytes || e.read > MaxWebhookBytes+1<<20 {
		t.Errorf("cut %d after %d bytes, want to stop at %d", d.Cut, e.read, MaxWebhookBytes)
	}
	if d.Alerts < 1000 || len(d.Evidence) != d.Alerts {
		t.Errorf("%d alerts and %d evidence, want those that were read before", d.Alerts, len(d.Evidence))
	}
	if mib > 16 {
		t.Errorf("%d MiB were in use", mib)
	}
}

func TestARequestAsLongAsItMayBeIsWhole(t *testing.T) {
	body := payload(xidAlert(ill, "3", t0))
	body += strings.Repeat(" ", MaxWebhookBytes-len(body))
	d, err := DecodeWebhook(strings.NewReader(body), t0)
	if err != nil || d.Cut != 0 || len(d.Evidence) != 1 {
		t.Errorf("%+v, %v; want one evidence and nothing cut", d, err)
	}
	d, err = DecodeWebhook(strings.NewReader(body+" "), t0)
	if err != nil || d.Cut != -1 {
		t.Errorf("one byte more: cut %d, %v; want -1", d.Cut, err)
	}
}
