package e2e

import (
	"path/filepath"
	"testing"

	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
)

const intelDriver = "gpu.intel.com"

// The program exports recorded cards. Their counters do not change: a power of 0 is none, and the
// utilization of the card that reports itself as idle is unknown.
func TestRecordedIntel(t *testing.T) {
	t.Parallel()
	for _, folder := range []string{"intel/b580-6.16", "intel/a380-i915"} {
		t.Run(filepath.Base(folder), func(t *testing.T) {
			t.Parallel()
			goldenCard(t, folder, "intelgpu", intelDriver, func(m metrics) bool {
				zeros, ok := m.value("dra_exporter_input_rejected_total", "input", "intelgpu/power", "reason", "zero")
				return ok && zeros > 0
			})
		})
	}
}

// The energy of a GPU is charged to the pod that holds it. A virtual function without readable
// values is reported as such, and has its GPU as parent.
func TestIntelGPU(t *testing.T) {
	const device = "devices/pci0000:00/0000:03:00.0/"
	n := newNode(t)
	sysfs := filepath.Join(t.TempDir(), "sys")
	write := func(tree string) { drivertest.WriteTree(t, sysfs, tree) }
	write("class/drm/card0 -> ../../" + device + "drm/card0\n" + device + "drm/card0/device -> ../../../0000:03:00.0\n" +
		device + "driver -> ../../../bus/pci/drivers/xe\n" + device + "virtfn0 -> ../0000:03:00.1\n" +
		"devices/pci0000:00/0000:03:00.1/physfn -> ../0000:03:00.0\n" +
		device + "hwmon/hwmon0/name: xe\n" + device + "hwmon/hwmon0/energy1_input: 1000000\n")
	n.setPods(
		pod("team", "trainer", "main", podresourcestest.Device(intelDriver, nodeName, "0000-03-00-0-0xe20b")),
		pod("team", "guest", "main", podresourcestest.Device(intelDriver, nodeName, "0000-03-00-1-0xe20b")),
	)
	p := start(t, n.flags(flags{
		"path.sysfs": sysfs,
		"inventory.file": n.inventory(slice(intelDriver,
			[2]string{"0000-03-00-0-0xe20b", "{type: {string: gpu}}"},
			[2]string{"0000-03-00-1-0xe20b", "{type: {string: vf}}"})),
	}))
	p.eventually("counting", func() bool {
		_, ok := p.scrape().value("dra_pod_energy_joules_total", "pod", "trainer")
		return ok
	})
	write(device + "hwmon/hwmon0/energy1_input: 61000000\n")
	p.eventually("charged", func() bool {
		return p.scrape().is(60, "dra_device_energy_joules_total", "device", "0000-03-00-0-0xe20b")
	})
	x := p.scrape()
	if up, ok := x.value("dra_device_up", "device", "0000-03-00-1-0xe20b"); ok {
		t.Errorf("a virtual function of which nothing was ever read is up=%v, want neither", up)
	}
	if !x.is(1, "dra_exporter_unresolved_devices", "driver", intelDriver, "reason", "no_readings") {
		t.Error("a virtual function of which nothing was ever read is not counted as such")
	}
	if conserved(t, p.report()) == 0 {
		t.Error("nothing was compared")
	}
}
