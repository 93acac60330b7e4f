// Package cpudriver is a DRA driver for the machine's CPUs, one device each. It publishes what
// dra-driver-cpu does, under the same name, and tells containers their CPUs by the variable
// DRA_CPU_0 and so on; cmd/workload keeps to them.
package cpudriver

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"

	"github.com/dra-exporter/dra-exporter/test/cluster/plugin"
)

// Name is the driver's name in ResourceSlices, and that of its only class.
const Name = "dra.cpu"

// Driver returns the driver of the CPUs 0 to cpus-1.
func Driver(cpus int) plugin.Driver {
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
	return plugin.Driver{
		Name: Name, Slices: []resourceslice.Slice{{Devices: devices}},
		Classes: []resourceapi.DeviceClass{plugin.Class(Name, "device.driver == '"+Name+"'")},
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
