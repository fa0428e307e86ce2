package pods

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"stoker.dev/stoker/internal/fleet"
)

// An apiServer is a fake one, with the folder of a service account for it.
type apiServer struct {
	folder string

	mu     sync.Mutex
	pods   []map[string]any // metadata
	status int              // of every answer, if not 0
	body   string           // of every answer, if not empty
	only   string           // path that there is, if not empty
	asked  []string
}

func newCluster(t *testing.T, pods ...map[string]any) *apiServer {
	t.Helper()
	c := &apiServer{folder: t.TempDir(), pods: pods}
	s := httptest.NewTLSServer(c)
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", u.Hostname())
	t.Setenv("KUBERNETES_SERVICE_PORT", u.Port())
	for name, data := range map[string][]byte{
		"ca.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), "token": []byte("t"),
	} {
		if err := os.WriteFile(filepath.Join(c.folder, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// ServeHTTP answers in parts of two pods.
func (c *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := r.URL.Query()
	c.asked = append(c.asked, r.Method+" "+r.URL.Path+" "+q.Get("fieldSelector")+" "+r.Header.Get("Accept"))
	if c.only != "" && r.URL.Path != c.only {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	if c.status != 0 {
		w.WriteHeader(c.status)
	}
	if c.body != "" {
		_, _ = w.Write([]byte(c.body))
		return
	}
	from := 0
	_, _ = fmt.Sscan(q.Get("continue"), &from)
	to := min(from+2, len(c.pods))
	meta := map[string]any{"resourceVersion": "1"}
	if to < len(c.pods) {
		meta["continue"] = fmt.Sprint(to)
	}
	items := []map[string]any{}
	for _, p := range c.pods[from:to] {
		items = append(items, map[string]any{"metadata": p})
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "PartialObjectMetadataList", "metadata": meta, "items": items})
}

func (c *apiServer) set(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

func (c *apiServer) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.asked)
}

func object(name, uid string, labels map[string]string) map[string]any {
	return map[string]any{"namespace": "ns", "name": name, "uid": uid, "labels": labels}
}

// A drive is a lister whose time is the test's.
type drive struct {
	*Lister
	t  *testing.T
	at time.Time
}

func (d *drive) step(dt time.Duration, pods ...string) string {
	d.t.Helper()
	d.at = d.at.Add(dt)
	d.now = func() time.Time { return d.at }
	answer := said()
	for i, p := range pods {
		answer.PodResources = append(answer.PodResources, podOf(p, gpusOf("nvidia.com/gpu", gpus[i].UUID)))
	}
	d.take(answer, d.at)
	d.about.refresh(d.t.Context(), d.pods(), d.at)
	return d.page()
}

func driven(t *testing.T, o Options) *drive {
	t.Helper()
	d := &drive{Lister: lister(t, o), t: t, at: time.Unix(1_800_000_000, 0)}
	t.Cleanup(d.asks.close)
	return d
}

func TestUIDsAndLabels(t *testing.T) {
	c := newCluster(t, object("x", "u0", nil), object("y", "u0", nil),
		object("p", "u1", map[string]string{"app.kubernetes.io/name": "llama", "team": "a\"b", "other": "no", "pod-template-hash": "1"}))
	d := driven(t, Options{
		About: About{UID: true, Labels: true, Allow: []*regexp.Regexp{regexp.MustCompile("^app"), regexp.MustCompile("^team$")}},
		Node:  "n 1", ServiceAccount: c.folder,
	})
	got := d.step(0, "p")
	wantIn(t, got,
		info("0", "GPU-a0", `namespace="ns",pod="p",container="c",resource="nvidia.com/gpu",shared="false",pod_uid="u1",app_kubernetes_io_name="llama",team="a\"b"`),
		"stoker_pods_metadata_up{reason=\"\"} 1\n", "stoker_pods_metadata_missing 0\n", "stoker_pods_metadata_last_success_timestamp_seconds 1800000000.000\n")
	if want := "GET /api/v1/pods spec.nodeName=n 1 " + partialObjects; c.asked[0] != want || len(c.asked) != 2 {
		t.Errorf("asked %q, want two parts of %q", c.asked, want)
	}

	// The series of its GPU have them where that is asked for, and no other's.
	s := fleet.Samples{GPUs: gpus, Values: []fleet.Sample{{Field: "x", GPU: 0, Labels: []fleet.Label{{Name: "team", Value: "mine"}}}, {Field: "x", GPU: 1}}}
	d.Label(&s)
	want := []fleet.Label{
		{Name: "team", Value: "mine"},
		{Name: "app_kubernetes_io_name", Value: "llama"},
		{Name: "container", Value: "c"},
		{Name: "namespace", Value: "ns"},
		{Name: "pod", Value: "p"},
		{Name: "pod_uid", Value: "u1"},
	}
	if diff := cmp.Diff(want, s.Values[0].Labels); diff != "" || s.Values[1].Labels != nil {
		t.Errorf("labels (-want +got), and of the other %v:\n%s", s.Values[1].Labels, diff)
	}
}

// TestTheClusterIsAskedSeldom: once for what is known, again for a pod that is new, and not
// for one that it does not know.
func TestTheClusterIsAskedSeldom(t *testing.T) {
	c := newCluster(t, object("p", "u1", nil))
	d := driven(t, Options{About: About{UID: true}, Node: "n", ServiceAccount: c.folder})
	wants := func(dt time.Duration, asked int, pods ...string) {
		t.Helper()
		if d.step(dt, pods...); c.count() != asked {
			t.Errorf("asked %d times, want %d", c.count(), asked)
		}
	}
	wants(0, 0) // nobody has a GPU
	wants(every, 1, "p")
	wants(every, 1, "p")
	wants(every, 2, "p", "new")
	wants(every, 2, "p", "new")
	wants(absentFor-2*every, 2, "p", "new")
	wants(every, 3, "p", "new")
	c.set(func() { c.pods = append(c.pods, object("new", "u2", nil)) })
	wants(absentFor, 4, "p", "new")
	wants(listEvery-time.Second, 4, "p", "new")
	wants(time.Second, 5, "p", "new")
	wants(every, 5, "p")
	// It was away, so that it may be another one.
	c.set(func() { c.pods[1]["uid"] = "u3" })
	wants(every, 6, "p", "new")
	wantIn(t, d.page(), `pod_uid="u3"`)
}

// TestTheClusterFails: GPUs and pods stay, what was known is kept, and it is said why.
func TestTheClusterFails(t *testing.T) {
	c := newCluster(t, object("p", "u1", nil))
	d := driven(t, Options{About: About{UID: true}, Node: "n", ServiceAccount: c.folder})
	wantIn(t, d.step(0, "p"), `pod_uid="u1"`)
	for _, tc := range []struct {
		status     int
		body, want string
	}{
		{403, `{"message":"pods is forbidden"}`, "forbidden"},
		{500, `x`, "cluster-refuses"},
		{0, `[`, "odd-answer"},
		{0, strings.Repeat(" ", maxList+1), "odd-answer"},
	} {
		c.set(func() { c.status, c.body = tc.status, tc.body })
		got := d.step(listEvery, "p", "q")
		wantIn(t, got, `pod_uid="u1"`, `pod="q"`, "stoker_pods_metadata_up{reason=\""+tc.want+"\"} 0\n", "stoker_pods_metadata_missing 1\n")
	}
	if got := d.step(aboutFor, "p", "q"); strings.Contains(got, "pod_uid") || !strings.Contains(got, `pod="p"`) {
		t.Errorf("what nobody has confirmed for an hour is shown:\n%s", got)
	}
	c.set(func() { c.status, c.body = 0, "" })
	wantIn(t, d.step(waitAfter, "p", "q"), `pod_uid="u1"`, `stoker_pods_metadata_up{reason=""} 1`)

	d = driven(t, Options{About: About{UID: true}, Node: "n", ServiceAccount: t.TempDir()})
	wantIn(t, d.step(0, "p"), `pod="p"`, `stoker_pods_metadata_up{reason="no-service-account"} 0`)
	d = driven(t, Options{About: About{UID: true}, ServiceAccount: c.folder})
	before := c.count()
	wantIn(t, d.step(0, "p"), `pod="p"`, `stoker_pods_metadata_up{reason="odd-answer"} 0`)
	if c.count() != before {
		t.Error("without a node's name all pods of the cluster were asked for")
	}
}

// TestComplaint_13_LabelsOfPods: names that are fit for a page, each once, no more than there
// is room for, and none that a series has.
func TestComplaint_13_LabelsOfPods(t *testing.T) {
	many := map[string]string{}
	for i := range maxPodLabels + 3 {
		many[fmt.Sprintf("l%02d", i)] = "v"
	}
	for name, tc := range map[string]struct {
		of   map[string]string
		want string
		left map[string]int
	}{
		"as dcgm-exporter writes them":   {map[string]string{"app.kubernetes.io/part-of": "x"}, "app_kubernetes_io_part_of", map[string]int{}},
		"two keys of one name":           {map[string]string{"a.b": "1", "a-b": "2", "a_b": "3"}, "a_b", map[string]int{sameName: 2}},
		"a name that a series has":       {map[string]string{"pod": "x", "gpu": "0", "dra_x": "1"}, "label_dra_x label_gpu label_pod", map[string]int{}},
		"a digit first":                  {map[string]string{"3scale.net/x": "x"}, "_3scale_net_x", map[string]int{}},
		"a name that Prometheus keeps":   {map[string]string{"--name": "x"}, "label___name", map[string]int{}},
		"more than there is room for":    {many, strings.TrimSpace(strings.Join(keys(many)[:maxPodLabels], " ")), map[string]int{overLimit: 3}},
		"none that is allowed, no label": {nil, "", map[string]int{}},
	} {
		t.Run(name, func(t *testing.T) {
			got, left := podLabels(tc.of, nil)
			var names []string
			for _, l := range got {
				names = append(names, l.Name)
			}
			if strings.Join(names, " ") != tc.want {
				t.Errorf("labels are %q, want %q", names, tc.want)
			}
			if diff := cmp.Diff(tc.left, left); diff != "" {
				t.Errorf("left out (-want +got):\n%s", diff)
			}
		})
	}
	// Which of two it is does not change from one look to the next.
	got, _ := podLabels(map[string]string{"a.b": "dot", "a-b": "dash"}, nil)
	if len(got) != 1 || got[0].Value != "dash" {
		t.Errorf("it is %v, want the first key's", got)
	}
	c := newCluster(t, object("p", "u", map[string]string{"a.b": "1", "a-b": "2"}))
	wantIn(t, driven(t, Options{About: About{Labels: true}, Node: "n", ServiceAccount: c.folder}).step(0, "p"), "stoker_pods_labels_left_out{reason=\"same-name\"} 1\n")
}

func keys(m map[string]string) []string {
	var out []string
	for i := range len(m) {
		out = append(out, fmt.Sprintf("l%02d", i))
	}
	return out
}

// TestLabelsOfSharedGPUs: a value that belongs to nobody alone is nobody's, and each share
// has a copy where shares are told apart.
func TestLabelsOfSharedGPUs(t *testing.T) {
	for _, replicas := range []bool{false, true} {
		l := lister(t, Options{Replicas: replicas})
		l.take(said(podOf("one", gpusOf("nvidia.com/gpu", "GPU-a0::0")), podOf("two", gpusOf("nvidia.com/gpu", "GPU-a0::1")),
			podOf("part", gpusOf("nvidia.com/mig-1g.10gb", "MIG-5f3c"))), time.Now())
		l.build()
		s := fleet.Samples{
			GPUs: []fleet.SampledGPU{gpus[0], gpus[2], {Index: 2, UUID: "GPU-c2", Instance: "7"}, {Index: 2, UUID: "GPU-c2", Instance: "8"}},
			Values: []fleet.Sample{
				{Field: "x", GPU: 0, Value: 5}, {Field: "y", GPU: 0, Value: 6}, {Field: "x", GPU: 1}, {Field: "x", GPU: 2}, {Field: "x", GPU: 3},
			},
		}
		l.Label(&s)
		var got []string
		for _, v := range s.Values {
			text := fmt.Sprint(v.Field, v.GPU, " ", v.Value)
			for _, l := range v.Labels {
				if l.Name == "pod" || l.Name == "vgpu" {
					text += " " + l.Name + "=" + l.Value
				}
			}
			got = append(got, text)
		}
		want := []string{"x0 5", "y0 6", "x1 0", "x2 0 pod=part", "x3 0"}
		if replicas {
			want = []string{"x0 5 pod=one vgpu=0", "y0 6 pod=one vgpu=0", "x1 0", "x2 0 pod=part", "x3 0", "x0 5 pod=two vgpu=1", "y0 6 pod=two vgpu=1"}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("replicas %v: series (-want +got):\n%s", replicas, diff)
		}
	}
}
