package drmcard_test

import (
	"os"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/driver/sysfs/drmcard"
	"github.com/dra-exporter/dra-exporter/driver/sysfs/drmcard/drmcardtest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// gpus are two AMD GPUs, the second of which has two partitions, and a card of another vendor with
// the same name.
const gpus = `
class/drm/card1 -> ../../devices/pci0000:00/0000:05:00.0/drm/card1
devices/pci0000:00/0000:05:00.0/drm/card1/device -> ../../../0000:05:00.0
devices/pci0000:00/0000:05:00.0/driver -> ../../../bus/pci/drivers/amdgpu
devices/pci0000:00/0000:05:00.0/serial_number: 692409005400
devices/pci0000:00/0000:05:00.0/unique_id: cce0c6d49f5b0d86

class/drm/card2 -> ../../devices/pci0002:00/0002:86:01.0/drm/card2
devices/pci0002:00/0002:86:01.0/drm/card2/device -> ../../../0002:86:01.0
devices/pci0002:00/0002:86:01.0/driver -> ../../../bus/pci/drivers/amdgpu
devices/pci0002:00/0002:86:01.0/serial_number: 69240900540A
devices/pci0002:00/0002:86:01.0/unique_id: 0000000000000000

class/drm/card3 -> ../../devices/platform/amdgpu_xcp_0/drm/card3
devices/platform/amdgpu_xcp_0/drm/card3/device -> ../../../amdgpu_xcp_0

class/drm/card4 -> ../../devices/pci0000:00/0000:07:00.0/drm/card4
devices/pci0000:00/0000:07:00.0/drm/card4/device -> ../../../0000:07:00.0
devices/pci0000:00/0000:07:00.0/driver -> ../../../bus/pci/drivers/xe
devices/pci0000:00/0000:07:00.0/serial_number: 692409005400

class/kfd/kfd/topology/nodes/0/gpu_id: 0
class/kfd/kfd/topology/nodes/0/properties: cpu_cores_count 64\nlocation_id 0\ndomain 0\ndrm_render_minor 0\n
class/kfd/kfd/topology/nodes/1/gpu_id: 1000
class/kfd/kfd/topology/nodes/1/properties: location_id 1280\ndomain 0\ndrm_render_minor 129\n
class/kfd/kfd/topology/nodes/2/gpu_id: 2000
class/kfd/kfd/topology/nodes/2/properties: location_id 34312\ndomain 2\ndrm_render_minor 130\n
class/kfd/kfd/topology/nodes/3/gpu_id: 3000
class/kfd/kfd/topology/nodes/3/properties: location_id 268469768\ndomain 2\ndrm_render_minor 131\n
`

func listAMD(tb testing.TB, root string) (drmcard.AMDGPUs, error) {
	cards := must.Get(list(root))(tb)
	return drmcard.ListAMD(root, cards)
}

// gpuTree returns the GPUs, with the ends of lines that a test's tree has no way to write.
func gpuTree(tb testing.TB, more string) string {
	root := tb.TempDir()
	drivertest.WriteTree(tb, root, gpus+more)
	for _, node := range []string{"0", "1", "2", "3"} {
		path := root + "/class/kfd/kfd/topology/nodes/" + node + "/properties"
		content := must.Get(os.ReadFile(path))(tb)
		must.Do(tb, os.WriteFile(path, []byte(strings.ReplaceAll(string(content), `\n`, "\n")), 0o600))
	}
	return root
}

func TestListAMD(t *testing.T) {
	found := must.Get(listAMD(t, gpuTree(t, "")))(t)
	for name, want := range map[string]string{
		"692409005400": "0000:05:00.0", "cce0c6d49f5b0d86": "0000:05:00.0", "0xCCE0C6D49F5B0D86": "0000:05:00.0",
		"69240900540a": "0002:86:01.0", "0000000000000000": "", "": "", "other": "",
	} {
		expect.Is(t, found.PCI(name), want, "%q", name)
	}
	for key, want := range map[int]int{0: 130, 1: 131, 2: -1} {
		got, ok := found.Render("0002:86:01.0", key)
		if !ok {
			got = -1
		}
		expect.Is(t, got, want, "partition %d has render node", key)
	}
	if got, ok := found.Render("0000:05:00.0", 0); !ok || got != 129 {
		t.Errorf("the whole GPU has render node %d", got)
	}
}

// A board's serial number, which its two GPUs have, identifies none of them.
func TestListAMDShared(t *testing.T) {
	found, err := listAMD(t, gpuTree(t, "devices/pci0002:00/0002:86:01.0/serial_number: 692409005400\n"))
	got := found.PCI("692409005400")
	expect.That(t, got == "" && err == nil, "it is %q, error %v", got, err)
	expect.Is(t, found.PCI("cce0c6d49f5b0d86"), "0000:05:00.0", "the unique ID")
}

// Nodes of earlier kernels have the partition's number in the function, or the same location.
func TestListAMDOldKernel(t *testing.T) {
	for _, location := range []string{"34313", "34312"} {
		root := gpuTree(t, "")
		path := root + "/class/kfd/kfd/topology/nodes/3/properties"
		properties := "location_id " + location + "\ndomain 2\ndrm_render_minor 131\n"
		must.Do(t, os.WriteFile(path, []byte(properties), 0o600))
		found, err := listAMD(t, root)
		got, ok := found.Render("0002:86:01.0", 1)
		expect.That(t, ok && got == 131 && err == nil, "location %s: render node %d, error %v", location, got, err)
	}
}

// Consumer cards have no serial number; what KFD shows of them is read all the same.
func TestListAMDRecorded(t *testing.T) {
	for folder, want := range map[string]int{"amd/rx580": -1, "amd/vega56": -1, "amd/phoenix": 128} {
		t.Run(folder, func(t *testing.T) {
			root := drmcardtest.Recorded(t, folder)
			found, err := listAMD(t, root)
			expect.OK(t, err)
			expect.Is(t, found.PCI(""), "", "a card without serial number")
			render, ok := found.Render("0000:64:00.0", 0)
			if !ok {
				render = -1
			}
			expect.Is(t, render, want, "render node")
		})
	}
}

// A UUID of AMD's tools is that of the GPU whose unique ID it has, and no other text of its form.
func TestUUID(t *testing.T) {
	root := t.TempDir()
	drivertest.WriteTree(t, root, `
class/drm/card1 -> ../../devices/pci0000:00/0000:05:00.0/drm/card1
devices/pci0000:00/0000:05:00.0/drm/card1/device -> ../../../0000:05:00.0
devices/pci0000:00/0000:05:00.0/driver -> ../../../bus/pci/drivers/amdgpu
devices/pci0000:00/0000:05:00.0/serial_number: N/A
devices/pci0000:00/0000:05:00.0/unique_id: cce0c6d49f5b0d86
`)
	cards := must.Get(list(root))(t)
	gpus := must.Get(drmcard.ListAMD(root, cards))(t)
	for name, want := range map[string]string{
		"ccff74a1-0000-1000-80e0-c6d49f5b0d86": "0000:05:00.0",
		"CCFF74A1-0000-1000-80E0-C6D49F5B0D86": "0000:05:00.0",
		"cc0174b9-0000-1000-80e0-c6d49f5b0d86": "0000:05:00.0", // another function and device ID
		"cdff74a1-0000-1000-80e0-c6d49f5b0d86": "",
		"ccff74a1-0000-4000-80e0-c6d49f5b0d86": "", // random
		"ccff74a1-0000-1000-80e0-c6d49f5b0d8":  "",
		"cce0c6d49f5b0d86":                     "0000:05:00.0",
		"N/A":                                  "",
		"":                                     "",
	} {
		expect.Is(t, gpus.PCI(name), want, "%q", name)
	}
}
