package present

import (
	"fmt"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/stall"
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

// progressOf returns what a verdict about a claim's progress stands on, as sentences.
func progressOf(v *stall.Verdict) string {
	var out []string
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	switch {
	case v.Unknown != stall.Known:
		say("Unknown: %s.", v.Unknown.Meaning())
	case v.Stalled != nil:
		say("For %s, none of these has shown progress: %s.", Duration(v.For.Seconds()), words(v.Stalled))
	case len(v.Progress) > 0:
		say("Progress: %s.", words(v.Progress))
	}
	if len(v.Missing) > 0 {
		say("Not measured: %s.", words(v.Missing))
	}
	switch {
	case len(v.HostShows) > 0:
		say("The pods' %s show work on the host.", words(v.HostShows))
	case len(v.Host) > 0:
		say("The pods show no work on the host by %s.", words(v.Host))
	}
	if v.Ranks > 1 {
		say("Of %d ranks on this node, %d work and %d do nothing: %s.", v.Ranks, v.Working, v.Still, words(v.Peers))
	}
	if v.Before != "" {
		say("Since %s; before: %s.", Clock(v.Since), v.Before)
	}
	return strings.Join(out, " ")
}

func words[S fmt.Stringer](signals []S) string { return nameOf(strings.Join(texts(signals), ", ")) }
