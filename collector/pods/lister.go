// Package pods says which pods have which GPUs of a node. It owns the conversation with the
// kubelet, in the background, the reading of device ids in all the forms that device
// plugins and DRA drivers give them, and what is asked of the cluster about these pods. What
// it knows is shown as series of its own, so that no series of a GPU comes, goes or changes
// with a pod unless that is asked for.
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
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// Bounds and times.
const (
	every     = 10 * time.Second // between two questions to the kubelet
	renew     = time.Second      // between two looks at the GPUs
	answerIn  = 5 * time.Second
	maxAnswer = 16 << 20 // bytes, as dcgm-exporter's and the kubelet's own limit
	maxHolds  = 10_000
	maxAge    = 5 * time.Minute // of what the kubelet has said
)

// Options are what a lister may be told. The zero value is useful.
type Options struct {
	// Socket is the kubelet's; /var/lib/kubelet/pod-resources/kubelet.sock when empty.
	Socket string
	// Resources are names of resources and of DRA drivers that are GPUs, beside
	// nvidia.com/gpu, nvidia.com/mig-* and gpu.nvidia.com. An id that is a GPU's UUID
	// needs none.
	Resources []string
	// Replicas tells the shares of a shared GPU apart, in a label vgpu.
	Replicas bool
	// About asks the cluster for what the kubelet does not say of pods.
	About About
	// Published asks the cluster what DRA drivers have published of their devices.
	Published bool
	// Node is the name of the node as the cluster has it. It must be set where the cluster is
	// asked: without it, the question would be about all nodes.
	Node string
	// ServiceAccount is the folder of the account with which the cluster is asked; the usual one
	// when empty.
	ServiceAccount string
}

// A Lister asks the kubelet and remembers what it said. Run does all the work, on one
// goroutine; everything else reads what that has finished.
type Lister struct {
	log       *slog.Logger
	o         Options
	seen      func() Seen
	asks      *cluster
	about     *about     // nil: nobody asks for it
	published *published // the same
	now       func() time.Time

	missed string // what was logged last; Run's

	finished atomic.Pointer[finished]

	mu    sync.Mutex
	holds []hold
	over  int // devices over maxHolds
	last  outcome
}

// finished is what scrapes read. It is never changed.
type finished struct {
	page   []byte
	labels labels
}

// An outcome is how the tries to ask somebody have gone.
type outcome struct {
	tried   bool
	failure error // of the last try
	reason  string
	success time.Time
}

// Why there may be no pods.
const (
	noSocket  = "socket-missing"
	noAnswer  = "kubelet-does-not-answer"
	tooLong   = "answer-too-long"
	refused   = "kubelet-refuses"
	forbidden = "socket-forbidden"
)

// New returns a lister that has asked nobody yet. Seen says what else is known of the node;
// it is called by Run alone and must not block.
func New(log *slog.Logger, o Options, seen func() Seen) *Lister {
	o.Socket = cmp.Or(o.Socket, "/var/lib/kubelet/pod-resources/kubelet.sock")
	l := &Lister{log: log.With("kubelet", o.Socket), o: o, seen: seen, now: time.Now}
	l.asks = &cluster{node: o.Node, account: o.ServiceAccount}
	if o.About.wanted() {
		l.about = newAbout(log, o.About, l.asks)
	}
	if o.Published {
		l.published = newPublished(log, l.asks)
	}
	l.finished.Store(&finished{})
	return l
}

