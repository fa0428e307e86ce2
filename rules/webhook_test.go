package rules

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/alertmanager/template"

	"stoker.dev/stoker/internal/remedy"
)

// payload is a webhook request with the alerts, each given as JSON.
func payload(alerts ...string) string {
	return `{"receiver":"stoker","status":"firing","alerts":[` + strings.Join(alerts, ",") +
		`],"groupLabels":{"alertname":"GPUXidGpuLost"},"commonLabels":{},"commonAnnotations":{},"externalURL":"http://am:9093","version":"4","groupKey":"{}:{}","truncatedAlerts":0}`
}

// xidAlert is an alert about GPU gpu of node, at a time.
func xidAlert(node, gpu string, at time.Time) string {
	return fmt.Sprintf(`{"status":"firing","labels":{"alertname":"GPUXidGpuLost","class":"gpu-lost","node":%q,"gpu":%q,"xid":"79"},"annotations":{"event_time":"%d"},"startsAt":%q}`,
		node, gpu, at.Unix(), at.Add(30*time.Second).Format(time.RFC3339))
}

func TestTheWebhookOfAlertmanagerIsRead(t *testing.T) {
	body, err := os.ReadFile("testdata/webhook.json")
	if err != nil {
		t.Fatal(err)
	}
	now := t0.Add(40 * time.Second)
	got, err := DecodeWebhook(bytes.NewReader(body), now)
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{
		"alertname": "GPUXidGpuLost", "boot_id": "boot-1", "class": "gpu-lost", "gpu": "3", "node": "gpu-a-02", "pci_bus_id": "00000000:1A:00.0",
		"severity": "critical", "UUID": uuid, "xid": "79",
	}
	want := Delivery{
		Alerts: 4, Folded: 1, Ignored: 1, Truncated: 12,
		Evidence: []remedy.Evidence{
			{
				Subject: gpu3, Class: remedy.ClassGPULost, BootID: "boot-1", At: time.Date(2026, 11, 30, 14, 2, 7, 250e6, time.UTC), Seen: now,
				Source: "alertmanager", Summary: "XID 79 on GPU 3 of gpu-a-02", Labels: labels,
			},
			{
				Subject: remedy.Subject{Kind: remedy.SubjectNode, Node: "gpu-b-01"}, Class: remedy.ClassNodeUnready, At: t0.Add(-5 * time.Minute), Seen: now, Source: "alertmanager",
				Labels: map[string]string{"alertname": "NodeUnready", "class": "node-unready", "node": "gpu-b-01"}, Resolved: true,
			},
		},
	}
	if len(got.Unread) != 1 || !errors.Is(got.Unread[0], errNoSubject) {
		t.Errorf("unread are %v, want the alert that names nothing", got.Unread)
	}
	got.Unread = nil
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("delivery differs (-want +got):\n%s", d)
	}
}

func TestPayloadsThatCannotBeUnderstoodAreErrors(t *testing.T) {
	good := xidAlert(ill, "3", t0)
	for name, tc := range map[string]struct{ body, want string }{
		"nothing":               {"", "webhook payload at byte 0: unexpected EOF"},
		"not JSON":              {"alert!", "webhook payload at byte 0: invalid character 'a' looking for beginning of value"},
		"a list":                {"[]", "webhook payload at byte 1: found [ where { is due"},
		"a cut":                 {payload(good)[:150], "alerts[0]: unexpected EOF"},
		"a cut between alerts":  {payload(good, good)[:len(`{"receiver":"stoker","status":"firing","alerts":[`)+len(good)], "alerts: unexpected EOF"},
		"a cut behind them":     {strings.TrimSuffix(payload(good), "}"), "unexpected EOF"},
		"another version":       {strings.Replace(payload(good), `"version":"4"`, `"version":"3"`, 1), `version "3" is not 4, the one that is understood`},
		"no version":            {strings.Replace(payload(good), `"version":"4",`, ``, 1), `version "" is not 4, the one that is understood`},
		"a version of a number": {strings.Replace(payload(good), `"version":"4"`, `"version":4`, 1), "version: json: cannot unmarshal number"},
		"alerts that are none":  {strings.Replace(payload(), `"alerts":[]`, `"alerts":{}`, 1), "alerts: found { where a list is due"},
		"an alert of numbers":   {payload(good, `{"status":1}`), "alerts[1]: json: cannot unmarshal number"},
		"a status of its own":   {payload(strings.Replace(good, "firing", "suppressed", 1)), `alerts[0]: status "suppressed" is neither firing nor resolved`},
		"a count below zero":    {strings.Replace(payload(good), `"truncatedAlerts":0`, `"truncatedAlerts":-1`, 1), "truncatedAlerts: json: cannot unmarshal number -1"},
		"a time of its own":     {payload(strings.Replace(good, "2026-11-30T", "yesterday", 1)), "alerts[0]: parsing time"},
		"two payloads":          {payload(good) + payload(good), "there is more after its end"},
		"a cut unknown key":     {`{"version":"4","new":{"a":[1,2`, "new: unexpected EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := DecodeWebhook(strings.NewReader(tc.body), t0)
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.HasPrefix(err.Error(), "webhook payload at byte ") {
				t.Errorf("error %v, want one with its place and %q", err, tc.want)
			}
			if got.Alerts != 0 || len(got.Evidence) > 0 || len(got.Unread) > 0 {
				t.Errorf("it brought %+v, want nothing", got)
			}
		})
	}
}

