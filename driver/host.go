package driver

import (
	"errors"
	"slices"
	"strings"
)

// ErrNotBuilt is the error of a source that this build of the program does not contain.
var ErrNotBuilt = errors.New("not in this build")

// ErrAbsent is wrapped by the error of a source whose vendor library or kernel driver is not
// installed. Package driver/bus drops such an error on machines without that hardware.
var ErrAbsent = errors.New("nothing to read")

// Host describes, to a source, the machine that it runs on, and the source's own flags.
type Host struct {
	Procfs, Sysfs string // mount points
	Kmsg          string // device file of the kernel log, such as /dev/kmsg
	KubeletRoot   string // the kubelet's root folder, which has the sockets of DRA drivers

	// Passthrough reports whether the inventory has a device that is passed through to a guest (vfio).
	Passthrough func() bool
	// CountListed returns the number of a vendor's devices in the inventory that can be read on this
	// host. Nil: unknown.
	CountListed func(vendor string) int
	// Attachments returns the network interfaces and RDMA devices that pods hold now. PIDs are those
	// of Procfs. Nil: there are none.
	Attachments func() []Attachment
	// Holders returns the pods that now hold, without admin access, a device for which wanted returns
	// true. PIDs are those of Procfs. It searches for processes only if there are such pods.
	Holders func(wanted func(*Hardware) bool) []PodProcesses

	// PodOf returns the UID of the pod of a process, by its PID in the host's PID namespace; "" if the
	// process belongs to no pod. Nil: unknown.
	PodOf func(pid int) string

	// Address and Switches are the source's own flags: the address to read from, and the names of its
	// enabled switches.
	Address  string
	Switches []string
}

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

// PodProcesses has the processes of a pod that holds devices.
type PodProcesses struct {
	// Devices are those of the requested devices that the pod holds.
	Devices []Hardware
	// PIDs are the processes that the last search found, ascending, as numbered in the procfs that the
	// source reads. A process may have ended since, and its PID may have been reused.
	PIDs []int
}

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

// IsPlaceholder reports whether a UUID or serial number is only a placeholder: empty, all zeros, or
// a word such as "unknown". A placeholder identifies no device.
func IsPlaceholder(text string) bool {
	text = strings.ToLower(strings.TrimSpace(text))
	return strings.Trim(strings.TrimPrefix(text, "0x"), "0-: ") == "" || slices.Contains([]string{
		"n/a", "na", "[n/a]", "none", "null", "nil", "unknown", "undefined", "not available", "not supported",
		"[not supported]", "not specified", "default string", "to be filled by o.e.m.",
	}, text)
}
