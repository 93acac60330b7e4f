package driver

import "errors"

// ErrNotBuilt says that this build of the program does not have a source.
var ErrNotBuilt = errors.New("not in this build")

// Host is what a source is given of the machine that it runs on.
type Host struct {
	Procfs, Sysfs string // where they are mounted

	// Passthrough reports whether a device is handed to a guest as it is (vfio).
	Passthrough func() bool
	// Attachments returns the devices that are network interfaces of pods now, with process IDs of
	// Procfs.
	Attachments func() []Attachment

	// Address and Switches are the flags of the source itself: where to read, and the names of
	// those of its switches that are on.
	Address  string
	Switches []string
}
