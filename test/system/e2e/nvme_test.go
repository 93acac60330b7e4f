package e2e

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
)

// The reads and writes of a drive are charged to the pod that holds it. The device is found by its
// serial number.
func TestNVMe(t *testing.T) {
	const driverName = "dra.nvme"
	const device = "devices/pci0000:3a/0000:3b:00.0"
	n := newNode(t)
	sysfs := filepath.Join(t.TempDir(), "sys")
	write := func(read, written int) {
		stat := fmt.Sprintf("1 0 %d 1 1 0 %d 1 2 5000 1", read, written)
		drivertest.WriteTree(t, sysfs, device+"/nvme/nvme0/nvme0n1/stat: "+stat+"\n")
	}
	drivertest.WriteTree(t, sysfs, "class/nvme/nvme0 -> ../../"+device+"/nvme/nvme0\n"+
		device+"/nvme/nvme0/device -> ../../../0000:3b:00.0\n"+device+"/nvme/nvme0/serial: S64GNE0R100001\n")
	write(1000, 2000)
	n.setPods(pod("team", "trainer", "main", podresourcestest.Device(driverName, nodeName, "nvme-0")))
	p := start(t, n.flags(flags{
		"path.sysfs":     sysfs,
		"inventory.file": n.inventory(slice(driverName, [2]string{"nvme-0", "{serial: {string: s64gne0r100001}}"})),
	}))
	of := func(family, holder, name, direction string, want float64) bool {
		return p.scrape().is(want, family, holder, name, "link", "storage", "direction", direction)
	}
	p.eventually("counting", func() bool { return of("dra_pod_io_bytes_total", "pod", "trainer", "transmit", 0) })
	write(1000+200, 2000+300)
	p.eventually("charged", func() bool {
		return of("dra_pod_io_bytes_total", "pod", "trainer", "transmit", 200*512) &&
			of("dra_pod_io_bytes_total", "pod", "trainer", "receive", 300*512) &&
			of("dra_device_io_bytes_total", "device", "nvme-0", "receive", 300*512)
	})
	p.scrape().want(2, "dra_device_requests_in_flight", "device", "nvme-0")
	if conserved(t, p.report()) == 0 {
		t.Error("nothing was compared")
	}
}
