package driver

import "errors"

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
