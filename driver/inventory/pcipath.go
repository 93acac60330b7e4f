package inventory

import (
	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

// PCIPath reads where a PCI device is in the machine, as [sysfs.PCIPathOf] does, given where sysfs
// is mounted.
func PCIPath(root, address string) (driver.PCIPath, error) { return sysfs.PCIPathOf(root, address) }
