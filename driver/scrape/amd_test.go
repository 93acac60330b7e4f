package scrape

import (
	"os"
	"testing"

	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// machine has two GPUs of AMD's: a whole one, and one with three partitions.
const machine = `
class/drm/card1 -> ../../devices/pci0000:00/0000:05:00.0/drm/card1
devices/pci0000:00/0000:05:00.0/drm/card1/device -> ../../../0000:05:00.0
devices/pci0000:00/0000:05:00.0/driver -> ../../../bus/pci/drivers/amdgpu
devices/pci0000:00/0000:05:00.0/serial_number: 692409005400
class/drm/card2 -> ../../devices/pci0000:20/0000:26:00.0/drm/card2
devices/pci0000:20/0000:26:00.0/drm/card2/device -> ../../../0000:26:00.0
devices/pci0000:20/0000:26:00.0/driver -> ../../../bus/pci/drivers/amdgpu
devices/pci0000:20/0000:26:00.0/serial_number: 692409005401
`

// gpus finds the GPUs of that machine.
func gpus(tb testing.TB) *amdGPUs {
	root := tb.TempDir()
	drivertest.WriteTree(tb, root, machine)
	for node, properties := range map[string]string{
		"1": "location_id 1280\ndomain 0\ndrm_render_minor 129\n",
		"2": "location_id 9728\ndomain 0\ndrm_render_minor 130\n",
		"3": "location_id 268445184\ndomain 0\ndrm_render_minor 131\n",
		"4": "location_id 536880640\ndomain 0\ndrm_render_minor 132\n",
	} {
		drivertest.WriteTree(tb, root, "class/kfd/kfd/topology/nodes/"+node+"/gpu_id: 100"+node+"\n")
		path := root + "/class/kfd/kfd/topology/nodes/" + node + "/properties"
		must.Do(tb, os.WriteFile(path, []byte(properties), 0o600))
	}
	found := newAMDGPUs(root)
	must.Do(tb, found.refresh(testNow()))
	return found
}
