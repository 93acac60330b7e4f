package simnode

import (
	"fmt"
	"maps"
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/sim"
)

// The drivers whose devices the node has, published in the format of their slices.
const (
	// GPUDriver is github.com/kubernetes-sigs/dra-example-driver.
	GPUDriver = "gpu.example.com"
	// NICDriver is github.com/google/dranet. It configures containers through NRI, without CDI.
	NICDriver = "dra.net"
)

// Device is a simulated device with the data that its driver publishes.
type Device struct {
	sim.Device
	Attributes map[resourcev1.QualifiedName]resourcev1.DeviceAttribute
	Capacity   resource.Quantity // of memory; zero: not published
	Shareable  bool              // may be allocated to several claims, up to its capacity
	Taints     []resourcev1.DeviceTaint
	// Counters are the device's part of its GPU (KEP-4815).
	Counters *resourcev1.DeviceCounterConsumption
	CDIClass string // of the driver's CDI devices; empty: the driver does not use CDI
	Plugin   bool   // a device plugin offers it, under the resource of its Driver; no slice lists it
}

func (d *Device) id() driver.ID {
	if d.Plugin {
		return driver.ID{Driver: d.Driver, Device: d.Name}
	}
	return driver.ID{Driver: d.Driver, Pool: Name, Device: d.Name}
}

// GPU returns gpu-INDEX as the example driver publishes it.
func GPU(seed uint64, index int) Device {
	return gpuDevice(sim.GPU(GPUDriver, fmt.Sprintf("gpu-%d", index), seed+uint64(index)), index)
}

// PartitionedGPU returns gpu-INDEX and its partitions. All have the parent's UUID, as with the
// example driver.
func PartitionedGPU(seed uint64, index, partitions int) []Device {
	whole := GPU(seed, index)
	out := []Device{whole}
	for i, d := range sim.Partitioned(whole.Device, partitions) {
		if i == 0 {
			out[0].Device = d
			continue
		}
		part := gpuDevice(d, index)
		part.Attributes["uuid"] = whole.Attributes["uuid"]
		part.Attributes["partition"] = resourcev1.DeviceAttribute{IntValue: new(int64(i - 1))}
		part.Attributes["profile"] = resourcev1.DeviceAttribute{StringValue: new(d.Hardware.Profile)}
		part.Counters = counters(d.Parent, part.Capacity, multiprocessors/partitions)
		out[0].Counters = counters(d.Parent, out[0].Capacity, multiprocessors)
		out = append(out, part)
	}
	return out
}

const (
	multiprocessors = 132 // in a GPU
	gpuModel        = "LATEST-GPU-MODEL"
)

// counters returns memory and multiprocessors of a GPU.
func counters(gpu string, memory resource.Quantity, processors int) *resourcev1.DeviceCounterConsumption {
	return &resourcev1.DeviceCounterConsumption{CounterSet: gpu, Counters: map[string]resourcev1.Counter{
		"memory": {Value: memory}, "multiprocessors": {Value: *resource.NewQuantity(int64(processors), resource.DecimalSI)},
	}}
}

func gpuDevice(d sim.Device, index int) Device {
	return Device{
		Device: d,
		Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
			"index":         {IntValue: new(int64(index))},
			"uuid":          {StringValue: new(d.Hardware.UUID)},
			"model":         {StringValue: new(gpuModel)},
			"driverVersion": {VersionValue: new("1.0.0")},
			// Four GPUs on each NUMA node, as the interfaces are.
			"resource.kubernetes.io/numaNode": {IntValue: new(int64(index / 4))},
			"resource.kubernetes.io/pcieRoot": {StringValue: new(fmt.Sprintf("pci0000:%02x", 0x40*(index/4)))},
		},
		Capacity: *resource.NewQuantity(int64(d.MemoryBytes), resource.BinarySI),
		CDIClass: "gpu",
	}
}

// Logged returns the device with a PCI address, at which the node's PCI bus has a GPU of NVIDIA,
// whose driver reports errors in the kernel log.
func Logged(d Device, pci string) Device {
	d.Hardware.PCI = pci
	d.Attributes["resource.kubernetes.io/pciBusID"] = resourcev1.DeviceAttribute{StringValue: new(pci)}
	return d
}

