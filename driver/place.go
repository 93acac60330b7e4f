package driver

// PCIPath is where a PCI device is in the machine, as the kernel has it
// (Documentation/ABI/testing/sysfs-bus-pci). An empty field is unknown.
type PCIPath struct {
	Root string // the root complex, such as pci0000:80
	// Port is the address of the root port, the first bridge below the root, behind which the device
	// is: what is behind one root port is behind one PCIe switch. Empty also for a device of the root
	// complex itself.
	Port     string
	NUMANode string // decimal number
}
