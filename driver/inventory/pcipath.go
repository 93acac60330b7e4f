package inventory

import (
	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

// PCIPath returns the position of a PCI device, as [sysfs.PCIPathOf] does. root is the mount point
// of sysfs.
func PCIPath(root, address string) (driver.PCIPath, error) { return sysfs.PCIPathOf(root, address) }
