package podresourcestest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

// Pods serves the watch of the kubelet's Pods API on a unix socket. It is safe for concurrent use.
type Pods struct {
	podsv1alpha1.UnimplementedPodsServer
	server  *grpc.Server
	serving sync.WaitGroup

	mu      sync.Mutex
	pods    map[string]*corev1.Pod // by UID
	watches map[chan *podsv1alpha1.WatchPodsEvent]bool
	broken  bool
}

// ServePods starts the service.
func ServePods(socket string) (*Pods, error) {
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove stale socket: %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	p := &Pods{
		server: grpc.NewServer(), pods: map[string]*corev1.Pod{},
		watches: map[chan *podsv1alpha1.WatchPodsEvent]bool{},
	}
	podsv1alpha1.RegisterPodsServer(p.server, p)
	p.serving.Go(func() { _ = p.server.Serve(listener) }) // until Stop
	return p, nil
}

// Stop ends the service and its watches.
func (p *Pods) Stop() {
	p.server.Stop()
	p.serving.Wait()
}

// Break ends all watches and refuses new ones, as a kubelet that is initializing, until it is
// called with false.
func (p *Pods) Break(broken bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broken = broken
	for watch := range p.watches {
		close(watch)
		delete(p.watches, watch)
	}
}

// Set creates or changes a pod.
func (p *Pods) Set(pod *corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	kind := podsv1alpha1.EventType_ADDED
	if p.pods[string(pod.UID)] != nil {
		kind = podsv1alpha1.EventType_MODIFIED
	}
	p.pods[string(pod.UID)] = pod
	p.send(kind, pod)
}

// Remove removes a pod.
func (p *Pods) Remove(uid string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pod := p.pods[uid]
	if pod == nil {
		return
	}
	delete(p.pods, uid)
	last := &corev1.Pod{} // as the kubelet sends it
	last.Name, last.Namespace, last.UID = pod.Name, pod.Namespace, pod.UID
	p.send(podsv1alpha1.EventType_DELETED, last)
}

// Spoil sends an event that cannot be decoded as a pod.
func (p *Pods) Spoil() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for watch := range p.watches {
		watch <- &podsv1alpha1.WatchPodsEvent{Type: podsv1alpha1.EventType_ADDED, Pod: []byte{0xff}}
	}
}

func (p *Pods) send(kind podsv1alpha1.EventType, pod *corev1.Pod) {
	wire, _ := pod.Marshal() // it can be
	for watch := range p.watches {
		watch <- &podsv1alpha1.WatchPodsEvent{Type: kind, Pod: wire}
	}
}

// maxEvents is the size of a watch's queue of events; tests send fewer.
const maxEvents = 4096

// WatchPods implements the service.
func (p *Pods) WatchPods(_ *podsv1alpha1.WatchPodsRequest,
	stream grpc.ServerStreamingServer[podsv1alpha1.WatchPodsEvent],
) error {
	watch := make(chan *podsv1alpha1.WatchPodsEvent, maxEvents)
	p.mu.Lock()
	if p.broken {
		p.mu.Unlock()
		return status.Error(codes.FailedPrecondition, "Kubelet is initializing")
	}
	for _, pod := range p.pods {
		wire, _ := pod.Marshal()
		watch <- &podsv1alpha1.WatchPodsEvent{Type: podsv1alpha1.EventType_ADDED, Pod: wire}
	}
	watch <- &podsv1alpha1.WatchPodsEvent{Type: podsv1alpha1.EventType_INITIAL_SYNC_COMPLETE}
	p.watches[watch] = true
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.watches, watch)
	}()
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case event, ok := <-watch:
			if !ok {
				return status.Error(codes.Unavailable, "the watch was dropped")
			}
			if err := stream.Send(event); err != nil {
				return err
			}
		}
	}
}

// Pod is a pod of an answer.
func Pod(namespace, name string, containers ...*v1.ContainerResources) *v1.PodResources {
	return &v1.PodResources{Namespace: namespace, Name: name, Containers: containers}
}

// Container is a container of a pod, with the claims that it uses.
func Container(name string, claims ...*v1.DynamicResource) *v1.ContainerResources {
	return &v1.ContainerResources{Name: name, DynamicResources: claims}
}

// Claim returns a claim as the kubelet lists it: the CDI names of a driver's devices accumulate, so
// that each device has its own names and those of all of the driver's devices before it
// (k8s.io/kubernetes pkg/kubelet/cm/container_manager_linux.go, GetDynamicResources). The devices
// are copied.
func Claim(namespace, name string, devices ...*v1.ClaimResource) *v1.DynamicResource {
	claim := &v1.DynamicResource{ClaimNamespace: namespace, ClaimName: name}
	shown := make(map[string][]*v1.CDIDevice) // by driver
	for _, device := range devices {
		driver := device.GetDriverName()
		shown[driver] = append(shown[driver], device.GetCdiDevices()...)
		device = proto.CloneOf(device)
		device.CdiDevices = slices.Clone(shown[driver])
		claim.ClaimResources = append(claim.ClaimResources, device)
	}
	return claim
}

// Device is a device of a claim, with its own qualified CDI names.
func Device(driver, pool, device string, cdi ...string) *v1.ClaimResource {
	resource := &v1.ClaimResource{DriverName: driver, PoolName: pool, DeviceName: device}
	for _, name := range cdi {
		resource.CdiDevices = append(resource.CdiDevices, &v1.CDIDevice{Name: name})
	}
	return resource
}

// Share is one share of a device of consumable capacity (KEP-5075).
func Share(driver, pool, device, shareID string, cdi ...string) *v1.ClaimResource {
	resource := Device(driver, pool, device, cdi...)
	resource.ShareId = proto.String(shareID)
	return resource
}

// WithDevices adds devices of a device plugin to a container, each in an entry of its own, as the
// kubelet lists them (k8s.io/kubernetes pkg/kubelet/cm/devicemanager/pod_devices.go,
// getContainerDevices). It returns the container.
func WithDevices(container *v1.ContainerResources, resource string, ids ...string) *v1.ContainerResources {
	for _, id := range ids {
		container.Devices = append(container.Devices, &v1.ContainerDevices{ResourceName: resource, DeviceIds: []string{id}})
	}
	return container
}

// ParseList decodes a recorded answer: a ListPodResourcesResponse as protojson.
func ParseList(recorded []byte) (*v1.ListPodResourcesResponse, error) {
	answer := new(v1.ListPodResourcesResponse)
	if err := protojson.Unmarshal(recorded, answer); err != nil {
		return nil, fmt.Errorf("decode recorded answer: %w", err)
	}
	return answer, nil
}
