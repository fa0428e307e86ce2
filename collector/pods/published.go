package pods

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"stoker.dev/stoker/collector/kubeget"
)

// publishedEvery is how often the cluster is asked while all devices are known: a MIG device
// may have gone and another one have its name.
const publishedEvery = 10 * time.Minute

// versions are those of the API of ResourceSlices, newest first.
var versions = []string{"v1", "v1beta2", "v1beta1"}

// A place is how DRA names a device: by its driver, a pool of that and a name in the pool.
type place struct{ driver, pool, name string }

// A publication is what a driver says of a device in a ResourceSlice.
type publication struct {
	uuid    string // of the GPU or the MIG device
	parent  string // UUID of the GPU that a MIG device is a part of
	profile string // of a MIG device, such as 1g.10gb
}

// device is what it says as an id would.
func (p publication) device() (device, bool) {
	d, ok := read(p.uuid)
	if ok && d.mig != "" {
		d.uuid = p.parent
	}
	return d, ok && d.unique()
}

// published asks the cluster for what the drivers of DRA have published of this node's
// devices: what a claim names a device by need not say which GPU that is. It belongs to one
// goroutine.
type published struct {
	log     *slog.Logger
	cluster *cluster
	devices map[place]publication
	asked   map[place]time.Time // of those that nobody has published
	last    outcome
	next    time.Time // not to be asked before
}

func newPublished(log *slog.Logger, c *cluster) *published {
	return &published{log: log.With("asked_for", "what DRA has published"), cluster: c, devices: map[place]publication{}, asked: map[place]time.Time{}}
}

// of returns what is known. What nobody has confirmed for an hour is not.
func (p *published) of(now time.Time) map[place]publication {
	if p == nil || now.Sub(p.last.success) > aboutFor {
		return nil
	}
	return p.devices
}

// refresh asks the cluster if there is a device of which it has not told, or from time to
// time.
func (p *published) refresh(ctx context.Context, wanted []place, now time.Time) {
	if p == nil || !p.due(wanted, now) {
		return
	}
	devices, err := p.list(ctx)
	if p.next = p.last.end(p.log, err, now); err != nil {
		return
	}
	p.devices = devices
	clear(p.asked)
	for _, w := range wanted {
		if _, ok := devices[w]; !ok {
			p.asked[w] = now
		}
	}
}

func (p *published) due(wanted []place, now time.Time) bool {
	if len(wanted) == 0 || now.Before(p.next) {
		return false
	}
	if now.Sub(p.last.success) >= publishedEvery {
		return true
	}
	for _, w := range wanted {
		_, known := p.devices[w]
		if at, asked := p.asked[w]; !known && (!asked || now.Sub(at) >= absentFor) {
			return true
		}
	}
	return false
}

// list reads the slices of the node in the newest version that the cluster serves.
func (p *published) list(ctx context.Context) (map[place]publication, error) {
	var err error
	for _, v := range versions {
		var devices map[place]publication
		devices, err = p.listAs(ctx, v)
		if s, ok := errors.AsType[*kubeget.StatusError](err); !ok || s.Code != http.StatusNotFound {
			return devices, err
		}
	}
	return nil, fmt.Errorf("the cluster has no ResourceSlices: %w", err)
}

func (p *published) listAs(ctx context.Context, version string) (map[place]publication, error) {
	type attributes map[string]struct {
		String *string `json:"string"`
	}
	type pool struct{ driver, name string }
	generation := map[pool]int64{} // the newest that was seen; older slices are leftovers
	out := map[place]publication{}
	query := url.Values{"fieldSelector": {"spec.nodeName=" + p.cluster.node}}
	err := p.cluster.list(ctx, "/apis/resource.k8s.io/"+version+"/resourceslices", query, "", func(body []byte) (string, error) {
		var part struct {
			Metadata struct {
				Continue string `json:"continue"`
			} `json:"metadata"`
			Items []struct {
				Spec struct {
					Driver string `json:"driver"`
					Pool   struct {
						Name       string `json:"name"`
						Generation int64  `json:"generation"`
					} `json:"pool"`
					Devices []struct {
						Name       string     `json:"name"`
						Attributes attributes `json:"attributes"`
						Basic      struct {
							Attributes attributes `json:"attributes"`
						} `json:"basic"` // in v1beta1
					} `json:"devices"`
				} `json:"spec"`
			} `json:"items"`
		}
		if err := json.Unmarshal(body, &part); err != nil {
			return "", err
		}
		for _, item := range part.Items {
			s := item.Spec
			of := pool{s.Driver, s.Pool.Name}
			newest, seen := generation[of]
			if seen && s.Pool.Generation < newest {
				continue
			}
			if seen && s.Pool.Generation > newest {
				for k := range out {
					if k.driver == of.driver && k.pool == of.name {
						delete(out, k)
					}
				}
			}
			generation[of] = s.Pool.Generation
			for _, d := range s.Devices {
				has := d.Attributes
				if has == nil {
					has = d.Basic.Attributes
				}
				text := func(name string) string {
					// A name without a domain is in the driver's.
					for _, key := range []string{name, s.Driver + "/" + name} {
						if v := has[key].String; v != nil && len(*v) <= maxID {
							return *v
						}
					}
					return ""
				}
				one := publication{text("uuid"), text("parentUUID"), text("profile")}
				if _, ok := one.device(); ok && len(out) < maxHolds {
					out[place{s.Driver, s.Pool.Name, d.Name}] = one
				}
			}
		}
		return part.Metadata.Continue, nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}