func TestWhatWebhooksMayAlsoBe(t *testing.T) {
	for name, tc := range map[string]struct {
		body   string
		alerts int
	}{
		"keys of a newer version are passed over":    {strings.Replace(payload(xidAlert(ill, "3", t0)), `{"receiver"`, `{"new":{"a":[1,{"b":null}],"c":"}"},"x":null,"receiver"`, 1), 1},
		"a list that was never filled":               {strings.Replace(payload(), `"alerts":[]`, `"alerts":null`, 1), 0},
		"white space at the end":                     {payload() + "\n", 0},
		"no alerts at all":                           {`{"version":"4"}`, 0},
		"an alert with more than this version knows": {payload(strings.Replace(xidAlert(ill, "3", t0), `{"status"`, `{"fingerprint":"8c1d","generatorURL":"x","new":1,"status"`, 1)), 1},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := DecodeWebhook(strings.NewReader(tc.body), t0)
			if err != nil || got.Alerts != tc.alerts || len(got.Evidence) != tc.alerts {
				t.Errorf("%+v, %v; want %d alerts", got, err, tc.alerts)
			}
		})
	}
}

func TestAnErrorOfTheConnectionIsNotOneOfThePayload(t *testing.T) {
	broken := errors.New("connection reset")
	r := io.MultiReader(strings.NewReader(payload(xidAlert(ill, "3", t0))[:200]), errReader{broken})
	if _, err := DecodeWebhook(r, t0); !errors.Is(err, broken) {
		t.Errorf("error %v, want it to be the connection's", err)
	}
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

// plain reports whether each key of the payload is there once and spelt as it should
// be: of two that differ in case only, all at once takes the last.
func plain(body []byte) bool {
	lower := bytes.ToLower(body)
	return bytes.Count(lower, []byte("alerts")) == bytes.Count(body, []byte("alerts")) && bytes.Count(body, []byte("alerts")) < 2 &&
		bytes.Count(lower, []byte("version")) == 1 && !bytes.Contains(body, []byte(`\u`)) &&
		!bytes.ContainsFunc(body, func(r rune) bool { return r > unicode.MaxASCII })
}

// FuzzDecodeWebhook compares the stream with reading all at once: the same payloads
// are refused, and the same alerts are read.
func FuzzDecodeWebhook(f *testing.F) {
	body, err := os.ReadFile("testdata/webhook.json")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(body)
	f.Add([]byte(payload(xidAlert(ill, "3", t0), xidAlert(ill, "3", t0.Add(time.Second)))))
	f.Add([]byte(`{"version":"4","alerts":[{"status":"resolved","labels":{"err_code":"48","Hostname":"h","gpu":"0"},"startsAt":"2026-01-01T00:00:00Z"}]}`))
	f.Add([]byte(`{"alerts":null,"x":{},"version":"4"} `))
	f.Fuzz(func(t *testing.T, body []byte) {
		d, err := DecodeWebhook(bytes.NewReader(body), t0)
		var whole struct {
			Version string           `json:"version"`
			Alerts  []template.Alert `json:"alerts"`
		}
		model := json.Unmarshal(body, &whole)
		if err == nil && !json.Valid(body) {
			t.Fatal("read what is not JSON")
		}
		if err != nil {
			known := !slices.ContainsFunc(whole.Alerts, func(a template.Alert) bool { return a.Status != "firing" && a.Status != "resolved" })
			if model == nil && whole.Version == "4" && known && !bytes.Contains(body, []byte("truncatedAlerts")) && plain(body) {
				t.Fatalf("refused what is a payload: %v", err)
			}
			return
		}
		if model == nil && plain(body) && d.Alerts != len(whole.Alerts) {
			t.Errorf("%d alerts were read, want %d", d.Alerts, len(whole.Alerts))
		}
		if d.Alerts != len(d.Evidence)+d.Folded+d.Ignored+d.Cut {
			t.Errorf("%d alerts became %d evidence, %d folded, %d ignored, %d cut", d.Alerts, len(d.Evidence), d.Folded, d.Ignored, d.Cut)
		}
		for _, e := range d.Evidence {
			if e.Class != remedy.ClassNone && !complete(e.Subject) || e.At.IsZero() || len(e.Labels) > remedy.MaxLabels {
				t.Errorf("evidence that is not whole: %+v", e)
			}
			if again, err := json.Marshal(e); err != nil {
				t.Error(err)
			} else if err := json.Unmarshal(again, new(remedy.Evidence)); err != nil {
				t.Errorf("evidence does not come back from its store: %v", err)
			}
		}
	})
}
