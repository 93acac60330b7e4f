package netdev

import (
	"path/filepath"
	"strconv"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

// link is the state of the link of an interface with hardware.
type link struct {
	known bool
	up    float64 // 1 or 0
	downs counter // number of losses of the carrier
}

// readLink reads the state of the link and the number of losses, in the open folder of an
// interface. It reads the operational state (RFC 2863, Documentation/networking/operstates.rst),
// which takes no lock. It reads carrier only if that state is missing or "unknown". An interface
// that is switched off has no link.
func (i *netInterface) readLink(r *sysfs.Reader, folder sysfs.Dir, name string, bad *sysfs.Problems) {
	l := &i.link
	l.lose()
	state, err := r.Value(folder, "operstate")
	if err != nil {
		addUnlessAbsent(bad, err, name, "operstate")
	}
	switch string(state) {
	case "up":
		l.known, l.up = true, 1
	case "down", "lowerlayerdown", "dormant", "testing", "notpresent":
		l.known = true
	default:
		carrier, failed := r.Number(folder, "carrier")
		if failed != nil {
			addUnlessAbsent(bad, failed, name, "carrier")
		}
		if l.up, l.known = driver.NumberOf(carrier, failed); !l.known {
			l.known = err == nil && sysfs.IsAbsent(failed) // carrier can't be read while the interface is off
		}
	}
	downs, err := r.Number(folder, "carrier_down_count")
	if err != nil {
		addUnlessAbsent(bad, err, name, "carrier_down_count")
	}
	l.downs.take(downs, err, i.at)
}

// lose records that nothing could be read.
func (l *link) lose() {
	l.known, l.up = false, 0
	l.downs.lose()
}

// report appends the readings of the link.
func (l *link) report(readings []driver.Reading, i *netInterface) []driver.Reading {
	if l.known {
		readings = append(readings, driver.Reading{
			Quantity: driver.LinkUp, Labels: driver.Labels{"network"}, Value: l.up, At: i.at,
		})
	}
	return l.downs.report(readings, driver.Errors, driver.Labels{"link_down"}, i.at)
}

// readLinkInPod reads the link of a pod's interface in the sysfs of one of the pod's processes.
// This needs CAP_SYS_PTRACE: without it, the link is unknown, but net/dev is still read.
func (r *podReader) readLinkInPod(i *netInterface, f *found) {
	i.link.lose()
	root, err := sysfs.OpenDir(sysfs.WorkingDir, filepath.Join(r.source.Procfs, strconv.Itoa(f.pid), "root"))
	if err != nil {
		return
	}
	defer root.Close()
	class, err := sysfs.OpenIn(root, "sys/class/net")
	if err != nil {
		return
	}
	defer class.Close()
	if !r.source.isSysfs(class) {
		return
	}
	folder, err := sysfs.OpenDir(class, f.Interface)
	if err != nil {
		return
	}
	defer folder.Close()
	if r.source.isSysfs(folder) {
		i.readLink(&r.source.file, folder, f.Interface, r.bad)
	}
}
