package pods

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// claimed is a pod with one device of DRA.
func claimed(driver, pool, device string) *podresources.PodResources {
	p := podOf("p")
	p.Containers[0].DynamicResources = []*podresources.DynamicResource{{
		ClaimName: "two", ClaimNamespace: "ns",
		ClaimResources: []*podresources.ClaimResource{{DriverName: driver, PoolName: pool, DeviceName: device}},
	}}
	return p
}

// slice is one of the API, with devices as in v1 or as in v1beta1.
func slice(driver, pool string, generation int, devices ...string) string {
	return fmt.Sprintf(`{"spec":{"driver":%q,"nodeName":"n","pool":{"name":%q,"generation":%d,"resourceSliceCount":1},"devices":[%s]}}`,
		driver, pool, generation, strings.Join(devices, ","))
}

func slicesOf(items ...string) string {
	return `{"kind":"ResourceSliceList","metadata":{"resourceVersion":"1"},"items":[` + strings.Join(items, ",") + `]}`
}

func deviceOf(name, attributes string) string {
	return fmt.Sprintf(`{"name":%q,"attributes":{"index":{"int":0},"driverVersion":{"version":"580.1.0"},%s}}`, name, attributes)
}

func (d *drive) claims(dt time.Duration, pods ...*podresources.PodResources) string {
	d.t.Helper()
	d.at = d.at.Add(dt)
	d.now = func() time.Time { return d.at }
	d.take(said(pods...), d.at)
	d.published.refresh(d.t.Context(), d.claimed(), d.at)
	return d.page()
}

// TestWhatDRAHasPublished: the GPU of a device is the one that its driver has published,
// whatever the device is called; without that the name alone has to say it.
func TestWhatDRAHasPublished(t *testing.T) {
	const mig = `"type":{"string":"mig"},"uuid":{"string":"MIG-5f3c"},"parentUUID":{"string":"GPU-c2"},"profile":{"string":"1g.10gb"}`
	gpu := func(uuid string) string { return `"uuid":{"string":"` + uuid + `"}` }
	for name, tc := range map[string]struct {
		driver, device string
		slices         []string
		want           string // the GPU and more of its row, or the reason
	}{
		"a GPU by any name": {"gpu.nvidia.com", "left", []string{slice("gpu.nvidia.com", "n", 1, deviceOf("left", gpu("GPU-b1")))}, `1 GPU-b1`},
		"the number is another one than the name says": {
			"gpu.nvidia.com", "gpu-0", []string{slice("gpu.nvidia.com", "n", 1, deviceOf("gpu-0", gpu("GPU-b1")))}, `1 GPU-b1`,
		},
		"a MIG device by its place": {
			"gpu.nvidia.com", "gpu-2-mig-1g10gb-19-0",
			[]string{slice("gpu.nvidia.com", "n", 1, deviceOf("gpu-2-mig-1g10gb-19-0", mig))},
			`2 GPU-c2 GPU_I_ID="7" dra_mig_profile="1g.10gb" dra_mig_device_uuid="MIG-5f3c"`,
		},
		"a MIG device that no source knows, on a GPU that is known": {
			"gpu.nvidia.com", "m",
			[]string{slice("gpu.nvidia.com", "n", 1, deviceOf("m", `"uuid":{"string":"MIG-new"},"parentUUID":{"string":"GPU-a0"}`))},
			`unknown-mig GPU-a0`,
		},
		"as in v1beta1": {
			"gpu.nvidia.com", "x", []string{slice("gpu.nvidia.com", "n", 1, `{"name":"x","basic":{"attributes":{"uuid":{"string":"GPU-a0"}}}}`)}, `0 GPU-a0`,
		},
		"an attribute with its domain": {
			"gpu.acme.com", "x", []string{slice("gpu.acme.com", "n", 1, deviceOf("x", `"gpu.acme.com/uuid":{"string":"GPU-a0"}`))}, `0 GPU-a0`,
		},
		"of two generations the newer": {
			"gpu.nvidia.com", "x", []string{
				slice("gpu.nvidia.com", "n", 2, deviceOf("x", gpu("GPU-b1"))), slice("gpu.nvidia.com", "n", 1, deviceOf("x", gpu("GPU-a0"))),
			}, `1 GPU-b1`,
		},
		"of two generations the newer, which comes later": {
			"gpu.nvidia.com", "x", []string{
				slice("gpu.nvidia.com", "n", 1, deviceOf("x", gpu("GPU-a0"))), slice("gpu.nvidia.com", "n", 2, deviceOf("y", gpu("GPU-b1"))),
			}, `unknown-id`,
		},
		"of another driver or pool": {
			"gpu.nvidia.com", "x", []string{slice("gpu.acme.com", "n", 1, deviceOf("x", gpu("GPU-a0"))), slice("gpu.nvidia.com", "m", 1, deviceOf("x", gpu("GPU-a0")))}, `unknown-id`,
		},
		"a device without a UUID":     {"gpu.nvidia.com", "x", []string{slice("gpu.nvidia.com", "n", 1, deviceOf("x", `"uuid":{"int":7}`))}, `unknown-id`},
		"a UUID of another vendor":    {"gpu.nvidia.com", "x", []string{slice("gpu.nvidia.com", "n", 1, deviceOf("x", gpu("0x1")))}, `unknown-id`},
		"a name that says it, unread": {"gpu.nvidia.com", "gpu-2", nil, `2 GPU-c2`},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			c.body = slicesOf(tc.slices...)
			d := driven(t, Options{Published: true, Node: "n", ServiceAccount: c.folder, Resources: []string{"gpu.acme.com"}})
			got := d.claims(0, claimed(tc.driver, "n", tc.device))
			row := ""
			for line := range strings.Lines(got) {
				if strings.HasPrefix(line, "stoker_gpu_pod_info{") || strings.HasPrefix(line, "stoker_gpu_pod_missing_info{") {
					row += line
				}
			}
			want := strings.Fields(tc.want)
			if len(want[0]) == 1 {
				want[0], want[1] = `pod_info{node="n",gpu="`+want[0]+`"`, `UUID="`+want[1]+`"`
			} else {
				want[0] = `reason="` + want[0] + `"`
			}
			for _, part := range want {
				if !strings.Contains(row, part) || strings.Count(row, "\n") != 1 {
					t.Errorf("it is %q, want %q", row, part)
				}
			}
			wantIn(t, got, "stoker_pods_published_up{reason=\"\"} 1\n")
			if asked := "GET /apis/resource.k8s.io/v1/resourceslices spec.nodeName=n application/json"; len(c.asked) != 1 || c.asked[0] != asked {
				t.Errorf("asked %q, want %q", c.asked, asked)
			}
		})
	}
}

