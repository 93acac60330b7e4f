// Package podresourcestest is a fake kubelet for tests and the demo. It serves the PodResources API
// on a unix socket, and can inject the faults of real kubelets.
package podresourcestest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	encodingproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// The real kubelet's limit for all clients of its socket together (k8s.io/kubernetes
// pkg/kubelet/apis/podresources: DefaultQPS and DefaultBurstTokens).
const (
	kubeletQPS   = 100
	kubeletBurst = 10
)

// maxCallTimes is the number of calls whose times are kept.
const maxCallTimes = 4096

// Kubelet is a fake kubelet that answers PodResources calls. It is safe for concurrent use. Its
// settings persist across Stop and Start.
type Kubelet struct {
	limiter *rate.Limiter

	mu         sync.Mutex
	answer     []byte
	offered    *v1.AllocatableResourcesResponse // nil: GetAllocatableResources is not served
	behaviour  Behaviour                        // of List; nil: full answers
	emptyUntil time.Time                        // List is empty until then
	callTimes  []time.Time
	socket     string
	server     *grpc.Server
	served     chan error
}

// New returns a kubelet without pods that does not serve yet.
func New() *Kubelet {
	return &Kubelet{limiter: rate.NewLimiter(kubeletQPS, kubeletBurst)}
}

// Start serves on a unix socket at that path. It replaces a file that an earlier kubelet left
// there.
func (k *Kubelet) Start(socket string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.server != nil {
		return fmt.Errorf("start kubelet on %s: already serving on %s", socket, k.socket)
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove stale socket: %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	listener.SetUnlinkOnClose(false) // a kubelet that ends leaves its socket file behind
	server := grpc.NewServer(
		grpc.ForceServerCodecV2(codec{encoding.GetCodecV2(encodingproto.Name)}),
		grpc.UnaryInterceptor(k.intercept),
		grpc.WaitForHandlers(true),
	)
	v1.RegisterPodResourcesListerServer(server, lister{kubelet: k})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	k.socket, k.server, k.served = socket, server, served
	return nil
}

// Stop closes the listener and all connections, and waits until every call has ended. The socket
// file stays, and refuses connections, as that of a real kubelet does. Stopping a kubelet that does
// not serve does nothing.
func (k *Kubelet) Stop() {
	k.mu.Lock()
	server, served := k.server, k.served
	k.server, k.served = nil, nil
	k.mu.Unlock()
	if server == nil {
		return
	}
	server.Stop()
	<-served //nolint:errcheck // a stopped server's error says nothing
}

// Restart acts as a restarting kubelet: no service for the time down, then successful empty answers
// for the time empty, then full answers. It returns when it serves, or ctx has ended.
func (k *Kubelet) Restart(ctx context.Context, down, empty time.Duration) error {
	k.mu.Lock()
	socket := k.socket
	k.mu.Unlock()
	k.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(down):
	}
	k.Behave(nil)
	k.mu.Lock()
	k.emptyUntil = time.Now().Add(empty)
	k.mu.Unlock()
	return k.Start(socket)
}

// Behave sets how List is answered from now on.
func (k *Kubelet) Behave(b Behaviour) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.behaviour, k.emptyUntil = b, time.Time{}
}

// Set sets the full answer. The answer is copied.
func (k *Kubelet) Set(answer *v1.ListPodResourcesResponse) error {
	wire, err := proto.Marshal(answer)
	if err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.answer = wire
	return nil
}

// Answer returns the full answer; the service need not run.
func (k *Kubelet) Answer() (*v1.ListPodResourcesResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	answer := &v1.ListPodResourcesResponse{}
	if err := proto.Unmarshal(k.answer, answer); err != nil {
		return nil, fmt.Errorf("decode answer: %w", err)
	}
	return answer, nil
}

// SetPods sets the pods of the full answer. The pods are copied.
func (k *Kubelet) SetPods(pods ...*v1.PodResources) error {
	return k.Set(&v1.ListPodResourcesResponse{PodResources: pods})
}

// Offer sets the devices of a device plugin's resource that GetAllocatableResources lists from now
// on. It is not served before, as by an old kubelet.
func (k *Kubelet) Offer(resource string, ids ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	offered := &v1.AllocatableResourcesResponse{Devices: []*v1.ContainerDevices{{ResourceName: resource, DeviceIds: ids}}}
	for _, d := range k.offered.GetDevices() {
		if d.ResourceName != resource {
			offered.Devices = append(offered.Devices, d)
		}
	}
	k.offered = offered
}

// lister serves what [Kubelet.intercept] does not answer.
type lister struct {
	v1.UnimplementedPodResourcesListerServer
	kubelet *Kubelet
}

// GetAllocatableResources implements [v1.PodResourcesListerServer].
func (l lister) GetAllocatableResources(
	ctx context.Context, request *v1.AllocatableResourcesRequest,
) (*v1.AllocatableResourcesResponse, error) {
	l.kubelet.mu.Lock()
	defer l.kubelet.mu.Unlock()
	if l.kubelet.offered == nil {
		return l.UnimplementedPodResourcesListerServer.GetAllocatableResources(ctx, request)
	}
	return l.kubelet.offered, nil
}

// CallTimes returns the times at which the last List calls arrived, oldest first, 4096 at most.
func (k *Kubelet) CallTimes() []time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([]time.Time(nil), k.callTimes...)
}

// intercept answers List; the other methods are left to the handler.
func (k *Kubelet) intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler,
) (any, error) {
	if info.FullMethod != v1.PodResourcesLister_List_FullMethodName {
		return handler(ctx, request)
	}
	behaviour, full := k.arrive(time.Now())
	if !k.limiter.Allow() {
		return nil, errRateLimited
	}
	answer, err := behaviour(ctx, full)
	if err != nil {
		return nil, err
	}
	return wire(answer), nil
}

// arrive records a call, and returns its behaviour.
func (k *Kubelet) arrive(now time.Time) (Behaviour, []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.callTimes) == maxCallTimes {
		k.callTimes = append(k.callTimes[:0], k.callTimes[1:]...)
	}
	k.callTimes = append(k.callTimes, now)
	switch {
	case now.Before(k.emptyUntil):
		return Empty(), k.answer
	case k.behaviour == nil:
		return Full(), k.answer
	default:
		return k.behaviour, k.answer
	}
}