// Run asks at once and then every ten seconds, until ctx ends.
func (l *Lister) Run(ctx context.Context) {
	defer l.asks.close()
	// One connection, which comes back by itself when the kubelet does.
	conn, err := grpc.NewClient("unix:"+l.o.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)))
	if err != nil {
		l.fail(noAnswer, err)
		l.build()
		return
	}
	defer func() { _ = conn.Close() }() // nothing is under way
	client := podresources.NewPodResourcesListerClient(conn)
	tick := time.NewTicker(renew)
	defer tick.Stop()
	var asked time.Time
	for {
		if l.now().Sub(asked) >= every {
			asked = l.now()
			l.ask(ctx, client)
			l.about.refresh(ctx, l.pods(), l.now())
			l.published.refresh(ctx, l.claimed(), l.now())
		}
		l.build()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (l *Lister) ask(ctx context.Context, client podresources.PodResourcesListerClient) {
	if _, err := os.Stat(l.o.Socket); err != nil {
		reason := forbidden
		if errors.Is(err, fs.ErrNotExist) {
			reason = noSocket
		}
		l.fail(reason, err)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, answerIn)
	defer cancel()
	answer, err := client.List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		reason := refused
		switch {
		case ctx.Err() != nil, slices.Contains([]codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.Canceled}, status.Code(err)):
			reason = noAnswer
		case status.Code(err) == codes.ResourceExhausted:
			reason = tooLong
		}
		l.fail(reason, err)
		return
	}
	l.take(answer, l.now())
}

func (l *Lister) fail(reason string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last.failure == nil || l.last.reason != reason {
		l.log.Warn("pods are not known", "reason", reason, "err", err)
	}
	l.last.tried, l.last.failure, l.last.reason = true, err, reason
}

// take remembers what the kubelet has said.
func (l *Lister) take(answer *podresources.ListPodResourcesResponse, now time.Time) {
	var holds []hold
	over := 0
	add := func(h hold) {
		if len(holds) >= maxHolds {
			over++
			return
		}
		holds = append(holds, h)
	}
	for _, p := range answer.GetPodResources() {
		for _, c := range p.GetContainers() {
			is := pod{p.GetNamespace(), p.GetName()}
			cpus := c.GetCpuIds()
			if len(cpus) == 0 {
				cpus = p.GetCpuIds() // of all its containers together
			}
			for _, d := range c.GetDevices() {
				for _, id := range d.GetDeviceIds() {
					add(hold{owner{pod: is, container: c.GetName(), resource: d.GetResourceName()}, []string{id}, cpus})
				}
			}
			for _, r := range c.GetDynamicResources() {
				for _, x := range r.GetClaimResources() {
					h := hold{owner{pod: is, container: c.GetName(), resource: x.GetDriverName(), claim: claim{
						namespace: r.GetClaimNamespace(), name: r.GetClaimName(), driver: x.GetDriverName(), pool: x.GetPoolName(), device: x.GetDeviceName(),
					}}, nil, cpus}
					for _, d := range x.GetCdiDevices() {
						h.ids = append(h.ids, d.GetName())
					}
					h.ids = append(h.ids, x.GetDeviceName())
					add(h)
				}
			}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last.failure != nil {
		l.log.Info("pods are known again")
	}
	l.holds, l.over, l.last = holds, over, outcome{tried: true, success: now}
}

// pods returns those that have devices which may be GPUs.
func (l *Lister) pods() []pod {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []pod
	for _, h := range l.holds {
		if d, ok := readAny(firstOf(h.ids)); (ok && d.unique() || l.isGPU(h.resource)) && !slices.Contains(out[max(0, len(out)-1):], h.pod) {
			out = append(out, h.pod)
		}
	}
	return out
}

// claimed returns the devices that GPU drivers of DRA have given to containers.
func (l *Lister) claimed() []place {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []place
	for _, h := range l.holds {
		if p := h.claim.place(); p.driver != "" && l.isGPU(p.driver) {
			out = append(out, p)
		}
	}
	return out
}

// isGPU reports whether a resource, or a DRA driver, is one of GPUs.
func (l *Lister) isGPU(name string) bool {
	return name == "nvidia.com/gpu" || name == "nvidia.com/gpu.shared" || name == "gpu.nvidia.com" ||
		strings.HasPrefix(name, "nvidia.com/mig-") || slices.Contains(l.o.Resources, name)
}

// String says how the last try went, for /healthz and logs.
func (l *Lister) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last.String()
}

func (o outcome) String() string {
	switch {
	case !o.tried:
		return "not asked yet"
	case o.failure != nil:
		return fmt.Sprintf("%s: %v", o.reason, o.failure)
	}
	return "up"
}