// TestTheClusterIsAskedForSlicesSeldom: when there is a device that nobody has published, at
// most every minute for the same one, and else every ten minutes; never where no pod has one.
func TestTheClusterIsAskedForSlicesSeldom(t *testing.T) {
	c := newCluster(t)
	c.body = slicesOf(slice("gpu.nvidia.com", "n", 1, deviceOf("x", `"uuid":{"string":"GPU-a0"}`)))
	d := driven(t, Options{Published: true, Node: "n", ServiceAccount: c.folder})
	x, y := claimed("gpu.nvidia.com", "n", "x"), claimed("gpu.nvidia.com", "n", "y")
	for _, step := range []struct {
		dt   time.Duration
		pods []*podresources.PodResources
		want int // asked so far
	}{
		{0, []*podresources.PodResources{podOf("q", gpusOf("nvidia.com/gpu", "GPU-a0"))}, 0},
		{0, []*podresources.PodResources{claimed("nic.acme.com", "n", "eth0")}, 0},
		{0, []*podresources.PodResources{x}, 1},
		{time.Minute, []*podresources.PodResources{x}, 1},
		{0, []*podresources.PodResources{x, y}, 2},
		{every, []*podresources.PodResources{x, y}, 2},
		{absentFor, []*podresources.PodResources{x, y}, 3},
		{publishedEvery, []*podresources.PodResources{x}, 4},
	} {
		d.claims(step.dt, step.pods...)
		if n := c.count(); n != step.want {
			t.Fatalf("after %v it was asked %d times, want %d", step, n, step.want)
		}
	}
}

// TestSlicesThatCanNotBeRead are a metric that says why, and what was known stays for an
// hour. An older API is found.
func TestSlicesThatCanNotBeRead(t *testing.T) {
	c := newCluster(t)
	body := slicesOf(slice("gpu.nvidia.com", "n", 1, deviceOf("x", `"uuid":{"string":"GPU-a0"}`)))
	c.body = body
	d := driven(t, Options{Published: true, Node: "n", ServiceAccount: c.folder})
	x, y := claimed("gpu.nvidia.com", "n", "x"), claimed("gpu.nvidia.com", "n", "y")
	d.claims(0, x)
	for _, tc := range []struct {
		status int
		body   string
		reason string
		asked  int
	}{
		{http.StatusForbidden, "", "forbidden", 1},
		{http.StatusNotFound, "", "cluster-refuses", 3}, // in all versions
		{http.StatusInternalServerError, "", "cluster-refuses", 1},
		{0, "[", "odd-answer", 1},
	} {
		before := c.count()
		c.set(func() { c.status, c.body = tc.status, tc.body })
		got := d.claims(waitAfter, x, y)
		wantIn(t, got, "stoker_pods_published_up{reason=\""+tc.reason+"\"} 0\n", `stoker_gpu_pod_info{node="n",gpu="0",UUID="GPU-a0"`, `stoker_pods_unmatched_devices{reason="unknown-id"} 1`)
		if n := c.count() - before; n != tc.asked {
			t.Errorf("status %d: asked %d times, want %d", tc.status, n, tc.asked)
		}
	}
	if got := d.claims(aboutFor, x); strings.Contains(got, `stoker_gpu_pod_info{`) {
		t.Errorf("what was known an hour ago is still shown:\n%s", got)
	}
	none := driven(t, Options{Published: true, Node: "n", ServiceAccount: t.TempDir()})
	wantIn(t, none.claims(0, x), "stoker_pods_published_up{reason=\"no-service-account\"} 0\n")
	if got := driven(t, Options{}).claims(0, x); strings.Contains(got, "stoker_pods_published") {
		t.Errorf("nobody has asked for it:\n%s", got)
	}
}

// TestOlderClusters serve an older version of the API alone.
func TestOlderClusters(t *testing.T) {
	c := newCluster(t)
	c.body = slicesOf(slice("gpu.nvidia.com", "n", 1, `{"name":"x","basic":{"attributes":{"uuid":{"string":"GPU-a0"}}}}`))
	c.only = "/apis/resource.k8s.io/v1beta1/resourceslices"
	d := driven(t, Options{Published: true, Node: "n", ServiceAccount: c.folder})
	wantIn(t, d.claims(0, claimed("gpu.nvidia.com", "n", "x")), `stoker_gpu_pod_info{node="n",gpu="0",UUID="GPU-a0"`)
	if n := c.count(); n != 3 {
		t.Errorf("asked %d times, want once for each version", n)
	}
}
