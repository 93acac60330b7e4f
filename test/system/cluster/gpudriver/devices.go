package gpudriver

import (
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"

	"github.com/dra-exporter/dra-exporter/test/system/cluster/plugin"
)

// GPUs and Shared are the numbers of devices of the types "gpu" and "shared" on a node.
const (
	GPUs   = 32
	Shared = 6
)

// The devices of a node, by their attribute "type". A device gpu-N is allocated to one claim at a
// time. A device shared-N is allocated to several claims, which consume its memory. cut-0 is a GPU
// that is allocated either as a whole or as four partitions. worn-0 has a taint, so nothing is
// scheduled to it. A pod with fabric-0 is bound to the node only when the device's condition
// Attached is true in the status of its claim; only tests set that condition.
const (
	partitions = 4

	typeGPU       = "gpu"
	typeShared    = "shared"
	typeCut       = "cut"
	typePartition = "partition"
	typeWorn      = "worn"
	typeFabric    = "fabric"

	wornFamily    = 3
	replaceFamily = 4
	fabricFamily  = -1
)

// Attached is the binding condition of fabric-0 (KEP-5007).
const Attached = Name + "/attached"

// Taint is the key of the taint of worn-0. Its value is "true".
const Taint = Name + "/worn"

// Worn is the name of the device with the taint. The device plugin also has this device (see
// package deviceplugin).
const Worn = typeWorn + "-0"

// WornUUID returns the UUID of the device with the taint.
func WornUUID() string { return uuid(wornFamily, 0) }

// Replacement returns the UUID of the hardware that replaces the device gpu-N, where N is index.
func Replacement(index int) string { return uuid(replaceFamily, index) }

// resourceSlices returns the node's ResourceSlices. The counters that partitions share are in a
// slice of their own. The devices in replaced get the UUIDs of their replacements.
func resourceSlices(replaced ...string) []resourceslice.Slice {
	var all []resourceapi.Device
	for i := range GPUs {
		d := device(typeGPU, i, 0)
		if slices.Contains(replaced, d.Name) {
			d.Attributes["uuid"] = resourceapi.DeviceAttribute{StringValue: ptr.To(Replacement(i))}
		}
		all = append(all, d)
	}
	for i := range Shared {
		d := device(typeShared, i, 1)
		d.AllowMultipleAllocations = ptr.To(true)
		memory := d.Capacity["memory"]
		memory.RequestPolicy = &resourceapi.CapacityRequestPolicy{
			Default: ptr.To(resource.MustParse("10Gi")),
			ValidRange: &resourceapi.CapacityRequestPolicyRange{
				Min:  ptr.To(resource.MustParse("10Gi")),
				Step: ptr.To(resource.MustParse("10Gi")),
			},
		}
		d.Capacity["memory"] = memory
		all = append(all, d)
	}
	worn := device(typeWorn, 0, wornFamily)
	worn.Taints = []resourceapi.DeviceTaint{{Key: Taint, Value: "true", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	fabric := device(typeFabric, 0, fabricFamily)
	fabric.BindingConditions, fabric.BindingFailureConditions = []string{Attached}, []string{Name + "/failed"}
	return []resourceslice.Slice{{Devices: append(append(all, cut()...), worn, fabric)}, {SharedCounters: counters()}}
}

func device(kind string, index, family int) resourceapi.Device {
	return resourceapi.Device{
		Name: fmt.Sprintf("%s-%d", kind, index),
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"type":          {StringValue: ptr.To(kind)},
			"index":         {IntValue: ptr.To(int64(index))},
			"uuid":          {StringValue: ptr.To(uuid(family, index))},
			"model":         {StringValue: ptr.To("LATEST-GPU-MODEL")},
			"driverVersion": {VersionValue: ptr.To("1.0.0")},
		},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse("80Gi")}},
	}
}

func uuid(family, index int) string {
	return fmt.Sprintf("GPU-%08x-0000-4000-8000-%012d", 0xaaaaaaaa+0x11111111*family, index)
}

// cut returns cut-0 and its partitions (KEP-4815). All have the UUID of the whole GPU.
func cut() []resourceapi.Device {
	whole := device(typeCut, 0, 2)
	whole.ConsumesCounters = consumes(partitions)
	all := []resourceapi.Device{whole}
	for i := range partitions {
		d := device(typeCut, 0, 2)
		d.Name = fmt.Sprintf("%s-partition-%d", whole.Name, i)
		d.Attributes["type"] = resourceapi.DeviceAttribute{StringValue: ptr.To(typePartition)}
		d.Attributes["partition"] = resourceapi.DeviceAttribute{IntValue: ptr.To(int64(i))}
		d.Capacity["memory"] = resourceapi.DeviceCapacity{Value: resource.MustParse("20Gi")}
		d.ConsumesCounters = consumes(1)
		all = append(all, d)
	}
	return all
}

// counterSet is the name of the counter set that cut-0 and its partitions consume.
const counterSet = "cut-0-counters"

func counters() []resourceapi.CounterSet {
	return []resourceapi.CounterSet{{Name: counterSet, Counters: quarters(partitions)}}
}

func consumes(n int64) []resourceapi.DeviceCounterConsumption {
	return []resourceapi.DeviceCounterConsumption{{CounterSet: counterSet, Counters: quarters(n)}}
}

func quarters(n int64) map[string]resourceapi.Counter {
	return map[string]resourceapi.Counter{"quarters": {Value: *resource.NewQuantity(n, resource.DecimalSI)}}
}

// The device classes, by the type of their devices. ExtendedResource is the extended resource by
// which pods get a GPU without a claim of their own (KEP-5004).
const (
	ClassGPU         = Name
	ClassShared      = "shared." + Name
	ClassCut         = "cut." + Name
	ClassPartition   = "partition." + Name
	ClassFabric      = "fabric." + Name
	ClassAll         = "all." + Name
	ExtendedResource = "example.com/gpu"
)

func classes() []resourceapi.DeviceClass {
	ours := "device.driver == '" + Name + "'"
	all := []resourceapi.DeviceClass{plugin.Class(ClassAll, ours)}
	for name, kind := range map[string]string{
		ClassGPU: typeGPU, ClassShared: typeShared, ClassCut: typeCut, ClassPartition: typePartition,
		ClassFabric: typeFabric,
	} {
		class := plugin.Class(name, fmt.Sprintf("%s && device.attributes['%s'].type == '%s'", ours, Name, kind))
		if name == ClassGPU {
			class.Spec.ExtendedResourceName = ptr.To(ExtendedResource)
		}
		all = append(all, class)
	}
	return all
}
