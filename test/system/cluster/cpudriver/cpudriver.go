// Package cpudriver is a DRA driver for the machine's CPUs. It has the same name as dra-driver-cpu
// and publishes what that driver publishes in both of its modes: one device for each CPU, and one
// device for all CPUs of the NUMA node, from which each claim gets its own CPUs (see [ClassGroup]).
// The variables DRA_CPU_<n> and DRA_CPUSET_<claim UID> tell a container its CPUs; cmd/workload
// obeys them.
package cpudriver

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"

	"github.com/dra-exporter/dra-exporter/test/system/cluster/plugin"
)

// Name is the driver's name in ResourceSlices, and the name of the device class of single CPUs.
const Name = "dra.cpu"

// Driver returns the driver of the CPUs 0 to cpus-1. It writes its CDI specs into folder.
func Driver(cpus int, folder string) plugin.Driver {
	var devices []resourceapi.Device
	for cpu := range cpus {
		devices = append(devices, resourceapi.Device{
			Name: deviceName(cpu),
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"cpuID":      {IntValue: ptr.To(int64(cpu))},
				"socketID":   {IntValue: ptr.To[int64](0)},
				"numaNodeID": {IntValue: ptr.To[int64](0)},
				"coreType":   {StringValue: ptr.To("standard")},
			},
		})
	}
	group := newGroup(cpus, folder)
	return plugin.Driver{
		Name: Name, Slices: []resourceslice.Slice{{Devices: append(devices, group.device())}},
		Classes: []resourceapi.DeviceClass{
			plugin.Class(Name, "device.driver == '"+Name+"' && 'cpuID' in device.attributes['"+Name+"']"),
			plugin.Class(ClassGroup, "device.driver == '"+Name+"' && 'numCPUs' in device.attributes['"+Name+"']"),
		},
		Specify: group.specify, Unspecify: group.unspecify,
		Environment: func(n int, device string) []string {
			for cpu := range cpus {
				if deviceName(cpu) == device {
					return []string{fmt.Sprintf("DRA_CPU_%d=%d", n, cpu)}
				}
			}
			return nil
		},
	}
}

func deviceName(cpu int) string { return fmt.Sprintf("cpudev%03d", cpu) }
