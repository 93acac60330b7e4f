package driver

// Attachment is a device that is a network interface, an RDMA device, or both. Its driver may have
// moved it into the network namespace of a pod, where it is not visible from the host.
type Attachment struct {
	// Driver and Device identify the device in samples.
	Driver, Device string
	// Hardware has the known ones of NetDev, PCI and RDMADev, as they are while the device is in the
	// host's network namespace.
	Hardware Hardware
	// Interface is the name of the interface in the pod; empty: the device is not an interface.
	Interface string
	// PIDs has the first process of each pod that holds the device, as numbered in the procfs that the
	// source reads. The network namespace of that process is the pod's. The caller has just checked
	// that each process belongs to its pod; it may end at any time.
	PIDs []int
}
