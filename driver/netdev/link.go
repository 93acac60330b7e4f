package netdev

import (
	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

// readLink adds the state of the link and the number of losses of the carrier. It reads the
// operational state (RFC 2863, Documentation/networking/operstates.rst), which takes no lock. It
// reads carrier only if that state is missing or "unknown". An interface that is switched off has
// no link.
func readLink(a *sysfs.Attributes) {
	switch state := a.Text("operstate"); state {
	case "up":
		a.Add(driver.LinkUp, 1, "network")
	case "down", "lowerlayerdown", "dormant", "testing", "notpresent":
		a.Add(driver.LinkUp, 0, "network")
	default:
		carrier, err := a.Reader.Number(a.Dir, "carrier")
		a.Fail("carrier", err)
		up, known := driver.NumberOf(carrier, err)
		if known || state != "" && sysfs.IsAbsent(err) { // carrier can't be read while the interface is off
			a.Add(driver.LinkUp, up, "network")
		}
	}
	a.Gauge("carrier_down_count", 1, driver.Errors, "link_down")
}

// readLinkInPod reads the link of a pod's interface in the sysfs of one of the pod's processes.
// This needs CAP_SYS_PTRACE: without it, the link is unknown, but net/dev is still read.
func (r *podReader) readLinkInPod(a *sysfs.Attributes, f *found) {
	class, err := sysfs.OpenClass(r.source.Procfs, f.pid, "net", r.source.isSysfs)
	if err != nil {
		return
	}
	defer class.Close()
	folder, err := sysfs.OpenDevice(class, f.Interface, r.source.isSysfs)
	if err != nil {
		return
	}
	defer folder.Close()
	a.Dir = folder
	readLink(a)
}
