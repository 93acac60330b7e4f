package drmcard_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/driver/sysfs/drmcard"
	"github.com/dra-exporter/dra-exporter/driver/sysfs/drmcard/drmcardtest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// machine has a GPU with connectors, a partition of it, a server's display controller, and a card
// without hardware.
const machine = `
class/drm/version: drm 1.1.0 20060810
class/drm/card10 -> ../../devices/pci0000:c0/0000:c1:00.0/drm/card10
class/drm/card10-DP-1 -> ../../devices/pci0000:c0/0000:c1:00.0/drm/card10/card10-DP-1
class/drm/renderD138 -> ../../devices/pci0000:c0/0000:c1:00.0/drm/renderD138
devices/pci0000:c0/0000:c1:00.0/drm/card10/device -> ../../../0000:c1:00.0
devices/pci0000:c0/0000:c1:00.0/drm/card10/card10-DP-1/status: connected
devices/pci0000:c0/0000:c1:00.0/drm/renderD138/device -> ../../../0000:c1:00.0
devices/pci0000:c0/0000:c1:00.0/driver -> ../../../bus/pci/drivers/amdgpu
devices/pci0000:c0/0000:c1:00.0/vendor: 0x1002
devices/pci0000:c0/0000:c1:00.0/numa_node: 1
devices/pci0000:c0/0000:c1:00.0/hwmon/hwmon4/name: amdgpu

class/drm/card2 -> ../../devices/platform/amdgpu_xcp_0/drm/card2
class/drm/renderD129 -> ../../devices/platform/amdgpu_xcp_0/drm/renderD129
devices/platform/amdgpu_xcp_0/drm/card2/device -> ../../../amdgpu_xcp_0
devices/platform/amdgpu_xcp_0/drm/renderD129/device -> ../../../amdgpu_xcp_0

class/drm/card0 -> ../../devices/pci0000:00/0000:03:00.0/drm/card0
devices/pci0000:00/0000:03:00.0/drm/card0/device -> ../../../0000:03:00.0
devices/pci0000:00/0000:03:00.0/driver -> ../../../bus/pci/drivers/ast
devices/pci0000:00/0000:03:00.0/vendor: 0x1a03
devices/pci0000:00/0000:03:00.0/numa_node: -1

class/drm/card3 -> ../../devices/virtual/drm/card3
devices/virtual/drm/card3/dev: 226:3
`

const accelerator = `
class/accel/accel0 -> ../../devices/pci0000:80/0000:81:00.0/accel/accel0
class/accel/accel_controlD0 -> ../../devices/pci0000:80/0000:81:00.0/accel/accel_controlD0
devices/pci0000:80/0000:81:00.0/accel/accel0/device -> ../../../0000:81:00.0
devices/pci0000:80/0000:81:00.0/driver -> ../../../bus/pci/drivers/habanalabs
devices/pci0000:80/0000:81:00.0/vendor: 0x1da3
`

func tree(tb testing.TB) string {
	root := tb.TempDir()
	drivertest.WriteTree(tb, root, machine)
	return root
}

func list(root string) ([]drmcard.Card, error) {
	cards, _, err := drmcard.NewLister(root).Cards(time.Unix(1_800_000_000, 0))
	return cards, err
}

func TestList(t *testing.T) {
	root := tree(t)
	drivertest.WriteTree(t, root, accelerator)
	cards := must.Get(list(root))(t)
	gpu := root + "/devices/pci0000:c0/0000:c1:00.0"
	want := []drmcard.Card{
		{
			Index: 0, Render: -1, Device: root + "/devices/pci0000:00/0000:03:00.0", PCI: "0000:03:00.0",
			Driver: "ast", Vendor: "0x1a03",
		},
		{Index: 2, Render: 129, Device: root + "/devices/platform/amdgpu_xcp_0"},
		{
			Index: 10, Render: 138, Device: gpu, PCI: "0000:c1:00.0", Driver: "amdgpu", Vendor: "0x1002", NUMANode: "1",
			Hwmon: gpu + "/hwmon/hwmon4",
		},
		{
			Accel: true, Index: 0, Render: -1, Device: root + "/devices/pci0000:80/0000:81:00.0", PCI: "0000:81:00.0",
			Driver: "habanalabs", Vendor: "0x1da3",
		},
	}
	expect.Equal(t, "cards", want, cards)
	expect.Equal(t, "device files", []string{"/dev/dri/card10", "/dev/dri/renderD138"}, cards[2].DeviceNodes())
	expect.Equal(t, "device files", []string{"/dev/accel/accel0"}, cards[3].DeviceNodes())
	expect.Is(t, cards[2].Class()+"/"+cards[2].Name(), "drm/card10", "name")
	expect.Is(t, cards[3].Class()+"/"+cards[3].Name(), "accel/accel0", "name")
	if cards, err := list(t.TempDir()); err != nil || len(cards) > 0 {
		t.Errorf("without the class: %v, %v", cards, err)
	}
}

// A lister makes a new list when a card is added or removed, also under the same number, and after
// some time.
func TestLister(t *testing.T) {
	root, clock := tree(t), time.Unix(1_800_000_000, 0)
	lister := drmcard.NewLister(root)
	ask := func(what string, wantFresh bool, want int) {
		cards, fresh, err := lister.Cards(clock)
		expect.That(t, err == nil && fresh == wantFresh && len(cards) == want,
			"%s: %d cards, fresh %v, error %v; want %d, %v", what, len(cards), fresh, err, want, wantFresh)
	}
	ask("first", true, 3)
	ask("again", false, 3)
	clock = clock.Add(time.Minute)
	ask("a minute later", true, 3)
	ask("again", false, 3)
	clock = clock.Add(-time.Hour)
	ask("the clock was set back", true, 3)
	must.Do(t, os.Remove(root+"/class/drm/card2"))
	ask("one is gone", true, 2)
	drivertest.WriteTree(t, root, `
class/drm/card0 -> ../../devices/pci0000:00/0000:04:00.0/drm/card0
devices/pci0000:00/0000:04:00.0/drm/card0/device -> ../../../0000:04:00.0
`)
	must.Do(t, os.RemoveAll(root+"/devices/pci0000:00/0000:03:00.0"))
	ask("another took the number", true, 2)
	must.Do(t, os.RemoveAll(root+"/class/drm"))
	ask("none is left", true, 0)
	ask("none", false, 0)
}

// Recorded cards have the values of their recordings.
func TestRecorded(t *testing.T) {
	for folder, want := range map[string]drmcard.Card{
		"amd/rx580":       {Index: 0, Render: 128, PCI: "0000:09:00.0", Driver: "amdgpu", Vendor: "0x1002"},
		"amd/phoenix":     {Index: 1, Render: 129, PCI: "0000:64:00.0", Driver: "amdgpu", Vendor: "0x1002"},
		"intel/b580-6.16": {Index: 1, Render: 129, PCI: "0000:0b:00.0", Driver: "xe", Vendor: "0x8086"},
	} {
		t.Run(folder, func(t *testing.T) {
			root := drmcardtest.Recorded(t, folder)
			cards, err := list(root)
			must.That(t, err == nil && len(cards) == 1, "%+v, %v", cards, err)
			got := cards[0]
			expect.That(t, got.Hwmon != "" && filepath.Dir(got.Hwmon) == filepath.Join(got.Device, "hwmon"),
				"hwmon %q of %q", got.Hwmon, got.Device)
			got.Hwmon, got.Device, got.NUMANode = "", "", ""
			expect.Equal(t, "card", want, got)
		})
	}
}
