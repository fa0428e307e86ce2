// Package pods says which pods hold which GPUs of a node. It owns the conversation with the
// kubelet, in the background, and the reading of device ids in all the forms that device
// plugins give them. What it knows is shown as series of its own, so that no series of a
// GPU comes, goes or changes with a pod.
package pods

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// Bounds and times.
const (
	every     = 10 * time.Second
	answerIn  = 5 * time.Second
	maxAnswer = 16 << 20 // bytes, as dcgm-exporter's and the kubelet's own limit
	maxHolds  = 10_000
	maxAge    = 5 * time.Minute // of what the kubelet has said
)

// Options are what a lister may be told. The zero value is useful.
type Options struct {
	// Socket is the kubelet's; /var/lib/kubelet/pod-resources/kubelet.sock when empty.
	Socket string
	// Resources are names of resources that are GPUs, beside nvidia.com/gpu and
	// nvidia.com/mig-*.
	Resources []string
}

// A Lister asks the kubelet and remembers what it said.
type Lister struct {
	log *slog.Logger
	o   Options

	mu      sync.Mutex
	holds   []hold
	success time.Time
	failure error // of the last try; nil before the first
	reason  string
	tried   bool
	others  int // devices of resources that are no GPUs
}

// A hold is one device that a container has.
type hold struct {
	namespace, pod, container string
	resource                  string
	id                        string
}

// Why there may be no pods.
const (
	noSocket = "socket-missing"
	noAnswer = "kubelet-does-not-answer"
	refused  = "kubelet-refuses"
)

// New returns a lister that has asked nobody yet.
func New(log *slog.Logger, o Options) *Lister {
	o.Socket = cmp.Or(o.Socket, "/var/lib/kubelet/pod-resources/kubelet.sock")
	return &Lister{log: log.With("kubelet", o.Socket), o: o}
}

// Run asks at once and then every ten seconds, until ctx ends.
func (l *Lister) Run(ctx context.Context) {
	// One connection, which comes back by itself when the kubelet does.
	conn, err := grpc.NewClient("unix:"+l.o.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)))
	if err != nil {
		l.fail(noAnswer, err)
		return
	}
	defer func() { _ = conn.Close() }() // nothing is under way
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		l.ask(ctx, podresources.NewPodResourcesListerClient(conn))
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (l *Lister) ask(ctx context.Context, client podresources.PodResourcesListerClient) {
	if _, err := os.Stat(l.o.Socket); errors.Is(err, fs.ErrNotExist) {
		l.fail(noSocket, err)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, answerIn)
	defer cancel()
	answer, err := client.List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		reason := refused
		if ctx.Err() != nil {
			reason = noAnswer
		}
		l.fail(reason, err)
		return
	}
	l.take(answer, time.Now())
}

func (l *Lister) fail(reason string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failure == nil || l.reason != reason {
		l.log.Warn("pods are not known", "reason", reason, "err", err)
	}
	l.tried, l.failure, l.reason = true, err, reason
}

// take remembers what the kubelet has said.
func (l *Lister) take(answer *podresources.ListPodResourcesResponse, now time.Time) {
	var holds []hold
	others := 0
	for _, p := range answer.GetPodResources() {
		for _, c := range p.GetContainers() {
			add := func(resource, id string) {
				if len(holds) < maxHolds {
					holds = append(holds, hold{p.GetNamespace(), p.GetName(), c.GetName(), resource, id})
				}
			}
			for _, d := range c.GetDevices() {
				if !l.isGPU(d.GetResourceName()) {
					others += len(d.GetDeviceIds())
					continue
				}
				for _, id := range d.GetDeviceIds() {
					add(d.GetResourceName(), id)
				}
			}
			for _, r := range c.GetDynamicResources() {
				for _, claim := range r.GetClaimResources() {
					if claim.GetDriverName() == "gpu.nvidia.com" {
						add("gpu.nvidia.com/"+r.GetClaimName(), claim.GetDeviceName())
					}
				}
			}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failure != nil {
		l.log.Info("pods are known again")
	}
	l.holds, l.others, l.success, l.tried, l.failure, l.reason = holds, others, now, true, nil, ""
}

func (l *Lister) isGPU(resource string) bool {
	return resource == "nvidia.com/gpu" || resource == "nvidia.com/gpu.shared" ||
		strings.HasPrefix(resource, "nvidia.com/mig-") || slices.Contains(l.o.Resources, resource)
}

// String says how the last try went, for /healthz and logs.
func (l *Lister) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !l.tried:
		return "not asked yet"
	case l.failure != nil:
		return fmt.Sprintf("%s: %v", l.reason, l.failure)
	}
	return "up"
}
