package gpudriver

import (
	"encoding/json"
	"fmt"
	"os"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"tags.cncf.io/container-device-interface/specs-go"
)

// results returns this driver's devices of an allocated claim.
func results(claim *resourceapi.ResourceClaim) []resourceapi.DeviceRequestAllocationResult {
	var ours []resourceapi.DeviceRequestAllocationResult
	for i := range claim.Status.Allocation.Devices.Results {
		if r := claim.Status.Allocation.Devices.Results[i]; r.Driver == Name {
			ours = append(ours, r)
		}
	}
	return ours
}

// prepare returns what the kubelet is told of a claim's devices, and the CDI spec that describes them.
func prepare(claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, *specs.Spec) {
	spec := &specs.Spec{Version: "0.6.0", Kind: "k8s." + Name + "/claim"}
	var prepared []kubeletplugin.Device
	for i, r := range results(claim) {
		name := fmt.Sprintf("%s-%d-%s", claim.UID, i, r.Device)
		spec.Devices = append(spec.Devices, specs.Device{Name: name, ContainerEdits: specs.ContainerEdits{
			Env: []string{fmt.Sprintf("GPU_DEVICE_%d=%s", i, r.Device)},
		}})
		prepared = append(prepared, kubeletplugin.Device{
			Requests:     []string{r.Request},
			PoolName:     r.Pool,
			DeviceName:   r.Device,
			ShareID:      r.ShareID,
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
