package gpudriver

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/dra-exporter/dra-exporter/test/system/cluster/plugin"
)

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