// Shared returns the device as a shared one: each claim consumes as much memory as it requests
// (KEP-5075).
func Shared(d Device) Device {
	d.Shareable = true
	return d
}

// Unhealthy returns the device with errors and a NoSchedule taint.
func Unhealthy(d Device) Device {
	d.Healthy, d.Unhealthy, d.UncorrectedErrorEvery = false, true, errorInterval
	d.Taints = []resourcev1.DeviceTaint{{
		Key: GPUDriver + "/unhealthy", Value: "ecc", Effect: resourcev1.DeviceTaintEffectNoSchedule,
	}}
	return d
}

// NIC returns ethINDEX as dranet publishes it.
func NIC(index int) Device {
	name, pci := fmt.Sprintf("eth%d", index), fmt.Sprintf("0000:%02x:00.0", 0x41+index)
	return Device{
		Device: sim.NIC(NICDriver, name, pci),
		Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
			"dra.net/ifName":     {StringValue: new(name)},
			"dra.net/pciAddress": {StringValue: new(pci)},
			"dra.net/numaNode":   {IntValue: new(int64(index / 2))},
			"dra.net/rdma":       {BoolValue: new(false)},
			"dra.net/virtual":    {BoolValue: new(false)},
			"dra.net/mtu":        {IntValue: new(int64(9000))},

			"resource.kubernetes.io/pcieRoot": {StringValue: new(fmt.Sprintf("pci0000:%02x", 0x40*(index/2)))},
		},
	}
}

// resourceSlices returns a ResourceSlice for each driver, as items of a list.
func (n *Node) resourceSlices(devices []Device) (out []byte) {
	byDriver := map[string]*resourcev1.ResourceSlice{}
	for i := range devices {
		d := &devices[i]
		if d.Plugin {
			continue
		}
		slice, ok := byDriver[d.Driver]
		if !ok {
			slice = n.resourceSlice(d.Driver)
			byDriver[d.Driver] = slice
		}
		slice.Spec.Devices = append(slice.Spec.Devices, d.object())
	}
	offered := n.offered(devices)
	if len(offered.Spec.SharedCounters) > 0 { // a slice of its own, by the API's rule
		byDriver[GPUDriver].Spec.Pool.ResourceSliceCount++
		offered.Spec.Pool.ResourceSliceCount++
		byDriver[offered.Name] = offered
	}
	for _, name := range slices.Sorted(maps.Keys(byDriver)) {
		out = append(out, n.item(byDriver[name])...)
	}
	return out
}

// offered returns the slice with the counters of partitioned GPUs.
func (n *Node) offered(devices []Device) *resourcev1.ResourceSlice {
	slice := n.resourceSlice(GPUDriver)
	slice.Name += "-counters"
	for _, d := range devices {
		if d.Counters != nil && d.Parent == "" {
			slice.Spec.SharedCounters = append(slice.Spec.SharedCounters, resourcev1.CounterSet{
				Name: d.Counters.CounterSet, Counters: d.Counters.Counters,
			})
		}
	}
	return slice
}

func (n *Node) resourceSlice(driverName string) *resourcev1.ResourceSlice {
	return &resourcev1.ResourceSlice{
		TypeMeta:   metav1.TypeMeta{APIVersion: resourcev1.SchemeGroupVersion.String(), Kind: "ResourceSlice"},
		ObjectMeta: metav1.ObjectMeta{Name: Name + "-" + driverName, CreationTimestamp: metav1.NewTime(n.now())},
		Spec: resourcev1.ResourceSliceSpec{
			Driver:   driverName,
			NodeName: new(Name),
			Pool:     resourcev1.ResourcePool{Name: Name, Generation: 1, ResourceSliceCount: 1},
		},
	}
}

// object returns the device as its slice lists it.
func (d *Device) object() resourcev1.Device {
	out := resourcev1.Device{Name: d.Name, Attributes: d.Attributes, Taints: d.Taints}
	if !d.Capacity.IsZero() {
		out.Capacity = map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{memoryCapacity: {Value: d.Capacity}}
	}
	if d.Counters != nil {
		out.ConsumesCounters = []resourcev1.DeviceCounterConsumption{*d.Counters}
	}
	if d.Shareable {
		out.AllowMultipleAllocations = new(true)
	}
	return out
}
