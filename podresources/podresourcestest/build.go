package podresourcestest

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"
)

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
