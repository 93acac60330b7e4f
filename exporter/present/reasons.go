package present

import (
	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
)

// Remedy returns a remedy for a source that failed, or "" if that depends on the error.
func Remedy(reason driver.Reason) (do string) {
	const kernelLog = "see the kernel's log (dmesg): the driver does not answer"
	return map[driver.Reason]string{
		driver.ReasonForbidden: "run as root with the capabilities that the error names, or mount what it reads: " +
			"see the chart's values",
		driver.ReasonDiskFull:        "free disk space; the exporter tries again",
		driver.ReasonReadOnly:        "mount the folder writable, or set another folder",
		driver.ReasonLocked:          "end the other instance on this node: only one can use the state folder",
		driver.ReasonDriverNotLoaded: "load the kernel driver of the vendor on the node",
		driver.ReasonDriverMismatch:  "restart the node: the library is newer than the loaded kernel driver",
		driver.ReasonTimeout:         kernelLog,
		driver.ReasonHung:            kernelLog,
		driver.ReasonGPULost:         "see the kernel's log (dmesg) for Xid 79; the node must be restarted",
	}[reason]
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
	known := map[join.MissingReason][2]string{
		join.MissingNone: {},
		join.MissingNoInventory: {
			"not in any ResourceSlice: its hardware is unknown", "allow access to the API server, or set --inventory.file",
		},
		join.MissingNoSource: {
			"no source reads devices of " + driverName, "name the vendor's exporter in --source.scrape.config",
		},
		join.MissingNoMatch: {
			"no source has hardware with its UUID, PCI address or interface", "see which hardware the sources read",
		},
		join.MissingNotInstantiated: {"a partition that is not created"},
		join.MissingDriverGone:      {"its DRA driver no longer runs on this node", "check the pods of " + driverName},
		join.MissingDuplicate:       {"another device of the same hardware has its telemetry"},
		join.MissingAmbiguous:       {"several pieces of hardware match it", "see its attributes in the ResourceSlice"},
		join.MissingUnreadable:      {"its source knows the device and can't read it", "see the error of the source"},
		join.MissingRejected: {
			"its source answers with values that no device can have", "see the log, and the device itself",
		},
		join.MissingNoReadings: {
			"its source finds the device and reads no value", "see what the source needs: often a newer kernel or driver",
		},
	}
	if of, ok := known[missing]; ok {
		return of[0], of[1]
	}
	return string(missing), ""
}
