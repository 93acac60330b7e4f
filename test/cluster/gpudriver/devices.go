package gpudriver

import (
	"encoding/json"
	"fmt"
	"os"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/utils/ptr"
	"tags.cncf.io/container-device-interface/specs-go"
)

// The devices of a node: gpu-0 to gpu-7 belong to one claim at a time, shared-0 and shared-1 to many.
const (
	exclusiveDevices = 8
	sharedDevices    = 2
)

func devices() []resourceapi.Device {
	list := make([]resourceapi.Device, 0, exclusiveDevices+sharedDevices)
	for i := range exclusiveDevices {
		d := device("gpu", i, fmt.Sprintf("GPU-aaaaaaaa-0000-0000-0000-%012d", i))
		d.Name = fmt.Sprintf("gpu-%d", i)
		list = append(list, d)
	}
	for i := range sharedDevices {
		d := device("shared", i, fmt.Sprintf("GPU-bbbbbbbb-0000-0000-0000-%012d", i))
		d.Name = fmt.Sprintf("shared-%d", i)
		d.AllowMultipleAllocations = ptr.To(true)
		memory := d.Capacity["memory"]
		memory.RequestPolicy = &resourceapi.CapacityRequestPolicy{
			Default:    ptr.To(resource.MustParse("10Gi")),
			ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: ptr.To(resource.MustParse("10Gi")), Step: ptr.To(resource.MustParse("10Gi"))},
		}
		d.Capacity["memory"] = memory
		list = append(list, d)
	}
	return list
}

func device(kind string, index int, uuid string) resourceapi.Device {
	return resourceapi.Device{
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"type":          {StringValue: ptr.To(kind)},
			"index":         {IntValue: ptr.To(int64(index))},
			"uuid":          {StringValue: ptr.To(uuid)},
			"model":         {StringValue: ptr.To("LATEST-GPU-MODEL")},
			"driverVersion": {VersionValue: ptr.To("1.0.0")},
		},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			"memory": {Value: resource.MustParse("80Gi")},
		},
	}
}

// prepare returns this driver's devices of an allocated claim, and the CDI spec that describes them.
func prepare(claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, *specs.Spec) {
	spec := &specs.Spec{Version: "0.6.0", Kind: "k8s." + Name + "/claim"}
	var prepared []kubeletplugin.Device
	for i, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != Name {
			continue
		}
		name := fmt.Sprintf("%s-%d-%s", claim.UID, i, result.Device)
		spec.Devices = append(spec.Devices, specs.Device{Name: name, ContainerEdits: specs.ContainerEdits{
			Env: []string{fmt.Sprintf("GPU_DEVICE_%d=%s", i, result.Device)},
		}})
		prepared = append(prepared, kubeletplugin.Device{
			Requests:     []string{result.Request},
			PoolName:     result.Pool,
			DeviceName:   result.Device,
			ShareID:      result.ShareID,
			CDIDeviceIDs: []string{spec.Kind + "=" + name},
		})
	}
	return prepared, spec
}

// writeSpec writes a spec into its place by a rename: runtimes and exporters watch the folder, and never see half of one.
func writeSpec(path string, spec *specs.Spec) error {
	content, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("encode the CDI spec: %w", err)
	}
	if err := os.WriteFile(path+".tmp", content, 0o644); err != nil {
		return fmt.Errorf("write the CDI spec: %w", err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return fmt.Errorf("name the CDI spec: %w", err)
	}
	return nil
}
