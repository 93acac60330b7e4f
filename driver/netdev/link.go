package netdev

import (
	"path/filepath"
	"strconv"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

// link is the state of the link of an interface with hardware.
type link struct {
	known, up bool
	downs     counter // number of losses of the carrier
}

// readLink reads the state of the link and the number of losses, in the open folder of an
// interface. It reads the operational state (RFC 2863, Documentation/networking/operstates.rst),
// which takes no lock. It reads carrier only if that state is missing or "unknown". An interface
// that is switched off has no link.
func (i *netInterface) readLink(r *sysfs.Reader, folder sysfs.Dir, name string, bad *sysfs.Problems) {
	l := &i.link
	l.known, l.up, l.downs.read = false, false, false
	state, err := r.Value(folder, "operstate")
	if err != nil {
		addUnlessAbsent(bad, err, name, "operstate")
	}
	switch text := string(state); {
	case err == nil && text != "unknown":
		l.known, l.up = true, text == "up"
	default:
		carrier, failed := r.Value(folder, "carrier")
		l.known, l.up = failed == nil, failed == nil && string(carrier) == "1"
		if failed != nil {
			addUnlessAbsent(bad, failed, name, "carrier")
			l.known = err == nil && sysfs.IsAbsent(failed) // carrier can't be read while the interface is off
		}
	}
	downs, err := r.Number(folder, "carrier_down_count")
	if err != nil {
		addUnlessAbsent(bad, err, name, "carrier_down_count")
		return
	}
	l.downs.read = true
	l.downs.advance(downs, i.at)
}

// report appends the readings of the link.
func (l *link) report(readings []driver.Reading, i *netInterface) []driver.Reading {
	if l.known {
		up := 0.0
		if l.up {
			up = 1
		}
		readings = append(readings, driver.Reading{
			Quantity: driver.LinkUp, Labels: driver.Labels{"network"}, Value: up, At: i.at,
		})
	}
	if l.downs.read {
		readings = append(readings, driver.Reading{
			Quantity: driver.Errors, Labels: driver.Labels{"link_down"}, Value: float64(l.downs.Value), At: i.at,
			Since: l.downs.since,
		})
	}
	return readings
}

// readLinkInPod reads the link of a pod's interface in the sysfs of one of the pod's processes.
// This needs CAP_SYS_PTRACE: without it, the link is unknown, but net/dev is still read.
func (r *podReader) readLinkInPod(i *netInterface, f *found) {
	i.link.known, i.link.downs.read = false, false
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
