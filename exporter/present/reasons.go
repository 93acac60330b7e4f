package present

import (
	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
)

// Remedy returns a remedy for a source that failed, or "" if that depends on the error.
func Remedy(reason driver.Reason) (do string) {
	switch reason {
	case driver.ReasonForbidden:
		return "run as root with the capabilities that the error names, or mount what it reads: see the chart's values"
	case driver.ReasonDiskFull:
		return "free disk space; the exporter tries again"
	case driver.ReasonReadOnly:
		return "mount the folder writable, or set another folder"
	case driver.ReasonLocked:
		return "end the other instance on this node: only one can use the state folder"
	case driver.ReasonDriverNotLoaded:
		return "load the kernel driver of the vendor on the node"
	case driver.ReasonDriverMismatch:
		return "restart the node: the library is newer than the loaded kernel driver"
	case driver.ReasonTimeout, driver.ReasonHung:
		return "see the kernel's log (dmesg): the driver does not answer"
	case driver.ReasonGPULost:
		return "see the kernel's log (dmesg) for Xid 79; the node must be restarted"
	default:
		return ""
	}
}

// Absent returns the meaning of the reason why a device lacks a quantity, and what to do.
func Absent(reason driver.AbsenceReason) (text, do string) {
	switch reason {
	case driver.AbsentPackage:
		return "its sensor measures the package, the processor included", ""
	case driver.AbsentZero:
		return "its source has 0, which means that there is no such sensor", ""
	default:
		return string(reason), ""
	}
}

// Missing returns the meaning of the reason why a device of a driver has no telemetry, and a
// remedy, or "" if none is needed.
func Missing(driverName string, missing join.MissingReason) (text, do string) {
	switch missing {
	case join.MissingNone:
		return "", ""
	case join.MissingNoInventory:
		return "not in any ResourceSlice: its hardware is unknown", "allow access to the API server, or set --inventory.file"
	case join.MissingNoSource:
		return "no source reads devices of " + driverName, "name the vendor's exporter in --source.scrape.config"
	case join.MissingNoMatch:
		return "no source has hardware with its UUID, PCI address or interface", "see which hardware the sources read"
	case join.MissingNotInstantiated:
		return "a partition that is not created", ""
	case join.MissingDriverGone:
		return "its DRA driver no longer runs on this node", "check the pods of " + driverName
	case join.MissingDuplicate:
		return "another device of the same hardware has its telemetry", ""
	case join.MissingAmbiguous:
		return "several pieces of hardware match it", "see its attributes in the ResourceSlice"
	case join.MissingUnreadable:
		return "its source knows the device and can't read it", "see the error of the source"
	case join.MissingRejected:
		return "its source answers with values that no device can have", "see the log, and the device itself"
	case join.MissingNoReadings:
		return "its source finds the device and reads no value", "see what the source needs: often a newer kernel or driver"
	default:
		return string(missing), ""
	}
}
