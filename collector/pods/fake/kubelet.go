// Package fake is a kubelet that says which pods have which devices, for tests of programs
// that ask one.
package fake

import (
	"context"
	"net"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// A Hold is what one container has of one resource.
type Hold struct {
	Namespace, Pod, Container string
	Resource                  string
	IDs                       []string
	CPUs                      []int64
}

// A Kubelet answers on a socket with what was said last; before that it answers nothing.
type Kubelet struct {
	podresources.UnimplementedPodResourcesListerServer
	answer atomic.Pointer[podresources.ListPodResourcesResponse]
	asked  atomic.Int64
}

// Serve starts a kubelet on a socket. It ends with the test.
func Serve(tb testing.TB, socket string) *Kubelet {
	tb.Helper()
	listener, err := (&net.ListenConfig{}).Listen(tb.Context(), "unix", socket)
	if err != nil {
		tb.Fatal(err)
	}
	k := &Kubelet{}
	server := grpc.NewServer(grpc.MaxSendMsgSize(1 << 30))
	podresources.RegisterPodResourcesListerServer(server, k)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	tb.Cleanup(func() { server.Stop(); <-done })
	return k
}

// Say replaces what the kubelet answers.
func (k *Kubelet) Say(holds ...Hold) {
	answer := &podresources.ListPodResourcesResponse{}
	for _, h := range holds {
		answer.PodResources = append(answer.PodResources, &podresources.PodResources{
			Namespace: h.Namespace, Name: h.Pod, Containers: []*podresources.ContainerResources{{
				Name: h.Container, CpuIds: h.CPUs, Devices: []*podresources.ContainerDevices{{ResourceName: h.Resource, DeviceIds: h.IDs}},
			}},
		})
	}
	k.SayAll(answer)
}

// SayAll is Say for what a Hold can't say.
func (k *Kubelet) SayAll(answer *podresources.ListPodResourcesResponse) { k.answer.Store(answer) }

// Asked returns how often it was asked.
func (k *Kubelet) Asked() int { return int(k.asked.Load()) }

// List is the kubelet's. While nothing was said it waits, as a kubelet that is stuck does.
func (k *Kubelet) List(ctx context.Context, _ *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	k.asked.Add(1)
	if a := k.answer.Load(); a != nil {
		return a, nil
	}
	<-ctx.Done()
	return nil, ctx.Err()
}
