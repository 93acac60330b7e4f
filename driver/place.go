package driver

// PCIPath is the position of a PCI device in the machine's PCI hierarchy, as sysfs shows it
// (Documentation/ABI/testing/sysfs-bus-pci). An empty field is unknown.
type PCIPath struct {
	Root string // root complex, such as pci0000:80
	// Port is the address of the root port above the device: the first bridge below the root complex.
	// Devices behind one root port share its PCIe link. Empty also for a device of the root complex
	// itself.
	Port     string
	NUMANode string // decimal number
}
