package driver

// Attachment says that a device is a network interface, an RDMA device, or both, which its driver
// may have put into a pod's network namespace, where the host does not see it.
type Attachment struct {
	// Driver and Device are what samples of the device carry.
	Driver, Device string
	// Hardware is what the device is on the host while it is there: NetDev, PCI and RDMADev, as far
	// as they are known.
	Hardware Hardware
	// Interface is its name in the pod; empty: it is no interface.
	Interface string
	// PIDs are the first processes of the pods that hold it, one of each, by their numbers in the
	// procfs that the source reads. The network namespace of a pod is that of its first process,
	// whatever others it has. Each may end at any time. Whoever names them has just checked that they
	// are the pods'.
	PIDs []int
}
