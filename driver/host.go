package driver

import "errors"

// ErrNotBuilt says that this build of the program does not have a source.
var ErrNotBuilt = errors.New("not in this build")

// ErrAbsent is in the error of a source that found nothing to read: the vendor's library or kernel
// driver is not there. It is an error only where there is such hardware, which driver/bus decides.
var ErrAbsent = errors.New("nothing to read")

// Host is what a source is given of the machine that it runs on.
type Host struct {
	Procfs, Sysfs string // where they are mounted
	Kmsg          string // the kernel log, a device file: /dev/kmsg
	KubeletRoot   string // the kubelet's folder, which has the sockets of DRA drivers

	// Passthrough reports whether a device is handed to a guest as it is (vfio).
	Passthrough func() bool
	// Listed returns how many devices of a vendor the inventory has that could be read here. Nil:
	// unknown.
	Listed func(vendor string) int
	// Attachments returns the devices that are network interfaces or RDMA devices of pods now, with
	// process IDs of Procfs.
	Attachments func() []Attachment
	// Holders returns the pods that hold, now and without admin access, a device for which asked is
	// true, with processes of Procfs. It looks for processes only if there are such pods.
	Holders func(asked func(*Hardware) bool) []PodProcesses

	// PodOf returns the UID of the pod that a process of the host belongs to, "" for none. Nil:
	// unknown.
	PodOf func(pid int) string

	// Address and Switches are the flags of the source itself: where to read, and the names of
	// those of its switches that are on.
	Address  string
	Switches []string
}
